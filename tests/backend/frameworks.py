"""DeepSpeed's three stages and Accelerate, over "accl" and over gloo: the losses are the same. frameworks.py RANKS..."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TRAIN = HERE.parent.parent / "examples" / "train_llama.py"


def losses(ranks, program, *arguments):
    """What a program prints of its losses."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    ended = subprocess.run(
        [*command, str(program), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = [float(value) for value in re.findall(r"loss +([0-9.]+)$", ended.stdout, re.MULTILINE)]
    if ended.returncode or not found:
        raise SystemExit(f"{program} {arguments} on {ranks} ranks: exit code {ended.returncode}\n{ended.stderr}")
    return found


def same(ranks, name, run):
    """By `run(backend)`."""
    mine, other = run("accl"), run("gloo")
    assert len(mine) == len(other) and mine[0] > mine[-1], (name, mine)
    # Sums of floating-point numbers in another order.
    worst = max(abs(one - two) for one, two in zip(mine, other, strict=True))
    assert worst < 0.01, (name, ranks, mine, other)
    print(f"backend: {name} on {ranks} ranks: losses {mine[0]:.3f} to {mine[-1]:.3f}, gloo's within {worst:.4f}", flush=True)


if __name__ == "__main__":
    sizes = [int(argument) for argument in sys.argv[1:]] or [2]
    for ranks in sizes:
        for stage in ("zero1", "zero2", "zero3"):
            sizes_of_model = ("--parallel", stage, "--steps", "20", "--width", "64", "--layers", "2")
            same(ranks, stage, lambda backend: losses(ranks, TRAIN, "--backend", backend, *sizes_of_model))
        same(ranks, "accelerate", lambda backend: losses(ranks, HERE / "accelerated.py", backend))
    print(f"backend: frameworks: {4 * len(sizes)} checks passed")
