"""The formulas over fp32: how near they are to the true values and to stock's, and their special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.numerics.kernels.test_formulas import STOCK, same
from torch import Tensor

from easyscale.numerics.kernels.formulas import FORMULAS, SINGLE
from easyscale.numerics.kernels.portable import elementwise as portable

STEPS = {"exp": 1.0, "tanh": 2.5, "sigmoid": 2.5, "silu": 2.5, "gelu": 6.0}  # from the true value, in last places


def usual(tensors: int) -> list[Tensor]:
    """A gradient, if there are two, and numbers of all usual sizes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([torch.randn(20_000, generator=generator) * s for s in (1e-3, 1, 5, 30)])
    return [torch.randn(x.shape, generator=generator), x][2 - tensors :]


@pytest.mark.parametrize("name", STEPS)
def test_an_fp32_formula_is_within_a_few_last_places(name: str) -> None:
    (x,) = usual(1)
    exact = portable.evaluate(name, [x], dtype=torch.float64)
    size = exact.float().abs().clamp(min=2.0**-126)
    unit = (torch.nextafter(size, torch.tensor(math.inf)) - size).double()
    error = (portable.evaluate(SINGLE[name], [x], dtype=torch.float64) - exact).abs() / unit
    known = (exact.abs() < 3e38) & ((exact.abs() > 1e-35) | (torch.tensor(name == "exp")))
    if name == "gelu":
        tail = known & (x < -2)
        assert bool((error * unit <= 1e-7 * x**2 * exact.abs())[tail].all())
        known &= ~tail
    assert float(error[known].max()) <= STEPS[name]
    short = portable.evaluate(SINGLE[name], [x], dtype=torch.float32)
    assert not same(short, exact.float()), "a negative control: it is another formula"


STOCK_SINGLE: dict[str, Callable[..., Tensor]] = {
    **{name: STOCK[name] for name in ("exp", "tanh", "sigmoid", "silu", "gelu")},
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu_backward": torch.ops.aten.silu_backward, "gelu_backward": torch.ops.aten.gelu_backward,
    "gelu_tanh_backward": lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("name", SINGLE)
def test_an_fp32_formula_has_at_most_twice_the_error_of_stock(name: str, scale: float) -> None:
    """The root of the mean square, relative to that of the values."""
    assert set(STOCK_SINGLE) == set(SINGLE)
    tensors = FORMULAS[name].tensors
    assert FORMULAS[SINGLE[name]].tensors == tensors
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(100_000, generator=generator) * (scale if i else 1.0) for i in (0, 1)][2 - tensors :]
    exact = portable.evaluate(name, inputs, dtype=torch.float64)

    def error(result: Tensor) -> float:
        return float((result.double() - exact).norm() / exact.norm())

    ours = error(portable.evaluate(SINGLE[name], inputs, dtype=torch.float32))
    assert ours <= 2 * error(STOCK_SINGLE[name](*inputs))


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, -3e38, 700, -700, 709, 710, -709,
           -104, -87.3, 88.7, 88.73, -14.1, -14.3, 37.6, -37.6]  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_an_fp32_formula_has_the_special_values_of_the_long_one(name: str) -> None:
    """But for what is below 1e-33, and gradients where x is infinite."""
    x = torch.tensor(SPECIAL)
    inputs = [torch.ones(x.shape), x][2 - FORMULAS[name].tensors :]
    short = portable.evaluate(SINGLE[name], inputs, dtype=torch.float32)
    long = portable.evaluate(name, inputs, dtype=torch.float32)
    if "backward" in name:
        short, long = short[x.abs() < math.inf], long[x.abs() < math.inf]
    torch.testing.assert_close(short, long, rtol=5e-6, atol=1e-33, equal_nan=True)
    large = long.abs() > 1e-33
    assert bool((short.signbit() == long.signbit())[large].all())
