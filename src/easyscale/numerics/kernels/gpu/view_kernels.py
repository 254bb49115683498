# mypy: ignore-errors
"""Triton kernels of chains whose right factor is a view of windows: convolutions without a copy of their columns.

Chains are compiled with multiply-adds fused, which is what they are made of.
"""

from __future__ import annotations

import triton
import triton.language as tl

BAND = tl.constexpr(8)  # tile rows that are walked together, so that columns stay in the cache
NEGATIVE_ZERO = tl.constexpr(-2147483648)  # its bits: a literal -0.0 would become +0 in Triton


@triton.jit
def _place(number, size1, size2, size3, step0, step1, step2, step3):
    """Where the element of this number lies: row-major order of four dimensions, the first one's size not needed."""
    third = number % size3
    number = number // size3
    second = number % size2
    number = number // size2
    first = number % size1
    zeroth = (number // size1).to(tl.int64)
    return zeroth * step0 + first.to(tl.int64) * step1 + second.to(tl.int64) * step2 + third.to(tl.int64) * step3


@triton.jit
def chain_over_view(
    a, b, table, out, m, n, k, spans, a_batch, a_row, a_step, b_batch,
    n1, n2, n3, n_step0, n_step1, n_step2, n_step3,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """One tile of out[batch, span]: chains over blocks of k, each added to the sum of those before it.

    `table`: where the element of each k lies, from that of k = 0. A batch's k is cut into `spans` of SPAN; BLOCK
    divides SPAN, DEPTH divides BLOCK.
    """
    tiles_down, tiles_across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    program = tl.program_id(0)
    part = (program // (tiles_down * tiles_across)).to(tl.int64)
    batch, begin = part // spans, (part % spans).to(tl.int32) * SPAN
    length = min(k - begin, SPAN)
    place = program % (tiles_down * tiles_across)
    band = place // (BAND * tiles_across) * BAND
    height = min(tiles_down - band, BAND)
    within = place % (BAND * tiles_across)
    rows = (band + within % height) * ROWS + tl.arange(0, ROWS)
    columns = (within // height) * COLUMNS + tl.arange(0, COLUMNS)
    # Rows and columns past the end read others again and are not stored: no masks in the loop.
    left = a + batch * a_batch + (rows % m).to(tl.int64)[:, None] * a_row
    right = b + batch * b_batch + _place(columns % n, n1, n2, n3, n_step0, n_step1, n_step2, n_step3)[None, :]
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # -0 plus the first chain is that chain, whatever its sign.
    total = tl.full((ROWS, COLUMNS), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
    whole = length // DEPTH
    for i in range(whole):
        steps = begin + i * DEPTH + tl.arange(0, DEPTH)
        x = tl.load(left + steps.to(tl.int64)[None, :] * a_step).to(tl.float32)
        y = tl.load(right + tl.load(table + steps)[:, None]).to(tl.float32)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        if (i + 1) % (BLOCK // DEPTH) == 0:
            total += acc
            acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if length % DEPTH != 0:
        # Steps past the end multiply -0 by +0: adding -0 leaves every acc as it is, -0 included.
        steps = begin + whole * DEPTH + tl.arange(0, DEPTH)
        inside = steps < begin + length
        places = tl.load(table + steps, mask=inside, other=0)
        nothing = tl.full((ROWS, DEPTH), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
        x = tl.load(left + steps.to(tl.int64)[None, :] * a_step, mask=inside[None, :], other=0.0).to(tl.float32)
        y = tl.load(right + places[:, None], mask=inside[:, None], other=0.0).to(tl.float32)
        acc = tl.dot(tl.where(inside[None, :], x, nothing), y, acc, input_precision="ieee")
    if length % BLOCK != 0:
        total += acc
    kept = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(out + part * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :], total, mask=kept)


@triton.jit
def add_blocks(parts, out, count, blocks, EACH: tl.constexpr, VALUES: tl.constexpr):
    """out[batch, span] of `count` values each: EACH chains of [batch, blocks] (the last span may have fewer), each
    added to the sum of those before it."""
    at = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    here = at < count
    first = tl.program_id(1) * EACH
    batch = tl.program_id(2).to(tl.int64)
    base = parts + (batch * blocks + first) * count + at
    total = tl.load(base, mask=here, other=0.0)
    for i in tl.static_range(1, EACH):
        there = first + i < blocks
        one = tl.load(base + i * count.to(tl.int64), mask=here & there, other=0.0)
        total = tl.where(there, total + one, total)
    tl.store(out + (batch * tl.num_programs(1) + tl.program_id(1)) * count + at, total, mask=here)
