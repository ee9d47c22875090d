"""PyTorch's own kernels are machine code, which the simulated device can not run. `install()` lets the CPU do their work, on the same
memory: device memory is host memory there. PyTorch itself stays as it is, and what is not a kernel (copies, streams, events, graphs,
collectives, autograd, reducers) goes its usual way through the CUDA face.

An operation that is replaced waits for its stream, runs on CPU tensors that alias device memory, and is done when it returns. That can
not be captured in a graph: it is an error there. Plain copies stay asynchronous and can be captured.
"""

import ctypes
import warnings

import torch

# Operations that never launch a kernel, or that are about memory itself.
KEEP = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::_local_scalar_dense", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_", "aten::resize_", "aten::as_strided",
    "aten::view", "aten::_reshape_alias", "aten::unfold", "aten::record_stream", "aten::is_pinned", "aten::_pin_memory", "aten::zero_",
    "aten::view_as_real", "aten::view_as_complex", "aten::is_set_to",
}


def runtime():
    """The runtime that PyTorch has loaded."""
    return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")


def aliased(tensor):
    """A CPU tensor of the same memory."""
    if tensor.device.type != "cuda":
        return tensor
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.frombuffer(memory, dtype=torch.uint8)
    alias = torch.empty(0, dtype=tensor.dtype)
    alias.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    alias = alias.conj() if tensor.is_conj() else alias
    return alias._neg_view() if tensor.is_neg() else alias


def on_device(tensor, device):
    """A device tensor with a CPU tensor's content."""
    result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    aliased(result).copy_(tensor)
    return result


def mapped(value, change):
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return change(value)


def wait(device):
    stream = torch.cuda.current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the helper's operations run on the CPU and can not be captured")
    stream.synchronize()


class Replacement:
    """Does an operation's work on the CPU."""

    def __init__(self, op):
        self.op = op

    def __call__(self, *args, **kwargs):
        aliases, device = [], torch.device("cuda", torch.cuda.current_device())

        def to_cpu(value):
            nonlocal device
            if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                if not any(known is value for known, _ in aliases):
                    device = value.device
                    # An empty output may have to grow: it gets memory when that is known.
                    aliases.append((value, aliased(value)))
                return next(alias for known, alias in aliases if known is value)
            if isinstance(value, torch.device) and value.type == "cuda":
                device = value if value.index is not None else device
                return torch.device("cpu")
            return None if isinstance(value, torch.Generator) and value.device.type == "cuda" else value

        cpu_args = mapped(args, to_cpu)
        cpu_kwargs = {name: mapped(value, to_cpu) for name, value in kwargs.items()}
        wait(device)
        results = self.op(*cpu_args, **cpu_kwargs)
        for tensor, alias in aliases:
            if tensor.size() != alias.size():
                tensor.resize_(alias.size())
                aliased(tensor).copy_(alias)

        def back(value):
            if not isinstance(value, torch.Tensor):
                return value
            known = next((tensor for tensor, alias in aliases if alias is value), None)
            return on_device(value, device) if known is None else known

        return mapped(results, back)


def copy_(to, source, non_blocking=False):
    """Plain copies are the runtime's; converting and strided ones the CPU's."""
    if source.dim() != to.dim() or source.size() != to.size():
        source = source.expand(to.size())
    is_plain = to.dtype == source.dtype and to.is_contiguous() and source.is_contiguous()
    if not is_plain or source.is_conj() != to.is_conj() or source.is_neg() != to.is_neg():
        for tensor in (to, source):
            if tensor.device.type == "cuda":
                wait(tensor.device)
        aliased(to).copy_(aliased(source))
        return to
    device = to.device if to.device.type == "cuda" else source.device
    stream = torch.cuda.current_stream(source.device if source.device.type == "cuda" else device)
    if to.device.type == source.device.type and to.device != source.device:
        stream.wait_stream(torch.cuda.current_stream(to.device))
    with torch.cuda.device(stream.device):
        code = runtime().cudaMemcpyAsync(
            ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(to.nbytes), 4,
            ctypes.c_void_p(stream.cuda_stream))
    if code:
        raise RuntimeError(f"cudaMemcpyAsync: error {code}")
    if to.device.type == source.device.type and to.device != source.device:
        torch.cuda.current_stream(to.device).wait_stream(stream)
    elif to.device.type != source.device.type and not non_blocking:
        stream.synchronize()
    return to


def install():
    """Replaces all operations that have a kernel for CUDA and one for the CPU; returns how many those are, and what must be kept."""
    torch.backends.cudnn.enabled = False
    library = torch.library.Library("aten", "IMPL")
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("copy_", copy_, "CUDA")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            if not name.startswith("aten::") or name in KEEP or name == "aten::copy_":
                continue
            if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
                continue
            base, _, overload = name[6:].partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            library.impl(name[6:], Replacement(op), "CUDA")
            count += 1
    return count, library
