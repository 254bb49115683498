"""Interpolation: against plain Python in the written order, forward and backward, and near to stock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2_rows import assert_both_same, assert_same, fp32, special
from easyscale.numerics.kernels.install import installed

Taps = list[list[tuple[int, float]]]  # for each output of a dimension
Rows = dict[tuple[int, ...], float]  # place -> value

# ------------------------------------------------------------------------------------------------- in plain Python


def cubic(distance: float, a: float) -> float:
    x = abs(distance)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def taps(n: int, outputs: int, mode: str, factor: float | None, corners: bool) -> Taps:
    scale = 1 / factor if factor else n / outputs
    if corners:
        scale = (n - 1) / (outputs - 1) if outputs > 1 else 0.0
    found: Taps = []
    for o in range(outputs):
        position = o * scale if corners else (o + 0.5) * scale - 0.5
        if mode == "cubic":
            p = math.floor(position)
            found.append([(min(max(p + k, 0), n - 1), cubic(position - p - k, -0.75)) for k in range(-1, 3)])
        else:
            position = max(position, 0.0)
            p = min(math.floor(position), n - 1)
            w = min(max(position - p, 0.0), 1.0)
            found.append([(p, 1 - w), (min(p + 1, n - 1), w)])
    return found


def filtered(n: int, outputs: int, mode: str, factor: float | None) -> Taps:
    scale = 1 / factor if factor else n / outputs
    wide = max(scale, 1.0)
    reach = wide * (2 if mode == "cubic" else 1)
    found: Taps = []
    for o in range(outputs):
        centre = scale * (o + 0.5)
        places = range(max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), n))
        distances = [(place - centre + 0.5) / wide for place in places]
        weights = [cubic(d, -0.5) if mode == "cubic" else max(1 - abs(d), 0.0) for d in distances]
        total = 0.0
        for weight in weights:
            total += weight
        found.append([(place, weight / total) for place, weight in zip(places, weights, strict=True)])
    return found


def turned(table: Taps, n: int) -> Taps:
    found: Taps = [[] for _ in range(n)]
    for o, each in enumerate(table):
        for place, weight in each:
            found[place].append((o, weight))
    return found


def by_tables(x: Tensor, tables: Sequence[Taps]) -> Tensor:
    """One picture [sizes], the last dimension first, in Python's fp64; rounded to fp32 at the end."""
    values: Rows = dict(zip(itertools.product(*map(range, x.shape)), x.double().flatten().tolist(), strict=True))
    shape = list(x.shape)
    for axis in reversed(range(x.dim())):
        shape[axis] = len(tables[axis])
        made: Rows = {}
        for place in itertools.product(*map(range, shape)):
            total = 0.0
            for tap, weight in tables[axis][place[axis]]:
                total += values[(*place[:axis], tap, *place[axis + 1 :])] * weight
            made[place] = total
        values = made
    return torch.tensor([fp32(values[place]) for place in itertools.product(*map(range, shape))]).view(shape)


# ------------------------------------------------------------------------------------------------- tests

MODES = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
KINDS = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
SIZES = (5, 6, 4)
TARGETS: list[tuple[int, ...]] = [(9, 11, 7), (3, 2, 3), (5, 6, 4), (1, 1, 1), (10, 3, 8)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def uneven(shape: Sequence[int]) -> Tensor:
    """A gradient without random numbers, which are others at level D2."""
    return ((torch.arange(math.prod(shape)) * 7919 % 101 - 50) / 64).view(tuple(shape))


def interpolated(x: Tensor, g: Tensor | None = None, **options: Any) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    with installed():
        y = F.interpolate(leaf, **options)
        gradient = uneven(y.shape) if g is None else g
        return [y.detach(), *torch.autograd.grad(y, leaf, gradient)]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_linear_and_cubic_are_the_written_sums(mode: str, target: tuple[int, ...], corners: bool) -> None:
    dims = MODES[mode]
    sizes, size = SIZES[:dims], target[:dims]
    x, g = drawn(1, 1, *sizes), drawn(1, 1, *size, seed=1)
    tables = [taps(n, o, KINDS[mode], None, corners) for n, o in zip(sizes, size, strict=True)]
    back = [turned(table, n) for table, n in zip(tables, sizes, strict=True)]
    made = interpolated(x, g, size=size, mode=mode, align_corners=corners)
    assert_same(made, [by_tables(x[0, 0], tables)[None, None], by_tables(g[0, 0], back)[None, None]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_ones_are_the_written_sums(mode: str, target: tuple[int, ...]) -> None:
    sizes, size = SIZES[:2], target[:2]
    x, g = drawn(1, 1, *sizes), drawn(1, 1, *size, seed=1)
    tables = [filtered(n, o, KINDS[mode], None) for n, o in zip(sizes, size, strict=True)]
    back = [turned(table, n) for table, n in zip(tables, sizes, strict=True)]
    made = interpolated(x, g, size=size, mode=mode, antialias=True)
    assert_same(made, [by_tables(x[0, 0], tables)[None, None], by_tables(g[0, 0], back)[None, None]])


def test_a_given_factor_is_used_in_place_of_the_sizes() -> None:
    x = drawn(1, 1, 5, 6)
    tables = [taps(5, 8, "linear", 1.7, False), taps(6, 10, "linear", 1.7, False)]
    made = interpolated(x, scale_factor=1.7, mode="bilinear")[0]
    assert_same(made, by_tables(x[0, 0], tables)[None, None])
    by_sizes = interpolated(x, size=(8, 10), mode="bilinear")[0]
    assert not torch.equal(made, by_sizes)  # a negative control


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("target", [(9, 11), (3, 2), (5, 6), (13, 1)])
def test_nearest_copies_and_adds_gradients_in_row_major_order(mode: str, target: tuple[int, int]) -> None:
    x, g = special(2, 3, 5, 6), drawn(2, 3, *target, seed=1)
    chosen = []
    for n, outputs in zip((5, 6), target, strict=True):
        scale = fp32(n / outputs)
        places = [fp32((o + 0.5) * scale) if mode == "nearest-exact" else fp32(o * scale) for o in range(outputs)]
        chosen.append([min(math.floor(place), n - 1) for place in places])
    for_x = torch.zeros(2, 3, 5, 6)
    for i, j in itertools.product(*map(range, target)):
        for_x[:, :, chosen[0][i], chosen[1][j]] += g[:, :, i, j]
    wanted = x[:, :, chosen[0]][..., chosen[1]]
    assert_same(interpolated(x, g, size=target, mode=mode), [wanted, for_x])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("factor", [2, 0.5, 1.3])
def test_it_is_near_to_stock(mode: str, factor: float) -> None:
    x = drawn(2, 3, 8, 10)
    leaf = x.requires_grad_()
    y = F.interpolate(leaf, scale_factor=factor, mode=mode)
    stock = [y.detach(), *torch.autograd.grad(y, leaf, uneven(y.shape))]
    for ours, theirs in zip(interpolated(x, scale_factor=factor, mode=mode), stock, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_are_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    x = drawn(1, 2, 5, 6).to(dtype)
    with installed():
        made = F.interpolate(x, size=(7, 9), mode="bilinear")
        assert_same(made, F.interpolate(x.float(), size=(7, 9), mode="bilinear").to(dtype))


def test_channels_last_stays_and_has_the_same_bits() -> None:
    x = drawn(2, 3, 5, 6)
    for mode in ("nearest", "bilinear", "bicubic"):
        plain = interpolated(x, size=(7, 9), mode=mode)
        last = interpolated(x.to(memory_format=torch.channels_last), size=(7, 9), mode=mode)
        assert_same(last, plain)
        assert last[0].is_contiguous(memory_format=torch.channels_last)


def test_both_implementations_and_threads_agree() -> None:
    for mode in ("nearest", "bilinear", "bicubic"):
        assert_both_same(lambda mode=mode: interpolated(special(2, 3, 9, 10), size=(13, 7), mode=mode))


def test_an_empty_batch_stays_empty() -> None:
    for mode in ("nearest", "bilinear"):
        assert [tuple(one.shape) for one in interpolated(drawn(0, 3, 5, 6), size=(7, 9), mode=mode)] == [
            (0, 3, 7, 9), (0, 3, 5, 6),
        ]  # fmt: skip
