"""The gamma function's logarithm and its derivatives, and sinc: in fp64, rounded once.

For z >= 1/2 the argument is moved up by ten steps where it is below ten, then Stirling's series is summed from its
smallest term; below 1/2 the reflection formulas lead to 1 - x. sin(pi x) is taken of x less the nearest whole number,
which is exact. Correct to fp32; for fp64 tensors to about 1e-15 of the larger of the result and ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels.elementwise import floating
from easyscale.numerics.kernels.primitives import evaluate
from easyscale.numerics.kernels.reductions import rounded
from easyscale.numerics.kernels.registry import form

_STEPS = 10
# Coefficients of 1/w, 1/w^3, ... ; of 1/w^2, 1/w^4, ... ; of 1/w^3, 1/w^5, ... : from Bernoulli's numbers.
_LOGARITHM = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_FIRST = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)
_SECOND = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)

# Of the logarithm of 2 pi: written out, since C libraries need not agree on it.
_HALF_LOG_TWO_PI = float.fromhex("0x1.d67f1c864beb4p-1")


def _log(x: Tensor) -> Tensor:
    return evaluate("log", [x], dtype=torch.float64)


def _series(coefficients: Sequence[float], square: Tensor) -> Tensor:
    """c0 + s (c1 + s (c2 + ...))"""
    total = torch.full_like(square, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * square + coefficient
    return total


def _angle(x: Tensor) -> Tensor:
    """pi times what x is away from the nearest whole number."""
    return (x - x.round()) * math.pi


def _moved(z: Tensor) -> tuple[Tensor, Tensor]:
    """Which are below ten, and the argument of the series."""
    low = z < _STEPS
    return low, torch.where(low, z + _STEPS, z)


def _lgamma_above(z: Tensor) -> Tensor:
    low, w = _moved(z)
    product = z
    for step in range(1, _STEPS):
        product = product * (z + step)
    inverse = w.reciprocal()
    series = _series(_LOGARITHM, inverse * inverse) * inverse
    whole = ((w - 0.5) * _log(w) - w) + (_HALF_LOG_TWO_PI + series)
    return torch.where(low, whole - _log(torch.where(low, product, 1.0)), whole)


@form("lgamma")
def lgamma(self: Tensor) -> Tensor:
    x = self.double()
    mirrored = x < 0.5
    above = _lgamma_above(torch.where(mirrored, 1.0 - x, x))
    sine = evaluate("sin", [_angle(x)], dtype=torch.float64).abs()
    reflected = _log(torch.full_like(x, math.pi) / sine) - above
    result = torch.where(mirrored, reflected, above)
    result = torch.where((x <= 0) & (x == x.floor()) | torch.isinf(x), math.inf, result)
    return rounded(torch.where((x == 1) | (x == 2), 0.0, result), floating(self.dtype))


def _digamma_above(z: Tensor) -> Tensor:
    low, w = _moved(z)
    steps = torch.zeros_like(z)
    for step in range(_STEPS):
        steps = steps + (z + step).reciprocal()
    inverse = w.reciprocal()
    square = inverse * inverse
    whole = (_log(w) - inverse * 0.5) + _series(_FIRST, square) * square
    return torch.where(low, whole - steps, whole)


@form("digamma")
def digamma(self: Tensor) -> Tensor:
    """-inf at +0, +inf at -0, NaN at negative whole numbers, as stock."""
    x = self.double()
    mirrored = x < 0.5
    above = _digamma_above(torch.where(mirrored, 1.0 - x, x))
    tangent = evaluate("tan", [_angle(x)], dtype=torch.float64)
    result = torch.where(mirrored, above - torch.full_like(x, math.pi) / tangent, above)
    result = torch.where((x < 0) & (x == x.floor()), math.nan, result)
    result = torch.where(x == math.inf, math.inf, result)
    return rounded(torch.where(x == 0, -x.reciprocal(), result), floating(self.dtype))


def _trigamma_above(z: Tensor) -> Tensor:
    low, w = _moved(z)
    steps = torch.zeros_like(z)
    for step in range(_STEPS):
        inverse = (z + step).reciprocal()
        steps = steps + inverse * inverse
    inverse = w.reciprocal()
    square = inverse * inverse
    whole = (inverse + square * 0.5) + _series(_SECOND, square) * (square * inverse)
    return torch.where(low, whole + steps, whole)


@form("polygamma")
def polygamma(n: int, self: Tensor) -> Tensor:
    if n == 0:
        return digamma(self)
    if n != 1:
        raise UnsupportedError(
            f"polygamma of order {n} has no D2 form",
            "at level D2 every operator is defined by us, and of polygamma orders 0 and 1 are",
            "run at level D1",
        )
    x = self.double()
    mirrored = x < 0.5
    above = _trigamma_above(torch.where(mirrored, 1.0 - x, x))
    ratio = torch.full_like(x, math.pi) / evaluate("sin", [_angle(x)], dtype=torch.float64)
    result = torch.where(mirrored, ratio * ratio - above, above)
    return rounded(torch.where((x <= 0) & (x == x.floor()), math.inf, result), floating(self.dtype))


@form("sinc")
def sinc(self: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""
    x = self.double()
    scaled = x * math.pi
    made = torch.where(x == 0, 1.0, evaluate("sin", [scaled], dtype=torch.float64) / scaled)
    return rounded(made, floating(self.dtype))
