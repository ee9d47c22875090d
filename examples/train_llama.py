"""A small llama that learns this project's own documentation, letter by letter, on as many processes as torchrun starts:

    torchrun --nproc-per-node 2 examples/train_llama.py [--parallel ddp|fsdp2] [--backend accl|gloo] [--steps 60] [--plot loss.svg]

Rank 0 prints the loss, tokens per second, and the share of the time in which the program waits for communication.
"""

import argparse
import math
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


class Waiting:
    """Seconds in which the program waits for communication: in calls that return when they are done, and in waits for others. PyTorch
    offers no such figure, so that the time of a step without communication is taken from it."""

    def __init__(self, model, step):
        self.alone_s = math.inf
        if isinstance(model, DistributedDataParallel):
            for _ in range(3):
                with model.no_sync():
                    start = time.perf_counter()
                    step()
                    self.alone_s = min(self.alone_s, time.perf_counter() - start)

    def share(self, step_s):
        """Of a step's time; None if it is not known."""
        return max(0.0, 1 - self.alone_s / step_s) if math.isfinite(self.alone_s) else None


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
    parser.add_argument("--parallel", default="ddp", choices=["ddp", "fsdp2"])
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
    if options.parallel == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(rank)

    def loss_of_batch():
        starts = torch.randint(len(data) - CONTEXT - 1, (options.batch,), generator=generator)
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        scores = model(rows[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())

    def step():
        loss = loss_of_batch()
        loss.backward()
        return loss

    waiting = Waiting(model, step)
    optimizer.zero_grad()
    losses, times = [], []
    for number in range(options.steps):
        start = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - start)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if rank == 0 and (number % 10 == 9 or number == 0):
            print(f"step {number + 1:4}  loss {losses[-1]:.3f}", flush=True)
    if rank == 0:
        step_s = sorted(times)[len(times) // 2]
        share = waiting.share(step_s)
        exposed = "not measured" if share is None else f"{share:.0%} of a step"
        speed = options.batch * CONTEXT * ranks / step_s
        print(f"{options.backend}, {options.parallel}, {ranks} ranks: {speed:.0f} tokens/s; communication that shows: {exposed}")
        if options.plot:
            plot(losses, options.plot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
