"""Every collective, with types, operators and layouts, against what PyTorch computes in one process."""

import functools

import ranks as cluster
import torch
import torch.distributed as dist
from ranks import raises

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*INTEGERS, *UNSIGNED, *FLOATS, *SMALL, *COMPLEX, torch.bool]
SHAPES = [(1,), (7,), (3, 5), (4, 3, 2), (1000,), ()]


def data(rank, shape, dtype):
    """Small numbers, whose sums and products all types hold."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) + rank) % 3
    if dtype == torch.bool:
        return (values > 0).view(shape)
    if dtype.is_complex:
        return torch.complex(values.double(), (values + 1).double() % 2).to(dtype).view(shape)
    return values.float().to(dtype).view(shape)


def layouts(tensor):
    """The same elements in memory of different order."""
    yield tensor.clone()
    if tensor.dim() >= 2:
        yield tensor.clone().transpose(0, 1).contiguous().transpose(0, 1)
    if tensor.dim() >= 1:
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        view = wide[..., 1]
        view.copy_(tensor)
        yield view


def same(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found, expected)
    if found.dtype in SMALL or found.dtype in UNSIGNED:
        found, expected = found.double(), expected.double()
    assert torch.equal(found, expected), (found, expected)


def reduced(inputs, op):
    """What a reduction gives; in a wider type, converted once."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return {
            dist.ReduceOp.SUM: functools.reduce(torch.logical_or, inputs),
            dist.ReduceOp.PRODUCT: functools.reduce(torch.logical_and, inputs),
            dist.ReduceOp.MAX: functools.reduce(torch.logical_or, inputs),
            dist.ReduceOp.MIN: functools.reduce(torch.logical_and, inputs),
            dist.ReduceOp.BAND: functools.reduce(torch.logical_and, inputs),
            dist.ReduceOp.BOR: functools.reduce(torch.logical_or, inputs),
            dist.ReduceOp.BXOR: functools.reduce(torch.logical_xor, inputs),
        }[op]
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    inputs = [tensor.to(wide) for tensor in inputs]
    fold = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.AVG: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }[op]
    total = functools.reduce(fold, inputs)
    if op == dist.ReduceOp.AVG:
        total = total / len(inputs) if wide.is_floating_point or wide.is_complex else total // len(inputs)
    return total.to(dtype)


def operators(dtype):
    yield dist.ReduceOp.SUM
    if dtype == torch.bool:
        yield from (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN)
        yield from (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
        return
    yield dist.ReduceOp.AVG
    # Others are refused by PyTorch.
    if dtype.is_complex:
        return
    yield from (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN)
    if not dtype.is_floating_point:
        yield from (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)


def reductions(rank, ranks):
    for dtype in ALL:
        for op in operators(dtype):
            for shape in SHAPES:
                inputs = [data(other, shape, dtype) for other in range(ranks)]
                expected = reduced(inputs, op)
                exact = op != dist.ReduceOp.AVG or not dtype.is_complex or ranks in (1, 2, 4)
                for mine in layouts(inputs[rank]):
                    work = dist.all_reduce(mine, op, async_op=len(shape) == 1)
                    if work is not None:
                        work.wait()
                    if exact:
                        same(mine, expected)
                    else:
                        torch.testing.assert_close(mine, expected)
            whole = [data(other, (ranks * 3, 2), dtype) for other in range(ranks)]
            if dtype in SMALL or not exact:
                continue
            expected = reduced(whole, op)
            mine = whole[rank].clone()
            dist.reduce(mine, ranks - 1, op)
            same(mine, expected if rank == ranks - 1 else whole[rank])
            part = torch.empty((3, 2), dtype=dtype)
            dist.reduce_scatter_tensor(part, whole[rank].clone(), op)
            same(part, expected[3 * rank : 3 * rank + 3])
            part = torch.empty((3, 2), dtype=dtype)
            dist.reduce_scatter(part, list(whole[rank].clone().chunk(ranks)), op)
            same(part, expected[3 * rank : 3 * rank + 3])


def movements(rank, ranks):
    for dtype in ALL:
        for shape in SHAPES:
            inputs = [data(other, shape, dtype) for other in range(ranks)]
            for mine in layouts(inputs[rank]):
                root = (len(shape) + 1) % ranks
                target = mine.clone()
                dist.broadcast(target, root)
                same(target, inputs[root])
                gathered = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_gather(gathered, mine)
                for found, expected in zip(gathered, inputs):
                    same(found, expected)
                gathered = [torch.empty_like(mine) for _ in range(ranks)] if rank == root else None
                dist.gather(mine, gathered, root)
                for found, expected in zip(gathered or [], inputs):
                    same(found, expected)
                part = torch.empty_like(mine)
                parts = [data(root + other, shape, dtype) for other in range(ranks)]
                dist.scatter(part, parts if rank == root else None, root)
                same(part, parts[rank])
                outputs = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_to_all(outputs, [data(rank * ranks + other, shape, dtype) for other in range(ranks)])
                for other, found in enumerate(outputs):
                    same(found, data(other * ranks + rank, shape, dtype))
        flat = data(rank, (ranks * 2, 3), dtype)
        everything = torch.empty((ranks * ranks * 2, 3), dtype=dtype)
        dist.all_gather_into_tensor(everything, flat)
        same(everything, torch.cat([data(other, (ranks * 2, 3), dtype) for other in range(ranks)]))
        exchanged = torch.empty_like(flat)
        dist.all_to_all_single(exchanged, flat)
        rows = [data(other, (ranks * 2, 3), dtype)[2 * rank : 2 * rank + 2] for other in range(ranks)]
        same(exchanged, torch.cat(rows))


def uneven(rank, ranks):
    """Parts of different sizes, and of none."""
    sizes = [(other * 3) % 4 for other in range(ranks)]
    parts = [torch.empty(size) for size in sizes]
    dist.all_gather(parts, torch.full((sizes[rank],), float(rank)))
    for other, part in enumerate(parts):
        same(part, torch.full((sizes[other],), float(other)))
    result = torch.empty(sizes[rank])
    dist.reduce_scatter(result, [torch.full((size,), float(rank)) for size in sizes])
    same(result, torch.full((sizes[rank],), float(sum(range(ranks)))))
    out_rows = [(other + 2 * rank) % 3 for other in range(ranks)]
    in_rows = [(rank + 2 * other) % 3 for other in range(ranks)]
    source = torch.cat([torch.full((rows, 2), float(rank * 10 + other)) for other, rows in enumerate(out_rows)])
    target = torch.empty((sum(in_rows), 2))
    dist.all_to_all_single(target, source, in_rows, out_rows)
    same(target, torch.cat([torch.full((rows, 2), float(other * 10 + rank)) for other, rows in enumerate(in_rows)]))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.all_gather_into_tensor(torch.empty(0), empty)
    dist.barrier()


def special(rank, ranks):
    """Factors, objects, coalesced calls, sparse tensors, futures, channels-last."""
    mine = torch.ones(5)
    dist.all_reduce(mine, dist._make_nccl_premul_sum(2.0))
    same(mine, torch.full((5,), 2.0 * ranks))
    found = [None] * ranks
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in found] == list(range(ranks))
    told = [rank, "told"]
    dist.broadcast_object_list(told, 0)
    assert told == [0, "told"]
    with dist._coalescing_manager():
        first, second = torch.full((3,), float(rank)), torch.full((2, 2), 1.0)
        dist.all_reduce(first)
        dist.all_reduce(second)
    same(first, torch.full((3,), float(sum(range(ranks)))))
    same(second, torch.full((2, 2), float(ranks)))
    indices = torch.tensor([[rank, ranks]])
    sparse = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (ranks + 1,))
    dist.all_reduce(sparse)
    same(sparse.to_dense(), torch.tensor([1.0] * ranks + [2.0 * ranks]))
    tensors = [torch.full((1000,), float(rank + number)) for number in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works]
    torch.futures.wait_all(futures)
    for number, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.is_completed() or not cluster.TELLS_COMPLETION
        same(futures[number].value()[0], tensor)
        same(tensor, torch.full((1000,), float(sum(range(ranks)) + ranks * number)))
    image = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    same(image, torch.full((2, 3, 4, 4), float(sum(range(ranks)))))
    assert image.is_contiguous(memory_format=torch.channels_last)
    large = torch.full((3_000_001,), float(rank + 1))
    dist.all_reduce(large)
    same(large, torch.full((3_000_001,), float(ranks * (ranks + 1) // 2)))


def refused(rank, ranks):
    """What is wrong raises on the caller, with what is wrong, and the group goes on."""

    pair = torch.ones(2)
    raises(ValueError, "elements", lambda: dist.all_gather_into_tensor(torch.empty(2 * ranks + 1), pair))
    raises(ValueError, "torch.float64", lambda: dist.all_gather_into_tensor(torch.empty(2 * ranks).double(), pair))
    raises(TypeError, "torch.bool", lambda: dist.all_reduce(torch.ones(2) > 0, dist.ReduceOp.AVG))
    raises(TypeError, "BAND", lambda: dist.all_reduce(pair, dist.ReduceOp.BAND))
    raises(ValueError, "splits", lambda: dist.all_to_all_single(pair, pair, [3] * ranks, [3] * ranks))
    same(pair, torch.ones(2))
    dist.all_reduce(pair)
    same(pair, torch.full((2,), float(ranks)))


CHECKS = [reductions, movements, uneven, special, refused]

if __name__ == "__main__":
    cluster.check_all("collectives", CHECKS)
