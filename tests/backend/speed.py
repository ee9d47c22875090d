"""How fast "accl" is beside gloo: the same loop for both, in turn, in the same processes. speed.py RANKS [ROUNDS]

Prints, for each operation and size, the median time of a call of either, and how many times as fast "accl" is.
"""

import statistics
import sys
import time

import ranks as cluster
import torch
import torch.distributed as dist

SIZES = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 32 << 20]


def operations(size_bytes, ranks):
    """Calls of one group, by name; the size is that of the largest buffer."""
    count = max(size_bytes // 4, 1)
    share = max(count // ranks, 1)
    whole, other, part = torch.ones(share * ranks), torch.ones(share * ranks), torch.ones(share)
    tensor = torch.ones(count)
    rows = list(other.chunk(ranks))
    return {
        "all_reduce": lambda group: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group),
        "broadcast": lambda group: dist.broadcast(tensor, 0, group=group),
        "reduce": lambda group: dist.reduce(tensor, 0, dist.ReduceOp.MAX, group=group),
        "all_gather": lambda group: dist.all_gather(rows, part, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter(part, rows, group=group),
        "all_to_all_single": lambda group: dist.all_to_all_single(whole, other, group=group),
        "gather": lambda group: dist.gather(part, rows if dist.get_rank() == 0 else None, 0, group=group),
        "scatter": lambda group: dist.scatter(part, rows if dist.get_rank() == 0 else None, 0, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(
            tensor, dist.ReduceOp.MAX, group=group, async_op=True
        ).wait(),
        "ping-pong": lambda group: ping(tensor, group),
    }


def ping(tensor, group):
    if dist.get_rank() == 0:
        dist.send(tensor, 1, group=group)
        dist.recv(tensor, 1, group=group)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0, group=group)
        dist.send(tensor, 0, group=group)


def timed(call, group, repeats):
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(repeats):
        call(group)
    return (time.perf_counter() - start) / repeats


def measure(rank, ranks, rounds):
    groups = {"accl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(f"{'operation':24}{'bytes':>10}{'accl us':>12}{'gloo us':>12}{'gloo/accl':>11}", flush=True)
    for size in SIZES:
        for name, call in operations(size, ranks).items():
            repeats = 200 if size <= 4 << 10 else 40 if size <= 64 << 10 else 8 if size <= 1 << 20 else 2
            times = {backend: [] for backend in groups}
            for group in groups.values():
                call(group)
            for _ in range(rounds):
                for backend, group in groups.items():
                    times[backend].append(timed(call, group, repeats))
            accl, gloo = (statistics.median(times[backend]) * 1e6 for backend in groups)
            if rank == 0:
                print(f"{name:24}{size:10}{accl:12.1f}{gloo:12.1f}{gloo / accl:11.2f}", flush=True)


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]] or [2]
    cluster.run(arguments[0], measure, arguments[1] if len(arguments) > 1 else 5, limit_s=900)
