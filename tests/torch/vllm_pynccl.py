#!/usr/bin/env python3
"""vLLM's pynccl.py and pynccl_wrapper.py, unmodified, over this library on the simulated device, also captured in graphs.

The files are taken from vLLM's package (336 MB, kept in target/); what they import of vLLM is stood in for here, since all of vLLM
needs a device. The wrapper opens the library by its own rules.
"""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import zipfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

VERSION = "0.33.0"
PLACE = "vllm/distributed/device_communicators/"
KEPT = pathlib.Path(f"target/vllm-{VERSION}")


def files():
    """The two files, fetched once."""
    if not (KEPT / "pynccl.py").exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as directory:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", directory, f"vllm=={VERSION}"], check=True)
            (wheel,) = pathlib.Path(directory).glob("*.whl")
            with zipfile.ZipFile(wheel) as package:
                for name in ("pynccl_wrapper.py", "pynccl.py"):
                    (KEPT / name).write_bytes(package.read(PLACE + name))


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


def stand_in():
    """What the two files import of vLLM."""
    class Logger(logging.Logger):
        info_once = logging.Logger.info
        warning_once = logging.Logger.warning

    platform = types.SimpleNamespace(is_rocm=lambda: False, fp8_dtype=lambda: torch.float8_e4m3fn)
    envs = module("vllm.envs", VLLM_DISABLE_PYNCCL=False, VLLM_USE_NCCL_SYMM_MEM=True)
    module("vllm", envs=envs, __path__=[])
    module("vllm.distributed", __path__=[])
    module("vllm.distributed.device_communicators", __path__=[])
    module("vllm.distributed.utils", StatelessProcessGroup=type("StatelessProcessGroup", (), {}))
    module("vllm.logger", init_logger=Logger)
    module("vllm.platforms", current_platform=platform)
    module("vllm.utils", __path__=[])
    module("vllm.utils.nccl", find_nccl_library=lambda: os.environ.get("VLLM_NCCL_SO_PATH") or "libnccl.so.2")
    module("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)
    for name in ("pynccl_wrapper", "pynccl"):
        full = (PLACE + name).replace("/", ".")
        made = module(full)
        exec(compile((KEPT / f"{name}.py").read_text(), name + ".py", "exec"), made.__dict__)
    return sys.modules[full].PyNcclCommunicator


def everything(comm, rank, ranks, device):
    total = ranks * (ranks + 1) / 2
    full = lambda value, count=50, dtype=torch.float32: torch.full((count,), value, dtype=dtype, device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        assert comm.all_reduce(full(rank + 1, dtype=dtype)).cpu().eq(total).all()
    gathered = full(0.0, 50 * ranks)
    comm.all_gather(gathered, full(rank + 1.0))
    assert gathered.cpu().view(ranks, 50).eq(torch.arange(1.0, ranks + 1).view(-1, 1)).all()
    sizes = [10 + other for other in range(ranks)]
    gathered = full(0.0, sum(sizes))
    comm.all_gatherv(gathered, full(rank + 1.0, sizes[rank]), sizes)
    expected = torch.cat([torch.full((size,), other + 1.0) for other, size in enumerate(sizes)])
    assert gathered.cpu().eq(expected).all()
    part = full(0.0)
    comm.reduce_scatter(part, full(rank + 1.0, 50 * ranks))
    assert part.cpu().eq(total).all()
    shared = full(rank + 1.0)
    comm.broadcast(shared, 1)
    assert shared.cpu().eq(2).all()
    following, received = (rank + 1) % ranks, full(0.0)
    comm.group_start()
    comm.send(full(rank + 1.0), following)
    comm.recv(received, (rank - 1) % ranks)
    comm.group_end()
    assert received.cpu().eq((rank - 1) % ranks + 1).all()


def graph(comm, rank, ranks, device):
    total = ranks * (ranks + 1) / 2
    source, static = (torch.full((64,), rank + 1.0, device=device) for _ in range(2))
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=torch.cuda.Stream()):
        # As a model has it: many calls, each of which needs the one before.
        result = static
        for _ in range(20):
            result = comm.all_reduce(result)
    for _ in range(5):
        static.copy_(source)
        captured.replay()
        torch.cuda.synchronize()
        assert result.cpu().eq(total * ranks**19).all()
        assert comm.all_reduce(source).cpu().eq(total).all()
    return captured


def work(rank, ranks, directory):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    store = dist.FileStore(f"{directory}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    comm = stand_in()(dist.group.WORLD, device)
    assert comm.available and not comm.disabled
    assert comm.nccl.ncclGetRawVersion() == 23007
    everything(comm, rank, ranks, device)
    captured = graph(comm, rank, ranks, device)
    # Symmetric memory is refused politely.
    window = comm.register_comm_window(torch.zeros(64, device=device))
    assert not window.value, window
    # Aborts while a graph is alive.
    comm.destroy()
    del captured
    dist.destroy_process_group()
    place = os.path.realpath(os.environ["NCCL"])
    assert any(line.rstrip().endswith(place) for line in open("/proc/self/maps"))


def main():
    files()
    for ranks in (2, 4):
        with tempfile.TemporaryDirectory() as directory:
            multiprocessing.spawn(work, args=(ranks, directory), nprocs=ranks)
        print(f"vllm_pynccl: {VERSION}, {ranks} ranks")


if __name__ == "__main__":
    os.environ["ACCL_SIM_DEVICES"] = "4"
    sys.exit(main())
