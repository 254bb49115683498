# mypy: ignore-errors
"""Triton kernels of softmax and of norms over rows: one program reads a row, sums it by the halving tree and writes it.

A row of n values is padded to P = 2^LEVELS * LANES. Each lane first sums its 2^LEVELS values, LANES apart, in the order
that the tree has (`_push`); then the lanes are added up. All are compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.elementwise import function
from easyscale.numerics.kernels.gpu.rows_kernels import _across

f_exp = function("exp")
f_log = function("log")


@triton.jit
def number(bits):
    """An fp64 that was handed over as a whole number: Triton makes fp32 of a Python float."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _value(x, row, column, rows, n):
    """fp64; +0 past the end."""
    here = (row < rows)[:, None] & (column < n)[None, :]
    return tl.load(x + row.to(tl.int64)[:, None] * n + column[None, :], mask=here, other=0).to(tl.float64)


@triton.jit
def _turned(i, LEVELS: tl.constexpr):
    """The last LEVELS bits of i, the last one first: the order in which a lane meets its values."""
    turned = i * 0
    for bit in tl.static_range(LEVELS):
        turned = turned | (((i >> bit) & 1) << (LEVELS - 1 - bit))
    return turned


@triton.jit
def _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7):
    """Sums of 1, 2, 4, .. values wait until their partner is there, like the digits of a counter."""
    if i & 1 == 0:
        s0 = v
    else:
        v = s0 + v
        if i & 2 == 0:
            s1 = v
        else:
            v = s1 + v
            if i & 4 == 0:
                s2 = v
            else:
                v = s2 + v
                if i & 8 == 0:
                    s3 = v
                else:
                    v = s3 + v
                    if i & 16 == 0:
                        s4 = v
                    else:
                        v = s4 + v
                        if i & 32 == 0:
                            s5 = v
                        else:
                            v = s5 + v
                            if i & 64 == 0:
                                s6 = v
                            else:
                                s7 = s6 + v
    return s0, s1, s2, s3, s4, s5, s6, s7


@triton.jit
def _pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS: tl.constexpr):
    """The sum of 2^LEVELS values."""
    total = s0
    if LEVELS == 1:
        total = s1
    if LEVELS == 2:
        total = s2
    if LEVELS == 3:
        total = s3
    if LEVELS == 4:
        total = s4
    if LEVELS == 5:
        total = s5
    if LEVELS == 6:
        total = s6
    if LEVELS == 7:
        total = s7
    return total


@triton.jit
def _stored(out, row, column, rows, n, value):
    here = (row < rows)[:, None] & (column < n)[None, :]
    if out.dtype.element_ty != tl.float64:
        value = value.to(tl.float32)
    at = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def softmax(
    x, out, rows, n,
    LOGARITHM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """exp(x - m) / S, or (x - m) - log(S), with S the sum of exp(x - m)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    top = tl.full((ROWS, LANES), float("-inf"), tl.float64)
    for i in range(2**LEVELS):
        column = i * LANES + lane
        v = _value(x, row, column, rows, n)
        top = tl.where((column < n)[None, :] & (v > top), v, top)  # NaN is passed over: it comes back by exp(x - m)
    top = tl.max(top, axis=1)[:, None]
    zero = tl.zeros((ROWS, LANES), dtype=tl.float64)
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(2**LEVELS):
        column = _turned(i, LEVELS) * LANES + lane
        e = tl.where((column < n)[None, :], f_exp(_value(x, row, column, rows, n) - top), zero)
        s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, e, s0, s1, s2, s3, s4, s5, s6, s7)
    total = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES)
    if LOGARITHM:
        total = f_log(total)
    for i in range(2**LEVELS):
        column = i * LANES + lane
        apart = _value(x, row, column, rows, n) - top
        result = apart - total if LOGARITHM else f_exp(apart) / total
        _stored(out, row, column, rows, n, result)


@triton.jit
def softmax_backward(
    g, y, out, rows, n,
    LOGARITHM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """(g - S(g * y)) * y, or g - exp(y) * S(g)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    zero = tl.zeros((ROWS, LANES), dtype=tl.float64)
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(2**LEVELS):
        column = _turned(i, LEVELS) * LANES + lane
        v = _value(g, row, column, rows, n)
        if not LOGARITHM:
            v = tl.where((column < n)[None, :], v * _value(y, row, column, rows, n), zero)
        s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
    total = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES)
    for i in range(2**LEVELS):
        column = i * LANES + lane
        v, w = _value(g, row, column, rows, n), _value(y, row, column, rows, n)
        result = v - f_exp(w) * total if LOGARITHM else (v - total) * w
        _stored(out, row, column, rows, n, result)


@triton.jit
def _weight(w, row, column, n, groups, inner):
    """Of value `column` of a row: its number is (row % groups) * (n / inner) + column / inner."""
    at = (row % groups)[:, None] * (n // inner) + (column // inner)[None, :]
    return tl.load(w + at, mask=(column < n)[None, :], other=0).to(tl.float64)


@triton.jit(do_not_specialize=["size", "eps"], do_not_specialize_on_alignment=["size", "eps"])
def row_norm(
    x, w, b, out, mean, rstd, rows, n, groups, inner, size, eps,
    CENTRED: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """((x - mean) * rstd) * w + b; `size` (n) and `eps` are the bits of fp64 numbers."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    size = number(size)
    zero = tl.zeros((ROWS, LANES), dtype=tl.float64)
    center = tl.zeros((ROWS, 1), dtype=tl.float64)
    if CENTRED:
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        for i in range(2**LEVELS):
            v = _value(x, row, _turned(i, LEVELS) * LANES + lane, rows, n)
            s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
        center = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES) / size
        tl.store(mean + row[:, None], center, mask=(row < rows)[:, None])
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(2**LEVELS):
        column = _turned(i, LEVELS) * LANES + lane
        v = _value(x, row, column, rows, n)
        if CENTRED:
            v = v - center
        v = tl.where((column < n)[None, :], v * v, zero)
        s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
    variance = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES) / size
    one = tl.full((), 1, tl.int32).to(tl.float64)
    scale = one / tl.sqrt(variance + number(eps))
    tl.store(rstd + row[:, None], scale, mask=(row < rows)[:, None])
    for i in range(2**LEVELS):
        column = i * LANES + lane
        v = _value(x, row, column, rows, n)
        if CENTRED:
            v = v - center
        v = v * scale
        if WEIGHT:
            v = v * _weight(w, row, column, n, groups, inner)
        if BIAS:
            v = v + _weight(b, row, column, n, groups, inner)
        _stored(out, row, column, rows, n, v)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def row_norm_backward(
    g, x, w, mean, rstd, out, rows, n, groups, inner, size,
    CENTRED: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """((gw - S(gw) / n) - xhat * (S(gw * xhat) / n)) * rstd, with gw = g * w."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    size = number(size)
    zero = tl.zeros((ROWS, LANES), dtype=tl.float64)
    scale = tl.load(rstd + row, mask=row < rows, other=0)[:, None]
    center = tl.zeros((ROWS, 1), dtype=tl.float64)
    first = center
    if CENTRED:
        center = tl.load(mean + row, mask=row < rows, other=0)[:, None]
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        for i in range(2**LEVELS):
            column = _turned(i, LEVELS) * LANES + lane
            v = _value(g, row, column, rows, n)
            if WEIGHT:
                v = tl.where((column < n)[None, :], v * _weight(w, row, column, n, groups, inner), zero)
            s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
        first = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES) / size
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(2**LEVELS):
        column = _turned(i, LEVELS) * LANES + lane
        v, hat = _value(g, row, column, rows, n), _value(x, row, column, rows, n)
        if CENTRED:
            hat = hat - center
        hat = hat * scale
        if WEIGHT:
            v = v * _weight(w, row, column, n, groups, inner)
        v = tl.where((column < n)[None, :], v * hat, zero)
        s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
    second = _across(_pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), ROWS, LANES) / size
    for i in range(2**LEVELS):
        column = i * LANES + lane
        v, hat = _value(g, row, column, rows, n), _value(x, row, column, rows, n)
        if CENTRED:
            hat = hat - center
        hat = hat * scale
        if WEIGHT:
            v = v * _weight(w, row, column, n, groups, inner)
        if CENTRED:
            v = v - first
        _stored(out, row, column, rows, n, (v - hat * second) * scale)
