"""Reductions of a group: by the library, or, for operators that it has not, by the ranks."""

import contextlib

import torch

from accl import library
from accl.torch.kinds import scalar
from accl.torch.tensors import Operand, all_of, checked, only, same_type, together
from accl.torch.work import done

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Reductions:
    """The part of `group.Group` that reduces; it makes its calls as that says."""

    def allreduce(self, tensors, opts):
        tensor = only(tensors, "all_reduce")
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        return self._all_reduce(tensors, opts)

    def allreduce_coalesced(self, tensors, opts):
        return self._all_reduce(tensors, opts)

    def allreduce_sparse(self, tensors, opts):
        return self._all_reduce_sparse(only(tensors, "all_reduce"), opts)

    def _all_reduce(self, tensors, opts):
        operands = [Operand(tensor, opts.reduceOp) for tensor in checked(tensors)]
        comm = self._begin(opts)
        # Those of types for which the library has no such operator.
        for operand in operands:
            if operand.how.combine:
                self._combine_all(operand)
        operands = [operand for operand in operands if not operand.how.combine]
        if not operands:
            return done(tensors)

        def launch(stream):
            with self._operators(operands, comm) as operators:
                self._make(
                    [
                        (self._library.all_reduce, *operand.in_place(), operator, comm, stream)
                        for operand, operator in zip(operands, operators, strict=True)
                    ]
                )

        return self._run(opts, launch, tensors, all_of(operand.put_back for operand in operands), operands)

    def reduce(self, tensors, opts):
        tensor = only(tensors, "reduce")
        operand = Operand(tensor, opts.reduceOp)
        comm, root = self._begin(opts), opts.rootRank
        if operand.how.combine:
            self._combine_all(operand, here=self._rank == root)
            return done(tensors)

        def launch(stream):
            send, recv, count, dtype = operand.in_place()
            recv = recv if self._rank == root else None
            with self._operators([operand], comm) as [operator]:
                self._library.check(
                    self._library.reduce(send, recv, count, dtype, operator, root, comm, stream)
                )

        finish = operand.put_back if self._rank == root else None
        return self._run(opts, launch, tensors, finish, operand)

    def reduce_scatter_single(self, output, input, opts):
        return self._reduce_scatter([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        return self._reduce_scatter(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, outputs, inputs, opts):
        for output, input in zip(checked(outputs), checked(inputs), strict=True):
            same_type(output, input, "reduce_scatter")
            if input.numel() != output.numel() * self._size:
                raise ValueError(
                    f"reduce_scatter: {input.numel()} elements for {self._size} ranks need an output of "
                    f"{input.numel() / self._size:g}, and it has {output.numel()}"
                )
        pairs = [
            (Operand(input, opts.reduceOp), Operand(output, opts.reduceOp, filled=False))
            for output, input in zip(outputs, inputs, strict=True)
        ]
        comm = self._begin(opts)
        for operand, result in pairs:
            if operand.how.combine:
                self._combine_shares(operand, result)
        pairs = [(operand, result) for operand, result in pairs if not operand.how.combine]
        if not pairs:
            return done(outputs)

        def launch(stream):
            with self._operators([operand for operand, _ in pairs], comm) as operators:
                self._make(
                    [
                        (self._library.reduce_scatter, operand.address(), *result.target(), operator, comm, stream)
                        for (operand, result), operator in zip(pairs, operators, strict=True)
                    ]
                )

        finish = all_of(result.put_back for _, result in pairs)
        return self._run(opts, launch, outputs, finish, pairs)

    def reduce_scatter(self, outputs, inputs, opts):
        output, parts = only(outputs, "reduce_scatter"), only(inputs, "reduce_scatter")
        self._count_is(parts, "reduce_scatter: the input list")
        if parts[self._rank].shape != output.shape:
            raise ValueError(
                f"reduce_scatter: part {self._rank} has the shape {tuple(parts[self._rank].shape)}, and the output "
                f"{tuple(output.shape)}"
            )
        if all(part.shape == output.shape for part in parts):
            flat = together(checked(parts))
            if flat is None:
                flat = torch.cat([part.resolve_conj().resolve_neg().reshape(-1) for part in parts])
            return self._reduce_scatter([output], [flat], opts)
        return self._reduce_each(output, parts, opts)

    def _reduce_each(self, output, parts, opts):
        """Parts of different sizes: each is reduced to its rank."""
        operands = [Operand(part, opts.reduceOp) for part in checked(parts)]
        result = Operand(output, opts.reduceOp, filled=False)
        comm = self._begin(opts)
        if result.how.combine:
            for rank, operand in enumerate(operands):
                whole = self._combined(operand)
                if rank == self._rank:
                    result.tensor.copy_(whole)
            return done([output])

        def launch(stream):
            with self._operators([result], comm) as [operator]:
                self._library.group(
                    (
                        self._library.reduce,
                        operand.address(),
                        result.address() if rank == self._rank else None,
                        operand.count,
                        operand.dtype,
                        operator,
                        rank,
                        comm,
                        stream,
                    )
                    for rank, operand in enumerate(operands)
                )

        return self._run(opts, launch, [output], result.put_back, (operands, result))

    @contextlib.contextmanager
    def _operators(self, operands, comm):
        """The library's operators for these, for one call: those with factors are made for it."""
        operators = []
        try:
            for operand in operands:
                operators.append(self._operator(operand, comm))
            yield operators
        finally:
            for operand, operator in zip(operands, operators, strict=False):
                if operand.how.factor is not None:
                    self._library.factor_destroy(operator, comm)

    def _operator(self, operand, comm):
        if operand.how.factor is None:
            return operand.how.operator
        factor = scalar(operand.how.factor, operand.data.dtype)
        return self._library.factor(factor, operand.dtype, comm)

    # ---- Operators that the library has not: every rank reduces a share, in the order of ranks

    def _combine_all(self, operand, here=True):
        whole = self._combined(operand)
        if here:
            operand.tensor.copy_(whole.view(operand.tensor.shape))

    def _combined(self, operand):
        flat = operand.plain.reshape(-1)
        share = -(-flat.numel() // self._size)
        padded = flat.new_zeros(share * self._size)
        padded[: flat.numel()] = flat
        mine = self._combined_share(operand, padded)
        whole = torch.empty_like(padded)
        self._check(self._moved, self._library.all_gather, mine, whole, mine.nbytes)
        return whole[: flat.numel()]

    def _combine_shares(self, operand, result):
        share = self._combined_share(operand, operand.plain.reshape(-1))
        result.tensor.copy_(share.view(result.tensor.shape))

    def _combined_share(self, operand, flat):
        parts = torch.empty_like(flat)
        self._check(self._moved, self._library.all_to_all, flat, parts, flat.nbytes // self._size)
        view = _SIGNED.get(flat.dtype, flat.dtype)
        mine, *others = parts.view(view).view(self._size, parts.numel() // self._size).unbind()
        for other in others:
            mine = operand.how.combine(mine, other)
        return mine.contiguous().view(flat.dtype)

    def _moved(self, call, source, target, size_bytes):
        self._library.check(
            call(source.data_ptr(), target.data_ptr(), size_bytes, library.UINT8, self._comm, None)
        )

    def _all_reduce_sparse(self, tensor, opts):
        """The sum of sparse tensors: everybody gets all entries."""
        if opts.reduceOp != torch.distributed.ReduceOp.SUM:
            raise ValueError("all_reduce of sparse tensors sums; there is no other operator for them")
        mine = tensor.detach().coalesce()
        comm = self._begin(opts)
        counts = torch.zeros(self._size, dtype=torch.int64)
        own = torch.tensor([mine._nnz()])
        self._check(self._moved, self._library.all_gather, own, counts, 8)
        indices, values = [], []
        for rank, count in enumerate(counts.tolist()):
            here = rank == self._rank
            shape = (mine.sparse_dim(), count)
            indices.append(mine.indices().contiguous() if here else torch.empty(shape, dtype=torch.int64))
            shape = (count, *mine.values().shape[1:])
            values.append(mine.values().contiguous() if here else torch.empty(shape, dtype=mine.dtype))
        calls = [
            (self._library.broadcast, part.data_ptr(), part.data_ptr(), part.nbytes, library.UINT8, rank, comm, None)
            for parts in (indices, values)
            for rank, part in enumerate(parts)
        ]
        self._check(self._library.group, calls)
        whole = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(whole)
        return done([whole])
