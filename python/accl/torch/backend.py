"""The back end where nothing could be compiled, on the interface that PyTorch has for back ends in Python since 2.15."""

from torch._C._distributed_c10d import Backend


class PythonBackend(Backend):
    """The back end where nothing could be compiled: each call is Python's."""

    # What is asked of a group that can do more than it must.
    supports_coalescing = False
    supports_splitting = False

    def __init__(self, group):
        super().__init__(group.rank, group.size)
        self._group = group

    def name(self):
        return "accl"

    getBackendName = _get_backend_name = name

    def __getattribute__(self, name):
        if name in _CALLS:
            return getattr(object.__getattribute__(self, "_group"), name)
        return super().__getattribute__(name)


# What PyTorch calls of a back end, by its own names.
_CALLS = {
    *("allreduce", "allreduce_coalesced", "allreduce_sparse", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter", "allgather", "allgather_coalesced", "gather", "scatter"),
    *("all_to_all_single", "alltoall_base", "alltoall", "send", "recv", "recv_anysource", "shutdown", "abort"),
    *("set_timeout", "_set_default_timeout", "_set_sequence_number_for_group", "_get_sequence_number_for_group"),
}
