#!/usr/bin/env python3
"""CuPy's nccl module, unmodified, as far as it goes without a device: it is linked with libnccl.so.2, and calls it with addresses."""

import ctypes
from importlib.metadata import distributions

import numpy as np
import ranks

# By its soname, as CuPy's module asks the dynamic linker for it.
ctypes.CDLL(ranks.library(), mode=ctypes.RTLD_GLOBAL)
from cupy_backends.cuda.libs import nccl  # noqa: E402

COUNT = 10_000


def collectives(rank, size, handed):
    comm = nccl.NcclCommunicator(size, handed, rank)
    assert (comm.size(), comm.rank_id(), comm.device_id()) == (size, rank, -1)
    send = np.full(size * COUNT, rank + 1, np.float32)
    recv = np.zeros(size * COUNT, np.float32)
    source, target = send.ctypes.data, recv.ctypes.data

    def gets(expected, count=COUNT):
        assert (recv[:count] == np.asarray(expected, np.float32)).all(), (rank, recv[:count], expected)
        recv[:] = 0

    comm.allReduce(source, target, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    gets(3)
    comm.reduce(source, target, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_MAX, 1, 0)
    gets(2 if rank == 1 else 0)
    comm.broadcast(source, target, COUNT, nccl.NCCL_FLOAT32, 1, 0)
    gets(2)
    recv[:COUNT] = rank
    comm.bcast(target, COUNT, nccl.NCCL_FLOAT32, 1, 0)
    gets(1)
    comm.reduceScatter(source, target, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_PROD, 0)
    gets(2)
    comm.allGather(source, target, COUNT, nccl.NCCL_FLOAT32, 0)
    gets([1] * COUNT + [2] * COUNT, size * COUNT)
    nccl.groupStart()
    comm.send(source, COUNT, nccl.NCCL_FLOAT32, 1 - rank, 0)
    comm.recv(target, COUNT, nccl.NCCL_FLOAT32, 1 - rank, 0)
    nccl.groupEnd()
    gets(2 - rank)
    comm.check_async_error()
    try:
        comm.bcast(target, COUNT, nccl.NCCL_FLOAT32, size, 0)
    except nccl.NcclError as error:
        assert "invalid argument" in str(error), error
    else:
        raise AssertionError("a root beyond the ranks was taken")
    comm.destroy()


def main():
    assert nccl.available and nccl.get_version() == 23007
    ranks.run(2, collectives, nccl.get_unique_id())
    (found,) = [one for one in distributions() if one.metadata["Name"].startswith("cupy")]
    ranks.proved(
        f"CuPy {found.version}",
        [
            f"its nccl module, built with {nccl.get_build_version()}, is loaded and available",
            "two processes: 6 collectives, send and receive in a group, an error, in host memory",
        ],
    )


main()
