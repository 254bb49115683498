# mypy: ignore-errors
# ruff: noqa: RUF005  Triton knows no stars in tuples
"""Triton kernels of attention: rows of scores become probabilities, and gradients of these those of the scores.

Rows are read, summed and written as in `fused_kernels`, in the place where they lie: what is written of a row comes
after all that is read for it. All are compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.draws_kernels import philox_blocks
from easyscale.numerics.kernels.gpu.fused_kernels import columns_of, exponentials, f_exp, larger
from easyscale.numerics.kernels.gpu.rows_kernels import across, looped, number, tree

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
def _score(s, at, column, ADDED: tl.constexpr):
    """fp64 of score plus mask, which is one addition in fp32; -inf past the end."""
    inside = at[1] & (column < at[10])[None, :]
    x = tl.load(s + at[0] + column[None, :], mask=inside, other=float("-inf"))
    if ADDED == _CAUSAL:
        x = x + tl.where(column[None, :] <= at[2], 0.0, float("-inf"))
    elif ADDED == _TRUTH:
        allowed = tl.load(at[3] + at[4] + column[None, :].to(tl.int64) * at[5], mask=inside, other=0)
        x = x + tl.where(allowed != 0, 0.0, float("-inf"))
    elif ADDED == _ADDED:
        x = x + tl.load(at[3] + at[4] + column[None, :].to(tl.int64) * at[5], mask=inside, other=0).to(tl.float32)
    return x.to(tl.float64)


@triton.jit
def _scores(s, at, i, SHAPE: tl.constexpr):
    found = ()
    for k in tl.static_range(SHAPE[2]):
        found = found + (_score(s, at, columns_of(i, k, SHAPE), SHAPE[4]),)
    return found


@triton.jit
def _any(seen, values):
    """1 where a value is not -inf: a row of -inf alone has a softmax of zeros."""
    for k in tl.static_range(len(values)):
        seen = tl.where(values[k] != float("-inf"), 1, seen)
    return seen


@triton.jit
def _probability(power, total, seen):
    """fp32, as the softmax returns it."""
    return tl.where(seen > 0, (power / total).to(tl.float32), 0.0)


@triton.jit
def _factor(at, column):
    """What dropout multiplies by, by word i of the stream for score i: that is word i % 4 of block i / 4."""
    place = at[6] + column[None, :]
    c0, c1, c2, c3 = philox_blocks(place >> 2, at[7])
    even, later = (place & 1) == 0, (place & 2) == 0
    word = tl.where(later, tl.where(even, c0, c1), tl.where(even, c2, c3)).to(tl.int64)
    return tl.where(word < at[8], number(at[9]), 0.0).to(tl.float32)


@triton.jit
def _dropped(value, at, column, DROPS: tl.constexpr):
    if DROPS:
        value = value * _factor(at, column)
    return value


@triton.jit
def _write(out, at, column, value):
    tl.store(out + at[0] + column[None, :], value, mask=at[1] & (column < at[10])[None, :])


@triton.jit
def _power_term(context, SHAPE: tl.constexpr, i):
    s, at, top = context
    return (tree(exponentials(_scores(s, at, i, SHAPE), top), SHAPE[1]),)


@triton.jit
def _top_of(s, at, ROWS: tl.constexpr, SHAPE: tl.constexpr):
    """The largest score of each row, and whether one is not -inf, of rows that are read in rounds."""
    top = tl.full((ROWS, SHAPE[0]), float("-inf"), tl.float64)
    seen = tl.zeros((ROWS, SHAPE[0]), dtype=tl.int32)
    for i in range(2 ** SHAPE[3]):
        values = _scores(s, at, i, SHAPE)
        top, seen = larger(top, values), _any(seen, values)
    return tl.max(top, axis=1)[:, None], tl.max(seen, axis=1)[:, None]


@triton.jit(do_not_specialize=["key", "limit", "noise", "first"])
def probabilities(
    s, mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ADDED: tl.constexpr,
    DROPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """s becomes its softmax, rounded, times what dropout multiplies by."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, ADDED)
    at = _rows_of(mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ROWS)
    if LEVELS == 0:
        powers = _scores(s, at, 0, SHAPE)
        top = tl.max(larger(tl.full((ROWS, LANES), float("-inf"), tl.float64), powers), axis=1)[:, None]
        seen = tl.max(_any(tl.zeros((ROWS, LANES), dtype=tl.int32), powers), axis=1)[:, None]
        powers = exponentials(powers, top)
        total = across(tree(powers, CHUNKS), ROWS, LANES)
        for k in tl.static_range(VALID):
            column = columns_of(0, k, SHAPE)
            _write(s, at, column, _dropped(_probability(powers[k], total, seen), at, column, DROPS))
    else:
        top, seen = _top_of(s, at, ROWS, SHAPE)
        like = tl.zeros((ROWS, LANES), dtype=tl.float64)
        total = across(looped(_power_term, (s, at, top), SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
        for i in range(2**LEVELS):
            values = _scores(s, at, i, SHAPE)
            for k in tl.static_range(VALID):
                column = columns_of(i, k, SHAPE)
                value = _probability(f_exp(values[k] - top), total, seen)
                _write(s, at, column, _dropped(value, at, column, DROPS))


# ------------------------------------------------------------------------------------------------ gradients


@triton.jit
def _gradient(g, at, column, DROPS: tl.constexpr):
    """fp64 of the gradient of the softmax; +0 past the end."""
    value = tl.load(g + at[0] + column[None, :], mask=at[1] & (column < at[10])[None, :], other=0)
    return _dropped(value, at, column, DROPS).to(tl.float64)


@triton.jit
def _pairs(context, SHAPE: tl.constexpr, i):
    """The softmax and its gradient in round i, of one chunk after the other."""
    s, g, at, top, total, seen = context
    found = ()
    for k in tl.static_range(SHAPE[2]):
        column = columns_of(i, k, SHAPE)
        y = _probability(f_exp(_score(s, at, column, SHAPE[4]) - top), total, seen)
        found = found + (y, _gradient(g, at, column, SHAPE[5]))
    return found


@triton.jit
def _pair_sum(pairs, n, i, SHAPE: tl.constexpr):
    terms = ()
    for k in tl.static_range(SHAPE[2]):
        inside = (columns_of(i, k, SHAPE) < n)[None, :]  # a row of NaN has NaN past its end too
        term = pairs[2 * k + 1] * pairs[2 * k].to(tl.float64)
        terms = terms + (tl.where(inside, term, tl.zeros_like(term)),)
    return tree(terms, SHAPE[1])


@triton.jit
def _slope_term(context, SHAPE: tl.constexpr, i):
    return (_pair_sum(_pairs(context, SHAPE, i), context[2][10], i, SHAPE),)


@triton.jit(do_not_specialize=["key", "limit", "noise", "first"])
def slopes(
    s, g, mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise,
    ADDED: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr,
    VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """s as by `probabilities`; and g, the gradient of that, becomes (g' - S(g' * y)) * y with y the softmax, rounded,
    and g' = g times what dropout multiplies by."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, ADDED, DROPS)
    at = _rows_of(mask, rows, n, length, first, heads, m_outer, m_inner, m_row, m_column, key, limit, noise, ROWS)
    like = tl.zeros((ROWS, LANES), dtype=tl.float64)
    pairs = (like, like)
    if LEVELS == 0:
        powers = _scores(s, at, 0, SHAPE)
        top = tl.max(larger(tl.full((ROWS, LANES), float("-inf"), tl.float64), powers), axis=1)[:, None]
        seen = tl.max(_any(tl.zeros((ROWS, LANES), dtype=tl.int32), powers), axis=1)[:, None]
        powers = exponentials(powers, top)
        total = across(tree(powers, CHUNKS), ROWS, LANES)
        pairs = ()
        for k in tl.static_range(VALID):
            pairs = pairs + (_probability(powers[k], total, seen), _gradient(g, at, columns_of(0, k, SHAPE), DROPS))
        mean = across(_pair_sum(pairs, n, 0, SHAPE), ROWS, LANES)
    else:
        top, seen = _top_of(s, at, ROWS, SHAPE)
        total = across(looped(_power_term, (s, at, top), SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
        context = (s, g, at, top, total, seen)
        mean = across(looped(_slope_term, context, SHAPE, like, 1, LEVELS)[0], ROWS, LANES)
    for i in range(2**LEVELS):
        again = pairs if LEVELS == 0 else _pairs((s, g, at, top, total, seen), SHAPE, i)
        for k in tl.static_range(VALID):
            column = columns_of(i, k, SHAPE)
            y = again[2 * k]
            _write(s, at, column, _dropped(y, at, column, DROPS))
            wide = y.to(tl.float64)
            _write(g, at, column, ((again[2 * k + 1] - mean) * wide).to(tl.float32))
