"""Batch norm, and the gradients of the weights of norms, on a GPU: the bits of the compositions in `norms`.

Sums over a channel are the halving tree over (sample, pixel): one launch leaves some partial sums of each channel, and
the next one, which needs them anyway, adds them up (`channel_kernels`). So batch norm is three launches (mean,
variance, result), its backward two, and the weights of a norm over rows two. Part of `gpu.fused`; relies on dense
tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, bits, ceil_div, processors
from easyscale.numerics.kernels.gpu.row_shapes import power
from easyscale.numerics.kernels.gpu.rows import BUSY, magic_of, tile_shape

MOST_LEFT = 1024  # partial sums of a channel
VALUE, SQUARE, PRODUCT, NORMAL, PLAIN = range(5)  # what `channel_kernels.sums` sums
TILE, LONG_TILE = 512, 1024  # values of a program of `sums` at once; of long channels
LONG = 65_536
WARPS = 4  # of such a program
SEGMENT = 256  # bytes that it reads at one place, half as many where channels are last
FEW_OUTPUTS = 8  # blocks of channels; where there are no more, more programs share one
UNROLL = 4  # tiles of the elementwise kernels whose loads are under way at once
SPANS = 8  # of their programs for each SM
PLANS = 2048  # launches kept, of each kind; by what they are given last they are only kept
WIDEST = 128  # neighbouring values of one channel in a row of their tiles


class Layout(NamedTuple):
    """Dense memory of samples, channels and pixels; `last`: channels are last."""

    samples: int
    channels: int
    pixels: int
    last: bool
    itemsize: int
    busy: int

    @property
    def length(self) -> int:
        return self.samples * self.pixels

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pixels as the kernels take them."""
        pixels = 1 if self.last else self.pixels
        return (pixels, *magic_of(pixels))


@functools.lru_cache(maxsize=1024)
def _sums_plan(of: Layout, read_again: bool) -> tuple[int, int, dict[str, Any]]:
    """Partial sums of a channel, programs, and constants of `sums`. Where each program of the next launch reads the
    partial sums of many channels again, there are fewer of them."""
    tile = LONG_TILE if of.length >= LONG and not of.last else TILE
    columns = min((SEGMENT // 2 if of.last else SEGMENT) // of.itemsize, power(of.channels if of.last else of.length))
    even = of.pixels & -of.pixels
    piece = 0 if of.last else 2 if 2 * even >= columns else of.samples == 1
    if piece == 2:
        columns = min(columns, even)
    outputs = ceil_div(of.channels, columns) if of.last else of.channels
    busy = of.busy * (1 if of.last and (read_again or outputs > FEW_OUTPUTS) else BUSY)
    left = 1 if of.last else columns
    rows = tile // columns
    padded = power(of.length)
    while outputs * (left if of.last else left // columns) < busy and left < MOST_LEFT:
        if left * rows * (8 if of.last else 2) > padded:
            break
        left *= 2
    programs = outputs * left if of.last else outputs * (left // columns)
    constants = {
        **tile_shape(of.length, left, columns, tile, WARPS), "LAST": of.last, "PIECE": int(piece), "WIDE": _wide(of),
    }  # fmt: skip
    return left, programs, constants


@functools.lru_cache(maxsize=1024)
def _tiles_plan(of: Layout) -> tuple[int, tuple[int, int], dict[str, Any]]:
    """Programs, tiles and tiles of a program, and constants of `normalize` and `gradient`."""
    even = of.pixels & -of.pixels
    piece = 0 if of.last else 2 if even >= 4 else of.samples == 1
    columns = min(WIDEST, even if piece == 2 else power(of.length))
    if of.last:
        columns = min(SEGMENT // 2 // of.itemsize, power(of.channels))
    rows = min(LONG_TILE // columns, power(of.length if of.last else ceil_div(of.length, columns)))
    outputs = ceil_div(of.channels, columns) if of.last else of.channels
    tiles = ceil_div(of.length, rows if of.last else rows * columns)
    spans = max(1, min(ceil_div(SPANS * of.busy // (2 if of.last else 1), outputs), ceil_div(tiles, UNROLL)))
    per = ceil_div(ceil_div(tiles, spans), UNROLL) * UNROLL
    constants = {
        "LAST": of.last, "PIECE": int(piece), "WIDE": _wide(of), "ROWS": rows, "COLUMNS": columns, "UNROLL": UNROLL,
        "num_warps": max(1, min(8, rows * columns // 128)),
    }  # fmt: skip
    return outputs * ceil_div(tiles, per), (tiles, per), constants


def _wide(of: Layout) -> bool:
    return power(of.length) * of.channels > 2**30


def _sums(
    kind: int, g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, of: Layout, groups: int = 1, left: int = 1
) -> tuple[Tensor, int]:
    """fp64 partial sums of each channel, and how many of each."""
    size, parts, run = _sums_launch(
        kind, of, groups, left, g.dtype, x.dtype, mean.dtype, rstd.dtype, x.get_device()
    )  # fmt: skip
    part = torch.empty(size, dtype=torch.float64, device=x.device)
    run(g, x, mean, rstd, part)
    return part, parts


@functools.lru_cache(maxsize=PLANS)
def _sums_launch(kind: int, of: Layout, groups: int, left: int, *_kept_by: Any) -> tuple[int, int, Launch]:
    from easyscale.numerics.kernels.gpu.channel_kernels import sums

    parts, programs, constants = _sums_plan(of, kind <= PRODUCT)
    size = (1 if kind <= SQUARE else 2) * parts * of.channels
    numbers = (of.channels, of.length, parts, *of.sizes, groups, max(1, of.channels // groups), bits(float(of.length)))
    return size, parts, Launch(sums, (programs,), numbers, KIND=kind, LEFT=left, enable_fp_fusion=False, **constants)


def _finished(part: Tensor, left: int, of: Layout, dtype: torch.dtype, pair: bool) -> tuple[Tensor, Tensor]:
    """The sums of products, and of gradients if there is a pair."""
    device = part.device
    first = torch.empty(of.channels, dtype=dtype, device=device)
    second = torch.empty(of.channels, dtype=dtype, device=device) if pair else first
    _finish_launch(of.channels, of.last, left, pair, dtype, device)(part, first, second)
    return first, second


@functools.lru_cache(maxsize=PLANS)
def _finish_launch(channels: int, last: bool, left: int, pair: bool, *_kept_by: Any) -> Launch:
    from easyscale.numerics.kernels.gpu.channel_kernels import finish

    columns = min(16, power(channels)) if last else 1
    return Launch(
        finish, (ceil_div(channels, columns),), (channels,), PAIR=pair, LAST=last, LEFT=left, COLUMNS=columns,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def row_norm_weights(
    g: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, dtype: torch.dtype, pair: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the weights of layer and RMS norm, the tree over rows of g * xhat; with a `pair`, of the biases."""
    rows = rstd.numel()
    of = Layout(rows, x.numel() // rows, 1, True, x.element_size(), processors(x.device))
    part, left = _sums(PLAIN if mean is None else NORMAL, g, x, rstd if mean is None else mean, rstd, of)
    dw, db = _finished(part, left, of, dtype, pair)
    return dw, db if pair else None


def group_norm_weights(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, samples: int, channels: int, pixels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias of group norm, from mean and rstd of [samples, groups]."""
    of = Layout(samples, channels, pixels, False, x.element_size(), processors(x.device))
    part, left = _sums(NORMAL, g, x, mean, rstd, of, rstd.numel() // samples)
    return _finished(part, left, of, dtype, True)


# ---------------------------------------------------------------------------------------------- batch norm


def _layout(x: Tensor, last: bool) -> Layout:
    samples, channels = x.shape[:2]
    pixels = x.numel() // (samples * channels)
    return Layout(samples, channels, pixels, last, x.element_size(), processors(x.device))


def batch_norm_updating(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Sequence[Tensor] | None, training: bool,
    momentum: float, eps: float, last: bool, saved: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean and rstd (of dtype `saved`) of [N, C, ...]; in training `running` statistics are brought up to date, else
    they are those that are taken."""
    of = _layout(x, last)
    out = torch.empty_like(x)
    device = x.device
    mean = torch.empty(of.channels if training else 0, dtype=saved, device=device)
    rstd = torch.empty(of.channels if training else 0, dtype=saved, device=device)
    part = squares = x
    left = 1
    if training:
        part, left = _sums(VALUE, x, x, x, x, of)
        squares, _ = _sums(SQUARE, x, x, part, x, of, left=left)
    w, b, (one, two) = x if weight is None else weight, x if bias is None else bias, running or (x, x)
    run = _normalize_launch(
        of, left, training, running is not None, weight is not None, bias is not None, eps, momentum, x.dtype, w.dtype,
        b.dtype, one.dtype, two.dtype, saved, device,
    )  # fmt: skip
    run(x, part, squares, w, b, one, two, mean, rstd, out)
    return out, mean, rstd


@functools.lru_cache(maxsize=PLANS)
def _normalize_launch(
    of: Layout, left: int, training: bool, running: bool, weight: bool, bias: bool, eps: float, momentum: float,
    *_kept_by: Any,
) -> Launch:  # fmt: skip
    from easyscale.numerics.kernels.gpu.channel_kernels import normalize

    programs, tiles, constants = _tiles_plan(of)
    size = of.length
    values = (float(size), eps, 1.0 - momentum, momentum, size / (size - 1) if size > 1 else math.nan)
    return Launch(
        normalize, (programs,), (of.channels, size, *of.sizes, *tiles, *map(bits, values)), TRAINING=training,
        RUNNING=running, WEIGHT=weight, BIAS=bias, LEFT=left, enable_fp_fusion=False, **constants,
    )  # fmt: skip


def batch_norm_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, training: bool, eps: float, wanted: bool,
    last: bool, dtype: torch.dtype,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """dx (if wanted), and dw and db of `dtype`; in evaluation `mean` and `rstd` are the running mean and variance."""
    of = _layout(x, last)
    device = x.device
    part, left = _sums(PRODUCT, g, x, mean, mean, of)
    out = torch.empty_like(x) if wanted else x
    dw = torch.empty(of.channels, dtype=dtype, device=device)
    db = torch.empty(of.channels, dtype=dtype, device=device)
    w = x if weight is None else weight
    run = _gradient_launch(
        of, left, training, wanted, weight is not None, eps, g.dtype, x.dtype, w.dtype, mean.dtype, rstd.dtype, dtype,
        device,
    )  # fmt: skip
    run(g, x, part, w, mean, rstd, out, dw, db)
    return out if wanted else None, dw, db


@functools.lru_cache(maxsize=PLANS)
def _gradient_launch(
    of: Layout, left: int, training: bool, wanted: bool, weight: bool, eps: float, *_kept_by: Any
) -> Launch:
    from easyscale.numerics.kernels.gpu.channel_kernels import gradient

    programs, tiles, constants = _tiles_plan(of)
    if not wanted:  # the first span of each channel writes dw and db
        programs = ceil_div(of.channels, constants["COLUMNS"]) if of.last else of.channels
    numbers = (of.channels, of.length, *of.sizes, *tiles, bits(float(of.length)), bits(eps))
    return Launch(
        gradient, (programs,), numbers, TRAINING=training, WANTED=wanted, WEIGHT=weight, LEFT=left,
        enable_fp_fusion=False, **constants,
    )  # fmt: skip
