#!/usr/bin/env python3
"""What PyTorch makes of failures: a rank that is killed amid a collective, and one that never calls, whose peers write what they did."""

import datetime
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from backends import BACKENDS

RANKS = 3


def join(rank, directory, seconds):
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{directory}/store", RANKS)
    device = torch.device("cuda", rank)
    timeout = datetime.timedelta(seconds=seconds)
    backend = os.environ["BACKEND"]
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, device_id=device, timeout=timeout)
    tensor = torch.ones(1_000_000, device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    assert tensor.cpu().eq(RANKS).all()
    return tensor


def killed(rank, directory):
    tensor = join(rank, directory, 300)
    if rank == 1:
        dist.all_reduce(tensor)
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(5):
        dist.all_reduce(tensor)
    # A wrong result would end this rank as if all were well.
    torch.cuda.synchronize()
    print("SYNCHRONIZED")


def late(rank, directory):
    tensor = join(rank, directory, 4)
    if rank == 1:
        time.sleep(60)
        return
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    print("SYNCHRONIZED")


SCENES = {"killed": killed, "late": late}


def run(scene, backend, directory):
    """Output of the ranks but rank 1, and how long they took; all of them must end by themselves, and not well."""
    environment = dict(
        os.environ, BACKEND=backend, ACCL_SIM_DEVICES=str(RANKS), TORCH_NCCL_TRACE_BUFFER_SIZE="200", TORCH_FR_BUFFER_SIZE="200",
        TORCH_NCCL_DUMP_ON_TIMEOUT="1", TORCH_NCCL_DEBUG_INFO_TEMP_FILE=f"{directory}/dump", TORCH_FR_DUMP_TEMP_FILE=f"{directory}/dump",
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="500")
    begin = time.monotonic()
    command = [sys.executable, __file__, scene, directory]
    processes = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(RANKS)
    ]
    outputs = []
    for rank in (0, 2):
        output, _ = processes[rank].communicate(timeout=120)
        assert processes[rank].returncode != 0, output
        assert "SYNCHRONIZED" not in output, output
        outputs.append(output)
    processes[1].kill()
    processes[1].communicate()
    return outputs, time.monotonic() - begin


def main():
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as directory:
            outputs, seconds = run("killed", backend, directory)
            assert any("remote process exited" in output for output in outputs), outputs
            print(f"failures: {backend}, a rank was killed: the others ended after {seconds:.0f} s")
        with tempfile.TemporaryDirectory() as directory:
            outputs, seconds = run("late", backend, directory)
            dumps = sorted(path.name for path in pathlib.Path(directory).glob("dump*"))
            assert dumps, (os.listdir(directory), outputs)
            print(f"failures: {backend}, a rank was late: {', '.join(dumps)} after {seconds:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SCENES[sys.argv[1]](int(sys.argv[3]), sys.argv[2])
    else:
        main()
