#!/usr/bin/env python3
"""Training on several simulated devices over this library, against one process on the CPU: DDP, FSDP1, FSDP2, DTensor.

Kernels of PyTorch run on the CPU (`helper`), on the same memory; collectives go through the process group, as always.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from backends import BACKENDS

STEPS, BATCH = 4, 8


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def batch(step):
    torch.manual_seed(100 + step)
    return torch.randn(BATCH, 12), torch.randn(BATCH, 4)


def train(network, device, rank, ranks):
    """Trains on this rank's share of each batch; all shares are of equal size, so that means of means are means."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, labels = (part.chunk(ranks)[rank].to(device) for part in batch(step))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(inputs), labels).backward()
        optimizer.step()


def expected():
    network = model()
    train(network, "cpu", 0, 1)
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def same(what, parameters, wanted):
    assert set(parameters) == set(wanted), (what, set(parameters), set(wanted))
    for name, parameter in parameters.items():
        assert torch.allclose(parameter.cpu(), wanted[name], atol=1e-6), (what, name, parameter.cpu() - wanted[name])


def ddp(device, rank, ranks, wanted):
    network = torch.nn.parallel.DistributedDataParallel(model().to(device), device_ids=[rank])
    train(network, device, rank, ranks)
    same("DDP", dict(network.module.named_parameters()), wanted)


def fsdp1(device, rank, ranks, wanted):
    from torch.distributed.fsdp import FullyShardedDataParallel
    network = FullyShardedDataParallel(model().to(device), device_id=device, use_orig_params=True)
    train(network, device, rank, ranks)
    with FullyShardedDataParallel.summon_full_params(network):
        same("FSDP1", {name.replace("_fsdp_wrapped_module.", ""): parameter for name, parameter in network.named_parameters()}, wanted)


def fsdp2(device, rank, ranks, wanted):
    from torch.distributed.fsdp import fully_shard
    network = model().to(device)
    for layer in network:
        fully_shard(layer)
    fully_shard(network)
    train(network, device, rank, ranks)
    same("FSDP2", {name: parameter.full_tensor() for name, parameter in network.named_parameters()}, wanted)


def dtensor(device, rank, ranks, wanted):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    mesh = init_device_mesh("cuda", (ranks,))
    torch.manual_seed(5)
    left, right = torch.randn(8, 6), torch.randn(6, 10)
    product = distribute_tensor(left.to(device), mesh, [Shard(0)]) @ distribute_tensor(right.to(device), mesh, [Replicate()])
    assert torch.allclose(product.full_tensor().cpu(), left @ right, atol=1e-5)
    summed = distribute_tensor(left.to(device), mesh, [Shard(1)]) @ distribute_tensor(right.to(device), mesh, [Shard(0)])
    assert torch.allclose(summed.redistribute(mesh, [Shard(1)]).full_tensor().cpu(), left @ right, atol=1e-5)


def work(rank, ranks, backend, directory):
    import helper
    # Kept: what is replaced stays so as long as that lives.
    replaced = helper.install()
    torch.cuda.set_device(rank)
    device, wanted = torch.device("cuda", rank), expected()
    store = dist.FileStore(f"{directory}/store", ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, device_id=device)
    for check in (ddp, fsdp1, fsdp2, dtensor):
        check(device, rank, ranks, wanted)
        dist.barrier()
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(ranks)]
    dist.destroy_process_group()
    assert replaced


def main():
    for backend, ranks in [("nccl", 4), *((backend, 2) for backend in BACKENDS)]:
        with tempfile.TemporaryDirectory() as directory:
            multiprocessing.spawn(work, args=(ranks, backend, directory), nprocs=ranks)
        print(f"parallel: {backend}, {ranks} ranks")


if __name__ == "__main__":
    os.environ["ACCL_SIM_DEVICES"] = "4"
    sys.exit(main())
