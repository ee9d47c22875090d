"""The back end: what torch.distributed asks of a group, as calls of the library.

Where the caller waits anyway, a call runs on the calling thread; else on a host stream (`work`). Sends and receives have ways of their own
(`messages`). Tensors of any layout are taken: those that are not contiguous are copied before, and back after.
"""

import datetime
import time

import torch
from torch.distributed import DistBackendError
from torch._C._distributed_c10d import Backend

from accl import library
from accl.torch import native
from accl.torch.kinds import TYPES, reduction, scalar
from accl.torch.messages import Messages
from accl.torch.rendezvous import Rendezvous
from accl.torch.work import NativeStreams, Streams, done

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_UNSET = datetime.timedelta(milliseconds=-1)

_DONE = done([])

_opened = None


def _library():
    global _opened
    if _opened is None:
        _opened = library.Library()
    return _opened


class Plain:
    """A tensor's elements without gaps, in memory that calls use: the tensor's own where it can be."""

    __slots__ = ("data", "tensor")

    def __init__(self, tensor, *, filled=True):
        self.tensor = tensor
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
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


class Group:
    """One rank of a group."""

    def __init__(self, options):
        self._rank, self._size = options.group_rank, options.group_size
        self._rendezvous, self._name = Rendezvous(options.store), options.group_id
        self._default_timeout = options.timeout
        self._library = _library()
        module = native.load()
        if module is not None:
            self._streams = NativeStreams(module, self._library, self, self._explained)
        else:
            self._streams = Streams(self._library, self._explained)
        self._messages = Messages(self._library, self._streams, self._rendezvous, self._rank)
        self._comm = None
        self._limit_s = None
        self._sequence = self._barriers = 0

    @property
    def rank(self):
        return self._rank

    @property
    def size(self):
        return self._size

    def new_stream(self):
        """A host stream, for those who make calls without Python."""
        return self._library.stream()

    def backend(self):
        """What PyTorch calls."""
        streams = self._streams
        return PythonBackend(self) if isinstance(streams, Streams) else streams.backend

    # ---- Life

    def _joined(self):
        """The communicator; all ranks make it with the first operation of the group."""
        if self._comm is None:
            self._comm = self._meet()
        return self._comm

    def _meet(self):
        try:
            if self._rank == 0:
                unique_id = self._library.unique_id()
                self._rendezvous.tell("accl/id", unique_id)
            else:
                limit_s = self._default_timeout.total_seconds()
                unique_id = self._rendezvous.hear("accl/id", limit_s, "rank 0 has not made its first call on this group")
            return self._library.join(self._size, self._rank, unique_id)
        except (library.Failure, TimeoutError) as failure:
            raise self._explained(failure) from None

    def _explained(self, failure):
        return DistBackendError(f"accl, rank {self._rank} of {self._size} in group {self._name}: {failure}")

    def shutdown(self):
        self._messages.drop_receives()
        self._streams.drain()
        self._messages.end(forcibly=False)
        self._streams.use(None, 0, 0)
        comm, self._comm = self._comm, None
        if comm is not None:
            self._library.destroy(comm)

    def abort(self):
        self._messages.end(forcibly=True)
        self._streams.use(None, 0, 0)
        comm, self._comm = self._comm, None
        if comm is not None:
            self._library.abort(comm)

    def set_timeout(self, timeout):
        self._default_timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        self._sequence = 0

    def _get_sequence_number_for_group(self):
        return self._sequence

    # ---- How calls are made

    def _begin(self, opts):
        """The communicator, with this call's time limit."""
        comm = self._comm or self._joined()
        timeout = opts.timeout
        seconds = (self._default_timeout if timeout == _UNSET else timeout).total_seconds()
        if seconds != self._limit_s:
            self._check(self._library.limit, min(int(seconds * 1000), 2**31 - 1), comm)
            self._limit_s = seconds
            usual_s = self._default_timeout.total_seconds()
            self._streams.use(comm, int(seconds * 1000), int(usual_s * 1000))
        self._sequence += 1
        return comm

    def _check(self, function, *arguments):
        try:
            return function(*arguments)
        except library.Failure as failure:
            raise self._explained(failure) from None

    def _run(self, opts, launch, outputs, finish=None, keep=None):
        """Makes calls by `launch(stream)`, each of which checks itself: now, or, if the caller does not wait, on a stream."""
        try:
            if getattr(opts, "asyncOp", True):
                return self._streams.run(launch, outputs, finish=finish, keep=keep)
            launch(None)
        except library.Failure as failure:
            raise self._explained(failure) from None
        if finish is not None:
            finish()
        # Nobody looks at it.
        return _DONE

    def _grouped(self, calls):
        """Makes calls that belong together."""
        self._library.group_start()
        try:
            for call, *arguments in calls:
                # What fails is said at the end, which carries out nothing then.
                call(*arguments)
        finally:
            code = self._library.group_end()
        self._library.check(code)

    def _count_is(self, tensors, what):
        if len(tensors) != self._size:
            raise ValueError(f"{what} has {len(tensors)} tensors; need {self._size}, one for each rank")

    # ---- Reductions

    def allreduce(self, tensors, opts):
        tensor = _only(tensors, "all_reduce")
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        return self._all_reduce(tensors, opts)

    def allreduce_coalesced(self, tensors, opts):
        return self._all_reduce(tensors, opts)

    def allreduce_sparse(self, tensors, opts):
        return self._all_reduce_sparse(_only(tensors, "all_reduce"), opts)

    def _all_reduce(self, tensors, opts):
        operands = [_Operand(tensor, opts.reduceOp) for tensor in _checked(tensors)]
        comm = self._begin(opts)
        if any(operand.how.combine for operand in operands):
            for operand in operands:
                self._combine_all(operand, opts)
            return done(tensors)

        def launch(stream):
            calls = [
                (self._library.all_reduce, *operand.in_place(), operator, comm, stream)
                for operand in operands
                for operator in [self._operator(operand, comm)]
            ]
            try:
                self._make(calls)
            finally:
                self._forget(operands, calls, comm, at=5)

        return self._run(opts, launch, tensors, _all(operand.put_back for operand in operands), operands)

    def reduce(self, tensors, opts):
        tensor = _only(tensors, "reduce")
        operand = _Operand(tensor, opts.reduceOp)
        comm, root = self._begin(opts), opts.rootRank
        if operand.how.combine:
            self._combine_all(operand, opts, here=self._rank == root)
            return done(tensors)

        def launch(stream):
            operator = self._operator(operand, comm)
            try:
                send, recv, count, dtype = operand.in_place()
                recv = recv if self._rank == root else None
                self._library.check(
                    self._library.reduce(send, recv, count, dtype, operator, root, comm, stream)
                )
            finally:
                self._forget([operand], [(operator,)], comm, at=0)

        finish = operand.put_back if self._rank == root else None
        return self._run(opts, launch, tensors, finish, operand)

    def reduce_scatter_single(self, output, input, opts):
        return self._reduce_scatter([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        return self._reduce_scatter(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, outputs, inputs, opts):
        for output, input in zip(_checked(outputs), _checked(inputs), strict=True):
            _same_type(output, input, "reduce_scatter")
            if input.numel() != output.numel() * self._size:
                raise ValueError(
                    f"reduce_scatter: {input.numel()} elements for {self._size} ranks need an output of "
                    f"{input.numel() / self._size:g}, and it has {output.numel()}"
                )
        pairs = [
            (_Operand(input, opts.reduceOp), _Operand(output, opts.reduceOp, filled=False))
            for output, input in zip(outputs, inputs, strict=True)
        ]
        comm = self._begin(opts)
        if any(operand.how.combine for operand, _ in pairs):
            for operand, result in pairs:
                self._combine_shares(operand, result)
            return done(outputs)

        def launch(stream):
            calls = [
                (self._library.reduce_scatter, operand.address(), *result.target(), operator, comm, stream)
                for operand, result in pairs
                for operator in [self._operator(operand, comm)]
            ]
            try:
                self._make(calls)
            finally:
                self._forget([operand for operand, _ in pairs], calls, comm, at=5)

        finish = _all(result.put_back for _, result in pairs)
        return self._run(opts, launch, outputs, finish, pairs)

    def reduce_scatter(self, outputs, inputs, opts):
        output, parts = _only(outputs, "reduce_scatter"), _only(inputs, "reduce_scatter")
        self._count_is(parts, "reduce_scatter: the input list")
        if parts[self._rank].shape != output.shape:
            raise ValueError(
                f"reduce_scatter: part {self._rank} has the shape {tuple(parts[self._rank].shape)}, and the output "
                f"{tuple(output.shape)}"
            )
        if all(part.shape == output.shape for part in parts):
            flat = _together(_checked(parts))
            if flat is None:
                flat = torch.cat([part.resolve_conj().resolve_neg().reshape(-1) for part in parts])
            return self._reduce_scatter([output], [flat], opts)
        return self._reduce_each(output, parts, opts)

    def _reduce_each(self, output, parts, opts):
        """Parts of different sizes: each is reduced to its rank."""
        operands = [_Operand(part, opts.reduceOp) for part in _checked(parts)]
        result = _Operand(output, opts.reduceOp, filled=False)
        comm = self._begin(opts)
        if result.how.combine:
            for rank, operand in enumerate(operands):
                whole = self._combined(operand, opts)
                if rank == self._rank:
                    result.tensor.copy_(whole)
            return done([output])

        def launch(stream):
            operator = self._operator(result, comm)
            try:
                self._grouped(
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
            finally:
                self._forget([result], [(operator,)], comm, at=0)

        return self._run(opts, launch, [output], result.put_back, (operands, result))

    def _make(self, calls):
        """One call as it is, several as a group."""
        if len(calls) == 1:
            call, *arguments = calls[0]
            self._library.check(call(*arguments))
        else:
            self._grouped(calls)

    def _operator(self, operand, comm):
        if operand.how.factor is None:
            return operand.how.operator
        factor = scalar(operand.how.factor, operand.data.dtype)
        return self._library.factor(factor, operand.dtype, comm)

    def _forget(self, operands, calls, comm, at):
        """Operators with factors are for one call."""
        for operand, call in zip(operands, calls, strict=True):
            if operand.how.factor is not None:
                self._library.factor_destroy(call[at], comm)

    # ---- Operators that the library has not: every rank reduces a share, in the order of ranks

    def _combine_all(self, operand, opts, here=True):
        whole = self._combined(operand, opts)
        if here:
            operand.tensor.copy_(whole.view(operand.tensor.shape))

    def _combined(self, operand, opts):
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
        mine, *others = parts.view(view).view(self._size, -1).unbind()
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
        mine = tensor.coalesce()
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
        self._check(self._grouped, calls)
        whole = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape).coalesce()
        tensor.copy_(whole)
        return done([whole])

    # ---- Data that moves

    def broadcast(self, tensors, opts):
        tensor = _only(tensors, "broadcast")
        plain = Plain(tensor)
        comm, root = self._begin(opts), opts.rootRank
        data = plain.data

        def launch(stream):
            address = data.data_ptr()
            self._library.check(
                self._library.broadcast(address, address, data.nbytes, library.UINT8, root, comm, stream)
            )

        finish = None if self._rank == root else plain.put_back
        return self._run(opts, launch, tensors, finish, plain)

    def all_gather_single(self, output, input, opts):
        return self._all_gather([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._all_gather(outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather(self, outputs, inputs, opts):
        for output, input in zip(_checked(outputs), _checked(inputs), strict=True):
            _same_type(output, input, "all_gather")
            if output.numel() != input.numel() * self._size:
                raise ValueError(
                    f"all_gather: {input.numel()} elements from each of {self._size} ranks need an output of "
                    f"{input.numel() * self._size}, and it has {output.numel()}"
                )
        pairs = [
            (Plain(input), Plain(output, filled=False)) for output, input in zip(outputs, inputs, strict=True)
        ]
        comm = self._begin(opts)

        def launch(stream):
            calls = [
                (
                    self._library.all_gather,
                    source.data.data_ptr(),
                    target.data.data_ptr(),
                    source.data.nbytes,
                    library.UINT8,
                    comm,
                    stream,
                )
                for source, target in pairs
            ]
            self._make(calls)

        finish = _all(target.put_back for _, target in pairs)
        return self._run(opts, launch, outputs, finish, pairs)

    def allgather(self, outputs, inputs, opts):
        row, input = _only(outputs, "all_gather"), _only(inputs, "all_gather")
        self._own_part(row, input)
        count = input.numel()
        if any(part.numel() != count for part in row):
            return self.allgather_coalesced([row], [input], opts)
        source, flat = Plain(input), _together(row)
        together = flat is not None
        if not together:
            flat = torch.empty(count * self._size, dtype=input.dtype)
        comm = self._begin(opts)

        def launch(stream):
            address, target = source.data.data_ptr(), flat.data_ptr()
            self._library.check(
                self._library.all_gather(address, target, source.data.nbytes, library.UINT8, comm, stream)
            )

        def finish():
            for part, come in zip(row, flat.split(count) if count else (), strict=False):
                part.copy_(come.view(part.shape))

        return self._run(opts, launch, [row], None if together else finish, (source, flat, row))

    def allgather_coalesced(self, outputs, inputs, opts):
        if len(outputs) == self._size != len(inputs) and all(len(row) == len(inputs) for row in outputs):
            # By rank, as gloo has it; here by tensor.
            outputs = [list(column) for column in zip(*outputs, strict=True)]
        lists = [(self._own_part(row, input), row) for row, input in zip(outputs, inputs, strict=True)]
        parts = [[Plain(part, filled=False) for part in row] for _, row in lists]
        for (own, _), row in zip(lists, parts, strict=True):
            row[self._rank].data.copy_(own.data)
        comm = self._begin(opts)

        def launch(stream):
            self._grouped(
                (
                    self._library.broadcast,
                    part.data.data_ptr(),
                    part.data.data_ptr(),
                    part.data.nbytes,
                    library.UINT8,
                    rank,
                    comm,
                    stream,
                )
                for row in parts
                for rank, part in enumerate(row)
            )

        finish = _all(part.put_back for row in parts for part in row)
        return self._run(opts, launch, outputs, finish, parts)

    def _own_part(self, row, input):
        self._count_is(row, "all_gather: the output list")
        _checked([input])
        for part in _checked(row):
            _same_type(part, input, "all_gather")
        if row[self._rank].numel() != input.numel():
            raise ValueError(
                f"all_gather: output {self._rank} has {row[self._rank].numel()} elements, and the input "
                f"{input.numel()}"
            )
        return Plain(input)

    def gather(self, outputs, inputs, opts):
        input, root = Plain(_only(inputs, "gather")), opts.rootRank
        targets = []
        if self._rank == root:
            row = _only(outputs, "gather")
            self._count_is(row, "gather: the output list")
            targets = [Plain(part, filled=False) for part in _checked(row)]
            for target in targets:
                _same_type(target.tensor, input.tensor, "gather")
        comm = self._begin(opts)

        def launch(stream):
            sends = [(self._library.send, *_bytes(input.data), root, comm, stream)]
            receives = [
                (self._library.recv, *_bytes(target.data), rank, comm, stream)
                for rank, target in enumerate(targets)
            ]
            self._grouped(sends + receives)

        finish = _all(target.put_back for target in targets)
        return self._run(opts, launch, outputs, finish, (input, targets))

    def scatter(self, outputs, inputs, opts):
        output, root = Plain(_only(outputs, "scatter"), filled=False), opts.rootRank
        sources = []
        if self._rank == root:
            row = _only(inputs, "scatter")
            self._count_is(row, "scatter: the input list")
            sources = [Plain(part) for part in _checked(row)]
            for source in sources:
                _same_type(output.tensor, source.tensor, "scatter")
        comm = self._begin(opts)

        def launch(stream):
            sends = [
                (self._library.send, *_bytes(source.data), rank, comm, stream)
                for rank, source in enumerate(sources)
            ]
            self._grouped([*sends, (self._library.recv, *_bytes(output.data), root, comm, stream)])

        return self._run(opts, launch, outputs, output.put_back, (output, sources))

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        _checked([output, input])
        _same_type(output, input, "all_to_all")
        source, target = Plain(input), Plain(output, filled=False)
        if not output_splits and not input_splits:
            return self._all_to_all_even(source, target, opts)
        return self._exchange(
            _split(source.data, input_splits, self._size, "input"),
            _split(target.data, output_splits, self._size, "output"),
            [output],
            target.put_back,
            (source, target),
            opts,
        )

    alltoall_base = all_to_all_single

    def _all_to_all_even(self, source, target, opts):
        if source.data.numel() != target.data.numel() or source.data.numel() % self._size:
            raise ValueError(
                f"all_to_all: {source.data.numel()} elements go to {self._size} ranks, and {target.data.numel()} come; need "
                f"the same number, and a multiple of {self._size}"
            )
        comm = self._begin(opts)

        def launch(stream):
            share = source.data.nbytes // self._size
            self._library.check(
                self._library.all_to_all(
                    source.data.data_ptr(), target.data.data_ptr(), share, library.UINT8, comm, stream
                )
            )

        return self._run(opts, launch, [target.tensor], target.put_back, (source, target))

    def alltoall(self, outputs, inputs, opts):
        self._count_is(outputs, "all_to_all: the output list")
        self._count_is(inputs, "all_to_all: the input list")
        sources = [Plain(part) for part in _checked(inputs)]
        targets = [Plain(part, filled=False) for part in _checked(outputs)]
        for source, target in zip(sources, targets, strict=True):
            _same_type(target.tensor, source.tensor, "all_to_all")
        return self._exchange(
            [source.data for source in sources],
            [target.data for target in targets],
            outputs,
            _all(target.put_back for target in targets),
            (sources, targets),
            opts,
        )

    def _exchange(self, sources, targets, outputs, finish, keep, opts):
        """Part n of the sources goes to rank n, and of the targets comes from there."""
        comm = self._begin(opts)

        def launch(stream):
            sends = [
                (self._library.send, *_bytes(part), rank, comm, stream) for rank, part in enumerate(sources)
            ]
            receives = [
                (self._library.recv, *_bytes(part), rank, comm, stream) for rank, part in enumerate(targets)
            ]
            self._grouped(sends + receives)

        return self._run(opts, launch, outputs, finish, (keep, sources, targets))

    # ---- Messages and barriers

    def send(self, tensors, peer, tag):
        try:
            return self._messages.send(_only(tensors, "send"), peer, tag)
        except library.Failure as failure:
            raise self._explained(failure) from None

    def recv(self, tensors, peer, tag):
        try:
            return self._messages.recv(_only(tensors, "recv"), peer, tag)
        except library.Failure as failure:
            raise self._explained(failure) from None

    def recv_anysource(self, tensors, tag):
        if self._size == 2:
            return self.recv(tensors, 1 - self._rank, tag)
        raise NotImplementedError(
            f"accl: recv from any of {self._size - 1} ranks: name the source, or use the back end gloo for this group"
        )

    def barrier(self, opts):
        word = torch.zeros(1, dtype=torch.uint8)
        comm = self._begin(opts)

        def launch(stream):
            address = word.data_ptr()
            self._library.check(
                self._library.all_reduce(address, address, 1, library.UINT8, library.MAX, comm, stream)
            )

        return self._run(opts, launch, [], keep=word)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """By the store, so that whoever is missing is named, and the group can go on."""
        self._barriers += 1
        prefix = f"accl/barrier/{self._barriers}/"
        keys = [f"{prefix}{rank}" for rank in range(self._size)]
        self._rendezvous.tell(keys[self._rank], b"1")
        timeout = self._default_timeout if opts.timeout == _UNSET else opts.timeout
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._rendezvous.has(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._rendezvous.has([key])]
                if missing:
                    names = ", ".join(map(str, missing if wait_all_ranks else missing[:1]))
                    raise RuntimeError(
                        f"[Rank {self._rank}]: Ranks {names} failed to pass monitoredBarrier in "
                        f"{timeout.total_seconds() * 1000:.0f} ms"
                    )
            time.sleep(0.002)


class PythonBackend(Backend):
    """The back end where nothing could be compiled: each call is Python's."""

    # What is asked of a group that can do more than it must.
    supports_coalescing = False
    supports_splitting = False

    def __init__(self, group):
        super().__init__(group.rank, group.size)
        self._group = group

    def name(self):
        return "accl"

    getBackendName = _get_backend_name = name

    def __getattribute__(self, name):
        if name in _CALLS:
            return getattr(object.__getattribute__(self, "_group"), name)
        return super().__getattribute__(name)


# What PyTorch calls of a back end, by its own names.
_CALLS = {
    *("allreduce", "allreduce_coalesced", "allreduce_sparse", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter", "allgather", "allgather_coalesced", "gather", "scatter"),
    *("all_to_all_single", "alltoall_base", "alltoall", "send", "recv", "recv_anysource", "shutdown", "abort"),
    *("set_timeout", "_set_default_timeout", "_set_sequence_number_for_group", "_get_sequence_number_for_group"),
}


class _Operand:
    """A tensor that is reduced, as the library sees it."""

    __slots__ = ("count", "data", "dtype", "how", "plain", "tensor")

    def __init__(self, tensor, op, *, filled=True):
        self.tensor, self.how = tensor, reduction(tensor.dtype, op)
        self.plain = Plain(tensor, filled=filled).data
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


def _only(tensors, what):
    if len(tensors) != 1:
        raise ValueError(f"{what}: {len(tensors)} tensors; need one for each rank")
    if isinstance(tensors[0], torch.Tensor):
        _checked(tensors)
    return tensors[0]


def _checked(tensors):
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"accl: a tensor on {tensor.device}; need tensors on the CPU, or another back end for that device")
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise ValueError(f"accl: a tensor of layout {tensor.layout}; need a strided one, or to_dense()")
    return tensors


def _together(parts):
    """One tensor of the same memory, if parts of equal size lie one behind the other, as those of `chunk` do; else None."""
    first = parts[0]
    address, size_bytes, storage = first.data_ptr(), first.nbytes, first.untyped_storage().data_ptr()
    for place, part in enumerate(parts):
        plain = part.is_contiguous() and not part.is_conj() and not part.is_neg()
        there = part.data_ptr() == address + place * size_bytes and part.nbytes == size_bytes
        if not (plain and there and part.untyped_storage().data_ptr() == storage):
            return None
    return first.detach().as_strided((first.numel() * len(parts),), (1,))


def _same_type(output, input, what):
    if output.dtype != input.dtype:
        raise ValueError(f"{what}: the output is {output.dtype} and the input {input.dtype}; need the same type")


def _bytes(tensor):
    """buff, count, datatype"""
    return tensor.data_ptr(), tensor.nbytes, library.UINT8


def _split(tensor, sizes, ranks, what):
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


def _all(actions):
    actions = list(actions)

    def run():
        for action in actions:
            action()

    return run
