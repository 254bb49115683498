# mypy: ignore-errors
"""Triton kernels of convolutions whose groups have few channels (depthwise ones above all): no product of matrices.

Each lane makes one sum, a chain of `tl.fma` over k in order. What lies in the padding takes part with +0. Places within
an image (or within all of them, for the gradient of the weight) are numbered in 32 bits: the host sees to that.
Compiled without fusing multiply-adds; those of the chains are written so.
"""

from __future__ import annotations

import triton
import triton.language as tl

NEGATIVE_ZERO = tl.constexpr(-2147483648)  # its bits: a literal -0.0 would become +0 in Triton


@triton.jit
def correlate(
    x, w, out, channels, spots, width, height_in, width_in, m, inner, top, left, step_y, step_x, dilation_y, dilation_x,
    x_image, x_channel, x_line, x_column, w_first, w_group, w_row, w_step, w_line, w_column,
    out_first, out_image, out_channel, out_line, out_column,
    DEPTHWISE: tl.constexpr, LAST: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """out[image, channel, y, x] = a chain over (channel in of the group, tap), of ROWS channels and PLACES positions.

    `m` channels out and `inner` channels in of a group, both 1 if DEPTHWISE; DOWN times ACROSS taps. LAST: channels lie
    one after the other in memory, else columns do. What lies so comes first: Triton puts it on neighbouring lanes.
    """
    across, down = tl.cdiv(spots, PLACES), tl.cdiv(channels, ROWS)
    program = tl.program_id(0)
    place = program % across * PLACES + tl.arange(0, PLACES)
    row = program // across % down * ROWS + tl.arange(0, ROWS)
    if LAST:
        place, row = place[None, :], row[:, None]
    else:
        place, row = place[:, None], row[None, :]
    image = (program // across // down).to(tl.int64)
    kept = (row < channels) & (place < spots)
    row = tl.minimum(row, channels - 1)  # channels past the end are read again and not stored
    y, column = place // width, place % width
    from_y, from_x = y * step_y - top, column * step_x - left
    if DEPTHWISE:
        seen_by = row * x_channel
        weight_of = row * w_group
    else:
        seen_by = row // m * inner * x_channel
        weight_of = row // m * w_group + row % m * w_row
    at = x + image * x_image + (seen_by + (from_y * x_line + from_x * x_column))
    by = w + w_first + weight_of
    acc = tl.zeros(kept.shape, dtype=tl.float32)
    for _ in range(1 if DEPTHWISE else inner):
        for tap_y in tl.static_range(DOWN):
            line = from_y + tap_y * dilation_y
            on_line = (line >= 0) & (line < height_in) & (place < spots)
            for tap_x in tl.static_range(ACROSS):
                there = from_x + tap_x * dilation_x
                inside = on_line & (there >= 0) & (there < width_in)
                move = tap_y * dilation_y * x_line + tap_x * dilation_x * x_column
                value = tl.load(at + move, mask=tl.broadcast_to(inside, kept.shape), other=0.0).to(tl.float32)
                factor = tl.load(by + (tap_y * w_line + tap_x * w_column)).to(tl.float32)
                acc = tl.fma(tl.broadcast_to(factor, kept.shape), value, acc)
        at += x_channel
        by += w_step
    into = row * out_channel + y * out_line + column * out_column
    tl.store(out + out_first + image * out_image + into, acc, mask=kept)


@triton.jit
def correlate_images(
    grad, x, out, m, inner, k, spots, height, width, spans, height_in, width_in, taps, across, top, left,
    step_y, step_x, dilation_y, dilation_x,
    g_image, g_channel, g_line, g_column, x_image, x_channel, x_line, x_column,
    TAPS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """out[channel out, channel in of the group, tap, span]: chains over blocks of k = (image, position), each added to
    the sum of those before it. Each lane takes one block of the span and one tap."""
    program = tl.program_id(0)
    pair, span = program // spans, program % spans
    row, other = pair // inner, pair % inner
    tap = tl.arange(0, TAPS)
    tap_y, tap_x = (tap // across * dilation_y - top)[:, None], (tap % across * dilation_x - left)[:, None]
    real = (tap < taps)[:, None]
    left_of = grad + row.to(tl.int64) * g_channel
    right_of = x + (row // m * inner + other).to(tl.int64) * x_channel
    # All of the walk has the shape of the sums: smaller shapes would be moved between layouts at each step.
    number = tl.broadcast_to(tl.arange(0, BLOCKS)[None, :], (TAPS, BLOCKS))
    step = (span * BLOCKS + number) * BLOCK
    image, within = step // spots, step % spots
    y, column = within // width, within % width
    nothing = tl.full((TAPS, BLOCKS), NEGATIVE_ZERO, tl.int32).to(tl.float32, bitcast=True)
    acc = tl.zeros((TAPS, BLOCKS), dtype=tl.float32)
    for _ in range(0, BLOCK, AHEAD):
        for _ahead in tl.static_range(AHEAD):
            # Steps past the end multiply -0 by +0: adding -0 leaves every acc as it is, -0 included.
            inside = step < k
            place = image * g_image + y * g_line + column * g_column
            g = tl.load(left_of + place, mask=inside & real, other=0.0)  # other lanes are stored nowhere
            g = tl.where(inside, g.to(tl.float32), nothing)
            line, there = y * step_y + tap_y, column * step_x + tap_x
            seen = inside & real & (line >= 0) & (line < height_in) & (there >= 0) & (there < width_in)
            place = image * x_image + line * x_line + there * x_column
            value = tl.load(right_of + place, mask=seen, other=0.0).to(tl.float32)
            acc = tl.fma(g, value, acc)
            step += 1
            column += 1
            y = tl.where(column == width, y + 1, y)
            column = tl.where(column == width, 0, column)
            image = tl.where(y == height, image + 1, image)
            y = tl.where(y == height, 0, y)
    # A block is picked as whole numbers: adding zeros would lose the sign of a zero.
    every = acc.to(tl.int32, bitcast=True)
    total = tl.sum(tl.where(number == 0, every, 0), axis=1).to(tl.float32, bitcast=True)
    for block in tl.static_range(1, BLOCKS):
        one = tl.sum(tl.where(number == block, every, 0), axis=1).to(tl.float32, bitcast=True)
        total = tl.where((span * BLOCKS + block) * BLOCK < k, total + one, total)
    into = out + (pair.to(tl.int64) * taps + tap) * spans + span
    tl.store(into, total, mask=tap < taps)
