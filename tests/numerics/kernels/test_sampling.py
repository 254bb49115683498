"""Sampling at the places of a grid: against plain Python in the written order, forward and backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2_rows import assert_both_same, assert_same, fp32, tree
from easyscale.numerics.kernels import sampling
from easyscale.numerics.kernels.install import installed
from easyscale.numerics.kernels.registry import FORMS

MODES, PADDINGS = {"bilinear": 0, "nearest": 1, "bicubic": 2}, {"zeros": 0, "border": 1, "reflection": 2}
A = -0.75
Line = tuple[int, float, float]  # place, weight, slope by the grid's coordinate


# ------------------------------------------------------------------------------------------------- in plain Python


def clipped(position: float, n: int) -> tuple[float, float]:
    if not position > 0:
        return 0.0, 0.0
    return (position, 1.0) if position < n - 1 else (float(n - 1), 0.0)


def reflected(position: float, n: int, corners: bool) -> tuple[float, float]:
    low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
    if span == 0 or not math.isfinite(position):
        return 0.0, 0.0
    d = abs(position - low)
    k = math.floor(d / span)
    rest = d - k * span
    kept, factor = clipped((rest if k % 2 == 0 else span - rest) + low, n)
    return kept, factor * (1 if k % 2 == 0 else -1) * (1 if position >= low else -1)


def padded(position: float, n: int, padding: str, corners: bool) -> tuple[float, float]:
    if padding == "border":
        return clipped(position, n)
    return reflected(position, n, corners) if padding == "reflection" else (position, 1.0)


def whole(position: float) -> int:
    return int(position) if abs(position) < 2.0**31 else -100  # NaN too


def cubic(d: float) -> tuple[float, float]:
    x = abs(d)
    sign = (d > 0) - (d < 0)
    if x <= 1:
        return ((A + 2) * x - (A + 3)) * x * x + 1, ((3 * (A + 2)) * x - 2 * (A + 3)) * x * sign
    return (((x - 5) * x + 8) * x - 4) * A, ((3 * x - 10) * x + 8) * A * sign


def lines(c: float, n: int, mode: str, padding: str, corners: bool) -> list[Line]:
    position = ((c + 1) * (n - 1)) * 0.5 if corners else ((c + 1) * n - 1) * 0.5
    moves = (n - 1) / 2 if corners else n / 2
    if mode == "bicubic":
        first = math.floor(position)
        found = []
        for k in range(-1, 3):
            weight, slope = cubic((position - first) - k)
            found.append((whole(padded(float(first + k), n, padding, corners)[0]), weight, slope * moves))
        return found
    position, factor = padded(position, n, padding, corners)
    if mode == "nearest":
        return [(round(position), 1.0, 0.0)]
    first, slope = math.floor(position), factor * moves
    return [(first, 1 - (position - first), -slope), (first + 1, position - first, slope)]


def reference(x: Tensor, grid: Tensor, g: Tensor, mode: str, padding: str, corners: bool) -> list[Tensor]:
    """Result, gradient of the picture and of the grid; one batch."""
    sizes, channels = x.shape[2:], x.shape[1]
    flat, wide = x[0].double().reshape(channels, -1).tolist(), g[0].double().reshape(channels, -1).tolist()
    out = [[0.0] * len(wide[0]) for _ in range(channels)]
    for_x = [[0.0] * len(flat[0]) for _ in range(channels)]
    for_grid = []
    for at, place in enumerate(grid[0].double().reshape(-1, len(sizes)).tolist()):
        each = [lines(c, n, mode, padding, corners) for c, n in zip(reversed(place), sizes, strict=True)]
        totals = [0.0] * len(sizes)
        for tap in itertools.product(*each):
            if any(not 0 <= line[0] < n for line, n in zip(tap, sizes, strict=True)):
                continue
            here = 0
            for line, n in zip(tap, sizes, strict=True):
                here = here * n + line[0]
            weight = math.prod(line[1] for line in tap)
            for channel in range(channels):
                out[channel][at] += flat[channel][here] * weight
                for_x[channel][here] += wide[channel][at] * weight
            along = tree([wide[channel][at] * flat[channel][here] for channel in range(channels)])
            for axis, line in enumerate(tap):
                factors = [other[1] for other in tap]
                factors[axis] = line[2]
                totals[axis] += along * math.prod(factors)
        for_grid.append(totals[::-1])
    made = [torch.tensor([[fp32(v) for v in row] for row in rows]) for rows in (out, for_x, for_grid)]
    return [made[0].view(g.shape), made[1].view(x.shape), made[2].view(grid.shape)]


# ------------------------------------------------------------------------------------------------- tests


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sampled(x: Tensor, grid: Tensor, g: Tensor, mode: str, padding: str, corners: bool) -> list[Tensor]:
    name = f"grid_sampler_{x.dim() - 2}d"
    chosen = (MODES[mode], PADDINGS[padding], corners)
    forward = FORMS[name].function(x, grid, *chosen)
    return [forward, *FORMS[f"{name}_backward"].function(g, x, grid, *chosen, [True, True])]


CHOICES = list(itertools.product(MODES, PADDINGS, (True, False)))


@pytest.mark.parametrize(("mode", "padding", "corners"), CHOICES)
@pytest.mark.parametrize("sizes", [(5, 7), (1, 4), (2, 3, 4)])
def test_it_is_the_written_sequence(sizes: Sequence[int], mode: str, padding: str, corners: bool) -> None:
    if mode == "bicubic" and len(sizes) == 3:
        return
    x, outputs = drawn(1, 3, *sizes), (3, 4, 2)[: len(sizes)]
    grid, g = drawn(1, *outputs, len(sizes), seed=1), drawn(1, 3, *outputs, seed=2)
    corner = grid.view(-1, len(sizes))
    corner[0], corner[1], corner[2], corner[3] = 1.0, -1.0, 0.0, 2.5
    assert_same(sampled(x, grid, g, mode, padding, corners), reference(x, grid, g, mode, padding, corners))


@pytest.mark.parametrize(("mode", "padding", "corners"), CHOICES)
def test_it_is_close_to_stock_of_fp64(mode: str, padding: str, corners: bool) -> None:
    x, grid, g = drawn(2, 3, 5, 7), drawn(2, 4, 6, 2, seed=1), drawn(2, 3, 4, 6, seed=2)
    leaves = [x.double().requires_grad_(), grid.double().requires_grad_()]
    stock = F.grid_sample(*leaves, mode=mode, padding_mode=padding, align_corners=corners)
    wanted = [stock.detach(), *torch.autograd.grad(stock, leaves, g.double())]
    for ours, theirs in zip(sampled(x, grid, g, mode, padding, corners), wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)


def test_places_that_are_no_numbers_are_outside_or_at_the_edge() -> None:
    x, g = drawn(1, 2, 3, 4), torch.ones(1, 2, 1, 4)
    grid = torch.tensor([math.nan, 0.0, math.inf, 0.0, -math.inf, 0.0, 1e30, 0.0]).view(1, 1, 4, 2)
    for mode in ("bilinear", "nearest"):
        outside = sampled(x, grid, g, mode, "zeros", False)
        assert all(not one.any() for one in outside)
        edge = sampled(x, grid, g, mode, "border", False)
        assert_same(edge[0][0, :, 0], torch.stack([x[0, :, 1, at] for at in (0, 3, 0, 3)], -1))
        assert not edge[2].view(-1, 2)[:, 0].any()


def test_infinities_and_zeros_of_the_picture_come_through() -> None:
    x = torch.tensor([[math.inf, -0.0], [math.nan, 1e-45]]).view(1, 1, 2, 2)
    grid = torch.tensor([[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]).view(1, 1, 4, 2)
    made = FORMS["grid_sampler_2d"].function(x, grid, MODES["nearest"], 0, False).flatten()
    assert_same(made, torch.tensor([math.inf, -0.0, math.nan, 1e-45]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_are_computed_in_fp64_and_rounded_at_the_end(dtype: torch.dtype) -> None:
    x, grid, g = (drawn(*s).to(dtype) for s in ((2, 3, 5, 7), (2, 4, 6, 2), (2, 3, 4, 6)))
    wide = sampled(x.double(), grid.double(), g.double(), "bilinear", "border", True)
    assert_same(sampled(x, grid, g, "bilinear", "border", True), [one.float().to(dtype) for one in wide])


def test_layout_and_emptiness_do_not_matter() -> None:
    x, grid, g = drawn(2, 3, 5, 7), drawn(2, 4, 6, 2, seed=1), drawn(2, 3, 4, 6, seed=2)
    wanted = sampled(x, grid, g, "bicubic", "reflection", False)
    turned = grid.transpose(1, 2).contiguous().transpose(1, 2)
    strange = (x.to(memory_format=torch.channels_last), turned, g.mT.contiguous().mT)
    assert_same(sampled(*strange, "bicubic", "reflection", False), wanted)
    empty = sampled(x[:0], grid[:0], g[:0], "bilinear", "zeros", False)
    assert [tuple(one.shape) for one in empty] == [(0, 3, 4, 6), (0, 3, 5, 7), (0, 4, 6, 2)]
    assert FORMS["grid_sampler_2d"].function(x, grid[:, :0], 0, 0, False).shape == (2, 3, 0, 6)


def test_both_implementations_and_threads_agree_under_autograd() -> None:
    def run() -> list[Tensor]:
        leaves = [drawn(2, 5, 9, 11).requires_grad_(), drawn(2, 30, 31, 2, seed=1).requires_grad_()]
        with installed():
            y = F.grid_sample(*leaves, padding_mode="reflection", align_corners=False)
            return [y.detach(), *torch.autograd.grad(y, leaves, drawn(*y.shape, seed=2))]

    assert_both_same(run)


def test_a_gradient_that_is_not_wanted_is_not_made() -> None:
    x, grid, g = drawn(1, 2, 3, 4), drawn(1, 2, 2, 2), drawn(1, 2, 2, 2)
    for_x, for_grid = sampling.grid_sampler_backward(g, x, grid, 0, 0, False, [False, True])
    assert for_x is None
    assert for_grid.any()


def test_a_grid_of_another_shape_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="grid"):
        sampling.grid_sampler(drawn(1, 2, 3, 4), drawn(2, 2, 2, 2), 0, 0, False)
    with pytest.raises(RuntimeError, match="bicubic"):
        sampling.grid_sampler(drawn(1, 2, 3, 4, 5), drawn(1, 2, 2, 2, 3), MODES["bicubic"], 0, False)
