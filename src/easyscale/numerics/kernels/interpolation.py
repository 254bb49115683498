"""Interpolation of pictures and the like: each dimension by a table of places and weights, in fp64, rounded once.

    nearest, nearest-exact   the element floor(i * scale), floor((i + 1/2) * scale) in fp32, as stock chooses it
    linear, cubic            the sum over the places p1, p2, ... of an output, in their order:
                             ((0 + w1 x[p1]) + w2 x[p2]) + ...      products and sums rounded each, in fp64
    antialias                likewise, over all places under the filter, with weights that are divided by their sum

The last dimension is done first; no rounding between dimensions. Weights are computed in fp64. The derivative is the
same sum with the table turned round: an input's outputs in their order. That of nearest adds gradients in fp32,
row-major, as `windows` does. uint8 pictures are rounded to the nearest number, ties to even, and kept in 0 .. 255.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives
from easyscale.numerics.kernels.gpu import windows as gpu_windows
from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.windows import Ranges, covering, layout_of, window_sum

Taps = tuple[tuple[tuple[int, float], ...], ...]  # for each output of a dimension: (place, weight) one after the other
_AT_ONCE = 64  # inputs of an output, up to which one kernel takes all dimensions; sums over one are then computed anew
_NAMES = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}


# ------------------------------------------------------------------------------------------------- nearest


def _single(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).float().item()


@functools.lru_cache(maxsize=1024)
def chosen(size: int, outputs: int, factor: float | None, exact: bool) -> tuple[int, ...]:
    """The element that each output is a copy of."""
    # fp64 first: sizes are whole, so fp32 division gives the same
    scale = _single(1.0 / factor if factor is not None and factor > 0 else size / outputs)
    found = []
    for number in range(outputs):
        place = _single((_single(number) + 0.5) * scale) if exact else _single(_single(number) * scale)
        found.append(min(math.floor(place), size - 1))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _places(found: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(found, device=device)


def _nearest(dims: int, exact: bool) -> None:
    name = f"_upsample_nearest_exact{dims}d" if exact else f"upsample_nearest{dims}d"

    @form(name)
    def upsample(self: Tensor, output_size: list[int], *factors: float | None, **named: float | None) -> Tensor:
        scales = _factors(dims, factors, named)
        if all(self.shape[2 + axis] == output_size[axis] and scales[axis] in (None, 1.0) for axis in range(dims)):
            return self.clone()
        found = [chosen(self.shape[2 + axis], output_size[axis], scales[axis], exact) for axis in range(dims)]
        if primitives.implementation(self.device) is gpu:
            return gpu_windows.copied(self, found, layout_of(self))
        result = self
        for axis, each in enumerate(found):
            result = result.index_select(2 + axis, _places(each, self.device))
        return result.contiguous(memory_format=layout_of(self))

    @form(f"{name}_backward")
    def backward(
        grad_output: Tensor, output_size: list[int], input_size: list[int], *factors: float | None,
        **named: float | None,
    ) -> Tensor:  # fmt: skip
        scales = _factors(dims, factors, named)
        ranges = [
            _chosen_by(chosen(input_size[2 + axis], output_size[axis], scales[axis], exact), input_size[2 + axis])
            for axis in range(dims)
        ]
        return window_sum(grad_output, ranges, layout=layout_of(grad_output))


@functools.lru_cache(maxsize=1024)
def _chosen_by(found: tuple[int, ...], size: int) -> Ranges:
    return covering(tuple((place, place + 1) for place in found), size)


def _factors(dims: int, factors: Sequence[float | None], named: dict[str, float | None]) -> list[float | None]:
    """The scale of each dimension, given by position or by name; the first is that of the outermost."""
    if named:
        keys = ["scales"] if dims == 1 else ["scales_d", "scales_h", "scales_w"][3 - dims :]
        return [*factors, *(named.get(key) for key in keys[len(factors) :])]
    return [*factors, *[None] * (dims - len(factors))]


for _dims in (1, 2, 3):
    _nearest(_dims, False)
    _nearest(_dims, True)


# ------------------------------------------------------------------------------------------------- tables of weights


def _scale(size: int, outputs: int, factor: float | None, corners: bool) -> float:
    """How far apart, in inputs, two outputs are."""
    if corners:
        return (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0 else size / outputs


def _position(number: int, scale: float, corners: bool) -> float:
    return number * scale if corners else (number + 0.5) * scale - 0.5


@functools.lru_cache(maxsize=1024)
def linear_taps(size: int, outputs: int, factor: float | None, corners: bool) -> Taps:
    scale = _scale(size, outputs, factor, corners)
    taps = []
    for number in range(outputs):
        place = max(_position(number, scale, corners), 0.0)
        first = min(math.floor(place), size - 1)
        weight = min(max(place - first, 0.0), 1.0)
        taps.append(((first, 1.0 - weight), (min(first + 1, size - 1), weight)))
    return tuple(taps)


def _cubic(distance: float, a: float) -> float:
    x = abs(distance)
    if x <= 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0


@functools.lru_cache(maxsize=1024)
def cubic_taps(size: int, outputs: int, factor: float | None, corners: bool) -> Taps:
    scale = _scale(size, outputs, factor, corners)
    taps = []
    for number in range(outputs):
        place = _position(number, scale, corners)
        first = math.floor(place)
        part = place - first
        taps.append(
            tuple((min(max(first + k, 0), size - 1), _cubic(part - k, -0.75)) for k in range(-1, 3))
        )
    return tuple(taps)


def _triangle(distance: float) -> float:
    return max(1.0 - abs(distance), 0.0)


def _filtered(size: int, outputs: int, factor: float | None, corners: bool, cubic: bool) -> Taps:
    scale = _scale(size, outputs, factor, corners)
    widest = max(scale, 1.0)
    reach = (2.0 if cubic else 1.0) * widest
    taps = []
    for number in range(outputs):
        centre = scale * (number + 0.5)
        begin, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size)
        distances = [(place - centre + 0.5) / widest for place in range(begin, end)]
        weights = [_cubic(distance, -0.5) if cubic else _triangle(distance) for distance in distances]
        total = 0.0
        for weight in weights:
            total += weight
        shares = [weight / total if total else weight for weight in weights]
        taps.append(tuple(zip(range(begin, end), shares, strict=True)))
    return tuple(taps)


@functools.lru_cache(maxsize=1024)
def linear_filter(size: int, outputs: int, factor: float | None, corners: bool) -> Taps:
    return _filtered(size, outputs, factor, corners, cubic=False)


@functools.lru_cache(maxsize=1024)
def cubic_filter(size: int, outputs: int, factor: float | None, corners: bool) -> Taps:
    return _filtered(size, outputs, factor, corners, cubic=True)


@functools.lru_cache(maxsize=1024)
def turned(taps: Taps, size: int) -> Taps:
    """The table of the derivative: for each input, the outputs it is used for, in their order."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for number, each in enumerate(taps):
        for place, weight in each:
            found[place].append((number, weight))
    return tuple(map(tuple, found))


# ------------------------------------------------------------------------------------------------- sums by table


@functools.lru_cache(maxsize=1024)
def _steps(taps: Taps, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """For step k: the k-th place and weight of each output, and which outputs have one (None where all have)."""
    steps = []
    for k in range(max(map(len, taps), default=0)):
        there = [len(each) > k for each in taps]
        places = torch.tensor([each[k][0] if len(each) > k else 0 for each in taps], device=device)
        weights = [each[k][1] if len(each) > k else 0.0 for each in taps]
        mask = None if all(there) else torch.tensor(there, device=device)
        steps.append((places, torch.tensor(weights, dtype=torch.float64, device=device), mask))
    return steps


def by_table(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """fp64 sums along one dimension."""
    if primitives.implementation(x.device) is gpu:
        return gpu_windows.along(x, dim, taps)
    shape = (*x.shape[:dim], len(taps), *x.shape[dim + 1 :])
    total = torch.zeros(shape, dtype=torch.float64, device=x.device)
    column = (-1, *[1] * (x.dim() - 1 - dim))
    for places, weights, mask in _steps(taps, x.device):
        summand = x.index_select(dim, places).double().mul_(weights.view(column))
        if mask is not None:
            summand = torch.where(mask.view(column), summand, 0.0)
        total.add_(summand)
    return total


def by_tables(x: Tensor, tables: Sequence[Taps]) -> Tensor:
    """Along each of the dimensions behind the channels, the last one first; rounded to the dtype of x."""
    most = math.prod(max(map(len, taps), default=0) for taps in tables)
    if primitives.implementation(x.device) is gpu and x.is_floating_point() and most <= _AT_ONCE:
        return gpu_windows.weighted(x, tables, x.dtype, layout_of(x))
    result = x
    for axis in reversed(range(len(tables))):
        result = by_table(result, 2 + axis, tables[axis])
    if x.dtype is torch.uint8:
        result = result.round_().clamp_(0.0, 255.0)
    elif x.dtype is not torch.float64:
        result = result.float()
    return result.to(x.dtype, memory_format=layout_of(x))


def _interpolation(name: str, dims: int, table: Callable[[int, int, float | None, bool], Taps]) -> None:
    @form(name)
    def upsample(
        self: Tensor, output_size: list[int], align_corners: bool, *factors: float | None, **named: float | None
    ) -> Tensor:
        scales = _factors(dims, factors, named)
        sizes = self.shape[2:]
        return by_tables(self, [table(sizes[i], output_size[i], scales[i], align_corners) for i in range(dims)])

    @form(f"{name}_backward")
    def backward(
        grad_output: Tensor, output_size: list[int], input_size: list[int], align_corners: bool,
        *factors: float | None, **named: float | None,
    ) -> Tensor:  # fmt: skip
        scales, sizes = _factors(dims, factors, named), input_size[2:]
        tables = [table(sizes[i], output_size[i], scales[i], align_corners) for i in range(dims)]
        return by_tables(grad_output, [turned(taps, size) for taps, size in zip(tables, sizes, strict=True)])


for _dims, _name in _NAMES.items():
    _interpolation(f"upsample_{_name}", _dims, linear_taps)
_interpolation("upsample_bicubic2d", 2, cubic_taps)
_interpolation("_upsample_bilinear2d_aa", 2, linear_filter)
_interpolation("_upsample_bicubic2d_aa", 2, cubic_filter)
