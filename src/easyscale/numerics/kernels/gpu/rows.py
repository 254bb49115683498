"""Sums by the halving tree on a GPU: in one launch where there are many sums or short ones, else in two.

The tree adds x[i] and x[i + P/2] first. So all values that lie `left` apart, a power of two, have a sum of their own
in it, and what is left is a tree over `left` of these. Short rows go to one program each (`rows`). Sums of columns, and
few long ones, go to programs that take the values of some neighbouring columns or residues (`fold`), as many programs
as keep the device busy; a second launch adds up what they leave. How a sum is cut is a question of speed alone: relies
on nothing but IEEE additions in fp64; guarantees the bits of `primitives.tree_sum`, rounded once where asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu import row_shapes
from easyscale.numerics.kernels.gpu.launch import Launch, bits, ceil_div, processors
from easyscale.numerics.kernels.gpu.row_shapes import power, row_shape

CHUNKS = 8  # values of one thread that a program holds for each of its lanes
FEW_LANES = 128  # those of one warp, four neighbouring values for each thread
AT_ONCE = 16384  # the longest row of one program where there are few
SEGMENT = 128  # bytes that a program reads at one place
TILE = 1024  # values of a program of `fold` at once
BUSY = 2  # programs for each SM

Levels = list[tuple[int, int]]  # (size, step), outermost first


class Step(NamedTuple):
    """One launch: kernel, programs, its numbers and constants, and how many values it leaves."""

    kernel: str
    grid: tuple[int]
    numbers: tuple[int, ...]
    constants: dict[str, Any]
    leaves: int


def tree_sum(
    x: Tensor, dims: Sequence[int], dtype: torch.dtype = torch.float64, divisor: float | None = None,
    square: bool = False, root: bool = False, keep: bool = True,
) -> Tensor:  # fmt: skip
    """Sums over `dims` by the halving tree (`primitives.tree_sum`), which keep size 1 or are left out: of x or its
    squares, divided, the square root of it, rounded once to `dtype`."""
    if x.dtype is torch.bool:
        x = x.view(torch.uint8)
    dims = tuple(dims)
    plan = _plan(x.shape, x.stride(), dims, x.dtype, x.device, dtype, divisor, square, root, keep)
    if plan is None:  # more levels of strides than the kernels know: moved first
        dims = tuple({dim % x.dim() for dim in dims})
        others = [dim for dim in range(x.dim()) if dim not in dims]
        result = [1 if dim in dims else size for dim, size in enumerate(x.shape) if keep or dim not in dims]
        x = x.permute(*others, *sorted(dims)).contiguous()
        last = tuple(range(len(others), x.dim()))
        plan = _plan(x.shape, x.stride(), last, x.dtype, x.device, dtype, divisor, square, root, keep)
        assert plan is not None
        return plan(x).view(result)
    return plan(x)


class _Sum:
    """Sums of tensors of one shape, layout and dtype."""

    def __init__(self, steps: list[tuple[int, Launch]], shape: Sequence[int], dtype: torch.dtype, empty: float) -> None:
        self.before, self.last = steps[:-1], steps[-1][1] if steps else None
        self.shape, self.dtype, self.empty = tuple(shape), dtype, empty

    def __call__(self, x: Tensor) -> Tensor:
        device = x.device
        if self.last is None:
            return torch.full(self.shape, self.empty, dtype=self.dtype, device=device)
        for leaves, run in self.before:
            part = torch.empty(leaves, dtype=torch.float64, device=device)
            run(x, part)
            x = part
        out = torch.empty(self.shape, dtype=self.dtype, device=device)
        self.last(x, out)
        return out


@functools.lru_cache(maxsize=4096)
def _plan(
    shape: tuple[int, ...], strides: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype, device: torch.device,
    result: torch.dtype, divisor: float | None, square: bool, root: bool, keep: bool,
) -> _Sum | None:  # fmt: skip
    """None if the tensor has to be moved first."""
    from easyscale.numerics.kernels.gpu import rows_kernels

    kept, steps = planned(shape, strides, dims, dtype, square, divisor is not None, root, processors(device))
    if steps is None:
        return None
    if not keep:
        gone = {dim % len(shape) for dim in dims} if shape else set()
        kept = [size for dim, size in enumerate(shape) if dim not in gone]
    size = bits(divisor) if divisor is not None else 0
    launches = [
        (step.leaves, Launch(
            getattr(rows_kernels, step.kernel), step.grid, (*step.numbers, size), enable_fp_fusion=False,
            **step.constants,
        )) for step in steps
    ]  # fmt: skip
    return _Sum(launches, kept, result, math.nan if divisor == 0.0 else 0.0)


# ---------------------------------------------------------------------------------------------- how a sum is cut


@functools.lru_cache(maxsize=4096)
def planned(
    shape: Sequence[int], strides: Sequence[int], dims: tuple[int, ...], dtype: torch.dtype, square: bool, divide: bool,
    root: bool, busy: int,
) -> tuple[list[int], list[Step] | None]:  # fmt: skip
    """The shape of the result, and the launches: none for no elements, None if the tensor has to be moved first."""
    reduced = sorted({dim % len(shape) for dim in dims}) if shape else []
    result = [1 if dim in reduced else size for dim, size in enumerate(shape)]
    others = [dim for dim in range(len(shape)) if dim not in reduced]
    kept, summed = (merged([(shape[dim], strides[dim]) for dim in part]) for part in (others, reduced))
    outputs = math.prod(shape[dim] for dim in others)
    length = math.prod(shape[dim] for dim in reduced)
    if not outputs or not length:
        return result, []
    if len(kept) > 2 or len(summed) > 2:
        return result, None
    # Neighbouring elements on neighbouring lanes: those of one sum, or those of neighbouring sums.
    across = bool(kept) and kept[-1][1] < (summed[-1][1] if summed else 1)
    steps: list[Step] = []
    last = {"DIVIDE": divide, "ROOT": root}
    first: dict[str, Any] = {"SQUARE": square, "DIVIDE": False, "ROOT": False}
    padded = power(length)
    many = outputs >= busy and padded <= row_shapes.LONGEST
    if not across and (padded <= AT_ONCE or many):
        return result, [_rows(outputs, length, kept, summed, first | last)]
    left = residues(outputs, padded, dtype.itemsize, across, BUSY * busy)
    now = first | (last if left == 1 else {})
    steps.append(_fold(outputs, length, left, kept, summed, across, dtype.itemsize, now))
    rest = {"SQUARE": False} | last
    if across and left > 1:
        steps.append(_fold(outputs, left, 1, [(outputs, 1)], [(left, outputs)], True, 8, rest))
    elif not across:
        steps.append(_rows(outputs, left, [(outputs, left)], [(left, 1)], rest))
    return result, steps


def merged(levels: Levels) -> Levels:
    """Neighbouring dimensions that one stride walks through, as one; without those of size one."""
    found: Levels = []
    for size, step in levels:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found


def residues(outputs: int, padded: int, itemsize: int, across: bool, busy: int) -> int:
    """How many partial sums of each output are left, so that there are `busy` programs if the sums are long enough."""
    columns = SEGMENT // itemsize
    rows = TILE // columns
    if not across:
        left = min(columns, padded)
        while outputs * left < busy * columns and 2 * left * rows <= padded and left < AT_ONCE:
            left *= 2
        return left
    columns = min(columns, power(outputs))
    left = 1
    while ceil_div(outputs, columns) * left < busy and padded > left * TILE // columns * CHUNKS:
        left *= 2
    return left


def tile_shape(length: int, left: int, columns: int, tile: int, most: int = 8) -> dict[str, int]:
    """How a program of a fold takes its values: ROWS and COLUMNS of a tile, CHUNKS, VALID chunks, LEVELS and warps, at
    `most` so many."""
    span = power(length) // left  # values of one residue
    rows = min(span, tile // columns)
    count = min(CHUNKS, span // rows)
    levels = (span // (rows * count)).bit_length() - 1
    shape = {"ROWS": rows, "COLUMNS": columns, "CHUNKS": count, "LEVELS": levels}
    valid = ceil_div(length, (left * rows) << levels)
    return shape | {"VALID": valid, "num_warps": max(1, min(most, rows * columns // FEW_LANES))}


def _rows(outputs: int, length: int, kept: Levels, summed: Levels, options: dict[str, Any]) -> Step:
    takes = row_shapes.SUM if outputs >= row_shapes.MANY else row_shapes.SUM_OF_FEW
    shape, block = row_shape(length, outputs, takes)
    inner, inner_step, outer_step = _places(summed)
    constants: dict[str, Any] = {"OUTPUTS": block, "FLAT": len(summed) < 2, **shape, **options}
    numbers = (outputs, length, *_places(kept), inner, *magic_of(inner), inner_step, outer_step)
    return Step("rows", (ceil_div(outputs, block),), numbers, constants, outputs)


def _fold(
    outputs: int, length: int, left: int, kept: Levels, summed: Levels, across: bool, itemsize: int,
    options: dict[str, Any],
) -> Step:  # fmt: skip
    columns = min(SEGMENT // itemsize, power(outputs) if across else left)
    inner, inner_step, outer_step = _places(summed)
    piece = _places(kept)[0] % columns == 0 or len(kept) < 2 if across else len(summed) < 2 or inner % columns == 0
    constants = {
        **tile_shape(length, left, columns, TILE), "ACROSS": across, "PIECE": piece, "FLAT": len(summed) < 2,
        "WIDE": power(length) > 2**30, **options,
    }  # fmt: skip
    programs = ceil_div(outputs, columns) * left if across else outputs * (left // columns)
    numbers = (outputs, length, left, *_places(kept), inner, *magic_of(inner), inner_step, outer_step)
    return Step("fold", (programs,), numbers, constants, outputs * left)


def _places(levels: Levels) -> tuple[int, int, int]:
    """Size and step of the inner level, and step of the outer one."""
    if len(levels) == 2:
        return levels[1][0], levels[1][1], levels[0][1]
    return (*levels[0], 0) if levels else (1, 0, 0)


@functools.lru_cache(maxsize=1024)
def magic_of(divisor: int) -> tuple[int, int]:
    """m and s with i // divisor == (i * m) >> s for all 0 <= i < 2^31, and i * m < 2^63."""
    shift = 31 + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift
