"""Training on several ranks against training in one process: DDP, FSDP, DTensor, optimizers in parts, compiled collectives, checkpoints."""

import tempfile

import ranks as cluster
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 20, 12


class Model(nn.Module):
    """Two layers, and one that is used in every other step if `unused`."""

    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.extra = nn.Linear(16, 36), nn.Linear(36, 4), nn.Linear(16, 4)
        self.unused, self.step = unused, 0

    def forward(self, inputs):
        self.step += 1
        outputs = self.second(torch.tanh(self.first(inputs)))
        return outputs if self.unused and self.step % 2 else outputs + self.extra(inputs)


def batch(step, part=slice(None)):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 16, generator=generator)
    return inputs[part], inputs[part].pow(2).sum(1, keepdim=True).expand(-1, 4)


def train(model, optimizer, part=slice(None), steps=STEPS):
    for step in range(steps):
        inputs, targets = batch(step, part)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def alone(unused=False, make=torch.optim.SGD):
    model = Model(unused)
    train(model, make(model.parameters(), lr=0.05))
    return model


def part_of(rank, ranks):
    share = BATCH // ranks
    return slice(rank * share, (rank + 1) * share)


def close(found, expected, tolerance=1e-5):
    for (name, mine), reference in zip(found.named_parameters(), expected.parameters(), strict=True):
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(mine, reference, atol=tolerance, rtol=tolerance, msg=name)


def data_parallel(rank, ranks):
    for unused in (False, True):
        model = DistributedDataParallel(Model(unused), find_unused_parameters=unused, bucket_cap_mb=0.001)
        train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
        close(model.module, alone(unused))
    model = DistributedDataParallel(Model(), gradient_as_bucket_view=True)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
    close(model.module, alone())
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = DistributedDataParallel(Model())
    model.register_comm_hook(None, bf16_compress_hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
    close(model.module, alone(), tolerance=0.05)


def compressed(rank, ranks):
    """PowerSGD: what is to be done when an operation ends makes others and waits for them."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    # It waits for a device that is there, whatever the tensors are on.
    torch.cuda.is_available = lambda: False
    torch.manual_seed(3)
    model = DistributedDataParallel(Model())
    # Enough for all that these gradients hold, so that nothing is lost; small ones go uncompressed.
    state = power.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, power.powerSGD_hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
    for parameter in model.parameters():
        other = parameter.detach().clone()
        dist.broadcast(other, 0)
        torch.testing.assert_close(other, parameter.detach())
    close(model.module, alone(), tolerance=0.1)


def in_a_pipeline(rank, ranks):
    """Each rank has a layer; several small batches are under way at once."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(ranks)]
    inputs, targets = torch.randn(12, 16), torch.randn(12, 16)
    reference = nn.Sequential(*layers)
    loss = nn.functional.mse_loss(reference(inputs), targets)
    loss.backward()
    expected = [parameter.grad.clone() for parameter in layers[rank].parameters()]
    for make in (ScheduleGPipe, Schedule1F1B):
        reference.zero_grad()
        stage = PipelineStage(layers[rank], rank, ranks, torch.device("cpu"))
        schedule = make(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
        else:
            schedule.step()
        for parameter, gradient in zip(layers[rank].parameters(), expected, strict=True):
            # 2.6 adds the gradients of all small batches, later releases take their mean.
            torch.testing.assert_close(parameter.grad / (1 if cluster.RELEASE >= (2, 15) else 4), gradient)


def sharded_as_before(rank, ranks):
    """FSDP of the first kind."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
    with FullyShardedDataParallel.summon_full_params(model):
        close(model.module, alone())


def ends_at_different_times(rank, ranks):
    """Rank 1 has fewer batches: the join helper keeps it in step."""
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        train(model, optimizer, steps=3 if rank == 1 else 5)
    first = [torch.empty_like(parameter) for parameter in model.parameters()]
    for mine, other in zip(model.parameters(), first, strict=True):
        other.copy_(mine.detach())
        dist.broadcast(other, 0)
        assert torch.equal(mine, other)


def sharded(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    model = Model()
    for layer in (model.first, model.second, model.extra, model):
        fully_shard(layer, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), part_of(rank, ranks))
    close(model, alone())
    with tempfile.TemporaryDirectory() as directory:
        places = [directory]
        dist.broadcast_object_list(places, 0)
        state = {"model": model.state_dict()}
        checkpoint.save(state, checkpoint_id=places[0])
        fresh = Model()
        for layer in (fresh.first, fresh.second, fresh.extra, fresh):
            fully_shard(layer, mesh=mesh)
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.zero_()
        state = {"model": fresh.state_dict()}
        checkpoint.load(state, checkpoint_id=places[0])
        close(fresh, alone())
        dist.barrier()


def in_tensor_parallel(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    model = Model()
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    inputs, _ = batch(0)
    torch.testing.assert_close(model(inputs), Model()(inputs))
    whole = torch.arange(ranks * 12.0).view(ranks * 3, 4)
    placed = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(placed.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(placed.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal((placed @ placed.t()).full_tensor(), whole @ whole.t())


def optimizer_in_parts(rank, ranks):
    model = DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer, part_of(rank, ranks))
    reference = Model()
    train(reference, torch.optim.Adam(reference.parameters(), lr=0.01))
    close(model.module, reference, tolerance=1e-3)


def compiled(rank, ranks):
    """One graph, with the collectives in it."""

    def step(tensor):
        total = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        rows = functional.all_gather_tensor(total + rank, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(rows, "sum", 0, dist.group.WORLD) + 1

    tensor = torch.arange(4.0) + rank
    expected = step(tensor)
    found = torch.compile(step, backend="aot_eager", fullgraph=True)(tensor)
    assert torch.equal(found, expected), (found, expected)
    total = sum((torch.arange(4.0) + other) * 2 for other in range(ranks))
    assert torch.equal(expected, (total + rank) * ranks + 1), expected


CHECKS = [
    *(data_parallel, compressed, in_a_pipeline, sharded_as_before, ends_at_different_times, sharded),
    *(in_tensor_parallel, optimizer_in_parts, compiled),
]

if __name__ == "__main__":
    has_fsdp2 = cluster.has((2, 15), "FSDP2 on CPUs")
    cluster.check_all("training", [check for check in CHECKS if has_fsdp2 or check is not sharded])
