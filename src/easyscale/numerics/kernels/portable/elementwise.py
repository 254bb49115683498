"""Formulas by torch operators on fp64, fp32 and int64, one for each operation of the formula: slow, any device.

Only operators that have the same bits everywhere are used. torch's square root is not among them (neither the CPU's,
which is a vendor library's, nor the GPU's for fp32), so the correctly rounded one is computed here from the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.portable.products import fused_multiply_add
from easyscale.numerics.kernels.tracing import GUESS, Kind


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int64)


def _from_bits(x: Tensor) -> Tensor:
    return x.view(torch.float64)


def _shifted_right(x: Tensor, places: Tensor) -> Tensor:
    count = int(places)
    return (x >> count) & ((1 << (64 - count)) - 1)


def _divided(x: Tensor, y: Tensor) -> Tensor:
    """torch on CUDA multiplies by the reciprocal of a divisor that is a CPU tensor without dimensions."""
    return torch.div(x, y if y.device == x.device else y.to(x.device))


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return fused_multiply_add(a.double(), b.double(), c.double()).float()


def _power_of_two(shifted: Tensor) -> Tensor:
    return ((shifted.view(torch.int32) + 127) << 23).view(torch.float32)


def _guess(x: Tensor) -> Tensor:
    return (GUESS - x.view(torch.int32)).view(torch.float32)


def square_root(x: Tensor) -> Tensor:
    """The correctly rounded square root of fp64.

    x = m 4^k with 1 <= m < 4. Heron's rule brings s near sqrt m; then, with u the last place of s in [1, 2), the exact
    m - s^2 says whether s, s - u or s + u is nearest: m and s^2 are whole multiples of u^2, so m > (s + u/2)^2 just if
    m - s^2 > s u, and m < (s - u/2)^2 just if m - s^2 <= -s u.
    """
    small = x < 2.0**-1022
    bits = _bits(torch.where(small, x * 2.0**54, x))
    k = ((bits >> 52) - 1023) >> 1
    m = _from_bits(bits - (k << 53))
    s = _from_bits((_bits(m) >> 1) + (0x3FF << 51))
    for _ in range(5):
        s = (s + torch.div(m, s)) * 0.5
    u = 2.0**-52
    high = _from_bits(_bits(s) & -(1 << 27))
    low = s - high
    # each product and difference is exact, the first since high^2 is near m
    rest = ((m - high * high) - (high * low) * 2.0) - low * low
    s = torch.where(rest > s * u, s + u, torch.where(rest <= -(s * u), s - u, s))
    root = s * _from_bits((k + 1023) << 52)
    root = torch.where(small, root * 2.0**-27, root)
    root = torch.where((x == 0) | (x == torch.inf), x, root)
    return torch.where((x < 0) | (x != x), torch.nan, root)


_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _divided, "sqrt": square_root, "neg": torch.neg,
    "abs": torch.abs, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "and": torch.logical_and, "or": torch.logical_or,
    "not": torch.logical_not, "where": torch.where, "bits": _bits, "from_bits": _from_bits, "iadd": torch.add,
    "isub": torch.sub, "iand": torch.bitwise_and, "ior": torch.bitwise_or, "ixor": torch.bitwise_xor,
    "ishl": torch.bitwise_left_shift, "ishr": _shifted_right, "sadd": torch.add, "ssub": torch.sub, "smul": torch.mul,
    "sneg": torch.neg, "sabs": torch.abs, "sfma": _fused, "ssign": torch.copysign,
    "spower": _power_of_two, "sguess": _guess, "slt": torch.lt, "swhere": torch.where,
}  # fmt: skip


@functools.cache
def _constant(text: str, kind: Kind) -> Tensor:
    """A CPU tensor without dimensions, which goes with tensors of every device."""
    if kind == "i":
        return torch.tensor(int(text), dtype=torch.int64)
    return torch.tensor(float.fromhex(text), dtype=torch.float64 if kind == "f" else torch.float32)


def constant(value: float | int, kind: Kind) -> Tensor:
    return _constant(str(value) if kind == "i" else float(value).hex(), kind)


def evaluate(name: str, tensors: Sequence[Tensor], scalars: Sequence[float] = (), *, dtype: torch.dtype) -> Tensor:
    """The formula for each element, rounded to `dtype`: see `primitives.evaluate`."""
    formula = FORMULAS[name]
    inputs = [x if formula.single and x.is_floating_point() else x.to(torch.float64) for x in tensors]
    width = torch.float32 if formula.single else torch.float64
    numbers = [torch.tensor(float(scalar), dtype=width) for scalar in scalars]
    result = formula.evaluate(_OPERATIONS, constant, [x.to(width) for x in inputs], numbers)
    if dtype in (torch.bfloat16, torch.float16):
        result = result.to(torch.float32)
    return result.to(dtype)
