#!/usr/bin/env python3
"""pynccl_wrapper.py of vLLM, and both of SGLang, unmodified: they look all their names up, and their methods work in host memory.

The files are taken out of the packages once and kept in target/clients. What they import of their projects is stood in for here, since all of
those need a device.
"""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import zipfile

import ranks
import torch
from torch.distributed import ReduceOp

KEPT = pathlib.Path("target/clients/wrappers")
COUNT = 10_000

# Package, release, file.
WRAPPERS = {
    "vLLM": ("vllm", "0.33.0", "vllm/distributed/device_communicators/pynccl_wrapper.py"),
    "SGLang": ("sglang", "0.5.23", "sglang/srt/distributed/device_communicators/pynccl_wrapper.py"),
    "SGLang, diffusion": (
        "sglang",
        "0.5.23",
        "sglang/multimodal_gen/runtime/distributed/device_communicators/pynccl_wrapper.py",
    ),
}


def kept(package, version, file):
    return KEPT / f"{package}-{version}" / file


def fetch():
    """The files, fetched once."""
    for package, version, file in WRAPPERS.values():
        if kept(package, version, file).exists():
            continue
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as directory:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", directory, f"{package}=={version}"], check=True)
            (wheel,) = pathlib.Path(directory).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for other, same, name in WRAPPERS.values():
                    if (other, same) == (package, version):
                        archive.extract(name, KEPT / f"{package}-{version}")


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content, __path__=[])
    sys.modules[name] = made
    return made


def stand_in():
    """What the files import of their projects."""

    class Logger(logging.Logger):
        warning_once = logging.Logger.warning

    envs = module("vllm.envs", VLLM_USE_NCCL_SYMM_MEM=True)
    module("vllm", envs=envs)
    module("vllm.logger", init_logger=Logger)
    module("vllm.platforms", current_platform=types.SimpleNamespace(is_rocm=lambda: False, fp8_dtype=lambda: torch.float8_e4m3fn))
    module("vllm.utils")
    module("vllm.utils.nccl", find_nccl_library=ranks.library)
    diffusion = module("sglang.multimodal_gen.envs", SGLANG_DIFFUSION_NCCL_SO_PATH=ranks.library())
    module("sglang")
    module("sglang.multimodal_gen", envs=diffusion)
    module("sglang.multimodal_gen.runtime")
    module("sglang.multimodal_gen.runtime.utils")
    module("sglang.multimodal_gen.runtime.utils.logging_utils", init_logger=Logger)


def load(name):
    """A wrapper's module."""
    path = kept(*WRAPPERS[name])
    made = module(f"wrapper of {name}")
    # Data classes look their module up.
    exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
    return made


def collectives(rank, size, name, handed):
    wrapper = load(name)
    nccl = wrapper.NCCLLibrary(ranks.library())
    made = wrapper.ncclUniqueId.from_buffer_copy(handed)
    comm = nccl.ncclCommInitRank(size, made, rank)
    send, recv = torch.full((size * COUNT,), rank + 1.0), torch.zeros(size * COUNT)
    float32 = wrapper.ncclDataTypeEnum.from_torch(torch.float32)
    add = wrapper.ncclRedOpTypeEnum.from_torch(ReduceOp.SUM)
    largest = wrapper.ncclRedOpTypeEnum.from_torch(ReduceOp.MAX)
    source, target, none = (wrapper.buffer_type(send.data_ptr()), wrapper.buffer_type(recv.data_ptr()), wrapper.cudaStream_t(0))

    def gets(expected, count=COUNT):
        assert recv[:count].eq(torch.as_tensor(expected, dtype=torch.float32)).all(), (rank, recv[:count], expected)
        recv.zero_()

    nccl.ncclAllReduce(source, target, COUNT, float32, add, comm, none)
    gets(3)
    nccl.ncclReduceScatter(source, target, COUNT, float32, largest, comm, none)
    gets(2)
    nccl.ncclAllGather(source, target, COUNT, float32, comm, none)
    gets([1] * COUNT + [2] * COUNT, size * COUNT)
    nccl.ncclBroadcast(source, target, COUNT, float32, 1, comm, none)
    gets(2)
    nccl.ncclGroupStart()
    nccl.ncclSend(source, COUNT, float32, 1 - rank, comm, none)
    nccl.ncclRecv(target, COUNT, float32, 1 - rank, comm, none)
    nccl.ncclGroupEnd()
    gets(2 - rank)
    if hasattr(nccl, "ncclReduce"):
        nccl.ncclReduce(source, target, COUNT, float32, add, 0, comm, none)
        gets(3 if rank == 0 else 0)
    try:
        nccl.ncclBroadcast(source, target, COUNT, float32, size, comm, none)
    except RuntimeError as error:
        assert "invalid argument" in str(error), error
    else:
        raise AssertionError("a root beyond the ranks was taken")
    nccl.ncclCommDestroy(comm)
    if hasattr(wrapper, "ncclConfig_t"):
        with_config(wrapper, nccl, rank)


def with_config(wrapper, nccl, rank):
    """A configuration that the program has written by hand."""
    config = wrapper.ncclConfig_t.create()
    config.blocking, config.maxP2pPeers = 1, 4
    alone = nccl.ncclCommInitRankConfig(1, nccl.ncclGetUniqueId(), 0, config)
    nccl.ncclCommDestroy(alone)
    config.maxP2pPeers = 0
    try:
        nccl.ncclCommInitRankConfig(1, nccl.ncclGetUniqueId(), 0, config)
    except RuntimeError:
        return
    raise AssertionError("the last field of the configuration was not read")


def main():
    # Torch brings a device along, which is not the matter here.
    os.environ["ACCL_DEVICE"] = "none"
    fetch()
    stand_in()
    for name in WRAPPERS:
        wrapper = load(name)
        nccl = wrapper.NCCLLibrary(ranks.library())
        found = nccl._funcs.keys()
        wanted = {function.name for function in wrapper.NCCLLibrary.exported_functions}
        assert wanted <= set(found), wanted - set(found)
        made = nccl.ncclGetUniqueId()
        ranks.run(2, collectives, name, bytes(made))
        facts = [
            f"all {len(found)} functions are found; the level is {nccl.ncclGetVersion()}",
            "two processes: its collectives, send and receive in a group, an error, in host memory",
        ]
        if hasattr(wrapper, "ncclConfig_t"):
            facts.append("a configuration laid out by hand is read to its last field")
        ranks.proved(f"{name} {WRAPPERS[name][1]}", facts)


main()
