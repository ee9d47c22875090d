"""Sends and receives: their order, tags, partners that are late, groups."""

import threading
import time

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


CHECKS = [in_any_order, with_tags, late, before_anything_else, from_threads, groups]

if __name__ == "__main__":
    cluster.check_all("messages", CHECKS)
