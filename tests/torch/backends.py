"""The process groups of this PyTorch that work over NCCL: since 2.15 there are two, the older one under a name of its own."""

import torch

RELEASE = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
BACKENDS = ("nccl", "nccl-legacy") if RELEASE >= (2, 15) else ("nccl",)
