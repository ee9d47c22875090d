"""Ranks that die, are late, or leave; groups made again and again; quiet ends."""

import datetime
import os
import subprocess
import sys
import tempfile
import time

import ranks as cluster
import torch
import torch.distributed as dist


def killed(rank, ranks):
    """Survivors hear of it, and of whom, long before any time limit of the group."""
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == ranks - 1:
        os.kill(os.getpid(), 9)
    try:
        for _ in range(1000):
            dist.all_reduce(tensor)
            time.sleep(0.001)
    except dist.DistBackendError as error:
        assert f"rank {ranks - 1}" in str(error), error
        os._exit(0)
    raise AssertionError("nobody has noticed")


def late(rank, ranks):
    """The time limit of a group, and of a call, each for itself; the text names who is missing."""
    short = dist.new_group(timeout=datetime.timedelta(seconds=1))
    value = torch.ones(2)
    dist.all_reduce(value, group=short)
    if rank == 0:
        time.sleep(3)
    # The default group's limit is half an hour.
    dist.all_reduce(value)
    if rank == 0:
        time.sleep(4)
    else:
        try:
            dist.all_reduce(value, group=short)
        except dist.DistBackendError as error:
            assert "rank 0" in str(error) and "the limit is 1.0 s" in str(error), error
        else:
            raise AssertionError("no time limit")
    os._exit(0)


def begun(group, tensors, limits_s):
    """Sums that are under way, each with a time limit."""
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    works = []
    for tensor, limit_s in zip(tensors, limits_s, strict=True):
        options.timeout = datetime.timedelta(seconds=limit_s)
        works.append(group._get_backend(torch.device("cpu")).allreduce([tensor], options))
    return works


def each_call_has_its_own(rank, ranks):
    """Of two calls that are under way each has its own time limit: the first one may wait longer than the second one."""
    group = dist.new_group(range(ranks))
    first, second = torch.ones(2), torch.ones(3)
    dist.all_reduce(first, group=group)
    if rank == 0:
        time.sleep(4)
    for work in begun(group, (first, second), (60, 2)):
        work.wait()
    assert (first.tolist(), second.tolist()) == ([ranks * ranks] * 2, [ranks] * 3), (first, second)
    # Rank 0 makes the first call alone, and the second one fails.
    works = begun(group, (first,), (60,)) if rank == 0 else begun(group, (first, second), (60, 2))
    works[0].wait()
    if rank == 0:
        time.sleep(6)
    else:
        cluster.raises(dist.DistBackendError, "the limit is 2.0 s", works[1].wait)
    os._exit(0)


def named_at_the_barrier(rank, ranks):
    """Every rank that waits is told all that are missing, and the group goes on."""
    if rank >= 2:
        limit = datetime.timedelta(seconds=1)
        try:
            dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
        except RuntimeError as error:
            assert "Ranks 0, 1 failed to pass" in str(error), error
        else:
            raise AssertionError("no error")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == ranks


def joins_the_next_barrier(rank, ranks):
    """Who was missing at a barrier, which the others were told, comes to the next one, and nothing is left in the store."""
    store = dist.distributed_c10d._get_default_store()
    limit = datetime.timedelta(seconds=1)
    for number in range(5):
        dist.monitored_barrier()
    before = store.num_keys()
    if rank != 1:
        try:
            dist.monitored_barrier(timeout=limit)
        except RuntimeError as error:
            assert "Rank 1 failed to pass" in str(error), error
        else:
            raise AssertionError("no error")
    # By other means: rank 1 comes when all others have given up.
    dist.all_reduce(torch.ones(1))
    for number in range(20):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    dist.all_reduce(torch.ones(1))
    # Of the barrier that failed, and of the last one.
    assert store.num_keys() <= before + 2 * ranks, (before, store.num_keys())


def a_message_that_never_comes(rank, ranks):
    """A receive has the group's time limit, or that of a wait, and names whom it waits for."""
    short = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        work = dist.irecv(torch.empty(2), 1, group=short)
        try:
            work.wait(datetime.timedelta(seconds=0.1))
        except dist.DistBackendError as error:
            assert "not done after" in str(error), error
        else:
            raise AssertionError("no time limit of a wait")
        for _ in range(2):
            try:
                work.wait()
            except dist.DistBackendError as error:
                assert "receive of 8 bytes from rank 1 with tag 0" in str(error), error
            else:
                raise AssertionError("no time limit of a receive")
        try:
            dist.send(torch.ones(2), 1, group=short)
        except dist.DistBackendError as error:
            assert "in group" in str(error), error
        else:
            raise AssertionError("messages go on after a failure")
    dist.barrier()
    # The collectives of the group do not suffer.
    dist.all_reduce(torch.ones(1), group=short)


def dies_with_a_message_due(rank, ranks):
    """The death of whoever is to send is told at once."""
    dist.all_reduce(torch.ones(1))
    if rank == ranks - 1:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    try:
        dist.recv(torch.empty(2), ranks - 1 if rank or not cluster.TELLS_COMPLETION else None)
    except dist.DistBackendError as error:
        assert f"rank {ranks - 1}" in str(error), error
        os._exit(0)
    raise AssertionError("nobody has noticed")


def is_given_back(rank, ranks):
    """Groups that have ended keep nothing: neither streams nor themselves."""
    import gc
    import weakref

    from accl.torch import group as groups

    made = []
    original = groups.Group.__init__

    def counted(self, *arguments):
        made.append(weakref.ref(self))
        original(self, *arguments)

    groups.Group.__init__ = counted
    for _ in range(3):
        group = dist.new_group()
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        work.wait()
        # Nobody waits for these.
        dist.all_reduce(torch.ones(1), group=group, async_op=True)
        large = torch.ones(100_000)
        kept = weakref.ref(large)
        dist.irecv(large, (rank + 1) % ranks, group=group)
        del large
        assert kept() is not None
        dist.destroy_process_group(group)
        # Older releases end a group only when nobody has it any more.
        del group, work
        gc.collect()
        assert kept() is None, "what was to be received into lives on"
    gc.collect()
    groups.Group.__init__ = original
    assert len(made) == 3 and sum(reference() is not None for reference in made) == 0, made


def again(rank, ranks):
    """The default group ends and is made anew, ten times."""
    store = dist.distributed_c10d._get_default_store()
    for number in range(10):
        dist.destroy_process_group()
        dist.init_process_group("accl", store=dist.PrefixStore(str(number), store), rank=rank, world_size=ranks)
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [float(ranks)] * 3
    threads = len(os.listdir("/proc/self/task"))
    assert threads < 40, threads


def wrong(rank, ranks):
    """Ranks that call different operations are told of both."""
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(5))
        else:
            dist.all_reduce(torch.ones(6))
    except dist.DistBackendError as error:
        assert "5 × float32" in str(error) and "6 × float32" in str(error), error
    else:
        raise AssertionError("no error")
    os._exit(0)


PROGRAM = """
import os, sys, torch, torch.distributed as dist, accl.torch
dist.init_process_group("accl", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.all_reduce(torch.ones(3))
work = dist.all_reduce(torch.ones(3), async_op=True)
if sys.argv[3] == "raise": raise ValueError("mine")
"""


def ends_quietly(how):
    """A script that does not destroy its group, or raises: nothing is added to what it says, and it ends."""
    with tempfile.TemporaryDirectory() as directory:
        end_quietly(how, os.path.join(directory, "store"))


def end_quietly(how, store):
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, store, str(rank), how], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in ranks:
        _, text = process.communicate(timeout=60)
        # PyTorch itself may remind of destroy_process_group().
        lines = [line for line in text.splitlines() if "destroy_process_group" not in line]
        if how == "raise":
            assert process.returncode == 1 and lines[-1].endswith("ValueError: mine"), text
        else:
            assert process.returncode == 0 and lines == [], text


CHECKS = [late, each_call_has_its_own, again, wrong, a_message_that_never_comes, is_given_back]


def others():
    """Checks that are of one number of ranks."""
    count = 4
    if cluster.has((2, 15), "monitored_barrier of other back ends than gloo"):
        cluster.run(4, named_at_the_barrier)
        cluster.run(3, joins_the_next_barrier)
        count += 2
    cluster.run(3, killed, spared=(2,))
    cluster.run(3, dies_with_a_message_due, spared=(2,))
    for how in ("end", "raise"):
        ends_quietly(how)
    return count


if __name__ == "__main__":
    cluster.check_all("failures", CHECKS, others)
