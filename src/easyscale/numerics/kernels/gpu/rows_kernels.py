# mypy: ignore-errors
# ruff: noqa: RUF005, RET505  Triton knows neither stars in tuples nor code after a return that is not taken
"""Triton kernels of the halving tree, and the parts that all kernels with sums are made of.

A tree of P = CHUNKS * 2^LEVELS * LANES values is summed in three steps that keep its order, the high bits of an index
first: CHUNKS values of one thread (`tree`), 2^LEVELS rounds of a loop (`looped`), and LANES beside each other
(`across`, `down`). All additions are written out: `tl.reduce` is used on axes of two only, where it is one addition.
(`tl.sum` would do, but the interpreter's makes +0 of two -0.) Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def number(bits):
    """An fp64 that was handed over as a whole number: Triton makes fp32 of a Python float."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def rounded(value, out):
    """fp64 to what `out` points to; to the short types by way of fp32."""
    if out.dtype.element_ty != tl.float64:
        value = value.to(tl.float32)
    return value.to(out.dtype.element_ty)


@triton.jit
def divided(i, divisor, magic, shift, WIDE: tl.constexpr):
    """i // divisor by a multiplication, for 0 <= i < 2^31 (`launch.magic_of`); past that a true division."""
    if WIDE:
        return i // divisor
    else:
        return ((i.to(tl.int64) * magic) >> shift).to(tl.int32)


# ------------------------------------------------------------------------------------------------ the tree


@triton.jit
def tree(parts, COUNT: tl.constexpr):
    """The tree over a tuple; what is missing to COUNT is +0."""
    if COUNT == 1:
        return parts[0]
    else:
        low = ()
        for i in tl.static_range(COUNT // 2):
            if i + COUNT // 2 < len(parts):
                low = low + (parts[i] + parts[i + COUNT // 2],)
            elif i < len(parts):
                low = low + (parts[i] + 0.0,)  # -0 becomes +0, as by adding the padding
        return tree(low, COUNT // 2)


@triton.jit
def across(part, ROWS: tl.constexpr, LANES: tl.constexpr):
    """[ROWS, LANES] to [ROWS, 1]: first half plus second half until one is left."""
    if LANES == 1:
        return part
    else:
        half = tl.reduce(tl.reshape(part, (ROWS, 2, LANES // 2)), 1, plus)
        return across(half, ROWS, LANES // 2)


@triton.jit
def of_rows(part, ROWS: tl.constexpr, LANES: tl.constexpr):
    """`across`; of a single row as a number, which is the same in every layout. Where sums of several chunks go into
    terms of other sums, Triton would move the chunks to the layout of the sum, through shared memory."""
    total = across(part, ROWS, LANES)
    if ROWS == 1:
        return tl.reduce(tl.reshape(total, (1,)), 0, plus)
    else:
        return total


@triton.jit
def down(part, ROWS: tl.constexpr, LANES: tl.constexpr):
    """[ROWS, LANES] to [1, LANES], likewise."""
    if ROWS == 1:
        return part
    else:
        half = tl.reduce(tl.reshape(part, (2, ROWS // 2, LANES)), 0, plus)
        return down(half, ROWS // 2, LANES)


@triton.jit
def turned(i, LEVELS: tl.constexpr):
    """The last LEVELS bits of i, the last one first: the order in which a lane meets its values."""
    found = i * 0
    for bit in tl.static_range(LEVELS):
        found = found | (((i >> bit) & 1) << (LEVELS - 1 - bit))
    return found


@triton.jit
def _counted(i, sums, waiting, LEVELS: tl.constexpr):
    """Sums of 1, 2, 4, .. rounds wait until their partner is there, like the digits of a counter. Without branches:
    a sum that is not wanted is computed and dropped."""
    kept = ()
    going = i >= 0
    for level in tl.static_range(LEVELS + 1):
        odd = ((i >> level) & 1) == 1
        grown = ()
        for k in tl.static_range(len(sums)):
            held = waiting[level * len(sums) + k]
            kept = kept + (tl.where(going & (odd == 0), sums[k], held),)
            grown = grown + (held + sums[k],)
        sums = grown
        going = going & odd
    return kept


@triton.jit
def looped(TERM: tl.constexpr, context, SHAPE: tl.constexpr, like, SUMS: tl.constexpr, LEVELS: tl.constexpr):
    """A tuple of SUMS sums: the tree over what TERM(context, SHAPE, i) gives for i < 2^LEVELS. `like` is a zero of
    its shape."""
    if LEVELS == 0:
        return TERM(context, SHAPE, 0)
    else:
        waiting = ()
        for _ in tl.static_range(SUMS * (LEVELS + 1)):
            waiting = waiting + (like,)
        for i in range(2**LEVELS):
            waiting = _counted(i, TERM(context, SHAPE, turned(i, LEVELS)), waiting, LEVELS)
        result = ()
        for k in tl.static_range(SUMS):
            result = result + (waiting[SUMS * LEVELS + k],)
        return result


# ------------------------------------------------------------------------------------------------ sums of a tensor


@triton.jit
def _start(output, low_count, low_step, high_step):
    """Where output number `output` begins: two levels of strides."""
    far = output.to(tl.int64)
    return (far // low_count) * high_step + (far % low_count) * low_step


@triton.jit
def _steps(index, inner, magic, shift, inner_step, outer_step, FLAT: tl.constexpr, WIDE: tl.constexpr):
    """Where value `index` of a sum lies, from where the sum begins: two levels of strides (FLAT: one)."""
    if FLAT:
        return index.to(tl.int64) * inner_step
    else:
        far = divided(index, inner, magic, shift, WIDE)
        return far.to(tl.int64) * outer_step + (index - far * inner).to(tl.int64) * inner_step


@triton.jit
def _taken(x, at, here, SQUARE: tl.constexpr):
    v = tl.load(x + at, mask=here, other=0).to(tl.float64)
    if SQUARE:
        v = v * v
    return v


@triton.jit
def _finished(total, size, out, DIVIDE: tl.constexpr, ROOT: tl.constexpr):
    if DIVIDE:
        total = total / number(size)
    if ROOT:
        total = tl.sqrt(total)
    return rounded(total, out)


@triton.jit
def _row_sum(context, SHAPE: tl.constexpr, i):
    x, base, lane, here, length, places = context
    LANES: tl.constexpr = SHAPE[0]
    CHUNKS: tl.constexpr = SHAPE[1]
    VALID: tl.constexpr = SHAPE[2]
    LEVELS: tl.constexpr = SHAPE[3]
    FLAT: tl.constexpr = SHAPE[4]
    SQUARE: tl.constexpr = SHAPE[5]
    parts = ()
    for k in tl.static_range(VALID):
        index = (i + k * 2**LEVELS) * LANES + lane
        at = _steps(index, places[0], places[1], places[2], places[3], places[4], FLAT, False)
        parts = parts + (_taken(x, base[:, None] + at[None, :], here & (index < length)[None, :], SQUARE),)
    return (tree(parts, CHUNKS),)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def rows(
    x, out, outputs, length, low_count, low_step, high_step, inner, magic, shift, inner_step, outer_step, size,
    OUTPUTS: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr, LEVELS: tl.constexpr,
    FLAT: tl.constexpr, SQUARE: tl.constexpr, DIVIDE: tl.constexpr, ROOT: tl.constexpr,
):  # fmt: skip
    """Whole sums of OUTPUTS rows. CHUNKS * 2^LEVELS * LANES is the padded length, never more: another +0 would turn a
    -0 around."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    here = (output < outputs)[:, None]
    places = (inner, magic, shift, inner_step, outer_step)
    base = _start(output, low_count, low_step, high_step)
    context = (x, base, tl.arange(0, LANES), here, length, places)
    SHAPE: tl.constexpr = (LANES, CHUNKS, VALID, LEVELS, FLAT, SQUARE)
    like = tl.zeros((OUTPUTS, LANES), dtype=tl.float64)
    total = across(looped(_row_sum, context, SHAPE, like, 1, LEVELS)[0], OUTPUTS, LANES)
    tl.store(out + output[:, None], _finished(total, size, out, DIVIDE, ROOT), mask=here)


@triton.jit
def _tile_sum(context, SHAPE: tl.constexpr, i):
    """Values (chunk * ROWS + row) * left + residue. ACROSS: columns are outputs; else they are residues."""
    x, base, column, residue, here, length, left, places = context
    ROWS: tl.constexpr = SHAPE[0]
    CHUNKS: tl.constexpr = SHAPE[1]
    VALID: tl.constexpr = SHAPE[2]
    LEVELS: tl.constexpr = SHAPE[3]
    ACROSS: tl.constexpr = SHAPE[4]
    PIECE: tl.constexpr = SHAPE[5]
    FLAT: tl.constexpr = SHAPE[6]
    WIDE: tl.constexpr = SHAPE[7]
    SQUARE: tl.constexpr = SHAPE[8]
    parts = ()
    for k in tl.static_range(VALID):
        row = (i + k * 2**LEVELS) * ROWS + tl.arange(0, ROWS)
        if WIDE:
            row = row.to(tl.int64)
        first = (row * left + residue)[:, None]
        if ACROSS:
            at = base + _steps(first, places[0], places[1], places[2], places[3], places[4], FLAT, WIDE)
            inside = here & (first < length)
        elif PIECE:  # all values of a row of the tile lie one step from each other
            at = _steps(first, places[0], places[1], places[2], places[3], places[4], FLAT, WIDE)
            at = base + at + column.to(tl.int64) * places[3]
            inside = first + column < length
        else:
            at = base + _steps(first + column, places[0], places[1], places[2], places[3], places[4], FLAT, WIDE)
            inside = first + column < length
        parts = parts + (_taken(x, at, inside, SQUARE),)
    return (tree(parts, CHUNKS),)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def fold(
    x, out, outputs, length, left, low_count, low_step, high_step, inner, magic, shift, inner_step, outer_step, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, VALID: tl.constexpr, LEVELS: tl.constexpr,
    ACROSS: tl.constexpr, PIECE: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, SQUARE: tl.constexpr,
    DIVIDE: tl.constexpr, ROOT: tl.constexpr,
):  # fmt: skip
    """`left` partial sums of each output, each of the values that lie `left` apart; whole ones where `left` is 1.

    ACROSS: COLUMNS neighbouring outputs of one residue (PIECE: they lie one step apart), out is [left, outputs]. Else
    COLUMNS residues of one output, out is [outputs, left]."""
    lane = tl.arange(0, COLUMNS)
    blocks = tl.cdiv(outputs, COLUMNS) if ACROSS else left // COLUMNS
    block = (tl.program_id(0) % blocks) * COLUMNS
    other = tl.program_id(0) // blocks
    column = lane[None, :]
    if ACROSS:
        here = block + column < outputs
        if PIECE:
            base = _start(block, low_count, low_step, high_step) + column.to(tl.int64) * low_step
        else:
            base = _start(block + column, low_count, low_step, high_step)
        residue = other
        to = other.to(tl.int64) * outputs + block + column
    else:
        here = column >= 0
        base = _start(other, low_count, low_step, high_step)
        residue = block
        to = other.to(tl.int64) * left + block + column
    places = (inner, magic, shift, inner_step, outer_step)
    context = (x, base, column, residue, here, length, left, places)
    SHAPE: tl.constexpr = (ROWS, CHUNKS, VALID, LEVELS, ACROSS, PIECE, FLAT, WIDE, SQUARE)
    like = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    total = down(looped(_tile_sum, context, SHAPE, like, 1, LEVELS)[0], ROWS, COLUMNS)
    tl.store(out + to, _finished(total, size, out, DIVIDE, ROOT), mask=here)
