"""Groups that are made out of others: by splitting, and by going on without some ranks; and what PyTorch's flight recorder sees of them."""

import datetime
import json
import os
import pickle
import tempfile
import time

import ranks as cluster
import torch
import torch.distributed as dist


def total(group=None):
    """How many ranks take part."""
    value = torch.ones(3)
    dist.all_reduce(value, group=group)
    assert value.eq(value[0]).all()
    return int(value[0])


def told(group, ranks):
    """Each rank's message to the next one comes there."""
    mine = dist.get_rank(group)
    sent = dist.isend(torch.full((5,), float(mine)), group=group, group_dst=(mine + 1) % ranks)
    arrived = torch.empty(5)
    dist.recv(arrived, group=group, group_src=(mine - 1) % ranks)
    sent.wait()
    return arrived.eq(float((mine - 1) % ranks)).all()


def split(rank, ranks):
    """Parts of the whole, in an order of their own; a part of a part; whoever is in none gets none."""
    half = ranks // 2
    parts = [list(reversed(range(half))), list(range(half, ranks))]
    group = dist.split_group(split_ranks=parts)
    mine = parts[0] if rank < half else parts[1]
    assert dist.get_process_group_ranks(group) == mine and dist.get_rank(group) == mine.index(rank)
    assert total(group) == len(mine) and told(group, len(mine))
    first = dist.split_group(split_ranks=[[0]])
    assert (first is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)
    if rank == 0:
        assert total(first) == 1
    if rank >= half:
        pair = dist.split_group(group, [[1, 0]])
        assert total(pair) == 2 and dist.get_process_group_ranks(pair) == [half + 1, half]
    assert total() == ranks


def shrink(rank, ranks):
    """Without a rank that lives and goes its own way."""
    assert total() == ranks and told(None, ranks)
    if rank == 1:
        return
    group = dist.shrink_group([1])
    assert dist.get_world_size() == ranks - 1 and dist.get_rank() == (rank if rank == 0 else rank - 1)
    assert total(group) == ranks - 1 and told(group, ranks - 1)


def shrink_after_a_death(rank, ranks):
    """Without a rank that has been killed while the others needed it, and then without another one."""
    for last in (ranks - 1, ranks - 2):
        assert total() == last + 1
        if rank == last:
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
        try:
            while True:
                total()
        except dist.DistBackendError as error:
            assert f"rank {last} " in str(error), error
        dist.shrink_group([last], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        assert dist.get_world_size() == last and told(None, last)
    os._exit(0)


def recorded(rank, ranks, directory):
    """The flight recorder has each call, with its sizes, and leaves a file when one fails."""
    from torch._C._distributed_c10d import _dump_fr_trace_json

    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(directory, "trace_")
    short = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.all_reduce(torch.ones(3, 4))
    dist.broadcast(torch.ones(5, dtype=torch.int64), 0)
    entries = json.loads(_dump_fr_trace_json(backend="accl"))["entries"]
    named = [(entry["profiling_name"], entry["input_sizes"]) for entry in entries]
    assert ("accl:all_reduce", [[3, 4]]) in named and ("accl:broadcast", [[5]]) in named, named
    if rank == 0:
        try:
            dist.recv(torch.empty(7), 1, group=short)
        except dist.DistBackendError:
            with open(os.path.join(directory, "trace_0"), "rb") as file:
                entries = pickle.load(file)["entries"]
            assert any("recv" in entry["profiling_name"] and entry["output_sizes"] == [[7]] for entry in entries), entries
        else:
            raise AssertionError("no time limit")
    dist.barrier()


if __name__ == "__main__":
    if not cluster.has((2, 15), "split_group and shrink_group of groups of CPUs") or not cluster.TELLS_COMPLETION:
        raise SystemExit
    cluster.run(4, split)
    cluster.run(3, shrink)
    cluster.run(4, shrink_after_a_death, spared=(2, 3))
    with tempfile.TemporaryDirectory() as directory:
        cluster.run(2, recorded, directory)
    print("backend: groups: 4 checks passed")
