# mypy: ignore-errors
# ruff: noqa: RUF005  Triton's Python has no stars in tuples
"""Triton kernels of sums by place: the places as whole numbers, their stable order, and the sums.

A sum is one chain of additions, so its columns and its places are what runs side by side. The loads of many
contributions come before the additions that wait for one another. Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "rows", "along", "inner", "left_out"])
def keys(
    index, out, count, rows, along, inner, left_out,
    FROM_END: tl.constexpr, LEAVES: tl.constexpr, SPREAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The place of each index. FROM_END: those below zero count from the end. LEAVES: `left_out` becomes `rows`, which
    is no place. SPREAD: the index is [.., along, inner] and the place is counted row-major in [.., rows, inner]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    place = tl.load(index + at, mask=here, other=0).to(tl.int64)
    if FROM_END:
        place = tl.where(place < 0, place + rows, place)
    right = (place >= 0) & (place < rows)
    if LEAVES:
        right = right | (place == left_out)
        place = tl.where(place == left_out, place * 0 + rows, place)
    tl.device_assert(right, "index out of bounds", mask=here)
    if SPREAD:
        far = inner.to(tl.int64)
        place = (at // (far * along) * rows + place) * far + at % far
    tl.store(out + at, place.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["count"])
def ranks(unsorted, places, order, count, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """The stable sort of a few places: each goes where the number of those before it says."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = position < count
    place = tl.load(unsorted + position, mask=here, other=0)
    own = (place.to(tl.int64) << 32) + position
    before = tl.zeros((BLOCK, STEP), dtype=tl.int32)
    for first in range(0, count, STEP):
        other = first + tl.arange(0, STEP)
        theirs = tl.load(unsorted + other, mask=other < count, other=0x7FFFFFFF)
        theirs = (theirs.to(tl.int64) << 32) + other
        before += (theirs[None, :] < own[:, None]).to(tl.int32)
    rank = tl.sum(before, 1)
    tl.store(places + rank, place, mask=here)
    tl.store(order + rank, position, mask=here)


@triton.jit
def _with(total, x, dtype: tl.constexpr, OPERATION: tl.constexpr, STEPWISE: tl.constexpr):
    """One contribution more: + * larger smaller. The first of equal ones stays, NaN takes every place."""
    if OPERATION == 0:
        total = (total + x).to(total.dtype)
    elif OPERATION == 1:
        total = (total * x).to(total.dtype)
    elif OPERATION == 2:
        total = tl.where((x > total) | (x != x), x, total)
    else:
        total = tl.where((x < total) | (x != x), x, total)
    if STEPWISE:
        total = total.to(dtype).to(total.dtype)
    return total


@triton.jit
def _added(
    total, places, order, source, at, going, place, start, inside, count, inner,
    OPERATION: tl.constexpr, STEPWISE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The totals with up to DEPTH contributions from sorted position `at` on, and which segments may go on."""
    wanted = ()
    rows = ()
    for k in tl.static_range(DEPTH):
        here = going & (at + k < count)
        found = tl.load(places + at + k, mask=here, other=-1)
        rows = rows + (tl.load(order + at + k, mask=here, other=0).to(tl.int64),)
        wanted = wanted + (here & (found == place),)
    values = ()
    for k in tl.static_range(DEPTH):
        here = wanted[k][:, None] & inside[None, :]
        values = values + (tl.load(source + start[None, :] + rows[k][:, None] * inner, mask=here, other=0),)
    for k in tl.static_range(DEPTH):
        x = values[k].to(total.dtype)
        more = _with(total, x, source.dtype.element_ty, OPERATION, STEPWISE)
        total = tl.where(wanted[k][:, None], more, total)
    return total, wanted[DEPTH - 1]


@triton.jit(do_not_specialize=["count", "rows", "columns", "inner"])
def sums(
    out, places, order, source, count, rows, columns, inner,
    OPERATION: tl.constexpr, STEPWISE: tl.constexpr, WIDE: tl.constexpr, SEGMENTS: tl.constexpr,
    COLUMNS: tl.constexpr, SHORT: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Adds source [outer, count, inner] to out [outer, rows, inner]: one program for some columns (of all outer and
    inner ones) of SEGMENTS positions in the order of places. A position does its place's sum where the place begins.

    WIDE: short floats are added up in fp32; STEPWISE: and rounded after each addition.
    """
    blocks = tl.cdiv(columns, COLUMNS)
    at = tl.program_id(0) // blocks * SEGMENTS + tl.arange(0, SEGMENTS)
    place = tl.load(places + at, mask=at < count, other=-1)
    before = tl.load(places + at - 1, mask=(at > 0) & (at < count), other=-1)
    going = (at < count) & (place != before) & (place < rows)
    if tl.max(going.to(tl.int32), 0) > 0:
        column = tl.program_id(0).to(tl.int64) % blocks * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        far = inner.to(tl.int64)
        start = column // far * far * count + column % far
        own = out + (column // far * far * rows + column % far)[None, :] + place.to(tl.int64)[:, None] * far
        mine = going[:, None] & inside[None, :]
        total = tl.load(own, mask=mine, other=0)
        if WIDE:
            total = total.to(tl.float32)
        total, going = _added(
            total, places, order, source, at, going, place, start, inside, count, far, OPERATION, STEPWISE, SHORT
        )
        at += SHORT
        while tl.max(going.to(tl.int32), 0) > 0:
            total, going = _added(
                total, places, order, source, at, going, place, start, inside, count, far, OPERATION, STEPWISE, LONG
            )
            at += LONG
        tl.store(own, total.to(out.dtype.element_ty), mask=mine)
