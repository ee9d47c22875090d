"""Sends and receives: their order, tags, partners that are late, groups."""

import datetime
import os
import threading
import time
import weakref

import ranks as cluster
import torch
import torch.distributed as dist


def in_any_order(rank, ranks):
    """Everybody sends before it receives, and collectives go on meanwhile."""
    peers = [peer for peer in range(ranks) if peer != rank]
    incoming = {peer: torch.empty(100_000) for peer in peers}
    works = [dist.irecv(incoming[peer], peer) for peer in peers]
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [float(ranks)] * 3
    works += [dist.isend(torch.full((100_000,), float(rank * ranks + peer)), peer) for peer in peers]
    for work in works:
        work.wait()
    for peer, tensor in incoming.items():
        assert tensor.eq(peer * ranks + rank).all(), (peer, tensor[0])
    for size in [0, 1, 5, 3_000_000]:
        first, second = (rank + 1) % ranks, (rank - 1) % ranks
        if rank % 2 == 0:
            dist.send(torch.full((size,), float(size)), first)
        arrived = torch.empty(size)
        assert dist.recv(arrived, second) == second
        assert arrived.eq(size).all()
        if rank % 2 == 1:
            dist.send(torch.full((size,), float(size)), first)


def with_tags(rank, ranks):
    """Tags keep messages apart, whatever their order."""
    if rank == 0:
        works = [dist.isend(torch.full((4,), float(tag)), 1, tag=tag) for tag in (5, 6, 7)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (7, 5, 6):
            arrived = torch.empty(4)
            dist.recv(arrived, 0, tag=tag)
            assert arrived.tolist() == [float(tag)] * 4
    dist.barrier()


def late(rank, ranks):
    """Who is late keeps nobody else waiting."""
    if rank == 0:
        arrived = torch.empty(2)
        work = dist.irecv(arrived, 1)
        time.sleep(0.2)
        assert not work.is_completed()
        dist.barrier()
        work.wait()
        assert arrived.tolist() == [1.0, 1.0], arrived
        assert work.is_completed() or not cluster.TELLS_COMPLETION
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(2), 0)
    strided = torch.zeros(3, 2)[:, 0]
    requests = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, strided, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(requests):
        work.wait()
    assert strided.tolist() == [float((rank - 1) % ranks)] * 3


def before_anything_else(rank, ranks):
    """A message comes before the first collective of rank 0, for which the others wait already."""
    group = dist.new_group()
    if rank == 1:
        work = dist.isend(torch.ones(3), 0, group=group)
    if rank == 0:
        arrived = torch.empty(3)
        dist.recv(arrived, 1, group=group)
        assert arrived.tolist() == [1.0] * 3
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == ranks
    # Nobody ever sends these: the group ends all the same.
    dist.irecv(torch.empty(2), (rank + 1) % ranks, group=group, tag=9)
    if rank == 1:
        work.wait()
    dist.barrier()


def from_threads(rank, ranks):
    """Messages and collectives of several groups, from several threads at once."""
    groups = [dist.new_group() for _ in range(3)]

    def work(number, group):
        value = torch.zeros(3, 2)[:, 0]
        for round_ in range(100):
            value.fill_(number + round_)
            pending = dist.all_reduce(value, group=group, async_op=True)
            token = torch.full((2,), float(number))
            arrived = torch.empty(2)
            sent = dist.isend(token, (rank + 1) % ranks, group=group)
            dist.recv(arrived, (rank - 1) % ranks, group=group)
            sent.wait()
            pending.wait()
            assert value.tolist() == [float(ranks * (number + round_))] * 3 and arrived.tolist() == token.tolist()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(groups)]
    failures = []
    threading.excepthook = lambda told: failures.append(told.exc_value)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def groups(rank, ranks):
    """Groups that overlap, beside the whole."""
    even = dist.new_group(list(range(0, ranks, 2)))
    rest = dist.new_group(list(range(1, ranks)))
    for group, members in ((even, range(0, ranks, 2)), (rest, range(1, ranks))):
        if rank in members:
            value = torch.tensor([float(rank)])
            dist.all_reduce(value, group=group)
            assert value.item() == sum(members)
            for member in members:
                told = torch.tensor([float(rank)])
                dist.broadcast(told, member, group=group)
                assert told.item() == member
    value = torch.tensor([1.0])
    dist.all_reduce(value)
    assert value.item() == ranks
    if cluster.RELEASE >= (2, 15):
        dist.monitored_barrier()


def from_any_rank(rank, ranks):
    """Whoever sends first is received first, and named; tags and named receives keep theirs."""
    if not cluster.TELLS_COMPLETION:
        try:
            dist.recv(torch.empty(2))
        except NotImplementedError as error:
            assert "needs compiled code" in str(error), error
        else:
            raise AssertionError("no error")
        return
    if rank == 0:
        named = torch.empty(2)
        work = dist.irecv(named, ranks - 1, tag=3)
        seen = []
        for layout in range(2 * (ranks - 1)):
            arrived = torch.zeros(2, 2)[:, 0] if layout % 2 else torch.zeros(2)
            source = dist.recv(arrived)
            assert arrived.tolist() == [float(source)] * 2, (source, arrived)
            seen.append(source)
        assert sorted(seen) == sorted(2 * list(range(1, ranks))), seen
        work.wait()
        assert named.tolist() == [3.0, 3.0]
    else:
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 0)
        if rank == ranks - 1:
            dist.send(torch.full((2,), 3.0), 0, tag=3)
    dist.barrier()


def a_tag_for_each_step(rank, ranks):
    """Tags cost nothing: neither connections nor memory are kept for those that have been used."""

    def exchange(steps):
        for step in steps:
            sent = dist.isend(torch.full((4,), float(step)), (rank + 1) % ranks, tag=step)
            arrived = torch.empty(4)
            dist.recv(arrived, (rank - 1) % ranks, tag=step)
            assert arrived.tolist() == [float(step)] * 4
            sent.wait()

    def held():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * os.sysconf("SC_PAGESIZE")

    exchange(range(1000))
    files, threads, size_bytes = held()
    exchange(range(1000, 6000))
    now = held()
    assert now[:2] == (files, threads), (files, threads, now)
    assert now[2] - size_bytes < 8 << 20, (size_bytes, now)


def forgotten(rank, ranks):
    """A receive that stands open holds nothing back: not the memory of later calls, not their futures."""
    early = torch.empty(1)
    first = dist.irecv(early, (rank - 1) % ranks, tag=77)
    references = []
    for _ in range(300):
        tensor = torch.ones(1000)
        references.append(weakref.ref(tensor))
        dist.all_reduce(tensor, async_op=True).wait()
        del tensor
    dist.all_reduce(torch.ones(1))
    alive = sum(reference() is not None for reference in references)
    assert alive < 150, alive
    told = first.get_future().then(lambda future: early.item())
    try:
        # While a thread waits for the future's sake.
        first.wait(datetime.timedelta(seconds=0.2))
    except dist.DistBackendError as error:
        assert "not done after" in str(error), error
    else:
        raise AssertionError("no time limit")
    later = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    later.wait()
    assert not told.done()
    dist.barrier()
    dist.send(torch.full((1,), 5.0), (rank + 1) % ranks, tag=77)
    first.wait()
    assert told.wait() == 5.0


def not_for_autograd(rank, ranks):
    """Messages and collectives write into parameters, of any layout."""
    parameter = torch.nn.Parameter(torch.zeros(4, 2).t())
    assert not parameter.is_contiguous()
    dist.all_reduce(parameter.detach().fill_(1.0).requires_grad_())
    if rank == 0:
        dist.send(parameter, 1)
    elif rank == 1:
        received = torch.nn.Parameter(torch.zeros(4, 2).t())
        dist.recv(received, 0)
        assert received.eq(float(ranks)).all() and received.requires_grad
    broad = torch.nn.Parameter(torch.full((4, 2), float(rank)).t())
    dist.broadcast(broad, 0)
    assert broad.eq(0.0).all()
    dist.barrier()


CHECKS = [
    *(in_any_order, with_tags, late, before_anything_else, from_threads, groups, from_any_rank, a_tag_for_each_step),
    *(forgotten, not_for_autograd),
]

if __name__ == "__main__":
    cluster.check_all("messages", CHECKS)
