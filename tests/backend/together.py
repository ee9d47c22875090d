"""Several tensors in one call, and lists of tensors that lie anywhere, with the values that they must have."""

import warnings

import ranks as cluster
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def mine(rank, length, dtype=torch.float32):
    return (torch.arange(length) + rank).to(dtype)


def coalesced_reductions(rank, ranks):
    """All tensors of one call are reduced, also of types that must be widened, or combined by the ranks."""
    group = dist.group.WORLD
    total = sum(range(ranks))
    for dtype in (torch.float32, torch.int64, torch.int16, torch.complex64):
        for asynchronous in (False, True):
            tensors = [mine(rank, length, dtype) for length in (3, 5)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work = dist.all_reduce_coalesced(tensors, dist.ReduceOp.SUM, group=group, async_op=asynchronous)
            if work is not None:
                work.wait()
            for tensor, length in zip(tensors, (3, 5), strict=True):
                assert tensor.tolist() == [ranks * place + total for place in range(length)], (dtype, tensor)
    outputs = functional.all_reduce_coalesced([mine(rank, 2), mine(rank, 4)], "max", group)
    for output, length in zip(outputs, (2, 4), strict=True):
        assert output.tolist() == [place + ranks - 1 for place in range(length)], output
    inputs = [mine(rank, ranks * length) for length in (1, 3)]
    outputs = functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0], group)
    for output, length in zip(outputs, (1, 3), strict=True):
        assert output.tolist() == [ranks * (rank * length + place) + total for place in range(length)], output


def coalesced_gatherings(rank, ranks):
    inputs = [mine(rank, 2), mine(rank, 3)]
    outputs = functional.all_gather_into_tensor_coalesced(inputs, dist.group.WORLD)
    for output, length in zip(outputs, (2, 3), strict=True):
        assert output.tolist() == [place + other for other in range(ranks) for place in range(length)], output
    rows = [[torch.empty(2), torch.empty(3)] for _ in range(ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(rows, inputs)
    for other, row in enumerate(rows):
        for part, length in zip(row, (2, 3), strict=True):
            assert part.tolist() == [place + other for place in range(length)], part


def factors(rank, ranks):
    """Each rank's input is multiplied by its factor."""
    for dtype in (torch.float32, torch.float64, torch.float16):
        for factor in (0.5, 2.0):
            tensor = mine(rank, 4, dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            assert tensor.tolist() == [factor * (ranks * place + sum(range(ranks))) for place in range(4)], tensor
    cluster.raises(TypeError, "PREMUL_SUM", lambda: dist.all_reduce(mine(rank, 4, torch.int32), dist._make_nccl_premul_sum(2.0)))


def spread(ranks, length):
    """Tensors that lie apart, or in the wrong order, or with gaps, or one behind the other."""
    yield [torch.zeros(length) for _ in range(ranks)]
    yield list(reversed(torch.zeros(ranks * length).chunk(ranks)))
    yield list(torch.zeros(ranks, 2 * length)[:, ::2])
    yield list(torch.zeros(ranks * length).chunk(ranks))


def lists_anywhere(rank, ranks):
    """Ranks may differ in where their tensors lie, and in whether they wait."""
    length = 3
    expected = [[float(place + other) for place in range(length)] for other in range(ranks)]
    kinds = len(list(spread(ranks, length)))
    for turn in range(2 * kinds):
        asynchronous = (turn + rank) % 2 == 1
        rows = list(spread(ranks, length))[(turn + rank) % kinds]

        def done(work):
            if work is not None:
                work.wait()

        done(dist.all_gather(rows, mine(rank, length), async_op=asynchronous))
        assert [row.tolist() for row in rows] == expected, (turn, rows)
        for row, values in zip(rows, expected, strict=True):
            row.copy_(torch.tensor(values))
        part = torch.zeros(length)
        done(dist.reduce_scatter(part, rows, async_op=asynchronous))
        assert part.tolist() == [ranks * value for value in expected[rank]], (turn, part)
        done(dist.scatter(part, rows if rank == 1 else None, 1, async_op=asynchronous))
        assert part.tolist() == expected[rank], (turn, part)
        gathered = list(spread(ranks, length))[(turn + rank) % kinds]
        done(dist.gather(part, gathered if rank == 1 else None, 1, async_op=asynchronous))
        assert rank != 1 or [row.tolist() for row in gathered] == expected, (turn, gathered)
        done(dist.all_to_all(gathered, rows, async_op=asynchronous))
        assert [row.tolist() for row in gathered] == [expected[rank]] * ranks, (turn, gathered)


def rows_of_any_number(rank, ranks):
    """Rank r sends s + 1 rows to rank s, and so receives as many from each; none to the last one."""
    sizes = [0 if other == ranks - 1 else other + 1 for other in range(ranks)]
    for columns in ((), (2,)):
        source = torch.full((sum(sizes), *columns), float(rank))
        target = torch.full((sizes[rank] * ranks, *columns), -1.0)
        dist.all_to_all_single(target, source, [sizes[rank]] * ranks, sizes)
        for other, rows in enumerate(target.split([sizes[rank]] * ranks)):
            assert (rows == other).all(), (columns, target)
    too_many = [size + 1 for size in sizes]
    cluster.raises(ValueError, "splits", lambda: dist.all_to_all_single(target, source, [sizes[rank]] * ranks, too_many))


CHECKS = [coalesced_reductions, coalesced_gatherings, factors, lists_anywhere, rows_of_any_number]

if __name__ == "__main__":
    cluster.check_all("together", CHECKS)
