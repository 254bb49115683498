# mypy: ignore-errors
"""Triton kernels of attention: rows of scores become probabilities, and gradients of these those of the scores.

A row of n scores is padded to P = 2^LEVELS * LANES (`rows_kernels`). Without levels it stays in registers from the one
time that it is read until it is written; a longer one is read again in each pass. It is written where it lies: what is
written in a round comes after all that is read there. All are compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.draws_kernels import philox_blocks
from easyscale.numerics.kernels.gpu.elementwise import function
from easyscale.numerics.kernels.gpu.rows_kernels import across, looped, number

f_exp_single = function("exp_single")

_CAUSAL, _TRUTH, _ADDED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit(do_not_specialize=["scale"], do_not_specialize_on_alignment=["scale"])
def moved(
    x, out, rows, columns, heads, x_outer, x_inner, x_row, x_column, o_outer, o_inner, o_row, o_column, scale,
    SCALED: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """out[b, h, row, column] = x[b, h, row, column] * scale, in fp32; `scale` is the bits of an fp64 number."""
    down, wide = tl.cdiv(rows, SIDE), tl.cdiv(columns, SIDE)
    head, place = tl.program_id(0) // (down * wide), tl.program_id(0) % (down * wide)
    outer, inner = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    row = ((place // wide) * SIDE + tl.arange(0, SIDE))[:, None]
    column = ((place % wide) * SIDE + tl.arange(0, SIDE))[None, :]
    here = (row < rows) & (column < columns)
    row, column = row.to(tl.int64), column.to(tl.int64)
    value = tl.load(x + outer * x_outer + inner * x_inner + row * x_row + column * x_column, mask=here, other=0)
    value = value.to(tl.float32)
    if SCALED:
        value = value * number(scale).to(tl.float32)
    at = outer * o_outer + inner * o_inner + row * o_row + column * o_column
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


# ------------------------------------------------------------------------------------------------ rows


@triton.jit
def _rows_of(
    mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ROWS: tl.constexpr
):  # fmt: skip
    """Where rows begin and which there are; the line of each within its head and where its mask begins; dropout."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head, line = row // length, row % length
    outer, inner = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    start = outer * m_outer + inner * m_inner + line.to(tl.int64) * m_row
    number_of_first = (first + row.to(tl.int64)) * n  # in the order of all scores, as dropout counts them
    return (
        row.to(tl.int64)[:, None] * n, (row < rows)[:, None], line[:, None], mask, start[:, None], m_column,
        number_of_first[:, None], key, limit, noise, n,
    )  # fmt: skip


@triton.jit
def _columns(i, SHAPE: tl.constexpr):
    """Those of round i."""
    return i * SHAPE[0] + tl.arange(0, SHAPE[0])


@triton.jit
def _score(s, at, i, SHAPE: tl.constexpr):
    """Score plus mask, one addition in fp32; -inf past the end."""
    column = _columns(i, SHAPE)
    inside = at[1] & (column < at[10])[None, :]
    x = tl.load(s + at[0] + column[None, :], mask=inside, other=float("-inf"))
    if SHAPE[2] == _CAUSAL:
        x = x + tl.where(column[None, :] <= at[2], 0.0, float("-inf"))
    elif SHAPE[2] == _TRUTH:
        allowed = tl.load(at[3] + at[4] + column[None, :].to(tl.int64) * at[5], mask=inside, other=0)
        x = x + tl.where(allowed != 0, 0.0, float("-inf"))
    elif SHAPE[2] == _ADDED:
        x = x + tl.load(at[3] + at[4] + column[None, :].to(tl.int64) * at[5], mask=inside, other=0).to(tl.float32)
    return x


@triton.jit
def _larger(top, value):
    return tl.where(value > top, value, top)  # NaN is passed over: it comes back by exp(x - m)


@triton.jit
def _inverse(total):
    return tl.full((), 1, tl.int32).to(tl.float64) / total


@triton.jit
def _probability(power, inverse, seen):
    """fp32, as the softmax returns it: zeros where there was nothing but -inf."""
    return tl.where(seen > 0, (power.to(tl.float64) * inverse).to(tl.float32), 0.0)


@triton.jit
def _dropped(value, at, i, SHAPE: tl.constexpr):
    """Times what dropout multiplies by, by word j of the stream for score j: that is word j % 4 of block j / 4."""
    if SHAPE[3]:
        place = at[6] + _columns(i, SHAPE)[None, :]
        c0, c1, c2, c3 = philox_blocks(place >> 2, at[7])
        even, early = (place & 1) == 0, (place & 2) == 0
        word = tl.where(early, tl.where(even, c0, c1), tl.where(even, c2, c3)).to(tl.int64)
        value = value * tl.where(word < at[8], number(at[9]), 0.0).to(tl.float32)
    return value


@triton.jit
def _write(out, at, i, value, SHAPE: tl.constexpr):
    column = _columns(i, SHAPE)
    tl.store(out + at[0] + column[None, :], value, mask=at[1] & (column < at[10])[None, :])


@triton.jit
def _power_term(context, SHAPE: tl.constexpr, i):
    s, at, top = context
    return (f_exp_single(_score(s, at, i, SHAPE) - top).to(tl.float64),)


@triton.jit
def _top_of(s, at, like, SHAPE: tl.constexpr):
    """The largest score of each row, and whether there is one that is not -inf, of rows that are read in rounds."""
    top = like.to(tl.float32) + float("-inf")
    seen = like.to(tl.int32)
    for i in range(2 ** SHAPE[1]):
        value = _score(s, at, i, SHAPE)
        top = _larger(top, value)
        seen = tl.where(value != float("-inf"), 1, seen)
    return tl.max(top, axis=1)[:, None], tl.max(seen, axis=1)[:, None]


@triton.jit(do_not_specialize=["key", "limit", "noise", "first"])
def probabilities(
    s, mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ADDED: tl.constexpr,
    DROPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """s becomes its softmax, rounded, times what dropout multiplies by."""
    SHAPE: tl.constexpr = (LANES, LEVELS, ADDED, DROPS)
    at = _rows_of(mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ROWS)
    like = tl.zeros((ROWS, LANES), dtype=tl.float64)
    if LEVELS == 0:
        value = _score(s, at, 0, SHAPE)
        top = tl.max(_larger(like.to(tl.float32) + float("-inf"), value), axis=1)[:, None]
        seen = tl.max((value != float("-inf")).to(tl.int32), axis=1)[:, None]
        power = f_exp_single(value - top)
        y = _probability(power, _inverse(across(power.to(tl.float64), ROWS, LANES)), seen)
        _write(s, at, 0, _dropped(y, at, 0, SHAPE), SHAPE)
    else:
        top, seen = _top_of(s, at, like, SHAPE)
        inverse = _inverse(across(looped(_power_term, (s, at, top), SHAPE, like, 1, LEVELS)[0], ROWS, LANES))
        for i in range(2**LEVELS):
            y = _probability(f_exp_single(_score(s, at, i, SHAPE) - top), inverse, seen)
            _write(s, at, i, _dropped(y, at, i, SHAPE), SHAPE)


# ------------------------------------------------------------------------------------------------ gradients


@triton.jit
def _gradient(g, at, i, SHAPE: tl.constexpr):
    """fp64 of the gradient of the softmax; +0 past the end."""
    column = _columns(i, SHAPE)
    value = tl.load(g + at[0] + column[None, :], mask=at[1] & (column < at[10])[None, :], other=0)
    return _dropped(value, at, i, SHAPE).to(tl.float64)


@triton.jit
def _slope_term(context, SHAPE: tl.constexpr, i):
    s, g, at, top, inverse, seen = context
    y = _probability(f_exp_single(_score(s, at, i, SHAPE) - top), inverse, seen)
    return (_gradient(g, at, i, SHAPE) * y.to(tl.float64),)


@triton.jit(do_not_specialize=["key", "limit", "noise", "first"])
def slopes(
    s, g, mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise,
    ADDED: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """s as by `probabilities`; and g, the gradient of that, becomes (g' - S(g' * y)) * y with y the softmax, rounded,
    and g' = g times what dropout multiplies by. Past the end of a row y is +0, or the whole row is NaN."""
    SHAPE: tl.constexpr = (LANES, LEVELS, ADDED, DROPS)
    at = _rows_of(mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ROWS)
    like = tl.zeros((ROWS, LANES), dtype=tl.float64)
    if LEVELS == 0:
        value = _score(s, at, 0, SHAPE)
        top = tl.max(_larger(like.to(tl.float32) + float("-inf"), value), axis=1)[:, None]
        seen = tl.max((value != float("-inf")).to(tl.int32), axis=1)[:, None]
        power = f_exp_single(value - top)
        y = _probability(power, _inverse(across(power.to(tl.float64), ROWS, LANES)), seen)
        slope = _gradient(g, at, 0, SHAPE)
        wide = y.to(tl.float64)
        slope = (slope - across(slope * wide, ROWS, LANES)) * wide
        _write(s, at, 0, _dropped(y, at, 0, SHAPE), SHAPE)
        _write(g, at, 0, slope.to(tl.float32), SHAPE)
    else:
        top, seen = _top_of(s, at, like, SHAPE)
        inverse = _inverse(across(looped(_power_term, (s, at, top), SHAPE, like, 1, LEVELS)[0], ROWS, LANES))
        context = (s, g, at, top, inverse, seen)
        mean = across(looped(_slope_term, context, SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
        for i in range(2**LEVELS):
            y = _probability(f_exp_single(_score(s, at, i, SHAPE) - top), inverse, seen)
            slope = (_gradient(g, at, i, SHAPE) - mean) * y.to(tl.float64)
            _write(s, at, i, _dropped(y, at, i, SHAPE), SHAPE)
            _write(g, at, i, slope.to(tl.float32), SHAPE)
