#!/usr/bin/env python3
"""nccl4py, unmodified: every function that it knows is found, and its bindings work in host memory between two processes."""

import ctypes
from importlib.metadata import version

import numpy as np
import ranks

# nccl4py looks among what the process has loaded before it looks for a file.
ctypes.CDLL(ranks.library(), mode=ctypes.RTLD_GLOBAL)
import nccl.bindings._internal.nccl as internal  # noqa: E402
from nccl.bindings import nccl as bindings  # noqa: E402
from nccl.core.params import params  # noqa: E402

COUNT = 10_000
# As ncclDataType_t and ncclRedOp_t have them.
FLOAT, SUM, PROD, MAX = 7, 0, 1, 2


def names():
    """How many names nccl4py looks for; none may be missing."""
    pointers = internal._inspect_function_pointers()
    missing = [name for name, address in pointers.items() if not address]
    assert not missing, missing
    return len(pointers)


class Rank:
    """One rank's buffers, and its communicator."""

    def __init__(self, rank, size, handed):
        self.rank, self.size = rank, size
        self.id = bindings.UniqueId()
        ctypes.memmove(self.id.ptr, handed, len(handed))
        self.comm = bindings.comm_init_rank(size, self.id.ptr, rank)
        self.send = np.full(size * COUNT, rank + 1, np.float32)
        self.recv = np.zeros(size * COUNT, np.float32)

    def gets(self, expected, count=COUNT):
        assert (self.recv[:count] == np.asarray(expected, np.float32)).all(), (self.rank, self.recv[:count], expected)
        self.recv[:] = 0


def collectives(rank, size, handed):
    me = Rank(rank, size, handed)
    send, recv, comm = me.send.ctypes.data, me.recv.ctypes.data, me.comm
    assert (bindings.comm_count(comm), bindings.comm_user_rank(comm), bindings.comm_cu_device(comm)) == (size, rank, -1)
    bindings.all_reduce(send, recv, COUNT, FLOAT, SUM, comm, 0)
    me.gets(3)
    bindings.reduce(send, recv, COUNT, FLOAT, PROD, 0, comm, 0)
    me.gets(2 if rank == 0 else 0)
    bindings.broadcast(send, recv, COUNT, FLOAT, 1, comm, 0)
    me.gets(2)
    bindings.all_gather(send, recv, COUNT, FLOAT, comm, 0)
    me.gets([1] * COUNT + [2] * COUNT, size * COUNT)
    bindings.reduce_scatter(send, recv, COUNT, FLOAT, MAX, comm, 0)
    me.gets(2)
    bindings.allto_all(send, recv, COUNT, FLOAT, comm, 0)
    me.gets([1] * COUNT + [2] * COUNT, size * COUNT)
    bindings.gather(send, recv, COUNT, FLOAT, 0, comm, 0)
    me.gets([1] * COUNT + [2] * COUNT if rank == 0 else 0, size * COUNT)
    bindings.scatter(send, recv, COUNT, FLOAT, 1, comm, 0)
    me.gets(2)
    bindings.group_start()
    bindings.send(send, COUNT, FLOAT, 1 - rank, comm, 0)
    bindings.recv(recv, COUNT, FLOAT, 1 - rank, comm, 0)
    bindings.group_end()
    me.gets(2 - rank)
    factor = np.array([10], np.float32)
    scaled = bindings.red_op_create_pre_mul_sum(factor.ctypes.data, FLOAT, 1, comm)
    bindings.all_reduce(send, recv, COUNT, FLOAT, scaled, comm, 0)
    bindings.red_op_destroy(scaled, comm)
    me.gets(30)
    refused(comm)
    child = bindings.comm_split(comm, 0, -rank, 0)
    assert bindings.comm_user_rank(child) == size - 1 - rank
    bindings.comm_destroy(child)
    assert bindings.comm_get_async_error(comm) == 0
    bindings.comm_finalize(comm)
    bindings.comm_destroy(comm)


def refused(comm):
    """An error comes as an exception with NCCL's code, and the text is there."""
    try:
        bindings.broadcast(0, 0, 1, FLOAT, 9, comm, 0)
    except bindings.NCCLError as error:
        assert error.status == 4, error.status
        assert "root 9" in bindings.get_last_error(comm), bindings.get_last_error(comm)
    else:
        raise AssertionError("root 9 was taken")


def parameters():
    """The mapping of nccl.core: settings and their values."""
    assert params["NCCL_WARN_AFTER"] == "10" and "NCCL_ALGO" in list(params)
    try:
        params["NCCL_NO_SUCH_PARAMETER"]
    except KeyError:
        return len(params)
    raise AssertionError("an unknown parameter has a value")


def main():
    count, known = names(), parameters()
    level = bindings.get_version()
    # Its maker lives until all ranks have joined.
    made = bindings.get_unique_id()
    ranks.run(2, collectives, ctypes.string_at(made.ptr, 128))
    ranks.proved(
        f"nccl4py {version('nccl4py')}",
        [
            f"all {count} functions are found; the level is {level}",
            f"nccl.core.params lists {known} parameters, with values",
            "two processes: 8 collectives, send and receive in a group, a pre-multiplied sum, a split, an error, in host memory",
        ],
    )


main()
