"""FMA chains in fractions and in numpy: slow references, written from docs/numerics.md and not from the code."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor


def same(x: Tensor, y: Tensor) -> bool:
    """The same bits; any NaN is like any other."""
    assert x.shape == y.shape
    assert x.dtype == y.dtype == torch.float32
    return bool(((x.view(torch.int32) == y.view(torch.int32)) | (x.isnan() & y.isnan())).all())


def spread(*shape: int, seed: int) -> Tensor:
    """Values of many magnitudes, so that every rounding counts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).mul(3).exp()


def fp32(x: Fraction) -> float:
    """The nearest fp32 value, ties to even; not for zero."""
    exponent = math.frexp(float(x))[1] if abs(x) >= Fraction(2) ** -1000 else -1000
    quantum = Fraction(2) ** max(exponent - 24, -149)
    if abs(x) / quantum >= 2**24:  # float(x) was rounded down to a power of two, or up from one
        quantum *= 2
    value = float(round(x / quantum) * quantum)
    return math.copysign(math.inf if abs(value) >= 2.0**128 else abs(value), float(1 if x > 0 else -1))


def fused(a: float, b: float, c: float) -> float:
    """fmaf by exact fractions."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c  # no rounding is left to be done: infinities and NaN
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return fp32(exact)
    negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
    return -0.0 if negative and c == 0 else 0.0


def chain_by_fractions(a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    for i, m, n in np.ndindex(*out.shape):
        acc = 0.0
        for x, y in zip(a[i, m].tolist(), b[i, :, n].tolist(), strict=True):
            acc = fused(x, y, acc)
        out[i, m, n] = acc
    return out


def chain(a: Tensor, b: Tensor) -> Tensor:
    """The same by numpy: an exact product and a sum rounded to odd in fp64, then rounded to fp32."""
    wide_a, wide_b = a.double().numpy(), b.double().numpy()
    acc = np.zeros((a.shape[0], a.shape[1], b.shape[2]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[2]):
            p, c = wide_a[:, :, k, None] * wide_b[:, k, None, :], acc.astype(np.float64)
            s = p + c
            t = s - p
            lost = (p - (s - t)) + (c - t)
            odd = np.where((s.view(np.int64) & 1) == 1, s, np.nextafter(s, np.where(lost > 0, np.inf, -np.inf)))
            acc = np.where((lost > 0) | (lost < 0), odd, s).astype(np.float32)
    return torch.from_numpy(acc)
