"""A small llama that learns this project's own documentation, letter by letter, on as many processes as torchrun starts:

    torchrun --nproc-per-node 2 examples/train_llama.py [--parallel ddp|fsdp2|zero1|zero2|zero3] [--backend accl|gloo] [--steps 60]
        [--plot loss.svg]

zero1 to zero3 are the stages of DeepSpeed, which has to be installed (DS_ACCELERATOR=cpu). Rank 0 prints the loss, tokens per second, and by how
much a step is longer than the same computation without communication.
"""

import argparse
import copy
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(CONTEXT), 10000 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, states):
        cos, sin = self.cos[: states.shape[-2]], self.sin[: states.shape[-2]]
        even, odd = states.chunk(2, -1)
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

    def forward(self, states):
        batch, length, width = states.shape
        parts = self.qkv(states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = self.turned(parts[0]), self.turned(parts[1]), parts[2]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.feed_norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, states):
        states = states + self.attention(self.norm(states))
        normed = self.feed_norm(states)
        return states + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Letters in, the next letters' scores out."""

    def __init__(self, letters, width, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, letters):
        states = self.embedding(letters)
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


class Plain:
    """A model in one process, or one whose gradients PyTorch takes care of."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(self, loss_of):
        """One step; returns the loss."""
        loss = loss_of(self.model)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Staged:
    """A model whose optimizer, gradients and parameters DeepSpeed divides among the ranks."""

    def __init__(self, model, stage, batch):
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": batch,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        self.engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    def step(self, loss_of):
        loss = loss_of(self.engine)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


def timed(training, loss_of):
    """Seconds of a step, and its loss."""
    start = time.perf_counter()
    loss = training.step(loss_of)
    return time.perf_counter() - start, loss


def made(model, options, ranks):
    """The model as this run has it."""
    if options.parallel.startswith("zero"):
        return Staged(model, int(options.parallel[-1]), options.batch)
    if options.parallel == "ddp":
        return Plain(DistributedDataParallel(model))
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Plain(model)


def median(values):
    return sorted(values)[len(values) // 2]


def text():
    root = pathlib.Path(__file__).resolve().parent.parent
    pages = [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").glob("*.md"))]
    return "\n".join(page.read_text() for page in pages if page.exists())


def plot(losses, path):
    """The losses as a line in an SVG file."""
    width, height, most = 640, 240, max(losses)
    points = " ".join(
        f"{10 + (width - 20) * step / max(len(losses) - 1, 1):.1f},{height - 10 - (height - 20) * loss / most:.1f}"
        for step, loss in enumerate(losses)
    )
    pathlib.Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<polyline fill="none" stroke="black" points="{points}"/>'
        f'<text x="14" y="20" font-size="12">loss {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps</text></svg>\n'
    )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="accl", help="accl or gloo")
    parser.add_argument("--parallel", default="ddp", choices=["ddp", "fsdp2", "zero1", "zero2", "zero3"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="sequences for each rank")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--plot", help="write the losses to this SVG file")
    return parser.parse_args()


def main():
    options = parsed()
    if options.backend == "accl":
        import accl.torch  # registers the back end
    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.manual_seed(0)
    letters = sorted(set(text()))
    data = torch.tensor([letters.index(letter) for letter in text()])
    model = Llama(len(letters), options.width, options.layers, heads=4)
    generator = torch.Generator().manual_seed(rank)

    def loss_of(model):
        starts = torch.randint(len(data) - CONTEXT - 1, (options.batch,), generator=generator)
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        scores = model(rows[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())

    # All ranks at once, since they share the machine: what a step takes without communication.
    alone = Plain(copy.deepcopy(model))
    dist.barrier()
    alone_s = median([timed(alone, loss_of)[0] for _ in range(11)])
    training = made(model, options, ranks)
    losses, times = [], []
    for number in range(options.steps):
        passed_s, mean = timed(training, loss_of)
        times.append(passed_s)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if rank == 0 and (number % 10 == 9 or number == 0):
            print(f"step {number + 1:4}  loss {losses[-1]:.3f}", flush=True)
    if rank == 0:
        step_s = median(times)
        exposed = max(0.0, 1 - alone_s / step_s)
        speed = options.batch * CONTEXT * ranks / step_s
        print(
            f"{options.backend}, {options.parallel}, {ranks} ranks: {speed:.0f} tokens/s; {exposed:.0%} of a step is communication that shows"
        )
        if options.plot:
            plot(losses, options.plot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
