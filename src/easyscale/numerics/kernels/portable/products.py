"""Matrix products in torch operators: the FMA chain and the exact integer slices. Slow, and obvious.

Relies on IEEE fp64 additions and multiplications, one operator each. Guarantees the bits of `primitives.product` and
`primitives.sliced_product` on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels import weights

_INFINITY = 0x7F800000  # bits of fp32 infinity: |v| at or above it is not finite
_EXACT_TERMS = 2**16  # products of two int8 slices (at most 2^14 each) that an int32 surely holds the sum of


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """fp64 tensors that hold fp32 values: a * b + c rounded once to fp32 (and kept in fp64).

    The product is exact in fp64. The sum is rounded to odd: it keeps in its last bit that something was cut off, so
    that the second rounding, to fp32, is the one that a fused operation would have made. Subnormal results too, since
    fp64 has 29 bits more than fp32 has at most.
    """
    p = a * b
    s = p + c
    t = s - p  # Knuth's TwoSum: rest is exactly what s leaves out
    rest = (p - (s - t)) + (c - t)
    bits = s.view(torch.int64)
    # an infinite or NaN s has a NaN rest, for which both comparisons are false
    cut = ((rest > 0) | (rest < 0)) & ((bits & 1) == 0)
    away = torch.where((rest > 0) == (s > 0), 1, -1)
    odd = torch.where(cut, bits + away, bits).view(torch.float64)
    return odd.to(torch.float32).to(torch.float64)


def product(a: Tensor, b: Tensor, block: int = 0) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N]: acc = fmaf(a, b, acc) over k = 0 .. K-1, from +0.

    With a `block`: one chain for each so many steps of k, added up in ascending order (`primitives.product`).
    """
    if block and a.shape[2] > block:
        total = product(a[:, :, :block], b[:, :block])
        for start in range(block, a.shape[2], block):
            total += product(a[:, :, start : start + block], b[:, start : start + block])
        return total
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    acc = torch.zeros((a.shape[0], a.shape[1], b.shape[2]), dtype=torch.float64, device=a.device)
    if acc.numel() == 0:
        return acc.to(torch.float32)
    for k in range(a.shape[2]):
        acc = fused_multiply_add(wide_a[:, :, k : k + 1], wide_b[:, k : k + 1, :], acc)
    return acc.to(torch.float32)


def sliced_product(
    a: Tensor, b: Tensor, slices: int, most_a: Tensor | None = None, most_b: Tensor | None = None
) -> Tensor:
    """fp32 [M, N] from [M, K] and [K, N]: sums of products of int8 slices, exact, rounded at the end.

    Each row of A and each column of B is scaled by a power of two, rounded to whole numbers and cut into digits to the
    base 256, `slices` of them (`_cut`). T is the sum over k and over i + j < slices of qa[i] qb[j] 256^(slices-1-i-j),
    a whole number below 2^63. The result is fp32(fp64(T) * scale). Where a row or column has an infinity or a NaN, the
    outputs it takes part in are FMA chains. `most_a`, `most_b`: see `primitives.sliced_product`.
    """
    rows, columns = a.shape[0], b.shape[1]
    if rows == 0 or columns == 0 or a.shape[1] == 0:
        return torch.zeros((rows, columns), dtype=torch.float32, device=a.device)
    cut_a, exponent_a, bad_a = _cut_or_kept(a, slices, most_a)
    cut_b, exponent_b, bad_b = _cut_or_kept(b.t(), slices, most_b)
    total = torch.zeros((rows, columns), dtype=torch.int64, device=a.device)
    for group in range(slices):
        total = total << 8
        for i in range(group + 1):
            total = total + _integer_product(cut_a[i], cut_b[group - i])
    scale = _power_of_two(exponent_a[:, None] + exponent_b[None, :] - 14 - 8 * (slices - 1))
    out = (total.to(torch.float64) * scale).to(torch.float32)
    if bool((bad_a.any() | bad_b.any()).cpu()):
        bad = bad_a[:, None] | bad_b[None, :]
        given = most_a is not None or most_b is not None
        out = torch.where(bad, torch.nan if given else product(a[None], b[None])[0], out)
    return out


def largest_bits(v: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The bits of the largest |v| over `dims`, as int32: above those of infinity where there is a NaN."""
    found = v.to(torch.float32).contiguous().view(torch.int32) & 0x7FFFFFFF
    return found.amax(dims)


def _cut_or_kept(v: Tensor, slices: int, most: Tensor | None) -> tuple[list[Tensor], Tensor, Tensor]:
    if most is not None:
        return _cut(v, slices, most)
    return weights.cut(v, slices, "portable", lambda: _cut(v, slices, None))


def _cut(v: Tensor, slices: int, most: Tensor | None) -> tuple[list[Tensor], Tensor, Tensor]:
    """Slices (int8, [rows, K]), exponent of each row (int64), and which rows are not finite (these count as zero).

    The exponent is the smallest e with |v| < 127/128 2^e, so that |V| < 127/128 2^(8 slices - 1), and the uppermost
    digit is at most 127 whatever is carried into it.
    """
    v = v.to(torch.float32).contiguous()
    largest = largest_bits(v, (1,)) if most is None else most
    bad = largest >= _INFINITY
    largest = torch.where(bad, 0, largest)
    # the exponent field of the fp64 value (never subnormal, it came from fp32), one more from 127/128 of the next on
    field = (largest.view(torch.float32).to(torch.float64).view(torch.int64) + 2**46) >> 52
    exponent = torch.where(largest == 0, 0, field - 1022)
    scale = _power_of_two(8 * slices - 1 - exponent)
    # to even at ties
    whole = (torch.where(bad[:, None], 0.0, v).to(torch.float64) * scale[:, None]).round().to(torch.int64)
    parts = []
    for _ in range(slices - 1):  # the lowest digit first, within -128 .. 127
        above = (whole + 128) >> 8
        parts.append((whole - (above << 8)).to(torch.int8))
        whole = above
    parts.append(whole.to(torch.int8))
    return parts[::-1], exponent, bad


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in fp64, from int64 in the normal range."""
    return ((exponent + 1023) << 52).view(torch.float64)


def _integer_product(a: Tensor, b: Tensor) -> Tensor:
    """int64 [M, N] = a [M, K] b^T of int8 [N, K], exact. Padded with zeros to the shapes that CUDA's kernel takes."""
    (rows, depth), columns = a.shape, b.shape[0]
    pad_rows, pad_columns = max(32 - rows, -rows % 8), -columns % 8
    total = torch.zeros((rows, columns), dtype=torch.int64, device=a.device)
    for start in range(0, depth, _EXACT_TERMS):
        part_a, part_b = a[:, start : start + _EXACT_TERMS], b[:, start : start + _EXACT_TERMS]
        pad_depth = -part_a.shape[1] % 8
        wide_a = torch.constant_pad_nd(part_a, [0, pad_depth, 0, pad_rows])
        wide_b = torch.constant_pad_nd(part_b, [0, pad_depth, 0, pad_columns])
        total = total + torch._int_mm(wide_a, wide_b.t())[:rows, :columns]
    return total
