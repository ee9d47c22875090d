"""Tensors as calls of the library see them, and what is wrong with those that callers bring."""

import torch

from accl import library
from accl.torch.kinds import TYPES, reduction


def is_plain(tensor):
    """True if its memory is its elements in their order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Plain:
    """A tensor's elements without gaps, in memory that calls use: the tensor's own where it can be."""

    __slots__ = ("data", "tensor")

    def __init__(self, tensor, *, filled=True):
        # What calls write is nothing that autograd is to know of.
        self.tensor = tensor = tensor.detach()
        if is_plain(tensor):
            self.data = tensor
        elif filled:
            self.data = tensor.resolve_conj().resolve_neg().contiguous()
            if self.data is tensor:
                self.data = tensor.clone(memory_format=torch.contiguous_format)
        else:
            self.data = torch.empty(tensor.shape, dtype=tensor.dtype)

    def put_back(self):
        """What has come goes where it belongs."""
        if self.data is not self.tensor:
            self.tensor.copy_(self.data)


class Operand:
    """A tensor that is reduced, as the library sees it."""

    __slots__ = ("count", "data", "dtype", "how", "plain", "tensor")

    def __init__(self, tensor, op, *, filled=True):
        plain = Plain(tensor, filled=filled)
        self.tensor, self.plain, self.how = plain.tensor, plain.data, reduction(tensor.dtype, op)
        data = self.plain
        if self.how.wide is not None:
            data = data.to(self.how.wide)
        elif self.how.view is not None:
            data = data.view(self.how.view) if data.dim() else data.reshape(1).view(self.how.view)
        self.data, self.count, self.dtype = data, data.numel(), TYPES.get(data.dtype)

    def address(self):
        return self.data.data_ptr()

    def in_place(self):
        """sendbuff, recvbuff, count, datatype"""
        address = self.data.data_ptr()
        return address, address, self.count, self.dtype

    def target(self):
        """recvbuff, count, datatype"""
        return self.data.data_ptr(), self.count, self.dtype

    def put_back(self):
        if self.how.wide is not None:
            self.tensor.copy_(self.data)
        elif self.plain is not self.tensor:
            self.tensor.copy_(self.plain)


def only(tensors, what):
    if len(tensors) != 1:
        raise ValueError(f"{what}: {len(tensors)} tensors; need one for each rank")
    if isinstance(tensors[0], torch.Tensor):
        checked(tensors)
    return tensors[0]


def checked(tensors):
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"accl: a tensor on {tensor.device}; need tensors on the CPU, or another back end for that device")
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise ValueError(f"accl: a tensor of layout {tensor.layout}; need a strided one, or to_dense()")
    return tensors


def together(parts):
    """One tensor of the same memory, if parts of equal size lie one behind the other, as those of `chunk` do; else None."""
    first = parts[0]
    address, size_bytes, storage = first.data_ptr(), first.nbytes, first.untyped_storage().data_ptr()
    for place, part in enumerate(parts):
        there = part.data_ptr() == address + place * size_bytes and part.nbytes == size_bytes
        if not (is_plain(part) and there and part.untyped_storage().data_ptr() == storage):
            return None
    return first.detach().as_strided((first.numel() * len(parts),), (1,))


def same_type(output, input, what):
    if output.dtype != input.dtype:
        raise ValueError(f"{what}: the output is {output.dtype} and the input {input.dtype}; need the same type")


def bytes_of(tensor):
    """buff, count, datatype"""
    return tensor.data_ptr(), tensor.nbytes, library.UINT8


def split_rows(tensor, sizes, ranks, what):
    """Views of a tensor's rows, one for each rank."""
    if not sizes:
        if tensor.shape[0] % ranks:
            raise ValueError(f"all_to_all: {tensor.shape[0]} rows of the {what} do not go by {ranks} ranks; pass split sizes")
        sizes = [tensor.shape[0] // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != tensor.shape[0]:
        raise ValueError(
            f"all_to_all: {what} splits {list(sizes)} have the sum {sum(sizes)} for {tensor.shape[0]} rows, and are "
            f"{len(sizes)} for {ranks} ranks"
        )
    return tensor.split(list(sizes))


def all_of(actions):
    actions = list(actions)

    def run():
        for action in actions:
            action()

    return run
