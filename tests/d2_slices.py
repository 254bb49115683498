"""Exact slices in Python's own whole numbers: slow references, written from docs/numerics.md and not from the code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

Pair = tuple[int, int]


def rounded(value: Fraction) -> float:
    """The nearest fp32 to a fraction, ties to even, subnormals and overflow included."""
    if value == 0:
        return 0.0
    size, sign = abs(value), -1.0 if value < 0 else 1.0
    exponent = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    whole = round(size / unit)  # Python rounds halves to even
    if whole * unit >= Fraction(2) ** 128:
        return sign * math.inf
    return sign * float(whole * unit)


def exponent_of(largest: float) -> int:
    """The smallest whole number e with |v| < 127/128 2^e; 0 for zero."""
    if largest == 0:
        return 0
    found = math.frexp(largest)[1] - 2
    while Fraction(largest) >= Fraction(127, 128) * Fraction(2) ** found:
        found += 1
    return found


def digits(value: float, exponent: int, slices: int) -> list[int]:
    """Slices of a value, the uppermost first."""
    whole = round(Fraction(value) * Fraction(2) ** (8 * slices - 1 - exponent))
    found = []
    for _ in range(slices - 1):
        found.append((whole + 128) % 256 - 128)
        whole = (whole - found[-1]) // 256
    assert -127 <= whole <= 127
    return [whole, *reversed(found)]


def largest(values: Iterable[float]) -> float:
    """Infinity where one is not finite."""
    return max(abs(v) if math.isfinite(v) else math.inf for v in values)


def one_output(
    a: Sequence[float], b: Sequence[float], slices: int, most_a: float, most_b: float, dropped: Sequence[Pair] = ()
) -> float:
    """The sum over k of a times b, scaled by these values; without the pairs of slices `dropped`, for controls."""
    if math.isinf(most_a) or math.isinf(most_b):
        return math.nan
    exponent_a, exponent_b = exponent_of(most_a), exponent_of(most_b)
    pairs = [(i, j) for i in range(slices) for j in range(slices - i) if (i, j) not in dropped]
    total = 0
    for x, y in zip(a, b, strict=True):
        left, right = digits(x, exponent_a, slices), digits(y, exponent_b, slices)
        total += sum(left[i] * right[j] * 256 ** (slices - 1 - i - j) for i, j in pairs)
    assert abs(total) < 2**63
    # float(total) is the nearest fp64, ties to even
    return rounded(Fraction(float(total)) * Fraction(2) ** (exponent_a + exponent_b - 14 - 8 * (slices - 1)))


def product(a: Tensor, b: Tensor, slices: int, dropped: Sequence[Pair] = ()) -> Tensor:
    """fp32 [M, N] from finite [M, K] and [K, N]: each row and each column by its own largest value."""
    rows, columns = a.tolist(), b.t().tolist()
    return torch.tensor(
        [[one_output(x, y, slices, largest(x), largest(y), dropped) for y in columns] for x in rows]
    )


# ------------------------------------------------------------------------------------------------ convolutions

Window = tuple[int, int, int]  # stride, padding, dilation; the same in both dimensions


def of_image(x: Tensor, image: int) -> float:
    return largest(x[image].flatten().tolist())


def of_tensor(x: Tensor, image: int) -> float:
    """Not the definition: a control."""
    return largest(x.flatten().tolist())


def convolution(
    x: Tensor, weight: Tensor, window: Window, slices: int, scale: Callable[[Tensor, int], float] = of_image,
    dropped: Sequence[Pair] = (),
) -> Tensor:  # fmt: skip
    """fp32 [images, channels out, *positions]."""
    (stride, padding, dilation), taps = window, weight.shape[2]
    height, width = ((n + 2 * padding - dilation * (taps - 1) - 1) // stride + 1 for n in x.shape[2:])
    out = torch.zeros(x.shape[0], weight.shape[0], height, width)
    for n, o, oh, ow in itertools.product(*map(range, out.shape)):
        seen = []
        for c, kh, kw in itertools.product(range(x.shape[1]), range(taps), range(taps)):
            h, w = oh * stride - padding + kh * dilation, ow * stride - padding + kw * dilation
            seen.append(float(x[n, c, h, w]) if 0 <= h < x.shape[2] and 0 <= w < x.shape[3] else 0.0)
        row = weight[o].flatten().tolist()
        out[n, o, oh, ow] = one_output(row, seen, slices, largest(row), scale(x, n), dropped)
    return out


def weight_gradient(grad: Tensor, x: Tensor, taps: int, window: Window, slices: int) -> Tensor:
    """fp32 [channels out, channels in, *kernel]."""
    stride, padding, dilation = window
    out = torch.zeros(grad.shape[1], x.shape[1], taps, taps)
    for o, c, kh, kw in itertools.product(*map(range, out.shape)):
        seen = []
        for n, oh, ow in itertools.product(range(x.shape[0]), *map(range, grad.shape[2:])):
            h, w = oh * stride - padding + kh * dilation, ow * stride - padding + kw * dilation
            seen.append(float(x[n, c, h, w]) if 0 <= h < x.shape[2] and 0 <= w < x.shape[3] else 0.0)
        row = grad[:, o].flatten().tolist()
        out[o, c, kh, kw] = one_output(row, seen, slices, largest(row), largest(x[:, c].flatten().tolist()))
    return out


def input_gradient(grad: Tensor, weight: Tensor, size: Sequence[int], window: Window, slices: int) -> Tensor:
    """fp32 [images, channels in, *size]. Weights are scaled by what the taps of the phase have for a channel in."""
    (stride, padding, dilation), taps = window, weight.shape[2]
    out = torch.zeros(grad.shape[0], weight.shape[1], *size)
    for n, c, h, w in itertools.product(*map(range, out.shape)):
        reached = [
            [tap for tap in range(taps) if (at + padding - tap * dilation) % stride == 0] for at in (h, w)
        ]  # fmt: skip
        if not reached[0] or not reached[1]:
            continue  # a phase without taps is +0
        row, seen = [], []
        for o, kh, kw in itertools.product(range(grad.shape[1]), *reached):
            oh, ow = (h + padding - kh * dilation) // stride, (w + padding - kw * dilation) // stride
            row.append(float(weight[o, c, kh, kw]))
            seen.append(float(grad[n, o, oh, ow]) if 0 <= oh < grad.shape[2] and 0 <= ow < grad.shape[3] else 0.0)
        out[n, c, h, w] = one_output(row, seen, slices, largest(row), of_image(grad, n))
    return out
