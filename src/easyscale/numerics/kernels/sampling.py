"""Sampling of pictures at the places of a grid (`grid_sample`), in fp64, rounded once.

A place of the grid is a position in the picture, which the padding may move. A position has taps: one element
(nearest), the corners around it (linear), or 4 x 4 elements (cubic), each with a weight that is the product of one
weight for each dimension, the outermost first. Taps are taken in row-major order; those outside take part with 0.

    result        ((0 + x[t1] * w1) + x[t2] * w2) + ...
    of the input  sums by place, in the order of (position, tap), of g * w
    of the grid   over the taps, in order: S(g * x[t]) over the channels times the weight's slope; the whole times what
                  the position moves by when the grid does
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from easyscale.numerics.kernels.indexing import index_add
from easyscale.numerics.kernels.primitives import tree_sum
from easyscale.numerics.kernels.reductions import rounded
from easyscale.numerics.kernels.registry import form

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
_A = -0.75  # of the cubic weights, as in `interpolation`
_FAR = 2.0**31  # positions from here on, infinities and NaN are outside


@dataclass(frozen=True, slots=True)
class Line:
    """One tap along one dimension: places [N, positions] as whole numbers, weights and their slopes in fp64."""

    place: Tensor
    weight: Tensor
    slope: Tensor


@dataclass(frozen=True, slots=True)
class Tap:
    place: Tensor  # row-major in the picture, 0 where it is outside
    inside: Tensor
    weight: Tensor
    slopes: list[Tensor]  # by each dimension


# ------------------------------------------------------------------------------------------------- positions


def _clipped(position: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Kept in the picture, NaN at its beginning; and what the position is multiplied by in the derivative."""
    last = float(size - 1)
    kept = torch.where(position > 0, torch.where(position < last, position, last), 0.0)
    return kept, ((position > 0) & (position < last)).double()


def _reflected(position: Tensor, size: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Thrown back at the edges until it is inside, then clipped."""
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0.0:
        return torch.zeros_like(position), torch.zeros_like(position)
    away = position - low
    distance = away.abs()
    times = (distance / torch.full_like(distance, span)).floor()
    rest = distance - times * span
    even = times - (times * 0.5).floor() * 2.0 == 0
    back = torch.where(even, rest, span - rest) + low
    kept, factor = _clipped(back, size)
    return kept, torch.where(even == (away >= 0), factor, -factor)


def padded(position: Tensor, size: int, padding: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Where the padding moves a position to, and the derivative of that."""
    if padding == BORDER:
        return _clipped(position, size)
    if padding == REFLECTION:
        return _reflected(position, size, corners)
    return position, torch.ones_like(position)


def _positions(grid: Tensor, size: int, corners: bool) -> tuple[Tensor, float]:
    """The positions of a coordinate in -1 .. 1, and how far one moves with it."""
    moved = grid.double() + 1.0
    return (moved * (size - 1) * 0.5, (size - 1) / 2) if corners else ((moved * size - 1.0) * 0.5, size / 2)


# ------------------------------------------------------------------------------------------------- taps


def _whole(position: Tensor) -> Tensor:
    """As int64; one that is far away or no number becomes -100, which is outside."""
    near = (position > -_FAR) & (position < _FAR)
    return torch.where(near, position, -100.0).long()


def _cubic(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and slope at a distance of at most 2."""
    x = distance.abs()
    near = x <= 1.0
    weight = torch.where(near, ((_A + 2.0) * x - (_A + 3.0)) * x * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * _A)
    slope = torch.where(near, ((3.0 * (_A + 2.0)) * x - 2.0 * (_A + 3.0)) * x, ((3.0 * x - 10.0) * x + 8.0) * _A)
    return weight, slope * distance.sign()


def _lines(grid: Tensor, size: int, mode: int, padding: int, corners: bool) -> list[Line]:
    """The taps along one dimension. Slopes are by the coordinate of the grid."""
    position, moves = _positions(grid, size, corners)
    if mode == CUBIC:
        first = position.floor()
        part = position - first
        lines = []
        for k in range(-1, 3):
            weight, slope = _cubic(part - k)
            lines.append(Line(_whole(padded(first + k, size, padding, corners)[0]), weight, slope * moves))
        return lines
    position, factor = padded(position, size, padding, corners)
    if mode == NEAREST:
        return [Line(_whole(position.round()), torch.ones_like(position), torch.zeros_like(position))]
    first = position.floor()
    part = position - first
    slope = factor * moves
    return [Line(_whole(first), 1.0 - part, -slope), Line(_whole(first + 1.0), part, slope)]


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def taps(grid: Tensor, sizes: Sequence[int], mode: int, padding: int, corners: bool) -> list[Tap]:
    """In row-major order. The grid's first coordinate is that of the last dimension."""
    flat = grid.flatten(1, -2).flip(-1)
    lines = [_lines(flat[..., axis], size, mode, padding, corners) for axis, size in enumerate(sizes)]
    found = []
    for each in itertools.product(*lines):
        place, inside = torch.zeros_like(each[0].place), torch.ones_like(each[0].place, dtype=torch.bool)
        for line, size in zip(each, sizes, strict=True):
            inside = inside & (line.place >= 0) & (line.place < size)
            place = place * size + line.place
        weights = [line.weight for line in each]
        slopes = [_product([*weights[:a], line.slope, *weights[a + 1 :]]) for a, line in enumerate(each)]
        found.append(Tap(torch.where(inside, place, 0), inside, _product(weights), slopes))
    return found


def _taken(flat: Tensor, tap: Tap) -> Tensor:
    """The elements [N, C, positions] of a picture [N, C, places], in fp64; 0 outside."""
    batch, channels = flat.shape[:2]
    chosen = flat.gather(2, tap.place[:, None].expand(batch, channels, -1)).double()
    return torch.where(tap.inside[:, None], chosen, 0.0)


# ------------------------------------------------------------------------------------------------- forms


def _check(picture: Tensor, grid: Tensor, mode: int, padding: int) -> None:
    dims = picture.dim() - 2
    if grid.dim() != picture.dim() or grid.shape[0] != picture.shape[0] or grid.shape[-1] != dims:
        raise RuntimeError(f"grid_sampler: a grid of shape {tuple(grid.shape)} for an input {tuple(picture.shape)}")
    if not math.prod(picture.shape[2:]):
        raise RuntimeError("grid_sampler(): expected input to have non-empty spatial dimensions")
    if mode not in (LINEAR, NEAREST, CUBIC) or padding not in (ZEROS, BORDER, REFLECTION):
        raise RuntimeError(f"grid_sampler: no interpolation mode {mode} or no padding mode {padding}")
    if mode == CUBIC and dims != 2:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")


@form("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    _check(input, grid, interpolation_mode, padding_mode)
    flat = input.flatten(2)
    total = torch.zeros((*input.shape[:2], math.prod(grid.shape[1:-1])), dtype=torch.float64, device=input.device)
    for tap in taps(grid, input.shape[2:], interpolation_mode, padding_mode, align_corners):
        if interpolation_mode == NEAREST:
            total = _taken(flat, tap)
        else:
            total = total + _taken(flat, tap) * torch.where(tap.inside, tap.weight, 0.0)[:, None]
    return rounded(total, input.dtype).view(*input.shape[:2], *grid.shape[1:-1])


def _for_input(g: Tensor, picture: Tensor, found: list[Tap]) -> Tensor:
    batch, channels = picture.shape[:2]
    places = math.prod(picture.shape[2:])
    starts = torch.arange(batch, device=g.device)[:, None] * places
    # What lies outside goes to one place more, which is dropped: no waiting for a count.
    index = torch.stack([torch.where(tap.inside, tap.place + starts, batch * places) for tap in found], -1)
    weights = torch.stack([torch.where(tap.inside, tap.weight, 0.0) for tap in found], -1)
    rows = g.transpose(1, 2)[:, :, None] * weights[..., None]  # [N, positions, taps, C]
    empty = torch.zeros((batch * places + 1, channels), dtype=torch.float64, device=g.device)
    total = index_add(empty, 0, index.reshape(-1), rows.reshape(-1, channels))[:-1]
    return total.view(batch, places, channels).transpose(1, 2).reshape(picture.shape)


def _for_grid(g: Tensor, flat: Tensor, found: list[Tap], dims: int) -> Tensor:
    """[N, positions, dims]"""
    totals = [torch.zeros((g.shape[0], g.shape[2]), dtype=torch.float64, device=g.device) for _ in range(dims)]
    for tap in found:
        along = tree_sum(g * _taken(flat, tap), [1]).squeeze(1)
        for axis, slope in enumerate(tap.slopes):
            totals[axis] = totals[axis] + torch.where(tap.inside, along * slope, 0.0)
    return torch.stack(totals[::-1], -1)


@form("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Tensor, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    _check(input, grid, interpolation_mode, padding_mode)
    found = taps(grid, input.shape[2:], interpolation_mode, padding_mode, align_corners)
    g = grad_output.flatten(2).double()
    for_input = rounded(_for_input(g, input, found), input.dtype) if output_mask[0] else None
    if interpolation_mode == NEAREST or not output_mask[1]:
        return for_input, torch.zeros_like(grid)
    for_grid = _for_grid(g, input.flatten(2), found, input.dim() - 2)
    return for_input, rounded(for_grid, grid.dtype).view(grid.shape)
