"""How fast "accl" is beside gloo: the same loop for both, in turn, in the same processes.

    speed.py [--hosts] [--only NAME] RANKS [ROUNDS]

Prints, for each operation and size, the median time of a call of either, how many times as fast "accl" is, and its time with tensors of
`accl.torch.empty`; at the end, what was slower than gloo.
With --hosts the first half of the ranks is in one network namespace and the other half in another: all goes between them over TCP.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import hosts
import ranks as cluster
import torch
import torch.distributed as dist

LIMIT_S = 900
SIZES = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 32 << 20]


def ordinary(count):
    return torch.ones(count)


def shared(count):
    """Memory that peers read in place."""
    import accl.torch

    return accl.torch.empty(count).fill_(1)


def operations(size_bytes, ranks, ones=ordinary):
    """Calls of one group, by name; the size is that of the largest buffer."""
    count = max(size_bytes // 4, 1)
    share = max(count // ranks, 1)
    whole, other, part = ones(share * ranks), ones(share * ranks), ones(share)
    tensor = ones(count)
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
    # What others have left in the caches is not this way's.
    call(group)
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(repeats):
        call(group)
    return (time.perf_counter() - start) / repeats


def repeats_of(size_bytes):
    """Calls between two looks at the clock."""
    for limit_bytes, repeats in ((4 << 10, 200), (64 << 10, 40), (1 << 20, 8)):
        if size_bytes <= limit_bytes:
            return repeats
    return 2


def medians(ways, repeats, rounds):
    """The median times in microseconds of calls, each a function and its group, which take turns."""
    times = [[] for _ in ways]
    for turn in range(rounds):
        pairs = list(zip(times, ways, strict=True))
        # Nobody always comes after the same one.
        for found, (call, group) in reversed(pairs) if turn % 2 else pairs:
            found.append(timed(call, group, repeats))
    return [statistics.median(found) * 1e6 for found in times]


def measure(rank, ranks, rounds, only):
    accl, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    if rank == 0:
        print(f"{'operation':24}{'bytes':>10}{'accl us':>12}{'gloo us':>12}{'gloo/accl':>11}{'accl.torch.empty us':>21}", flush=True)
    ratios = {}
    for size in SIZES:
        in_place = operations(size, ranks, shared)
        for name, call in operations(size, ranks).items():
            if only and not name.startswith(only):
                continue
            ways = [(call, accl), (call, gloo), (in_place[name], accl)]
            ours, theirs, without_copies = medians(ways, repeats_of(size), rounds)
            ratios[name, size] = theirs / ours
            if rank == 0:
                print(f"{name:24}{size:10}{ours:12.1f}{theirs:12.1f}{theirs / ours:11.2f}{without_copies:21.1f}", flush=True)
    if rank == 0:
        slower = [f"{name} of {size} bytes ({ratio:.2f})" for (name, size), ratio in ratios.items() if ratio < 1]
        mean = statistics.geometric_mean(ratios.values())
        print(f"{ranks} ranks, {rounds} rounds: geometric mean {mean:.1f}; slower than gloo: {', '.join(slower) or 'nothing'}")


def run_on_hosts(options):
    """Starts this program once for each rank, half of them in each namespace."""
    with hosts.two_hosts() as names, tempfile.TemporaryDirectory() as directory:
        # Both back ends are to use the cable.
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
        workers = []
        for rank in range(options.ranks):
            inside = ["ip", "netns", "exec", names[rank * 2 // options.ranks]]
            place = ["--rank", str(rank), "--store", os.path.join(directory, "store")]
            workers.append(subprocess.Popen([*inside, sys.executable, *sys.argv, *place], env=environment))
        try:
            codes = [worker.wait(LIMIT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(codes):
            raise SystemExit(f"exit codes {codes}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="?", default=2)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--hosts", action="store_true", help="over TCP between two network namespaces")
    parser.add_argument("--only", help="operations whose names begin so")
    # What the program tells those that it starts.
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    arguments = (options.rounds, options.only)
    if options.rank is not None:
        cluster.work(options.rank, options.ranks, measure, options.store, arguments, "accl")
    elif options.hosts:
        run_on_hosts(options)
    else:
        cluster.run(options.ranks, measure, *arguments, limit_s=LIMIT_S)


if __name__ == "__main__":
    main()
