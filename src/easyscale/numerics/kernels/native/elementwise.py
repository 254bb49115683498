"""Formulas on the CPU by the compiled loops (`emit_c`).

Inputs of one layout are read where they lie, whatever their dtypes, and the output gets the same layout; others are
brought to one layout first. Integers and truth values are converted to fp64 in the loop.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels.native.library import library

# numbers of the dtypes in the C loops
_TYPES = {
    torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3, torch.uint8: 4, torch.bool: 4,
    torch.int8: 5, torch.int16: 6, torch.int32: 7, torch.int64: 8,
}  # fmt: skip
_SINGLE = 16
_FEWEST_FOR_THREADS = 16384

_Loop = Callable[[object, object, int, int, object, int, int], None]


@functools.cache
def _loop(name: str) -> _Loop:
    function = getattr(library(), f"ew_{name}")
    function.restype = None
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_long, ctypes.c_int,
    ]  # fmt: skip
    return function  # type: ignore[no-any-return]


@functools.cache
def _pointers(count: int) -> type[ctypes.Array[ctypes.c_void_p]]:
    return ctypes.c_void_p * count


@functools.cache
def _numbers(types: tuple[int, ...]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(types))(*types)


def evaluate(name: str, tensors: Sequence[Tensor], scalars: Sequence[float] = (), *, dtype: torch.dtype) -> Tensor:
    """The formula for each element, rounded to `dtype`: see `primitives.evaluate`."""
    out, tensors = arranged(tensors, dtype)
    count = out.numel()
    if count:
        try:
            types = tuple(
                _TYPES[x.dtype] if x.dim() or count == 1 else _TYPES[x.dtype] + _SINGLE for x in tensors
            )  # fmt: skip
            out_type = _TYPES[dtype]
        except KeyError as error:
            raise UnsupportedError(
                f"{name} of {error.args[0]} has no D2 form", "elementwise forms take real numbers of at most 64 bits",
                "convert the tensor first, or use determinism d1",
            ) from None  # fmt: skip
        threads = torch.get_num_threads() if count >= _FEWEST_FOR_THREADS else 1
        places = _pointers(len(tensors))(*[x.data_ptr() for x in tensors])
        numbers = (ctypes.c_double * len(scalars))(*scalars) if scalars else None
        _loop(name)(places, _numbers(types), out.data_ptr(), out_type, numbers, count, threads)
    return out


def arranged(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Sequence[Tensor]]:
    """The empty output, and the inputs with its shape and layout (or with no dimensions at all)."""
    shown = tensors[0]
    for other in tensors:
        if other.dim():
            shown = other
            break
    shape, strides = shown.shape, shown.stride()
    if all(x is shown or x.dim() == 0 or (x.shape == shape and x.stride() == strides) for x in tensors):
        out = torch.empty_like(shown, dtype=dtype)
        if out.stride() == strides:  # dense: an output of dense layout has the same strides
            return out, tensors
    else:
        shape = torch.broadcast_shapes(*[x.shape for x in tensors])
    whole = next((x for x in tensors if x.shape == shape), None)
    out = torch.empty(shape, dtype=dtype) if whole is None else torch.empty_like(whole, dtype=dtype)
    strides = out.stride()
    return out, [
        x if x.dim() == 0 or (x.shape == shape and x.stride() == strides) else _laid_out(x, out) for x in tensors
    ]


def _laid_out(x: Tensor, out: Tensor) -> Tensor:
    """A copy with the shape and strides of the output."""
    return torch.empty_like(out, dtype=x.dtype).copy_(x)


