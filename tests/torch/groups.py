#!/usr/bin/env python3
"""Memory pools of ncclMemAlloc, all_to_all of lists, and a group that goes on without one of its ranks, over this library."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from backends import RELEASE


def pool(rank, ranks, device):
    backend = dist.group.WORLD._get_backend(device)
    memory = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(memory):
        tensor = torch.full((1000,), rank + 1.0, device=device)
    backend.register_mem_pool(memory)
    dist.all_reduce(tensor)
    assert tensor.cpu().eq(ranks * (ranks + 1) / 2).all()
    backend.deregister_mem_pool(memory)


def lists(rank, ranks, device):
    received = [torch.empty(5 + rank, device=device) for _ in range(ranks)]
    sent = [torch.full((5 + peer,), rank * 10.0 + peer, device=device) for peer in range(ranks)]
    dist.all_to_all(received, sent)
    for peer, tensor in enumerate(received):
        assert tensor.cpu().eq(peer * 10.0 + rank).all(), (rank, peer, tensor)


def shrink(rank, ranks, device):
    if rank == ranks - 1:
        time.sleep(2)
        return
    smaller = dist.shrink_group([ranks - 1])
    tensor = torch.full((7,), rank + 1.0, device=device)
    dist.all_reduce(tensor, group=smaller)
    assert tensor.cpu().eq((ranks - 1) * ranks / 2).all(), tensor


def work(rank, ranks, directory):
    torch.cuda.set_device(rank)
    device, store = torch.device("cuda", rank), dist.FileStore(f"{directory}/store", ranks)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, device_id=device)
    lists(rank, ranks, device)
    # Both came with later releases.
    if RELEASE >= (2, 15):
        pool(rank, ranks, device)
        shrink(rank, ranks, device)
    # A group whose ranks have parted can not be destroyed by all of them together.
    sys.stdout.flush()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(work, args=(3, directory), nprocs=3)
    print("groups: 3 ranks")


if __name__ == "__main__":
    os.environ["ACCL_SIM_DEVICES"] = "3"
    sys.exit(main())
