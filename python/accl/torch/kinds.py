"""How PyTorch's types and operators are reduced by those that the library has.

Types that only move are bytes. Types that the library does not reduce are widened to one that it does, which gives the same result:
integers of 16 bits wrap the same way, small floating-point types are rounded once, at the end.
"""

import ctypes

import torch
from torch.distributed import ReduceOp

from accl import library

TYPES = {
    torch.int8: library.INT8,
    torch.uint8: library.UINT8,
    torch.int32: library.INT32,
    torch.uint32: library.UINT32,
    torch.int64: library.INT64,
    torch.uint64: library.UINT64,
    torch.float16: library.FLOAT16,
    torch.float32: library.FLOAT32,
    torch.float64: library.FLOAT64,
    torch.bfloat16: library.BFLOAT16,
    torch.float8_e4m3fn: library.FLOAT8E4M3,
    torch.float8_e5m2: library.FLOAT8E5M2,
}

WIDENED = {torch.int16: torch.int32, torch.uint16: torch.int32}
for _name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    if hasattr(torch, _name):
        WIDENED[getattr(torch, _name)] = torch.float32

OPERATORS = {
    ReduceOp.RedOpType.SUM: library.SUM,
    ReduceOp.RedOpType.PRODUCT: library.PROD,
    ReduceOp.RedOpType.MAX: library.MAX,
    ReduceOp.RedOpType.MIN: library.MIN,
    ReduceOp.RedOpType.AVG: library.AVG,
}

# Of truth values, which are bytes 0 and 1.
_OF_BOOL = {
    ReduceOp.RedOpType.SUM: library.MAX,
    ReduceOp.RedOpType.PRODUCT: library.MIN,
    ReduceOp.RedOpType.MAX: library.MAX,
    ReduceOp.RedOpType.MIN: library.MIN,
    ReduceOp.RedOpType.BAND: library.MIN,
    ReduceOp.RedOpType.BOR: library.MAX,
}

BITWISE = {
    ReduceOp.RedOpType.BAND: torch.bitwise_and,
    ReduceOp.RedOpType.BOR: torch.bitwise_or,
    ReduceOp.RedOpType.BXOR: torch.bitwise_xor,
}

_SCALARS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


class Reduction:
    """How tensors of one type are reduced: as elements of `view` (a type of PyTorch, of the same memory), or widened to `wide`; by the
    library's operator, or else by `combine`, a function of two tensors."""

    __slots__ = ("combine", "factor", "operator", "view", "wide")

    def __init__(self, operator=None, *, view=None, wide=None, combine=None, factor=None):
        self.operator, self.view, self.wide, self.combine, self.factor = operator, view, wide, combine, factor


def reduction(dtype, op):
    """How `op`, a ReduceOp, reduces this type. An error (ValueError or TypeError) names what cannot be reduced, and what can."""
    kind = op.op if isinstance(op, ReduceOp) else op
    if dtype in TYPES and kind in OPERATORS:
        return Reduction(OPERATORS[kind])
    if dtype == torch.bool:
        return _of_bool(kind)
    if dtype.is_complex:
        return _of_complex(dtype, kind)
    if kind in BITWISE:
        if dtype.is_floating_point:
            raise TypeError(f"{_name(kind)} of {dtype}: bits are combined of integers and of bool; convert the tensor")
        return Reduction(combine=BITWISE[kind])
    if kind == ReduceOp.RedOpType.PREMUL_SUM:
        return _scaled(dtype, op)
    if dtype in WIDENED and kind in OPERATORS:
        return Reduction(OPERATORS[kind], wide=WIDENED[dtype])
    raise TypeError(f"{_name(kind)} of {dtype} is not reduced; convert the tensor to a type of {_names()}")


def _of_bool(kind):
    if kind in _OF_BOOL:
        return Reduction(_OF_BOOL[kind], view=torch.uint8)
    if kind == ReduceOp.RedOpType.BXOR:
        return Reduction(combine=torch.bitwise_xor)
    raise TypeError(f"{_name(kind)} of torch.bool has no meaning; convert the tensor to a number type")


def _of_complex(dtype, kind):
    if kind in (ReduceOp.RedOpType.SUM, ReduceOp.RedOpType.AVG):
        part = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, torch.float16)
        return Reduction(OPERATORS[kind], view=part)
    if kind == ReduceOp.RedOpType.PRODUCT:
        return Reduction(combine=torch.mul)
    raise TypeError(f"{_name(kind)} of {dtype}: complex numbers have no order and no bits; reduce view_as_real()")


def _scaled(dtype, op):
    _, factor = op.__getstate__()
    if not dtype.is_floating_point:
        raise TypeError(f"PREMUL_SUM of {dtype}: factors are for floating-point tensors; convert the tensor")
    return Reduction(factor=float(factor))


def scalar(value, dtype):
    """A factor as the library takes it: an element of a type that the library has."""
    if dtype in _SCALARS:
        return _SCALARS[dtype](value)
    element = torch.tensor([value], dtype=dtype).view(torch.uint8)
    return (ctypes.c_uint8 * element.numel()).from_buffer_copy(element.numpy().tobytes())


def _name(kind):
    return str(kind).rsplit(".", 1)[-1]


def _names():
    return ", ".join(str(dtype) for dtype in TYPES)
