"""PyTorch's back end "accl" for tensors on CPUs. Importing this registers it:

    import accl.torch
    torch.distributed.init_process_group("accl")          # or "cpu:accl,cuda:nccl"
"""

import ctypes

import torch
import torch.distributed as dist

from accl.torch import group as _group

__all__ = ["empty"]


def _create(options, _extra):
    group = _group.Group(options.group_rank, options.group_size, options.store, options.group_id, options.timeout)
    return group.backend()


def _register():
    """Once in a process: importing this again changes nothing."""
    if not dist.is_available():
        raise ImportError("this PyTorch is built without torch.distributed; install one that has it")
    if "ACCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("accl", _create, extended_api=True, devices=["cpu"])


class _Memory:
    """Memory of the library, which goes when nothing uses it any more."""

    def __init__(self, opened, size_bytes):
        self._library, self.size_bytes, self.address = opened, size_bytes, None
        self.address = opened.allocate(max(size_bytes, 1))

    def __del__(self):
        if self.address is not None:
            self._library.memory_free(self.address)


def empty(*size, dtype=None):
    """A tensor of zeroes in memory that peers of this host read in place: operations on it copy less."""
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype or torch.get_default_dtype()
    size_bytes = shape.numel() * dtype.itemsize
    memory = _Memory(_group.opened_library(), size_bytes)
    window = (ctypes.c_uint8 * max(size_bytes, 1)).from_address(memory.address)
    # The tensor keeps the window, and the window its memory.
    window.memory = memory
    return torch.frombuffer(window, dtype=torch.uint8)[:size_bytes].view(dtype).view(shape)


_register()
