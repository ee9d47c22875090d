"""What users of PyTorch have reported as bad days (C86 to C94 of the list of cases), one program for each rank and several endings."""

import datetime
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time

import ranks as cluster
import torch
import torch.distributed as dist
from torch import nn
from ranks import raises
from torch.nn.parallel import DistributedDataParallel


def the_same_bits(rank, ranks):
    """C86: two trainings in the fixed order of folding end with the same bits, also with gradients of bfloat16."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(2):
            torch.manual_seed(1)
            layers = nn.Sequential(nn.Linear(16, 50), nn.Tanh(), nn.Linear(50, 4)).to(dtype)
            model = DistributedDataParallel(layers, bucket_cap_mb=0.002)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for step in range(20):
                inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * ranks + rank)).to(dtype)
                optimizer.zero_grad()
                model(inputs).float().pow(2).mean().backward()
                optimizer.step()
            found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        assert torch.equal(found[-1], found[-2]), "another result the second time"
        everywhere = [torch.empty_like(found[-1]) for _ in range(ranks)]
        dist.all_gather(everywhere, found[-1])
        assert all(torch.equal(one, found[-1]) for one in everywhere)


def wrong_arguments(rank, ranks):
    """C87: said at once, with the value, to who gave it, and before anything is sent: the group goes on, also if it was one rank's mistake."""
    pair, wide = torch.ones(2), torch.ones(2, dtype=torch.float64)
    away = torch.ones(2, device="meta")
    if rank == 0:
        raises(TypeError, "list", lambda: dist.all_gather([pair] * ranks, [pair]))
        raises(ValueError, f"has {ranks + 1} tensors; need {ranks}", lambda: dist.all_gather([pair] * (ranks + 1), pair))
        raises(ValueError, "float64", lambda: dist.all_gather([wide] * ranks, pair))
        raises(ValueError, "on meta", lambda: dist.all_gather([away] * ranks, pair))
        raises(ValueError, f"has {ranks - 1} tensors", lambda: dist.reduce_scatter(pair, [pair] * (ranks - 1)))
        raises(ValueError, f"has {ranks + 1} tensors", lambda: dist.scatter(pair, [pair] * (ranks + 1), 0))
        raises(ValueError, f"the sum {ranks}", lambda: dist.all_to_all_single(pair, pair, [1] * ranks, [1] * ranks))
        raises(dist.DistBackendError, f"root {ranks} is not a rank", lambda: dist.broadcast(pair, ranks))
        raises(TypeError, "AVG of torch.bool", lambda: dist.all_reduce(torch.tensor([True]), dist.ReduceOp.AVG))
    total = torch.ones(2, requires_grad=True)
    dist.all_reduce(total)
    assert total.tolist() == [ranks] * 2


def overlapping(rank, ranks):
    """C89: groups with gaps and overlaps, made by members alone, a group of one, beside gloo's."""
    for members in ([0, 2], [1, 3], [ranks - 1], [1, 2, 3], [0, ranks - 1]):
        if rank not in members:
            continue
        group = dist.new_group(members, use_local_synchronization=True)
        value = torch.full((3,), float(rank))
        dist.all_reduce(value, group=group)
        assert value.tolist() == [float(sum(members))] * 3
    other = dist.new_group([0, 1, ranks - 1], backend="gloo")
    for group, members in ((other, {0, 1, ranks - 1}), (dist.group.WORLD, set(range(ranks)))):
        if rank in members:
            value = torch.ones(1)
            dist.all_reduce(value, group=group)
            assert value.item() == len(members)


def not_the_same_order(rank, ranks):
    """C89: ranks that call different things in a group are told of both, within the limit."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    start = time.monotonic()
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=group)
        else:
            dist.broadcast(torch.ones(4), 0, group=group)
    except dist.DistBackendError as error:
        assert "AllReduce" in str(error) and "Broadcast" in str(error), error
        assert time.monotonic() - start < 15
        os._exit(0)
    raise AssertionError("no error")


def not_as_many_groups(rank, ranks):
    """C89: PyTorch names groups that members make alone by how many each has made: if that differs, nobody meets, and it is said who."""
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    limit = datetime.timedelta(seconds=2)
    missing = "rank 1" if rank == 0 else "rank 0 has not made this group"

    def make():
        dist.new_group([0, 1], use_local_synchronization=True, timeout=limit)

    raises(dist.DistBackendError, missing, make)
    os._exit(0)


def send_and_leave(rank, ranks, count):
    """C88: a message that was begun by a rank that ends arrives; the end waits for it."""
    if rank == 0:
        work = dist.isend(torch.arange(count, dtype=torch.float32), 1)
        dist.destroy_process_group()
        work.wait()
        os._exit(0)
    time.sleep(2)
    arrived = torch.zeros(count)
    dist.recv(arrived, 0)
    assert torch.equal(arrived, torch.arange(count, dtype=torch.float32))


def send_and_fall(rank, ranks, count):
    """C88: the same by a process that just ends: it arrives, or that is said."""
    if rank == 0:
        dist.isend(torch.arange(count, dtype=torch.float32), 1)
        os._exit(0)
    time.sleep(2)
    arrived = torch.zeros(count)
    try:
        dist.recv(arrived, 0)
    except dist.DistBackendError as error:
        assert "rank 0" in str(error), error
        os._exit(0)
    assert torch.equal(arrived, torch.arange(count, dtype=torch.float32))
    os._exit(0)


def own_limits(rank, ranks):
    """C91: the limit of each group holds for it alone."""
    short = dist.new_group(timeout=datetime.timedelta(seconds=3))
    long = dist.new_group(timeout=datetime.timedelta(seconds=60))
    value = torch.ones(1)
    for group in (short, long):
        dist.all_reduce(value, group=group)
    if rank == 0:
        time.sleep(5)
    start = time.monotonic()
    dist.all_reduce(value, group=long)
    if rank == 0:
        time.sleep(6)
        os._exit(0)
    raises(dist.DistBackendError, "the limit is 3.0 s", lambda: dist.all_reduce(value, group=short))
    assert time.monotonic() - start < 15
    os._exit(0)


def missing_at_a_barrier(rank, ranks):
    """C91: two of six are missing, and each of the others is told both."""
    if rank in (1, 4):
        time.sleep(4)
        os._exit(0)
    limit = datetime.timedelta(seconds=1)
    raises(RuntimeError, "Ranks 1, 4 failed", lambda: dist.monitored_barrier(timeout=limit, wait_all_ranks=True))
    os._exit(0)


def every_store(rank, ranks, port, directory):
    """C94: two default groups one after the other, with each kind of store; imports again; back ends for one kind of devices and two."""
    dist.destroy_process_group()
    import importlib

    import accl.torch

    importlib.reload(accl.torch)
    stores = {
        "file": dist.FileStore(os.path.join(directory, "file"), ranks),
        "tcp": dist.TCPStore("127.0.0.1", port, ranks, rank == 0),
        "prefixed": dist.PrefixStore("mine", dist.TCPStore("127.0.0.1", port + 1, ranks, rank == 0)),
    }
    for kind, store in stores.items():
        for name in ("accl", "cpu:accl", "cpu:accl,cuda:gloo"):
            dist.init_process_group(name, store=dist.PrefixStore(name, store), rank=rank, world_size=ranks)
            importlib.reload(accl.torch)
            value = torch.ones(3)
            dist.all_reduce(value)
            assert value.tolist() == [float(ranks)] * 3, kind
            dist.destroy_process_group()
    # A store within the process is enough for a group of one.
    dist.init_process_group("accl", store=dist.HashStore(), rank=0, world_size=1)
    value = torch.ones(3)
    dist.all_reduce(value)
    assert value.tolist() == [1.0] * 3


UNEVEN = """
import datetime, os, sys, torch, torch.distributed as dist, accl.torch
from torch.nn.parallel import DistributedDataParallel
rank, how = int(sys.argv[2]), sys.argv[3]
limit = datetime.timedelta(seconds=5)
dist.init_process_group("accl", init_method="file://" + sys.argv[1], rank=rank, world_size=3, timeout=limit)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(4):
    if rank == 1 and step == 3:
        if how == "destroys": dist.destroy_process_group(); sys.exit(3)
        if how == "ends": sys.exit(3)
        raise ValueError("out of data")
    model(torch.ones(2, 4)).sum().backward()
"""


def uneven_batches():
    """C90: the others are told of rank 1, whatever it does in place of its last batch, and all end soon, with a code that is not 0."""
    for how in ("destroys", "ends", "raises"):
        with tempfile.TemporaryDirectory() as directory:
            start = time.monotonic()
            command = [sys.executable, "-W", "ignore", "-c", UNEVEN, os.path.join(directory, "store")]
            ranks = [
                subprocess.Popen([*command, str(rank), how], stderr=subprocess.PIPE, text=True) for rank in range(3)
            ]
            texts = [process.communicate(timeout=60)[1] for process in ranks]
            assert time.monotonic() - start < 45
            assert all(process.returncode not in (0, None) for process in ranks), how
            for rank in (0, 2):
                lines = texts[rank].splitlines()
                assert re.search(r"rank 1 .*AllReduce", texts[rank]), (how, lines[-3:])
            assert how != "raises" or texts[1].rstrip().endswith("ValueError: out of data"), texts[1]


RESTARTED = """
import os, sys, torch, torch.distributed as dist, accl.torch
dist.init_process_group("accl")
value = torch.ones(2)
dist.all_reduce(value)
assert value.tolist() == [2.0, 2.0]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1: os._exit(7)
    dist.all_reduce(value)
os.write(1, f"went on after {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())
"""


def restarted():
    """C92: a job that its launcher starts anew has a clean state, and says nothing of its own at the end."""
    with tempfile.TemporaryDirectory() as directory:
        script = os.path.join(directory, "script.py")
        with open(script, "w") as file:
            file.write(textwrap.dedent(RESTARTED))
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run([*command, "--max-restarts=1", script], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("went on after 1") == 2, done.stdout


BLACK_BOX = """
import os, sys, time, torch, torch.distributed as dist, accl.torch
dist.init_process_group("accl", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 0:
    try:
        raise ValueError("mine")
    finally:
        print("stuck", flush=True)
        time.sleep(60)
dist.all_reduce(torch.ones(5))
"""


def black_box():
    """C93: rank 0 has raised and hangs in its clean-up, rank 1 waits: the records of both say so, with no setting."""
    tool = os.environ.get("ACCL_TOOL") or os.path.join(os.path.dirname(sys.executable), "accl")
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-W", "ignore", "-c", BLACK_BOX, os.path.join(directory, "store")]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            assert ranks[0].stdout.readline() == "stuck\n"
            time.sleep(3)
            pids = ",".join(str(process.pid) for process in ranks)
            said = subprocess.run([tool, "explain", "--pids", pids], capture_output=True, text=True, timeout=30)
            assert re.search(r"rank 0 .*has not called", said.stdout) and "5 × float32" in said.stdout, said
        finally:
            for process in ranks:
                process.kill()


if __name__ == "__main__":
    os.environ["ACCL_DETERMINISTIC"] = "1"
    for size in (2, 3, 4):
        cluster.run(size, the_same_bits)
    del os.environ["ACCL_DETERMINISTIC"]
    cluster.run(3, wrong_arguments)
    for count in (10, 16 << 20):
        cluster.run(2, send_and_leave, count)
        cluster.run(2, send_and_fall, count)
    cluster.run(5, overlapping)
    cluster.run(3, not_the_same_order)
    cluster.run(2, not_as_many_groups)
    uneven_batches()
    cluster.run(3, own_limits)
    if cluster.has((2, 15), "monitored_barrier of other back ends than gloo"):
        cluster.run(6, missing_at_a_barrier)
    restarted()
    black_box()
    with tempfile.TemporaryDirectory() as directory:
        cluster.run(2, every_store, 29700, directory)
    print("backend: cases: 14 checks passed")
