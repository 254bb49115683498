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


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_forms_of_bounds_and_divisions_for_gpus_have_the_bits_of_stock_on_cpus(dtype: torch.dtype) -> None:
    x = special(3000).to(dtype)
    assert_same(exact.relu(x), x.relu())
    assert_same(exact.clamp(x, -0.5, 2), x.clamp(-0.5, 2))
    assert_same(exact.clamp_min(x, 0), x.clamp_min(0))
    assert_same(exact.clamp_max(x, 0.0), x.clamp_max(0.0))
    assert_same(exact.hardtanh(x), torch.nn.functional.hardtanh(x))
    for divisor in (3, 0.1, 7.0, 0, -1e-3):
        assert_same(exact.div(x, divisor), x / divisor)
        assert_same(exact.floor_divide(x, divisor), x // divisor)
        assert_same(exact.div_mode(x, divisor, rounding_mode="trunc"), torch.div(x, divisor, rounding_mode="trunc"))


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
