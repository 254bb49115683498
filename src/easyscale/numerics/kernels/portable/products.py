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


def sliced_product(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """fp32 [M, N] from [M, K] and [K, N]: sums of products of int8 slices, exact, joined in fp64 in a fixed order.

    Each row of A and each column of B is scaled by a power of two, rounded to whole numbers and cut into digits to the
    base 256, `slices` of them (`_cut`). P[g] = sum of qa[i] qb[j] over i + j = g and k. The result is the fp64 chain
    acc = acc / 256 + P[g] for g = slices-1 .. 0, scaled back and rounded once. Where a row or column has an infinity or
    a NaN, the outputs it takes part in are FMA chains.
    """
    rows, columns = a.shape[0], b.shape[1]
    if rows == 0 or columns == 0 or a.shape[1] == 0:
        return torch.zeros((rows, columns), dtype=torch.float32, device=a.device)
    cut_a, exponent_a, bad_a = weights.cut(a, slices, "portable", lambda: _cut(a, slices))
    cut_b, exponent_b, bad_b = weights.cut(b.t(), slices, "portable", lambda: _cut(b.t(), slices))
    acc = torch.zeros((rows, columns), dtype=torch.float64, device=a.device)
    for group in reversed(range(slices)):
        total = torch.zeros((rows, columns), dtype=torch.int64, device=a.device)
        for i in range(group + 1):
            total = total + _integer_product(cut_a[i], cut_b[group - i])
        acc = acc * 2.0**-8 + total.to(torch.float64)
    scale = _power_of_two(exponent_a[:, None] + exponent_b[None, :] - 12)
    out = (acc * scale).to(torch.float32)
    if bool((bad_a.any() | bad_b.any()).cpu()):
        chain = product(a[None], b[None])[0]
        out = torch.where(bad_a[:, None] | bad_b[None, :], chain, out)
    return out


def _cut(v: Tensor, slices: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Slices (int8, [rows, K]), exponent of each row (int64), and which rows are not finite (these count as zero)."""
    v = v.to(torch.float32).contiguous()
    largest = (v.view(torch.int32) & 0x7FFFFFFF).amax(1)
    bad = largest >= _INFINITY
    largest = torch.where(bad, 0, largest)
    # the exponent field of the fp64 value (never subnormal, it came from fp32): |v| < 2^exponent
    field = largest.view(torch.float32).to(torch.float64).view(torch.int64) >> 52
    exponent = torch.where(largest == 0, 0, field - 1022)
    scale = _power_of_two(8 * slices - 2 - exponent)
    # to even at ties; at most 2^(8 slices - 2)
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
