"""Data that moves within a group: as bytes, whatever its type."""

import torch

from accl import library
from accl.torch.tensors import Plain, all_of, bytes_of, checked, only, same_type, split_rows, together


class Movements:
    """The part of `group.Group` that moves data; it makes its calls as that says."""

    def broadcast(self, tensors, opts):
        tensor = only(tensors, "broadcast")
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
        for output, input in zip(checked(outputs), checked(inputs), strict=True):
            same_type(output, input, "all_gather")
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

        finish = all_of(target.put_back for _, target in pairs)
        return self._run(opts, launch, outputs, finish, pairs)

    def allgather(self, outputs, inputs, opts):
        row, input = only(outputs, "all_gather"), only(inputs, "all_gather")
        self._own_part(row, input)
        count = input.numel()
        if any(part.numel() != count for part in row):
            return self._gather_lists([row], [input], opts)
        source, flat = Plain(input), together(row)
        in_place = flat is not None
        if not in_place:
            flat = torch.empty(count * self._size, dtype=input.dtype)
        comm = self._begin(opts)

        def launch(stream):
            address, target = source.data.data_ptr(), flat.data_ptr()
            self._library.check(
                self._library.all_gather(address, target, source.data.nbytes, library.UINT8, comm, stream)
            )

        def finish():
            for part, come in zip((part.detach() for part in row), flat.split(count) if count else (), strict=False):
                part.copy_(come.view(part.shape))

        return self._run(opts, launch, [row], None if in_place else finish, (source, flat, row))

    def allgather_coalesced(self, outputs, inputs, opts):
        """`outputs` has a list for each rank, with a tensor for each of the inputs."""
        self._count_is(outputs, "all_gather_coalesced: the list of output lists")
        if any(len(row) != len(inputs) for row in outputs):
            raise ValueError(
                f"all_gather_coalesced: {len(inputs)} inputs, and output lists of {[len(row) for row in outputs]} tensors; need as many in each"
            )
        return self._gather_lists([list(column) for column in zip(*outputs, strict=True)], inputs, opts)

    def _gather_lists(self, outputs, inputs, opts):
        """`outputs` has a list for each of the inputs, with a tensor for each rank."""
        lists = [(self._own_part(row, input), row) for row, input in zip(outputs, inputs, strict=True)]
        parts = [[Plain(part, filled=False) for part in row] for _, row in lists]
        for (own, _), row in zip(lists, parts, strict=True):
            row[self._rank].data.copy_(own.data)
        comm = self._begin(opts)

        def launch(stream):
            self._library.group(
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

        finish = all_of(part.put_back for row in parts for part in row)
        return self._run(opts, launch, outputs, finish, parts)

    def _own_part(self, row, input):
        self._count_is(row, "all_gather: the output list")
        checked([input])
        for part in checked(row):
            same_type(part, input, "all_gather")
        if row[self._rank].numel() != input.numel():
            raise ValueError(
                f"all_gather: output {self._rank} has {row[self._rank].numel()} elements, and the input "
                f"{input.numel()}"
            )
        return Plain(input)

    def gather(self, outputs, inputs, opts):
        input, root = Plain(only(inputs, "gather")), opts.rootRank
        targets = []
        if self._rank == root:
            row = only(outputs, "gather")
            self._count_is(row, "gather: the output list")
            targets = [Plain(part, filled=False) for part in checked(row)]
            for target in targets:
                same_type(target.tensor, input.tensor, "gather")
        comm = self._begin(opts)

        def launch(stream):
            sends = [(self._library.send, *bytes_of(input.data), root, comm, stream)]
            receives = [
                (self._library.recv, *bytes_of(target.data), rank, comm, stream)
                for rank, target in enumerate(targets)
            ]
            self._library.group(sends + receives)

        finish = all_of(target.put_back for target in targets)
        return self._run(opts, launch, outputs, finish, (input, targets))

    def scatter(self, outputs, inputs, opts):
        output, root = Plain(only(outputs, "scatter"), filled=False), opts.rootRank
        sources = []
        if self._rank == root:
            row = only(inputs, "scatter")
            self._count_is(row, "scatter: the input list")
            sources = [Plain(part) for part in checked(row)]
            for source in sources:
                same_type(output.tensor, source.tensor, "scatter")
        comm = self._begin(opts)

        def launch(stream):
            sends = [
                (self._library.send, *bytes_of(source.data), rank, comm, stream)
                for rank, source in enumerate(sources)
            ]
            self._library.group([*sends, (self._library.recv, *bytes_of(output.data), root, comm, stream)])

        return self._run(opts, launch, outputs, output.put_back, (output, sources))

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        checked([output, input])
        same_type(output, input, "all_to_all")
        source, target = Plain(input), Plain(output, filled=False)
        if not output_splits and not input_splits:
            return self._all_to_all_even(source, target, opts)
        return self._exchange(
            split_rows(source.data, input_splits, self._size, "input"),
            split_rows(target.data, output_splits, self._size, "output"),
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
        sources = [Plain(part) for part in checked(inputs)]
        targets = [Plain(part, filled=False) for part in checked(outputs)]
        for source, target in zip(sources, targets, strict=True):
            same_type(target.tensor, source.tensor, "all_to_all")
        return self._exchange(
            [source.data for source in sources],
            [target.data for target in targets],
            outputs,
            all_of(target.put_back for target in targets),
            (sources, targets),
            opts,
        )

    def _exchange(self, sources, targets, outputs, finish, keep, opts):
        """Part n of the sources goes to rank n, and of the targets comes from there."""
        comm = self._begin(opts)

        def launch(stream):
            sends = [
                (self._library.send, *bytes_of(part), rank, comm, stream) for rank, part in enumerate(sources)
            ]
            receives = [
                (self._library.recv, *bytes_of(part), rank, comm, stream) for rank, part in enumerate(targets)
            ]
            self._library.group(sends + receives)

        return self._run(opts, launch, outputs, finish, (keep, sources, targets))
