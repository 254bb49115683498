# mypy: ignore-errors
# ruff: noqa: RUF005, RET505  Triton knows neither stars in tuples nor code after a return that is not taken
"""Triton kernels of softmax and of norms over rows: one program reads a row, sums it by the halving tree and writes it.

A row of n values is padded to P = CHUNKS * 2^LEVELS * LANES (`rows_kernels`). Without levels it stays in registers from
the one time that it is read until the result is written; a longer one is read again in each pass. SHAPE is (LANES,
CHUNKS, VALID, LEVELS). All are compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.elementwise import function
from easyscale.numerics.kernels.gpu.rows_kernels import across, looped, number, of_rows, rounded, tree

f_exp = function("exp")
f_exp_single = function("exp_single")
f_log = function("log")


@triton.jit
def _column(i, k: tl.constexpr, SHAPE: tl.constexpr):
    """Those of chunk k of round i."""
    return (i + k * 2 ** SHAPE[3]) * SHAPE[0] + tl.arange(0, SHAPE[0])


@triton.jit
def _write(out, at, column, n, value):
    base, here = at
    tl.store(out + base + column[None, :], rounded(value, out), mask=here & (column < n)[None, :])


@triton.jit
def _place(row, rows, n):
    """Where rows begin, and which there are."""
    return row.to(tl.int64)[:, None] * n, (row < rows)[:, None]


@triton.jit
def _narrow(x, at, column, n, otherwise):
    """fp64 as it is, everything else as fp32."""
    base, here = at
    value = tl.load(x + base + column[None, :], mask=here & (column < n)[None, :], other=otherwise)
    if value.dtype == tl.float64:
        return value
    else:
        return value.to(tl.float32)


@triton.jit
def _narrow_all(x, at, n, i, otherwise, SHAPE: tl.constexpr):
    """The chunks of round i."""
    found = ()
    for k in tl.static_range(SHAPE[2]):
        found = found + (_narrow(x, at, _column(i, k, SHAPE), n, otherwise),)
    return found


@triton.jit
def _sum(values, CHUNKS: tl.constexpr):
    """The tree over them, in fp64."""
    found = ()
    for k in tl.static_range(len(values)):
        found = found + (values[k].to(tl.float64),)
    return tree(found, CHUNKS)


# ------------------------------------------------------------------------------------------------ softmax


@triton.jit
def _power(x):
    """e^x, in fp32 of an fp32."""
    if x.dtype == tl.float64:
        return f_exp(x)
    else:
        return f_exp_single(x)


@triton.jit
def _larger(top, values):
    for k in tl.static_range(len(values)):
        top = tl.where(values[k] > top, values[k], top)  # NaN is passed over: it comes back by exp(x - m)
    return top


@triton.jit
def _exponentials(values, top):
    found = ()
    for k in tl.static_range(len(values)):
        found = found + (_power(values[k] - top),)
    return found


@triton.jit
def _softmax_term(context, SHAPE: tl.constexpr, i):
    x, at, n, top = context
    return (_sum(_exponentials(_narrow_all(x, at, n, i, float("-inf"), SHAPE), top), SHAPE[1]),)


@triton.jit
def _scale(top, total, LOGARITHM: tl.constexpr):
    """What the powers are multiplied by; or what is taken from x for the logarithm."""
    if LOGARITHM:
        return top.to(tl.float64) + f_log(total)
    else:
        return tl.full((), 1, tl.int32).to(tl.float64) / total


@triton.jit
def softmax(
    x, out, rows, n, LOGARITHM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr,
    VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """exp(x - m) * (1 / S), or x - (m + log(S)), with S the sum of exp(x - m). What pads a row is -inf: its exp is
    +0."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS)
    at = _place(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows, n)
    if LEVELS == 0:
        values = _narrow_all(x, at, n, 0, float("-inf"), SHAPE)
        top = tl.max(_larger(tl.full((ROWS, LANES), float("-inf"), values[0].dtype), values), axis=1)[:, None]
        if LOGARITHM:
            scale = _scale(top, across(_sum(_exponentials(values, top), CHUNKS), ROWS, LANES), LOGARITHM)
            for k in tl.static_range(VALID):
                _write(out, at, _column(0, k, SHAPE), n, values[k].to(tl.float64) - scale)
        else:
            values = _exponentials(values, top)
            scale = _scale(top, across(_sum(values, CHUNKS), ROWS, LANES), LOGARITHM)
            for k in tl.static_range(VALID):
                _write(out, at, _column(0, k, SHAPE), n, values[k].to(tl.float64) * scale)
    else:
        width: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
        top = tl.full((ROWS, LANES), float("-inf"), width)
        for i in range(2**LEVELS):
            top = _larger(top, _narrow_all(x, at, n, i, float("-inf"), SHAPE))
        top = tl.max(top, axis=1)[:, None]
        like = tl.zeros((ROWS, LANES), dtype=tl.float64)
        total = across(looped(_softmax_term, (x, at, n, top), SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
        scale = _scale(top, total, LOGARITHM)
        for i in range(2**LEVELS):
            values = _narrow_all(x, at, n, i, float("-inf"), SHAPE)  # before stores, which loads do not pass
            for k in tl.static_range(VALID):
                if LOGARITHM:
                    result = values[k].to(tl.float64) - scale
                else:
                    result = _power(values[k] - top).to(tl.float64) * scale
                _write(out, at, _column(i, k, SHAPE), n, result)


@triton.jit
def _slope_sum(g, y, LOGARITHM: tl.constexpr, CHUNKS: tl.constexpr):
    """The tree over g * y, or g. Past the end both are +0."""
    terms = ()
    for k in tl.static_range(len(g)):
        wide = g[k].to(tl.float64)
        terms = terms + (wide if LOGARITHM else wide * y[k].to(tl.float64),)
    return tree(terms, CHUNKS)


@triton.jit
def _slope(g, y, total, LOGARITHM: tl.constexpr):
    if LOGARITHM:
        return g.to(tl.float64) - _power(y).to(tl.float64) * total
    else:
        return (g.to(tl.float64) - total) * y.to(tl.float64)


@triton.jit
def _softmax_backward_term(context, SHAPE: tl.constexpr, i):
    g, y, at, n = context
    values = _narrow_all(g, at, n, i, 0, SHAPE)
    return (_slope_sum(values, values if SHAPE[4] else _narrow_all(y, at, n, i, 0, SHAPE), SHAPE[4], SHAPE[1]),)


@triton.jit
def softmax_backward(
    g, y, out, rows, n, LOGARITHM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr,
    VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """(g - S(g * y)) * y, or g - exp(y) * S(g)."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, LOGARITHM)
    at = _place(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows, n)
    if LEVELS == 0:
        slopes, results = _narrow_all(g, at, n, 0, 0, SHAPE), _narrow_all(y, at, n, 0, 0, SHAPE)
        total = across(_slope_sum(slopes, results, LOGARITHM, CHUNKS), ROWS, LANES)
        for k in tl.static_range(VALID):
            _write(out, at, _column(0, k, SHAPE), n, _slope(slopes[k], results[k], total, LOGARITHM))
    else:
        like = tl.zeros((ROWS, LANES), dtype=tl.float64)
        total = across(looped(_softmax_backward_term, (g, y, at, n), SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
        for i in range(2**LEVELS):
            slopes, results = _narrow_all(g, at, n, i, 0, SHAPE), _narrow_all(y, at, n, i, 0, SHAPE)
            for k in tl.static_range(VALID):
                _write(out, at, _column(i, k, SHAPE), n, _slope(slopes[k], results[k], total, LOGARITHM))


# ------------------------------------------------------------------------------------------------ norms


@triton.jit
def _weight(w, place, column, n, FLAT: tl.constexpr):
    """Of value `column` of a row: its number is (row % groups) * (n / inner) + column / inner."""
    first, magic, shift = place
    if FLAT:
        return tl.load(w + column, mask=column < n, other=0)[None, :].to(tl.float64)
    else:
        far = ((column.to(tl.int64) * magic) >> shift).to(tl.int32)
        return tl.load(w + first + far[None, :], mask=(column < n)[None, :], other=0).to(tl.float64)


@triton.jit
def _first_weight(row, n, groups, inner, FLAT: tl.constexpr):
    return row[:, None] * 0 if FLAT else (row % groups)[:, None] * (n // inner)


@triton.jit
def _apart(x, center, column, n, CENTRED: tl.constexpr):
    """fp64 of x - mean; +0 past the end."""
    x = x.to(tl.float64)
    if CENTRED:
        return tl.where((column < n)[None, :], x - center, tl.zeros_like(x))
    else:
        return x


@triton.jit
def _plain_term(context, SHAPE: tl.constexpr, i):
    x, at, n, _ = context
    return (_sum(_narrow_all(x, at, n, i, 0, SHAPE), SHAPE[1]),)


@triton.jit
def _square_term(context, SHAPE: tl.constexpr, i):
    x, at, n, center = context
    return (tree(_squares(_narrow_all(x, at, n, i, 0, SHAPE), center, i, n, SHAPE), SHAPE[1]),)


@triton.jit
def _squares(values, center, i, n, SHAPE: tl.constexpr):
    found = ()
    for k in tl.static_range(len(values)):
        v = _apart(values[k], center, _column(i, k, SHAPE), n, SHAPE[4])
        found = found + (v * v,)
    return found


@triton.jit
def _normal(
    v, center, scale, w, b, place, column, n, CENTRED: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    FLAT: tl.constexpr,
):  # fmt: skip
    v = v.to(tl.float64)
    if CENTRED:
        v = v - center
    v = v * scale
    if WEIGHT:
        v = v * _weight(w, place, column, n, FLAT)
    if BIAS:
        v = v + _weight(b, place, column, n, FLAT)
    return v


@triton.jit
def _one_each(value, ROWS: tl.constexpr):
    """Of rows, as a vector."""
    if ROWS == 1:
        return tl.full((1,), 0, value.dtype) + value
    else:
        return tl.reshape(value, (ROWS,))


@triton.jit
def _known(values, row, rows, ROWS: tl.constexpr):
    """fp64 of a number of each row."""
    if ROWS == 1:
        return tl.load(values + tl.program_id(0)).to(tl.float64)
    else:
        return tl.load(values + row[:, None], mask=(row < rows)[:, None], other=0).to(tl.float64)


@triton.jit(do_not_specialize=["size", "eps"], do_not_specialize_on_alignment=["size", "eps"])
def row_norm(
    x, w, b, out, mean, rstd, rows, n, groups, inner, magic, shift, size, eps, CENTRED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, FLAT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    CHUNKS: tl.constexpr, VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """((x - mean) * rstd) * w + b; `size` (n) and `eps` are the bits of fp64 numbers. FLAT: one group, inner 1."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, CENTRED)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = _place(row, rows, n)
    place = (_first_weight(row, n, groups, inner, FLAT), magic, shift)
    like = tl.zeros((ROWS, LANES), dtype=tl.float64)
    center = tl.zeros((ROWS, 1), dtype=tl.float64)
    values = (like,)
    if LEVELS == 0:
        values = _narrow_all(x, at, n, 0, 0, SHAPE)
    if CENTRED:
        if LEVELS == 0:
            part = _sum(values, CHUNKS)
        else:
            part = looped(_plain_term, (x, at, n, center), SHAPE, like, 1, LEVELS)[0]
        center = of_rows(part, ROWS, LANES) / number(size)
        tl.store(mean + row, _one_each(rounded(center, mean), ROWS), mask=row < rows)
    if LEVELS == 0:
        part = tree(_squares(values, center, 0, n, SHAPE), CHUNKS)
    else:
        part = looped(_square_term, (x, at, n, center), SHAPE, like, 1, LEVELS)[0]
    one = tl.full((), 1, tl.int32).to(tl.float64)
    scale = one / tl.sqrt(of_rows(part, ROWS, LANES) / number(size) + number(eps))
    tl.store(rstd + row, _one_each(rounded(scale, rstd), ROWS), mask=row < rows)
    for i in range(2**LEVELS):
        again = values if LEVELS == 0 else _narrow_all(x, at, n, i, 0, SHAPE)
        for k in tl.static_range(VALID):
            column = _column(i, k, SHAPE)
            v = _normal(again[k], center, scale, w, b, place, column, n, CENTRED, WEIGHT, BIAS, FLAT)
            _write(out, at, column, n, v)


@triton.jit
def _pair(
    g, x, w, center, scale, place, column, n, CENTRED: tl.constexpr, WEIGHT: tl.constexpr, FLAT: tl.constexpr
):  # fmt: skip
    """fp64 of g * w and xhat; the first is +0 past the end."""
    g = g.to(tl.float64)
    if WEIGHT:
        g = tl.where((column < n)[None, :], g * _weight(w, place, column, n, FLAT), tl.zeros_like(g))
    return g, _apart(x, center, column, n, CENTRED) * scale


@triton.jit
def _both(g, x, at, n, i, SHAPE: tl.constexpr):
    """The chunks of round i, of both, as one tuple."""
    found = ()
    for k in tl.static_range(SHAPE[2]):
        column = _column(i, k, SHAPE)
        found = found + (_narrow(g, at, column, n, 0), _narrow(x, at, column, n, 0))
    return found


@triton.jit
def _pair_sums(both, context, i, SHAPE: tl.constexpr):
    _, _, w, _, center, scale, place, n = context
    products, plain = (), ()
    for k in tl.static_range(SHAPE[2]):
        column = _column(i, k, SHAPE)
        gw, hat = _pair(both[2 * k], both[2 * k + 1], w, center, scale, place, column, n, SHAPE[4], SHAPE[5], SHAPE[6])
        products = products + (gw * hat,)
        plain = plain + (gw,)
    return tree(products, SHAPE[1]), tree(plain, SHAPE[1])


@triton.jit
def _pair_term(context, SHAPE: tl.constexpr, i):
    return _pair_sums(_both(context[0], context[1], context[3], context[7], i, SHAPE), context, i, SHAPE)


@triton.jit
def _row_slope(gw, hat, first, second, scale, CENTRED: tl.constexpr):
    if CENTRED:
        gw = gw - first
    return (gw - hat * second) * scale


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def row_norm_backward(
    g, x, w, mean, rstd, out, rows, n, groups, inner, magic, shift, size, CENTRED: tl.constexpr, WEIGHT: tl.constexpr,
    FLAT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """((gw - S(gw) / n) - xhat * (S(gw * xhat) / n)) * rstd, with gw = g * w."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, CENTRED, WEIGHT, FLAT)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = _place(row, rows, n)
    place = (_first_weight(row, n, groups, inner, FLAT), magic, shift)
    scale = _known(rstd, row, rows, ROWS)
    center = tl.zeros((ROWS, 1), dtype=tl.float64)
    if CENTRED:
        center = _known(mean, row, rows, ROWS)
    context = (g, x, w, at, center, scale, place, n)
    like = tl.zeros((ROWS, LANES), dtype=tl.float64)
    both = (like, like)
    if LEVELS == 0:
        both = _both(g, x, at, n, 0, SHAPE)
        sums = _pair_sums(both, context, 0, SHAPE)
    else:
        sums = looped(_pair_term, context, SHAPE, like, 2, LEVELS)
    second = of_rows(sums[0], ROWS, LANES) / number(size)
    first = of_rows(sums[1], ROWS, LANES) / number(size) if CENTRED else center
    for i in range(2**LEVELS):
        again = both if LEVELS == 0 else _both(g, x, at, n, i, SHAPE)
        for k in tl.static_range(VALID):
            column = _column(i, k, SHAPE)
            gw, hat = _pair(again[2 * k], again[2 * k + 1], w, center, scale, place, column, n, CENTRED, WEIGHT, FLAT)
            _write(out, at, column, n, _row_slope(gw, hat, first, second, scale, CENTRED))
