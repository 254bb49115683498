"""Sums by place on a GPU: a stable sort of the places, then one kernel that adds each place's contributions in order.

Nothing waits for the GPU: which position begins a place is found out by the kernel itself. Places with many
contributions take as long as their chain of additions; other places and other columns run beside it.
Relies on `ordered` for the definition; guarantees its bits. An index out of bounds stops the device, as in stock.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import ceil_div, launch
from easyscale.numerics.kernels.stock import stock

RANKED = 1 << 14  # so many places are sorted by comparing all pairs; more by stock's radix sort
LANES = 128
SHORT = 4  # contributions that every place has time for
DEEP = 16  # contributions per place, on average, from which on more of them are loaded at a time
LONG, LONGER = 32, 64
BLOCK = 512

DTYPES = frozenset((
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64,
))  # fmt: skip
_HALVES = (torch.bfloat16, torch.float16)
_sort = stock("sort.stable")


def sort_places(
    index: Tensor, rows: int, *, left_out: int | None = None, from_end: bool = False,
    spread: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The places of an index in ascending order, and the position of each; equal ones by position.

    `left_out` becomes `rows`, which is no place. `from_end`: those below zero count from the end. With a `spread`
    (along, inner) the index is [.., along, inner], and the place is counted row-major in [.., rows, inner].
    """
    from easyscale.numerics.kernels.gpu.places_kernels import keys, ranks

    index = index.contiguous()
    count = index.numel()
    along, inner = spread or (1, 1)
    many = rows + 1 if spread is None else count // (along * inner) * rows * inner
    places = torch.empty(count, dtype=torch.int32 if many < 2**31 else torch.int64, device=index.device)
    launch(
        keys, (ceil_div(count, BLOCK),), index, places, count, rows, along, inner, left_out or 0, FROM_END=from_end,
        LEAVES=left_out is not None, SPREAD=spread is not None, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False,
        debug=True, sanitize_overflow=False,
    )  # fmt: skip
    if count > RANKED or places.dtype is torch.int64:
        found: tuple[Tensor, Tensor] = _sort(places, stable=True, dim=0, descending=False)
        return found
    ordered, order = torch.empty_like(places), torch.empty_like(places)
    launch(
        ranks, (ceil_div(count, 32),), places, ordered, order, count, BLOCK=32, STEP=128, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return ordered, order


def add_sorted(
    out: Tensor, places: Tensor, order: Tensor, source: Tensor, dim: int, operation: int = 0, once: bool = False
) -> None:
    """Add row order[i] of `source` to row places[i] of `out`, in place, in the order of i; rows are those of `dim`.

    Both are contiguous, of one dtype. `once`: bf16 and fp16 are added up in fp32 and rounded at the end.
    """
    from easyscale.numerics.kernels.gpu.places_kernels import sums

    count, rows, inner = places.numel(), out.shape[dim], math.prod(out.shape[dim + 1 :])
    columns = math.prod(out.shape[:dim]) * inner
    across = min(LANES, 1 << (columns - 1).bit_length())
    segments = min(LANES // across, 1 << (count - 1).bit_length())
    wide = out.dtype in _HALVES
    launch(
        sums, (ceil_div(count, segments) * ceil_div(columns, across),), out, places, order, source, count, rows,
        columns, inner, OPERATION=operation, STEPWISE=wide and not once, WIDE=wide, SEGMENTS=segments, COLUMNS=across,
        SHORT=SHORT, LONG=LONGER if count >= DEEP * rows else LONG, num_warps=max(1, across * segments // 32),
        enable_fp_fusion=False,
    )  # fmt: skip
