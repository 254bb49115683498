# mypy: ignore-errors
"""Triton kernels of products by exact slices: the largest value of each row, cutting, and the product with its scale.

A row is scaled by what its largest value says: `most` holds for each row the bits of the largest |v|. Whatever is not
finite has bits of INFINITE or above; such a row counts as zeros, and `repair` puts chains in its place. All but
`repair` are compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7F800000)  # bits of fp32 infinity
ROUNDING = tl.constexpr(8388608.0)  # 2^23
BAND = tl.constexpr(8)  # tile rows that are walked together, so that columns stay in the cache
NEGATIVE_ZERO = tl.constexpr(-2147483648)


@triton.jit
def exponent(most):
    """The smallest e with |v| < 127/128 2^e for the fp32 of these bits; 0 for zero and for what is not finite."""
    largest = tl.where(most >= INFINITE, 0, most)
    field = (largest.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True) + (1 << 46)) >> 52
    return tl.where(largest == 0, 0, field - 1022).to(tl.int32)


@triton.jit
def _power_of_two(exponent):
    """2^exponent in fp32, within its normal range."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def digits(value, most, out, place, kept, slice_step, SLICES: tl.constexpr):
    """Write the slices of a tile: values of 8 * SLICES - 1 bits, rounded to even, as digits to the base 256.

    Scaling by powers of two is exact in fp32 but where the result is far below one half; it is done in two steps, for
    a row of subnormal numbers has a scale that fp32 does not reach.
    """
    power = 8 * SLICES - 1 - exponent(most)
    half = power >> 1
    value = tl.where(most < INFINITE, value, 0.0)
    scaled = (value * _power_of_two(half)) * _power_of_two(power - half)
    # Below 2^23 the sum has a step of one, and is rounded to even; from there on fp32 holds whole numbers only.
    round_ = tl.where(scaled < 0, -ROUNDING, ROUNDING)
    whole = tl.where(tl.abs(scaled) < ROUNDING, (scaled + round_) - round_, scaled).to(tl.int32)
    for back in tl.static_range(SLICES):
        i = SLICES - 1 - back  # the lowest digit first
        over = (whole + 128) >> 8
        digit = whole - (over << 8) if i else whole
        tl.store(out + i * slice_step.to(tl.int64) + place, digit.to(tl.int8), mask=kept)
        whole = over


@triton.jit
def _rows_at_once(
    number, v, most, out, rows, k, width, v_row, slice_step, SLICES: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    row = number * ROWS + tl.arange(0, ROWS)
    step = tl.arange(0, DEPTH)
    here = row < rows
    at = row.to(tl.int64)[:, None] * v_row + step[None, :]
    value = tl.load(v + at, mask=here[:, None] & (step < k)[None, :], other=0.0).to(tl.float32)
    largest = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)  # of whole numbers: any order
    tl.store(most + row, largest, mask=here)
    place = row.to(tl.int64)[:, None] * width + step[None, :]
    digits(value, largest[:, None], out, place, here[:, None] & (step < width)[None, :], slice_step, SLICES)


@triton.jit
def _most_of_part(
    number, part, v, found, rows, k, v_row, v_step, ROWS: tl.constexpr, DEPTH: tl.constexpr, TIMES: tl.constexpr
):  # fmt: skip
    row = number * ROWS + tl.arange(0, ROWS)
    here = row < rows
    most = tl.zeros((ROWS, DEPTH), dtype=tl.int32)
    for i in range(TIMES):
        step = (part * TIMES + i) * DEPTH + tl.arange(0, DEPTH)
        at = row.to(tl.int64)[:, None] * v_row + step.to(tl.int64)[None, :] * v_step
        value = tl.load(v + at, mask=here[:, None] & (step < k)[None, :], other=0.0).to(tl.float32)
        most = tl.maximum(most, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(found + part * rows + row, tl.max(most, axis=1), mask=here)


@triton.jit
def _tile_of_rows(
    number, place, v, found, most, out, rows, k, width, v_row, v_step, slice_step, parts,
    SLICES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = number * ROWS + tl.arange(0, ROWS)
    step = place * DEPTH + tl.arange(0, DEPTH)
    here = row < rows
    part = tl.arange(0, PARTS)
    each = tl.load(
        found + part[None, :] * rows + row[:, None], mask=here[:, None] & (part < parts)[None, :], other=0
    )  # fmt: skip
    largest = tl.max(each, axis=1)
    if place == 0:
        tl.store(most + row, largest, mask=here)
    at = row.to(tl.int64)[:, None] * v_row + step.to(tl.int64)[None, :] * v_step
    value = tl.load(v + at, mask=here[:, None] & (step < k)[None, :], other=0.0).to(tl.float32)
    to = row.to(tl.int64)[:, None] * width + step[None, :]
    digits(value, largest[:, None], out, to, here[:, None] & (step < width)[None, :], slice_step, SLICES)


@triton.jit
def cut_rows(
    v, most, out, rows, k, width, v_row, slice_step, SLICES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """`most` and slices of ROWS rows that lie one value after the other, read once: DEPTH is k or more.

    `width` is k padded; slices are zero there.
    """
    _rows_at_once(tl.program_id(0), v, most, out, rows, k, width, v_row, slice_step, SLICES, ROWS, DEPTH)


@triton.jit
def find_most(
    v, found, rows, k, v_row, v_step, ROWS: tl.constexpr, DEPTH: tl.constexpr, TIMES: tl.constexpr
):  # fmt: skip
    """found[part, row]: bits of the largest |v| of TIMES * DEPTH steps of k."""
    _most_of_part(tl.program_id(0), tl.program_id(1), v, found, rows, k, v_row, v_step, ROWS, DEPTH, TIMES)


@triton.jit
def cut_tiles(
    v, found, most, out, rows, k, width, v_row, v_step, slice_step, parts,
    SLICES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """`most`, from what was found in parts (PARTS or fewer of them), and slices of a tile of ROWS by DEPTH."""
    _tile_of_rows(
        tl.program_id(0), tl.program_id(1), v, found, most, out, rows, k, width, v_row, v_step, slice_step, parts,
        SLICES, ROWS, DEPTH, PARTS,
    )  # fmt: skip


@triton.jit
def begin_both(
    a, most_a, out_a, found_a, b, most_b, out_b, found_b, k, width,
    rows_a, a_row, a_step, slice_a, down_a, programs_a, rows_b, b_row, b_step, slice_b, down_b,
    SLICES: tl.constexpr, WHOLE_A: tl.constexpr, ROWS_A: tl.constexpr, DEPTH_A: tl.constexpr, TIMES_A: tl.constexpr,
    WHOLE_B: tl.constexpr, ROWS_B: tl.constexpr, DEPTH_B: tl.constexpr, TIMES_B: tl.constexpr,
):  # fmt: skip
    """Both factors of a product in one launch: the first `programs_a` programs are those of A. Each factor as by
    `cut_rows` (WHOLE), or as by `find_most`, where `finish_both` or `cut_tiles` come after it."""
    number = tl.program_id(0)
    if number < programs_a:
        if WHOLE_A:
            _rows_at_once(number, a, most_a, out_a, rows_a, k, width, a_row, slice_a, SLICES, ROWS_A, DEPTH_A)
        else:
            _most_of_part(
                number % down_a, number // down_a, a, found_a, rows_a, k, a_row, a_step, ROWS_A, DEPTH_A, TIMES_A
            )
    else:
        number -= programs_a
        if WHOLE_B:
            _rows_at_once(number, b, most_b, out_b, rows_b, k, width, b_row, slice_b, SLICES, ROWS_B, DEPTH_B)
        else:
            _most_of_part(
                number % down_b, number // down_b, b, found_b, rows_b, k, b_row, b_step, ROWS_B, DEPTH_B, TIMES_B
            )


@triton.jit
def finish_both(
    a, most_a, out_a, found_a, b, most_b, out_b, found_b, k, width,
    rows_a, a_row, a_step, slice_a, down_a, programs_a, rows_b, b_row, b_step, slice_b, down_b, parts_a, parts_b,
    SLICES: tl.constexpr, ROWS_A: tl.constexpr, DEPTH_A: tl.constexpr, PARTS_A: tl.constexpr,
    ROWS_B: tl.constexpr, DEPTH_B: tl.constexpr, PARTS_B: tl.constexpr,
):  # fmt: skip
    """`cut_tiles` of both factors in one launch."""
    number = tl.program_id(0)
    if number < programs_a:
        _tile_of_rows(
            number % down_a, number // down_a, a, found_a, most_a, out_a, rows_a, k, width, a_row, a_step, slice_a,
            parts_a, SLICES, ROWS_A, DEPTH_A, PARTS_A,
        )  # fmt: skip
    else:
        number -= programs_a
        _tile_of_rows(
            number % down_b, number // down_b, b, found_b, most_b, out_b, rows_b, k, width, b_row, b_step, slice_b,
            parts_b, SLICES, ROWS_B, DEPTH_B, PARTS_B,
        )  # fmt: skip


@triton.jit
def pairs(a, b, a_row, a_column, a_step, b_row, b_column, b_step, t0, t1, t2, t3, SLICES: tl.constexpr):
    """Add the products of all pairs of slices i + j < SLICES, by i + j. `a` and `b` are descriptors of the slices, one
    below the other, a_step and b_step rows apart."""
    a0 = a.load([a_row, a_column])
    b0 = b.load([b_row, b_column]).T
    t0 = tl.dot(a0, b0, t0, out_dtype=tl.int32)
    a1 = a.load([a_step + a_row, a_column])
    b1 = b.load([b_step + b_row, b_column]).T
    t1 = tl.dot(a0, b1, t1, out_dtype=tl.int32)
    t1 = tl.dot(a1, b0, t1, out_dtype=tl.int32)
    a2 = a.load([2 * a_step + a_row, a_column])
    b2 = b.load([2 * b_step + b_row, b_column]).T
    t2 = tl.dot(a0, b2, t2, out_dtype=tl.int32)
    t2 = tl.dot(a1, b1, t2, out_dtype=tl.int32)
    t2 = tl.dot(a2, b0, t2, out_dtype=tl.int32)
    if SLICES == 4:
        a3 = a.load([3 * a_step + a_row, a_column])
        b3 = b.load([3 * b_step + b_row, b_column]).T
        t3 = tl.dot(a0, b3, t3, out_dtype=tl.int32)
        t3 = tl.dot(a1, b2, t3, out_dtype=tl.int32)
        t3 = tl.dot(a2, b1, t3, out_dtype=tl.int32)
        t3 = tl.dot(a3, b0, t3, out_dtype=tl.int32)
    return t0, t1, t2, t3


@triton.jit
def joined(t0, t1, t2, t3, SLICES: tl.constexpr):
    """The sum of all pairs, each in its place, as an int64."""
    total = (t0.to(tl.int64) << 16) + (t1.to(tl.int64) << 8) + t2.to(tl.int64)
    if SLICES == 4:
        total = (total << 8) + t3.to(tl.int64)
    return total


@triton.jit
def scaled(total, most_a, most_b, SLICES: tl.constexpr):
    """fp32 of a sum, from the bits that its row and its column were scaled by."""
    power = exponent(most_a).to(tl.int64) + exponent(most_b).to(tl.int64) + (1023 - 14 - 8 * (SLICES - 1))
    return (total.to(tl.float64) * (power << 52).to(tl.float64, bitcast=True)).to(tl.float32)


@triton.jit
def place_of(number, down, across):
    """Row and column of a tile: BAND rows are walked together."""
    first = number // (BAND * across) * BAND
    height = min(down - first, BAND)
    within = number % (BAND * across)
    return first + within % height, within // height


@triton.jit
def multiply(
    a, b, most_a, most_b, bias, out, m, n, k, each,
    SLICES: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of the product. PARTS: sums of `each` steps of k, as they are: int64 [parts, M, N]. BIAS: one for each
    column is added in fp32."""
    down, across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    part = tl.program_id(0) // (down * across)
    i, j = place_of(tl.program_id(0) % (down * across), down, across)
    row, column = i * ROWS, j * COLUMNS
    t0 = tl.zeros((ROWS, COLUMNS), tl.int32)
    t1, t2, t3 = t0, t0, t0
    for step in range(part * each, min(k, part * each + each), DEPTH):
        t0, t1, t2, t3 = pairs(a, b, row, step, m, column, step, n, t0, t1, t2, t3, SLICES)
    total = joined(t0, t1, t2, t3, SLICES)
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    at = (part.to(tl.int64) * m + rows.to(tl.int64)[:, None]) * n + columns[None, :]
    kept = (rows < m)[:, None] & (columns < n)[None, :]
    if PARTS:
        tl.store(out + at, total, mask=kept)
    else:
        far = tl.load(most_a + rows, mask=rows < m, other=0)[:, None]
        near = tl.load(most_b + columns, mask=columns < n, other=0)[None, :]
        result = scaled(total, far, near, SLICES)
        if BIAS:
            result += tl.load(bias + columns, mask=columns < n, other=0)[None, :]
        tl.store(out + at, result, mask=kept)


@triton.jit
def join(
    parts, most_a, most_b, bias, out, count, m, n, number,
    SLICES: tl.constexpr, MASKED: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums over `number` parts, scaled: [.., M, N]. MASKED: NaN where a row or a column is not finite. BIAS: as in
    `multiply`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    total = tl.zeros((BLOCK,), tl.int64)
    for i in range(number):
        total += tl.load(parts + i * count.to(tl.int64) + at, mask=here, other=0)
    far = tl.load(most_a + at // n % m, mask=here, other=0)
    near = tl.load(most_b + at % n, mask=here, other=0)
    result = scaled(total, far, near, SLICES)
    if MASKED:
        result = tl.where((far >= INFINITE) | (near >= INFINITE), float("nan"), result)
    if BIAS:
        result += tl.load(bias + at % n, mask=here, other=0)
    tl.store(out + at, result, mask=here)


@triton.jit
def repair(
    a, b, most_a, most_b, bias, out, m, n, k, tiles, a_row, a_step, b_step, b_column,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Chains, in place of what is there, where a row of A or a column of B is not finite. Most tiles have none."""
    across = tl.cdiv(n, COLUMNS)
    for i in range(EACH):
        number = tl.program_id(0) * EACH + i
        rows = number // across * ROWS + tl.arange(0, ROWS)
        columns = number % across * COLUMNS + tl.arange(0, COLUMNS)
        far = tl.load(most_a + rows, mask=rows < m, other=0) >= INFINITE
        near = tl.load(most_b + columns, mask=(columns < n) & (number < tiles), other=0) >= INFINITE
        if tl.max(far.to(tl.int32), axis=0) + tl.max(near.to(tl.int32), axis=0) > 0:
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
            if BIAS:
                acc += tl.load(bias + columns, mask=columns < n, other=0)[None, :]
            kept = (rows < m)[:, None] & (columns < n)[None, :] & (far[:, None] | near[None, :])
            tl.store(out + rows.to(tl.int64)[:, None] * n + columns[None, :], acc, mask=kept)
