# mypy: ignore-errors
# ruff: noqa: RUF005, RET505  Triton knows neither stars in tuples nor code after a return that is not taken
"""Triton kernels of the negative log likelihood: the loss of a batch, and its gradient. Compiled without fusing
multiply-adds. The sign is changed by -1.0: Triton's `-x` is 0 - x, which makes +0 of +0."""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.rows_kernels import across, looped, rounded, tree


@triton.jit
def _weights(target, w, at, here, classes, ignore, WEIGHT: tl.constexpr):
    """Classes, their weights (+0 for what is ignored), and which of them are to be looked at."""
    t = tl.load(target + at, mask=here, other=0)
    valid = here & (t != ignore)
    inside = valid & (t >= 0) & (t < classes)
    weight = tl.where(valid, 1.0, 0.0).to(tl.float64)
    if WEIGHT:
        weight = tl.where(inside, tl.load(w + t, mask=inside, other=0).to(tl.float64), 0.0)
    return t, weight, valid, inside


@triton.jit
def _term(context, SHAPE: tl.constexpr, i):
    x, target, w, count, classes, ignore = context
    losses, weights = (), ()
    for k in tl.static_range(SHAPE[2]):
        at = (i + k * 2 ** SHAPE[3]) * SHAPE[0] + tl.arange(0, SHAPE[0])[None, :]
        t, weight, valid, inside = _weights(target, w, at, at < count, classes, ignore, SHAPE[4])
        weights = weights + (weight,)
        if SHAPE[5]:
            own = tl.load(x + at.to(tl.int64) * classes + t, mask=inside, other=float("nan")).to(tl.float64)
            losses = losses + (tl.where(valid, (own * weight) * -1.0, tl.zeros_like(weight)),)
    if SHAPE[5]:
        return tree(weights, SHAPE[1]), tree(losses, SHAPE[1])
    else:
        return (tree(weights, SHAPE[1]),)


@triton.jit
def total(
    x, target, w, out, weighed, count, classes, ignore, LOSS: tl.constexpr, MEAN: tl.constexpr, WEIGHT: tl.constexpr,
    LANES: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """S(w[target]) to `weighed`; and, LOSS, S of the losses, or (MEAN) their quotient, to `out`. One program. A target
    that is no class has the loss NaN."""
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, WEIGHT, LOSS)
    like = tl.zeros((1, LANES), dtype=tl.float64)
    sums = looped(_term, (x, target, w, count, classes, ignore), SHAPE, like, 2 if LOSS else 1, LEVELS)
    weights = across(sums[0], 1, LANES)
    place = tl.zeros((1, 1), tl.int32)
    tl.store(weighed + place, rounded(weights, weighed))
    if LOSS:
        losses = across(sums[1], 1, LANES)
        if MEAN:
            losses = losses / weights
        tl.store(out + place, rounded(losses, out))


@triton.jit
def gradient(
    g, weighed, target, w, out, count, classes, ignore,
    MEAN: tl.constexpr, EACH: tl.constexpr, WEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """-(g * w[target]) at the target of each row and +0 elsewhere; MEAN: g / S(w[target]); EACH: one g for each row."""
    blocks = tl.cdiv(classes, COLUMNS)
    row = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    t, weight, valid, _ = _weights(target, w, row, row >= 0, classes, ignore, WEIGHT)
    slope = tl.load(g + (row if EACH else 0)).to(tl.float64)
    if MEAN:
        slope = slope / tl.load(weighed)
    value = tl.where(valid, (slope * weight) * -1.0, 0.0)
    found = tl.where(column == t, value, tl.zeros((COLUMNS,), dtype=tl.float64))
    tl.store(out + row.to(tl.int64) * classes + column, rounded(found, out), mask=column < classes)
