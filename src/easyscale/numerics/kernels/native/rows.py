"""Sums on the CPU by the halving tree (`c/rows.c`): read where they lie, in whatever order of dimensions.

A tensor is seen as [outputs, reduced, width]. Rows may lie in pieces (batch and pixels of one channel). What cannot be
seen so is copied first. Relies on `library` being available.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from easyscale.numerics.kernels.native.library import library

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}

_P, _I, _L, _D = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_double
_LETTERS = {"p": _P, "i": _I, "l": _L, "d": _D}


@functools.cache
def function(name: str, arguments: str) -> Callable[..., int]:
    """A function of the library; arguments by letters: p pointer, i int, l long, d double."""
    found = getattr(library(), name)
    found.argtypes = [_LETTERS[letter] for letter in arguments]
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the values of the sums lie. `sizes` and `order`: the result as it is written, and its dimensions."""

    outputs: int
    reduced: int
    width: int
    apart_outputs: int
    segment: int
    apart: int
    sizes: tuple[int, ...]
    order: tuple[int, ...] | None
    kept: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def layout(shape: tuple[int, ...], strides: tuple[int, ...], dims: tuple[int, ...]) -> Layout | None:
    """How to read such a tensor without a copy; None where it must be copied."""
    reduced = {dim % len(shape) for dim in dims} if shape else set()
    kept = tuple(1 if dim in reduced else size for dim, size in enumerate(shape))
    memory = sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: -strides[dim])
    expected = math.prod(shape)
    for dim in memory:
        expected //= shape[dim]
        if strides[dim] != expected:
            return None  # holes, or the same value read many times
    if (inner := [dim for dim in memory if dim in reduced]) != sorted(inner):
        return None  # the reduced values lie in another order than they are numbered in
    groups: list[list[int]] = []  # sizes of neighbouring dimensions of the same kind: [reduced or not, size]
    for dim in memory:
        if groups and groups[-1][0] == (dim in reduced):
            groups[-1][1] *= shape[dim]
        else:
            groups.append([dim in reduced, shape[dim]])
    outer = [dim for dim in memory if dim not in reduced]
    rest = [dim for dim in range(len(shape)) if dim not in outer]
    sizes = (*(shape[dim] for dim in outer), *(1 for _ in rest))
    positions = {dim: place for place, dim in enumerate([*outer, *rest])}
    order = None if outer == sorted(outer) else tuple(positions[dim] for dim in range(len(shape)))
    kinds = [bool(kind) for kind, _ in groups]
    size = [count for _, count in groups]
    if kinds == [True, False, True]:
        batch, outputs, inside = size
        numbers = (outputs, batch * inside, 1, inside, inside, outputs * inside)
    elif kinds in ([], [True], [False], [False, True], [True, False], [False, True, False]):
        outputs = size.pop(0) if kinds[:1] == [False] and len(kinds) > 1 else 1
        length = size.pop(0) if True in kinds else 1
        width = size.pop(0) if size else 1
        numbers = (outputs, length, width, length * width, length * width, 0)
    else:
        return None
    return Layout(*numbers, sizes, order, kept)


def tree_sum(x: Tensor, dims: Sequence[int], squares: bool = False) -> Tensor:
    """fp64 sums over `dims` (kept with size 1), by the halving tree (`primitives.tree_sum`), of values or squares."""
    if x.dtype not in CODES:
        x = x.double()
    x, found = readable(x, dims)
    out = torch.empty(found.kept if found.order is None else found.sizes, dtype=torch.float64)
    if not x.numel():
        return out.zero_().reshape(found.kept)
    function("d2_sum", "pillllllipi")(
        x.data_ptr(), CODES[x.dtype], found.outputs, found.reduced, found.width, found.apart_outputs,
        found.segment, found.apart, squares, out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out if found.order is None else out.permute(found.order)


def whole_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """int64 sums over `dims` (kept with size 1), modulo 2**64."""
    x, found = readable(x.long(), dims)
    if found.segment != found.reduced * found.width:  # in pieces
        x, found = _rows(x, dims)
    out = torch.empty(found.kept if found.order is None else found.sizes, dtype=torch.int64)
    if not x.numel():
        return out.zero_().reshape(found.kept)
    function("d2_sum_whole", "plllpi")(
        x.data_ptr(), found.outputs, found.reduced, found.width, out.data_ptr(), torch.get_num_threads()
    )
    return out if found.order is None else out.permute(found.order)


def readable(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Layout]:
    """The tensor, copied if it must be, and how to read it."""
    found = layout(x.shape, x.stride(), tuple(dims)) if x.numel() else None
    return (x, found) if found is not None else _rows(x, dims)


def _rows(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Layout]:
    """A copy with the reduced dimensions last."""
    reduced = sorted({dim % x.dim() for dim in dims}) if x.dim() else []
    others = [dim for dim in range(x.dim()) if dim not in reduced]
    kept = tuple(1 if dim in reduced else size for dim, size in enumerate(x.shape))
    length = math.prod(x.shape[dim] for dim in reduced)
    x = x.permute([*others, *reduced]).contiguous()
    return x, Layout(math.prod(kept), length, 1, length, length, 0, kept, None, kept)
