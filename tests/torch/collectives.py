#!/usr/bin/env python3
"""Every collective of torch.distributed over this library on the simulated device, with values: both process groups, 2 and 4 ranks (or as
TORCH_RANKS says).

Each rank also shows that the library which it used is the one that was put into the place of libnccl.so.2.
"""

import ctypes
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from backends import BACKENDS

COUNT = 40
TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8,
)


def own(rank):
    return [(rank + 1) * (index % 3 + 1) for index in range(COUNT)]


class Checks:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.device = torch.device("cuda", rank)

    def tensor(self, values, dtype):
        return torch.tensor(values, dtype=dtype).to(self.device)

    def mine(self, dtype):
        return self.tensor(own(self.rank), dtype)

    def empty(self, count, dtype):
        return torch.empty(count, dtype=dtype, device=self.device)

    def same(self, what, tensor, expected):
        values = tensor.cpu().to(torch.float64)
        assert torch.equal(values, torch.tensor(expected, dtype=torch.float64)), (what, self.rank, values[:8], expected[:8])

    def folded(self, fold):
        return [fold(column) for column in zip(*(own(rank) for rank in range(self.ranks)))]

    def reductions(self, dtype):
        operators = [(dist.ReduceOp.SUM, sum), (dist.ReduceOp.MAX, max), (dist.ReduceOp.MIN, min)]
        if dtype.is_floating_point:
            operators.append((dist.ReduceOp.AVG, lambda column: sum(column) / self.ranks))
        for operator, fold in operators:
            tensor = self.mine(dtype)
            dist.all_reduce(tensor, op=operator)
            self.same(f"all_reduce {operator} {dtype}", tensor, self.folded(fold))
        tensor = self.mine(dtype)
        dist.reduce(tensor, 0)
        if self.rank == 0:
            self.same(f"reduce {dtype}", tensor, self.folded(sum))
        part = COUNT // self.ranks
        scattered = self.empty(part, dtype)
        dist.reduce_scatter_tensor(scattered, self.mine(dtype))
        self.same(f"reduce_scatter {dtype}", scattered, self.folded(sum)[self.rank * part:][:part])

    def movements(self, dtype):
        tensor = self.mine(dtype)
        dist.broadcast(tensor, 1)
        self.same(f"broadcast {dtype}", tensor, own(1))
        everybody = self.empty(COUNT * self.ranks, dtype)
        dist.all_gather_into_tensor(everybody, self.mine(dtype))
        self.same(f"all_gather {dtype}", everybody, sum((own(rank) for rank in range(self.ranks)), []))
        listed = [self.empty(COUNT, dtype) for _ in range(self.ranks)]
        dist.all_gather(listed, self.mine(dtype))
        self.same(f"all_gather of a list {dtype}", listed[-1], own(self.ranks - 1))
        part = COUNT // self.ranks
        exchanged = self.empty(COUNT, dtype)
        dist.all_to_all_single(exchanged, self.mine(dtype))
        expected = sum((own(rank)[self.rank * part:][:part] for rank in range(self.ranks)), [])
        self.same(f"all_to_all {dtype}", exchanged, expected)

    def messages(self, dtype):
        if self.rank == 0:
            dist.send(self.mine(dtype), 1)
        elif self.rank == 1:
            tensor = self.empty(COUNT, dtype)
            dist.recv(tensor, 0)
            self.same(f"recv {dtype}", tensor, own(0))
        following, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        tensor = self.empty(COUNT, dtype)
        sent, received = dist.P2POp(dist.isend, self.mine(dtype), following), dist.P2POp(dist.irecv, tensor, before)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
        self.same(f"batch_isend_irecv {dtype}", tensor, own(before))

    def groups(self):
        pair = dist.new_group([0, 1])
        if self.rank < 2:
            tensor = torch.full((5,), self.rank + 1.0, device=self.device)
            dist.all_reduce(tensor, group=pair)
            self.same("a group of two", tensor, [3.0] * 5)
        total = self.ranks * (self.ranks + 1) / 2
        tensors = [torch.full((7,), self.rank + 1.0, device=self.device) for _ in range(4)]
        with dist._coalescing_manager(device=self.device):
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor in tensors:
            self.same("coalesced", tensor, [total] * 7)
        tensor = torch.full((5_000_000,), self.rank + 1.0, device=self.device)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert (tensor.cpu() == total).all()

    def graph(self):
        total = self.ranks * (self.ranks + 1) / 2
        source, tensor = (torch.full((9,), self.rank + 1.0, device=self.device) for _ in range(2))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            dist.all_reduce(tensor)
        for _ in range(3):
            tensor.copy_(source)
            graph.replay()
            torch.cuda.synchronize()
            self.same("a replayed graph", tensor, [total] * 9)

    def everything(self):
        for dtype in TYPES:
            self.reductions(dtype)
            self.movements(dtype)
            self.messages(dtype)
        self.groups()
        dist.barrier()
        self.graph()


def is_ours():
    place = os.path.realpath(os.environ["NCCL"])
    mapped = {line.split()[-1] for line in open("/proc/self/maps") if "nccl" in line.rsplit("/", 1)[-1]}
    assert mapped == {place}, (mapped, place)
    # What PyTorch says of the version is, before 2.8, that of the headers which it was built with.
    version = ctypes.c_int()
    assert ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)) == 0 and version.value == 23007


def work(rank, ranks, backend, directory):
    torch.cuda.set_device(rank)
    # Ten times: what is destroyed leaves nothing that the next one stumbles over.
    for round in range(10):
        store = dist.FileStore(f"{directory}/{round}", ranks)
        device = torch.device("cuda", rank)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, device_id=device)
        checks = Checks(rank, ranks)
        if round == 0:
            checks.everything()
        else:
            checks.reductions(torch.float32)
        dist.barrier()
        dist.destroy_process_group()
    is_ours()


def main():
    for backend in BACKENDS:
        for ranks in map(int, os.environ.get("TORCH_RANKS", "2 4").split()):
            with tempfile.TemporaryDirectory() as directory:
                multiprocessing.spawn(work, args=(ranks, backend, directory), nprocs=ranks)
            print(f"collectives: {backend}, {ranks} ranks")


if __name__ == "__main__":
    os.environ["ACCL_SIM_DEVICES"] = "8"
    os.environ["TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"] = "false"
    sys.exit(main())
