"""Pooling, padding and interpolation on a GPU: one kernel for an operator, one loop over its inputs for an output.

Which inputs an output has, and with what weights, are tables that depend on sizes alone: they are made and brought to
the device once. Inputs are read where they lie, outputs written in the layout that is asked for.
Relies on `windows` and `interpolation` for the definitions and guarantees their bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import ceil_div, launch

BLOCK = 256
WARPS = 4

Rows = tuple[tuple[int, ...], ...]  # for each output of a dimension: the places of its inputs, in order
Ranges = tuple[tuple[int, int], ...]  # the same, as begin and end
Taps = tuple[tuple[tuple[int, float], ...], ...]  # places and weights
Divisors = tuple[tuple[int, ...], ...]
_NOTHING = ((0,),)


@functools.lru_cache(maxsize=1024)
def rows_of(ranges: Ranges) -> Rows:
    return tuple(tuple(range(begin, end)) for begin, end in ranges)


@functools.lru_cache(maxsize=1024)
def _places(rows: Rows, device: torch.device) -> tuple[Tensor, int]:
    """int32 [outputs, K], with -1 behind the last place; and K."""
    most = max(1, max(map(len, rows), default=0))
    filled = [[*row, *[-1] * (most - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int32, device=device), most


@functools.lru_cache(maxsize=1024)
def _weights(taps: Taps, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Places, fp64 weights and K."""
    places, most = _places(tuple(tuple(place for place, _ in row) for row in taps), device)
    filled = [[*[weight for _, weight in row], *[0.0] * (most - len(row))] for row in taps]
    return places, torch.tensor(filled, dtype=torch.float64, device=device), most


@functools.lru_cache(maxsize=1024)
def _counts(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _made(x: Tensor, sizes: Sequence[int], dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    return torch.empty(
        (*x.shape[: x.dim() - len(sizes)], *sizes), dtype=dtype, device=x.device, memory_format=layout
    )


def _geometry(x: Tensor, sizes: Sequence[int]) -> tuple[int, ...]:
    """What the kernels are told of an output with these last sizes, and the steps between the inputs: images,
    channels, then three dimensions, some of size one. There are at most two dimensions before those."""
    before, missing = x.dim() - len(sizes), 3 - len(sizes)
    assert 0 <= before <= 2, f"{x.dim()} dimensions"
    steps, channels = x.stride(), x.shape[before - 1] if before else 1
    outer = (*(0,) * (2 - before), *steps[:before])
    return (channels, *(1,) * missing, *sizes, *outer, *(0,) * missing, *steps[before:])


def _settings(out: Tensor, layout: torch.memory_format) -> dict[str, Any]:
    return {
        "LAST": layout is not torch.contiguous_format, "FAR": out.numel() >= 2**31 - BLOCK, "BLOCK": BLOCK,
        "num_warps": WARPS,
    }  # fmt: skip


def window_sum(
    x: Tensor, rows: Sequence[Rows], *, chosen: Tensor | None, each: Divisors | None, whole: Divisors | None,
    layout: torch.memory_format, stepwise: bool = False,
) -> Tensor:  # fmt: skip
    """`windows.window_sum` by tables of places; `stepwise`: rounded to the dtype after each addition."""
    from easyscale.numerics.kernels.gpu.windows_kernels import window_sums

    dims = len(rows)
    out = _made(x, [len(row) for row in rows], x.dtype, layout)
    if not out.numel():
        return out
    if chosen is not None and chosen.stride() != x.stride():
        x, chosen = x.contiguous(), chosen.contiguous()
    missing = 3 - dims
    tables = [_places(row, x.device) for row in (*(_NOTHING,) * missing, *rows)]
    places, divisors = [table for table, _ in tables], each or whole
    counts = [_counts(one, x.device) for one in (*((1,),) * missing, *divisors)] if divisors else places
    launch(
        window_sums, (ceil_div(out.numel(), BLOCK),), x, out, places[0] if chosen is None else chosen, *counts,
        *places, out.numel(), *_geometry(x, out.shape[x.dim() - dims :]), KD=tables[0][1], KH=tables[1][1],
        KW=tables[2][1], EACH=each is not None, WHOLE=whole is not None, CHOSEN=chosen is not None,
        STEPWISE=stepwise and x.dtype in (torch.bfloat16, torch.float16), **_settings(out, layout),
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


def copied(x: Tensor, found: Sequence[tuple[int, ...]], layout: torch.memory_format) -> Tensor:
    """Each output is the input that `found` names for each of the last dimensions; x [N, C, ..]."""
    from easyscale.numerics.kernels.gpu.windows_kernels import copies

    dims = len(found)
    out = _made(x, [len(each) for each in found], x.dtype, layout)
    if out.numel():
        tables = [_counts(each, x.device) for each in (*((0,),) * (3 - dims), *found)]
        launch(
            copies, (ceil_div(out.numel(), BLOCK),), x, out, *tables, out.numel(),
            *_geometry(x, out.shape[2:]), **_settings(out, layout), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def weighted(x: Tensor, taps: Sequence[Taps], dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    """Sums of inputs times weights over each of the last dimensions, the last one first; x [N, C, ..]."""
    from easyscale.numerics.kernels.gpu.windows_kernels import weighted_sums

    dims = len(taps)
    out = _made(x, [len(each) for each in taps], dtype, layout)
    if out.numel():
        tables = [_weights(each, x.device) for each in taps]
        parts = [part for places, weights, _ in (tables[0],) * (3 - dims) + tuple(tables) for part in (places, weights)]
        most = [0] * (3 - dims) + [one[2] for one in tables]
        launch(
            weighted_sums, (ceil_div(out.numel(), BLOCK),), x, out, *parts, out.numel(), *_geometry(x, out.shape[2:]),
            KD=most[0], KH=most[1], KW=most[2], **_settings(out, layout), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def along(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """`weighted` over one dimension only, in fp64."""
    x = x.contiguous()
    outer, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    moved = x.view(outer, x.shape[dim], inner).permute(0, 2, 1)  # [N, C, W]: channels last in memory
    out = torch.empty((outer, len(taps), inner), dtype=torch.float64, device=x.device)
    if out.numel():
        from easyscale.numerics.kernels.gpu.windows_kernels import weighted_sums

        places, weights, most = _weights(taps, x.device)
        launch(
            weighted_sums, (ceil_div(out.numel(), BLOCK),), x, out, *(places, weights) * 3,
            out.numel(), *_geometry(moved, out.shape[1:2]), KD=0, KH=0, KW=most,
            **{**_settings(out, torch.contiguous_format), "LAST": True}, enable_fp_fusion=False,
        )  # fmt: skip
    return out.view(*x.shape[:dim], len(taps), *x.shape[dim + 1 :])
