# mypy: ignore-errors
"""Triton kernel of the FMA chain. Compiled with multiply-adds fused, which is what the chain is made of."""

from __future__ import annotations

import triton
import triton.language as tl

BAND = tl.constexpr(8)  # tile rows that are walked together, so that columns of B stay in the cache
NEGATIVE_ZERO = tl.constexpr(-2147483648)  # its bits: a literal -0.0 would become +0 in Triton


@triton.jit
def chain(
    a, b, out, m, n, k, a_batch, a_row, a_step, b_batch, b_step, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TAIL: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    """One tile of out[batch]: acc = fma(a, b, acc) over k in order, from +0.

    With a BLOCK, a chain ends after that many steps and is added to the sum of those before it; REST says that the last
    one is shorter. TAIL: k is not a multiple of DEPTH.
    """
    tiles_down, tiles_across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    program = tl.program_id(0)
    batch = (program // (tiles_down * tiles_across)).to(tl.int64)
    place = program % (tiles_down * tiles_across)
    first = place // (BAND * tiles_across) * BAND
    height = min(tiles_down - first, BAND)
    within = place % (BAND * tiles_across)
    rows = (first + within % height) * ROWS + tl.arange(0, ROWS)
    columns = (within // height) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH).to(tl.int64)
    # Rows and columns past the end read others again and are not stored: no masks in the loop.
    left = a + batch * a_batch + (rows % m).to(tl.int64)[:, None] * a_row + steps[None, :] * a_step
    right = b + batch * b_batch + (columns % n).to(tl.int64)[None, :] * b_column + steps[:, None] * b_step
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # -0 plus the first chain is that chain, whatever its sign.
    total = tl.full((ROWS, COLUMNS), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
    whole = k // DEPTH
    jump = tl.full((), DEPTH, tl.int64)
    for i in range(whole):
        acc = tl.dot(tl.load(left).to(tl.float32), tl.load(right).to(tl.float32), acc, input_precision="ieee")
        left += jump * a_step
        right += jump * b_step
        if BLOCK:  # noqa: SIM102  decided when this is compiled
            if (i + 1) % (BLOCK // DEPTH) == 0:
                total += acc
                acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if TAIL:
        # Steps past the end multiply -0 by +0: adding -0 leaves every acc as it is, -0 included.
        inside = steps < k - whole * DEPTH
        nothing = tl.full((ROWS, DEPTH), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
        x = tl.where(inside[None, :], tl.load(left, mask=inside[None, :], other=0.0).to(tl.float32), nothing)
        y = tl.load(right, mask=inside[:, None], other=0.0).to(tl.float32)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    if BLOCK:
        acc = total + acc if REST else total
    kept = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(out + batch * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :], acc, mask=kept)
