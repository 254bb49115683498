"""Operators of one rounding or none whose stock kernels differ in zeros, NaN or the last place: the page's rules."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from d2_rows import assert_same, special
from easyscale.numerics.kernels import exact
from easyscale.numerics.kernels.install import installed

ODD = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-40, 3e38, -3e38, math.inf, -math.inf, math.nan, 2.5, -7.0, 16777217.0]
HALVES = [torch.bfloat16, torch.float16]
PAIRS = list(itertools.product(ODD, ODD))
FIRST, SECOND = (torch.tensor([pair[i] for pair in PAIRS]) for i in (0, 1))


def plus(value: float) -> float:
    return value + 0.0  # -0 becomes +0


def largest(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else plus(max(a, b))


def smallest(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else plus(min(a, b))


def fmax(a: float, b: float) -> float:
    return plus(b if math.isnan(a) else a if math.isnan(b) else max(a, b))


def fmin(a: float, b: float) -> float:
    return plus(b if math.isnan(a) else a if math.isnan(b) else min(a, b))


def fmod(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0:
        return math.nan
    return math.fmod(a, b)


def remainder(a: float, b: float) -> float:
    rest = fmod(a, b)
    return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest


REFERENCES = {"maximum": largest, "minimum": smallest, "fmax": fmax, "fmin": fmin, "fmod": fmod}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("repeats", [1, 40])
def test_pairs_of_special_values_follow_the_rules(name: str, repeats: int) -> None:
    """Also in the middle of a vector and of many."""
    first, second = FIRST.repeat(repeats), SECOND.repeat(repeats)
    wanted = torch.tensor([REFERENCES[name](a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)])
    with installed():
        assert_same(getattr(torch, name)(first, second), wanted)
        apart = torch.stack([first, second], 1)
        assert_same(getattr(torch, name)(apart[:, 0], apart[:, 1]), wanted)


def test_remainders_of_finite_numbers_are_exact() -> None:
    kept = [(a, b) for a, b in PAIRS if math.isfinite(a) and math.isfinite(b) and b != 0]
    first, second = (torch.tensor([pair[i] for pair in kept]) for i in (0, 1))
    wanted = [remainder(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    with installed():
        made = torch.remainder(first, second)
    assert torch.equal(made, torch.tensor(wanted, dtype=torch.float64).float())


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_extremes_of_zeros_are_plus_zero(name: str) -> None:
    with installed():
        for count in (2, 7, 65):
            zeros = torch.full((count,), -0.0)
            zeros[1] = 0.0
            for x in (zeros, zeros.flip(0), torch.full((count,), -0.0)):
                assert_same(getattr(torch, name)(x), torch.tensor(0.0))
        mixed = special(5, 300).nan_to_num()
        assert getattr(mixed, name)().item() == getattr(mixed.double(), name)().item()
        assert math.isnan(getattr(torch.tensor([1.0, math.nan, 3.0]), name)())


def test_bounds_leave_what_is_inside_alone() -> None:
    x = torch.tensor(ODD)
    with installed():
        assert_same(x.relu(), torch.where(x < 0, torch.tensor(0.0), x))
        assert_same(x.clamp(-2, 2), torch.where(x < -2, -2.0, torch.where(x > 2, 2.0, x)))
        assert_same(torch.nn.functional.hardtanh(x), torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x)))
        assert x.clamp(min=math.nan).isnan().all()
    assert math.copysign(1, x.relu()[1].item()) == -1  # stock on CPUs: -0 stays


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_the_forms_of_bounds_and_divisions_for_gpus_have_the_bits_of_stock_on_cpus(dtype: torch.dtype) -> None:
    x = special(3000).to(dtype)
    assert_same(exact.relu(x), x.relu())
    assert_same(exact.clamp(x, -0.5, 2), x.clamp(-0.5, 2))
    assert_same(exact.clamp_min(x, 0), x.clamp_min(0))
    assert_same(exact.clamp_max(x, 0.0), x.clamp_max(0.0))
    assert_same(exact.hardtanh(x), torch.nn.functional.hardtanh(x))
    for divisor in (3, 0.1, 7.0, 0, -1e-3):
        assert_same(exact.div(x, divisor), x / divisor)
        assert_same(exact.div(divisor, x), torch.div(divisor, x))
        assert_same(exact.mul(x, divisor), x * divisor)
        assert_same(exact.mul_(x.clone(), divisor), x * divisor)
        assert_same(exact.div_mode(x, divisor, rounding_mode="trunc"), torch.div(x, divisor, rounding_mode="trunc"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_a_floor_division_is_stocks_on_cpus(dtype: torch.dtype) -> None:
    y, z = special(3000).to(dtype), special(3000, seed=1).to(dtype)
    pairs: list[tuple[Tensor, Tensor | float]] = [(y, z), (FIRST.to(dtype), SECOND.to(dtype)), (y, z[:1])]
    pairs += [(y, divisor) for divisor in (3, 0.1, 7.0, 0, -1e-3, math.inf)]
    wanted = [(torch.floor_divide(a, b), torch.div(a, b, rounding_mode="trunc")) for a, b in pairs]
    with installed():
        for (a, b), (down, cut) in zip(pairs, wanted, strict=True):
            assert_same(torch.floor_divide(a, b), down)
            assert_same(torch.div(a, b, rounding_mode="floor"), down)
            assert_same(torch.div(a, b, rounding_mode="trunc"), cut)


def test_a_floor_division_of_short_types_in_fp32_is_seen() -> None:
    """A negative control: stock on CUDA."""
    a, b = (torch.randn(3000).bfloat16() * scale for scale in (100, 1))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same((a.float() // b.float()).bfloat16(), a // b)


def test_floor_divisions_of_whole_numbers_are_stocks() -> None:
    a, b = torch.arange(-20, 20), torch.tensor([3, -7, 1, 5]).repeat(10)
    wanted = [a // b, a // 3, torch.div(a, -3, rounding_mode="trunc"), a // 0.5]
    with installed():
        assert_same([a // b, a // 3, torch.div(a, -3, rounding_mode="trunc"), a // 0.5], wanted)
        with pytest.raises(RuntimeError, match="rounding_mode to be one of"):
            torch.div(a, b, rounding_mode="up")


@pytest.mark.parametrize("dtype", HALVES)
def test_short_types_by_a_tensor_without_dimensions_are_computed_in_fp32(dtype: torch.dtype) -> None:
    """Also on CUDA, where stock rounds that tensor to the short type; as the first factor it is rounded everywhere."""
    x, third = special(3000).to(dtype), torch.tensor(1 / 3)
    for factor in (third, third.double()):
        assert_same(exact.mul(x, factor), (x.float() * third).to(dtype))
        assert_same(exact.div(x, factor), (x.float() / third).to(dtype))
        for ours, stock in ((exact.mul, torch.mul), (exact.div, torch.div)):
            assert_same(ours(x, factor), stock(x, factor))
            assert_same(ours(factor, x), stock(factor, x))
        assert_same(exact.mul_(x.clone(), factor), x * factor)
    assert not torch.equal(exact.mul(x[-99:], third), exact.mul(third, x[-99:]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_products_of_whole_numbers_for_gpus_are_stocks(dtype: torch.dtype) -> None:
    x = torch.arange(12).to(dtype)
    for factor in (3, -7, 2.5, True, -0.0):
        for y in (x, x[5]):
            assert_same(exact.mul(y, factor), y * factor)
            assert_same(exact.mul(factor, y), y * factor)
    y = x.clone().float()
    assert_same(exact.mul_(y, -0.0), x.float() * -0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("bound", [0.1, 0.3, 0, 0.5])
def test_thresholds_and_gradients_inside_bounds_are_stocks_on_cpus(dtype: torch.dtype, bound: float) -> None:
    aten, nearest = torch.ops.aten, torch.tensor([bound, -bound]).to(dtype)  # on the edge, as far as the dtype has it
    g, x = special(3000, seed=4).to(dtype), torch.cat([special(2998).nan_to_num().to(dtype), nearest])
    assert_same(exact.threshold(x, bound, 0.7), aten.threshold(x, bound, 0.7))
    assert_same(exact.threshold_backward(g, x, bound), aten.threshold_backward(g, x, bound))
    stock = [
        aten.hardtanh_backward(g, x, -bound, bound + 1), aten.hardtanh_backward(g, x, -2, bound),
        aten.hardshrink_backward(g, x, bound), aten.softshrink_backward(g, x, bound),
    ]  # fmt: skip
    with installed():
        ours = [
            aten.hardtanh_backward(g, x, -bound, bound + 1), aten.hardtanh_backward(g, x, -2, bound),
            aten.hardshrink_backward(g, x, bound), aten.softshrink_backward(g, x, bound),
        ]  # fmt: skip
    assert_same(ours, stock)


def test_what_is_nan_gets_no_gradient_through_bounds_wherever_it_lies() -> None:
    aten, nothing = torch.ops.aten, torch.full((2, 35), math.nan)
    stock = aten.hardtanh_backward(torch.ones(35), nothing[0], -1, 1)
    assert stock.unique().tolist() == [0, 1], "stock on CPUs: by the place in a vector"
    with installed():
        for x in (nothing, nothing.t(), nothing[0]):
            g = torch.ones_like(x)
            for found in (
                aten.hardtanh_backward(g, x, -1, 1), aten.hardshrink_backward(g, x, 0.5),
                aten.softshrink_backward(g, x, 0.5),
            ):  # fmt: skip
                assert_same(found, torch.zeros_like(x))


def test_nan_equals_nothing_not_even_itself() -> None:
    """Up to torch 2.11 at least, stock on CPUs does not look where both are one tensor."""
    x = torch.tensor([1.0, math.nan])
    with installed():
        assert not torch.equal(x, x)
        assert not torch.equal(x, x.clone())
        assert torch.equal(x[:1], x[:1])
        assert not torch.equal(x[:1], x[1:])
        assert not torch.equal(x[:1], x)


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_number_is_in_a_tensor_if_it_equals_an_element(dtype: torch.dtype, count: int) -> None:
    x = torch.arange(count).to(dtype)
    with installed():
        assert torch.isin(2, x).item() is True
        assert torch.isin(2.5, x).item() is False
        assert torch.isin(2.5, x, invert=True).item() is True
        assert torch.isin(2, x[:0]).item() is False
        assert torch.isin(x, 2).nonzero().tolist() == [[2]]
        assert torch.isin(x, 2, invert=True).sum() == count - 1


def test_a_reciprocal_in_place_of_a_division_is_seen() -> None:
    """A negative control."""
    x = special(3000)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(x * (1 / 3), exact.div(x, 3))


def _rounded(values: list[float], dtype: torch.dtype) -> Tensor:
    wide = torch.tensor(values, dtype=torch.float64)
    return (wide.float() if dtype in HALVES else wide).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_progressions_are_computed_in_fp64_and_rounded_once(dtype: torch.dtype) -> None:
    with installed():
        assert_same(torch.arange(0, 1, 0.1, dtype=dtype), _rounded([i * 0.1 + 0.0 for i in range(10)], dtype))
        assert_same(torch.arange(5, -2.5, -0.7, dtype=dtype), _rounded([i * -0.7 + 5.0 for i in range(11)], dtype))
        for steps in (0, 1, 2, 3, 10, 11):
            step = (2.0 - -1.0) / (steps - 1) if steps > 1 else 0.0
            wanted = [i * step - 1.0 if i < steps // 2 else (i - (steps - 1)) * step + 2.0 for i in range(steps)]
            assert_same(torch.linspace(-1, 2, steps, dtype=dtype), _rounded(wanted if steps != 1 else [-1.0], dtype))
        assert torch.linspace(0, 10, 4, dtype=torch.int64).tolist() == [0, 3, 6, 10]
        torch.testing.assert_close(torch.logspace(0, 2, 3), torch.tensor([1.0, 10.0, 100.0]), rtol=0, atol=0)
        assert torch.arange(3).tolist() == [0, 1, 2]


def test_rounding_to_decimals_and_shrinking() -> None:
    x = torch.tensor([2.675, -0.125, 1234.5, math.nan, math.inf])
    with installed():
        near, far = torch.round(x, decimals=2), torch.round(x, decimals=-2)
        shrunk = torch.nn.functional.softshrink(torch.tensor([0.4, -0.4, 0.75, -0.75, math.nan, -0.0]), 0.5)
    wide = x.double()
    assert_same(near, ((wide * 100).round() / 100).float())
    assert_same(far, ((wide / 100).round() * 100).float())
    assert_same(shrunk, torch.tensor([0.0, 0.0, 0.25, -0.25, math.nan, 0.0]))
