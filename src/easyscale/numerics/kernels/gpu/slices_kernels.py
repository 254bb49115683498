# mypy: ignore-errors
"""Triton kernels around the integer products of slices: scales, cutting, joining, and chains for what is not finite.

`scales`, `cut` and `join` are compiled without fusing multiply-adds, `repair` with it.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7F800000)  # bits of fp32 infinity: |v| at or above it is not finite
HALF_WAY = tl.constexpr(6755399441055744)  # 1.5 * 2^52: adding it to an fp64 rounds that to whole numbers, ties to even
NEGATIVE_ZERO = tl.constexpr(-2147483648)


@triton.jit
def _power_of_two(exponent):
    """2^exponent in fp64, for int64 in its normal range."""
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def scales(v, exponent, bad, rows, k, v_row, v_step, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Of each row: the exponent e with |v| < 2^e, and whether it holds an infinity or NaN (then it counts as zero)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None]
    most = tl.zeros((ROWS, DEPTH), dtype=tl.int32)
    for start in range(0, k, DEPTH):
        step = start + tl.arange(0, DEPTH)
        at = row.to(tl.int64)[:, None] * v_row + step.to(tl.int64)[None, :] * v_step
        value = tl.load(v + at, mask=here & (step < k)[None, :], other=0.0).to(tl.float32)
        most = tl.maximum(most, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    largest = tl.max(most, axis=1)  # of whole numbers: any order
    infinite = largest >= INFINITE
    largest = tl.where(infinite, 0, largest)
    field = largest.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True) >> 52
    tl.store(exponent + row, tl.where(largest == 0, 0, field - 1022).to(tl.int32), mask=row < rows)
    tl.store(bad + row, infinite.to(tl.int8), mask=row < rows)


@triton.jit
def cut(
    v, exponent, bad, out, rows, k, width, v_row, v_step,
    SLICES: tl.constexpr, REVERSED: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """int8 slices of a tile: out[row, slot * width + k], slot = the slice's number or, REVERSED, counted from the end.

    Values are rounded to whole numbers of 8 * SLICES - 2 bits and cut into digits to the base 256, -128 .. 127 but for
    the uppermost. `width` is k padded; slices are zero there.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    step = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    here = row < rows
    value = tl.load(
        v + row.to(tl.int64)[:, None] * v_row + step.to(tl.int64)[None, :] * v_step,
        mask=here[:, None] & (step < k)[None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip
    finite = tl.load(bad + row, mask=here, other=1) == 0
    scale = _power_of_two(8 * SLICES - 2 - tl.load(exponent + row, mask=here, other=0).to(tl.int64))
    value = tl.where(finite[:, None], value, 0.0)
    half_way = tl.full((), HALF_WAY, tl.int64).to(tl.float64)
    whole = ((value.to(tl.float64) * scale[:, None] + half_way) - half_way).to(tl.int64)
    kept = here[:, None] & (step < width)[None, :]
    place = out + row.to(tl.int64)[:, None] * (SLICES * width) + step[None, :]
    for back in tl.static_range(SLICES):
        i = SLICES - 1 - back  # the lowest digit first
        above = (whole + 128) >> 8
        digit = whole - (above << 8) if i else whole
        slot = SLICES - 1 - i if REVERSED else i
        tl.store(place + slot * width, digit.to(tl.int8), mask=kept)
        whole = above


@triton.jit
def join(
    totals, exponent_a, exponent_b, out, m, n, first, total_group, total_row,
    SLICES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[first + row, column] = acc * 2^(ea + eb - 12), from acc = acc / 256 + total[g] for g = SLICES-1 .. 0."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = (row < m)[:, None] & (column < n)[None, :]
    at = row.to(tl.int64)[:, None] * total_row + column[None, :]
    acc = tl.load(totals + (SLICES - 1) * total_group + at, mask=here, other=0).to(tl.float64)
    for i in tl.static_range(1, SLICES):
        total = tl.load(totals + (SLICES - 1 - i) * total_group + at, mask=here, other=0)
        acc = acc * 0.00390625 + total.to(tl.float64)
    far = tl.load(exponent_a + first + row, mask=row < m, other=0).to(tl.int64)[:, None]
    near = tl.load(exponent_b + column, mask=column < n, other=0).to(tl.int64)[None, :]
    result = (acc * _power_of_two(far + near - 12)).to(tl.float32)
    tl.store(out + (first + row).to(tl.int64)[:, None] * n + column[None, :], result, mask=here)


@triton.jit
def repair(
    a, b, bad_a, bad_b, out, m, n, k, a_row, a_step, b_step, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Chains, in place of what is there, where a row of `a` or a column of `b` is not finite. Most tiles have none."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    far = tl.load(bad_a + rows, mask=rows < m, other=0)
    near = tl.load(bad_b + columns, mask=columns < n, other=0)
    if tl.max(far, axis=0) + tl.max(near, axis=0) > 0:
        acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        nothing = tl.full((ROWS, DEPTH), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
        for start in range(0, k, DEPTH):
            steps = start + tl.arange(0, DEPTH)
            inside = steps < k
            left = a + (rows % m).to(tl.int64)[:, None] * a_row + steps.to(tl.int64)[None, :] * a_step
            right = b + (columns % n).to(tl.int64)[None, :] * b_column + steps.to(tl.int64)[:, None] * b_step
            # -0 times +0 past the end leaves every sum as it is
            x = tl.where(inside[None, :], tl.load(left, mask=inside[None, :], other=0.0).to(tl.float32), nothing)
            y = tl.load(right, mask=inside[:, None], other=0.0).to(tl.float32)
            acc = tl.dot(x, y, acc, input_precision="ieee")
        touched = (far > 0)[:, None] | (near > 0)[None, :]
        kept = (rows < m)[:, None] & (columns < n)[None, :] & touched
        tl.store(out + rows.to(tl.int64)[:, None] * n + columns[None, :], acc, mask=kept)
