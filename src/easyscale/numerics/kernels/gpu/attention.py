"""What attention needs on a GPU beside its products: factors laid out for them, and the rows of scores in one launch.

Guarantees the bits of `kernels.scores`. Scores are overwritten: by what the values are weighed
with, and their gradients by those of the scores. So of each row no more is in memory than its products write anyway.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu import row_shapes
from easyscale.numerics.kernels.gpu.launch import Launch, bits, ceil_div, launch
from easyscale.numerics.kernels.gpu.row_shapes import power

if TYPE_CHECKING:
    from easyscale.numerics.kernels.scores import Rows

LONGEST = row_shapes.LONGEST
SIDE = 32  # of a tile that is moved
AT_ONCE = 4096  # the longest row that stays in registers
ROUND = 2048  # of longer ones, so much is read at a time
WARP, IN_ROUNDS = 512, 128  # values that a warp holds; of twice as many, with dropout, some are spilled
_PLAIN, _CAUSAL, _TRUTH, _ADDED = range(4)  # what is added to scores


def flat(x: Tensor, root: float | None) -> Tensor:
    """fp32 [heads, rows, columns] from [B, H, rows, columns], times the root: rows without gaps, so that products read
    neighbouring columns side by side."""
    batch, heads, rows, columns = x.shape
    steps = x.stride()
    if root is None and x.dtype is torch.float32 and steps[3] == 1 and (batch == 1 or steps[0] == heads * steps[1]):
        return x.flatten(0, 1)
    out = torch.empty((batch * heads, rows, columns), dtype=torch.float32, device=x.device)
    to = (heads * rows * columns, rows * columns, columns, 1)
    _move(x, out, root, (x.shape, steps, to))
    return out


def put(out: Tensor, made: Tensor, root: float | None) -> None:
    """fp32 [heads, rows, columns] without gaps, times the root, into [B, H, rows, columns] of any dtype and layout."""
    _, heads, rows, columns = out.shape
    _move(made, out, root, (out.shape, (heads * rows * columns, rows * columns, columns, 1), out.stride()))


def _move(x: Tensor, out: Tensor, root: float | None, places: tuple[tuple[int, ...], ...]) -> None:
    _moving(*places, root, x.dtype, out.dtype, x.device)(x, out)


@functools.lru_cache(maxsize=4096)
def _moving(
    shape: tuple[int, ...], steps: tuple[int, ...], to: tuple[int, ...], root: float | None, dtype: torch.dtype,
    out: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    """The last arguments are what a launch is kept by."""
    from easyscale.numerics.kernels.gpu.attention_kernels import moved

    batch, heads, rows, columns = shape
    programs = batch * heads * ceil_div(rows, SIDE) * ceil_div(columns, SIDE)
    numbers = (rows, columns, heads, *steps, *to, bits(1.0 if root is None else root))
    return Launch(
        moved, (programs,), numbers, SCALED=root is not None, SIDE=SIDE, num_warps=4, enable_fp_fusion=False
    )  # fmt: skip


def probabilities(scores: Tensor, mask: Tensor | None, first: int, rows: Rows) -> Tensor:
    """`scores` [heads, L, S], dense: overwritten by softmax and dropout. `mask` [B, H, L, S], or none; `first` is the
    number of the first head."""
    from easyscale.numerics.kernels.gpu.attention_kernels import probabilities as kernel

    count, length, n = scores.shape
    shape, block = shape_of_rows(n, count * length)
    launch(
        kernel, (ceil_div(count * length, block),), scores, *_arguments(scores, mask, first, rows),
        ADDED=_kind(mask, rows), DROPS=rows.key is not None, ROWS=block, enable_fp_fusion=False, **shape,
    )  # fmt: skip
    return scores


def slopes(scores: Tensor, g: Tensor, mask: Tensor | None, first: int, rows: Rows) -> tuple[Tensor, Tensor]:
    """The same, and beside it `g`, the gradient of that, is overwritten by the gradient of the scores."""
    from easyscale.numerics.kernels.gpu.attention_kernels import slopes as kernel

    count, length, n = scores.shape
    shape, block = shape_of_rows(n, count * length)
    launch(
        kernel, (ceil_div(count * length, block),), scores, g, *_arguments(scores, mask, first, rows),
        ADDED=_kind(mask, rows), DROPS=rows.key is not None, ROWS=block, enable_fp_fusion=False, **shape,
    )  # fmt: skip
    return scores, g


@functools.lru_cache(maxsize=1024)
def shape_of_rows(n: int, rows: int) -> tuple[dict[str, int], int]:
    """How a program takes rows of n values. Not in chunks, as softmax alone does: where a sum goes into the terms of
    another, Triton makes code of them that spills everything."""
    padded = power(n)
    lanes = min(padded, AT_ONCE if padded <= AT_ONCE else ROUND)
    block = min(max(1, WARP // lanes), power(rows))
    levels = (padded // lanes).bit_length() - 1
    held = IN_ROUNDS if levels else WARP
    return {"LANES": lanes, "LEVELS": levels, "num_warps": max(1, lanes * block // held)}, block


def _kind(mask: Tensor | None, rows: Rows) -> int:
    if mask is None:
        return _CAUSAL if rows.is_causal else _PLAIN
    return _TRUTH if mask.dtype is torch.bool else _ADDED


def _arguments(scores: Tensor, mask: Tensor | None, first: int, rows: Rows) -> tuple[Tensor | int, ...]:
    count, length, n = scores.shape
    numbers = (count * length, n, length, first * length)
    dropout = (0, 0, 0) if rows.key is None else (rows.key, rows.limit, bits(rows.noise))
    if mask is None:
        return scores, *numbers, count, 0, 0, 0, 0, *dropout
    shown = mask.view(torch.uint8) if mask.dtype is torch.bool else mask
    return shown, *numbers, mask.shape[1], *mask.stride(), *dropout
