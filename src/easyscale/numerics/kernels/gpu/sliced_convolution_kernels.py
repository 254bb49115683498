# mypy: ignore-errors
"""Triton kernels of convolutions by exact slices: an image is a sum over taps of products with shifted rows.

Slices of pictures are laid out with a margin of zeros, `pitch` places a row and `lines` rows an image, so that what a
tap sees of all output places is one block of places, a constant further on: no gathering, and no matrix of columns.
With a stride, each phase of rows and columns is a picture of its own. Places of the margin get results too, which are
not stored. Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.slices_kernels import INFINITE, digits, joined, pairs, place_of, scaled


@triton.jit
def find_plane_most(
    v, most, channels, height, width, v_image, v_channel, v_line, v_column,
    BY_IMAGE: tl.constexpr, DENSE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Bits of the largest |v| of each image, or of each channel, into zeros. DENSE: pixels of a channel lie side by
    side."""
    image = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = channel < channels
    base = v + image.to(tl.int64) * v_image + channel.to(tl.int64)[:, None] * v_channel
    found = tl.zeros((CHANNELS, BLOCK), dtype=tl.int32)
    for start in range(tl.program_id(2) * BLOCK, height * width, tl.num_programs(2) * BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        at = pixel.to(tl.int64)
        if not DENSE:
            at = (pixel // width).to(tl.int64) * v_line + (pixel % width).to(tl.int64) * v_column
        value = tl.load(base + at[None, :], mask=here[:, None] & (pixel < height * width)[None, :], other=0.0)
        found = tl.maximum(found, value.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    largest = tl.max(found, axis=1)
    if BY_IMAGE:
        tl.atomic_max(most + image, tl.max(largest, axis=0))
    else:
        tl.atomic_max(most + channel, largest, mask=here)


@triton.jit
def cut_image(
    v, most, out, copies, places, width_out, images, channels, height, width, lines, pitch, top, left, step_y, step_x,
    v_image, v_channel, v_line, v_column, slice_step,
    SLICES: tl.constexpr, BY_IMAGE: tl.constexpr, CHANNELS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Slices of pictures with their margins, in copies: each has the rows and columns of one phase of the stride, and
    place p of it is place p + shift of those (`copies`: phases and shift of each).

    BY_IMAGE: out[copy, place, channel], scaled by image; else out[copy, channel, place], scaled by channel. `width_out`
    is the length of a row of that; what is no pixel or no channel is zero.
    """
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    copy = tl.program_id(2)
    seen = place + tl.load(copies + 3 * copy + 2)
    image = seen // (lines * pitch)
    within = seen % (lines * pitch)
    y = within // pitch * step_y + tl.load(copies + 3 * copy) - top
    x = within % pitch * step_x + tl.load(copies + 3 * copy + 1) - left
    real = (image < images) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    at = image.to(tl.int64) * v_image + y.to(tl.int64) * v_line + x.to(tl.int64) * v_column
    at = tl.max_contiguous(at, PLACES)  # nearly so: it says which way memory runs
    inside = (channel < channels)[:, None] & real[None, :]
    value = tl.load(v + at[None, :] + channel.to(tl.int64)[:, None] * v_channel, mask=inside, other=0.0).to(tl.float32)
    if BY_IMAGE:
        scale = tl.load(most + image, mask=image < images, other=0)[:, None]
        into = (copy * places + place).to(tl.int64)[:, None] * width_out + channel[None, :]
        kept = (place < places)[:, None] & (channel < width_out)[None, :]
        digits(tl.trans(value), scale, out, into, kept, slice_step, SLICES)
    else:
        scale = tl.load(most + channel, mask=channel < channels, other=0)[:, None]
        into = (copy * channels + channel).to(tl.int64)[:, None] * width_out + place[None, :]
        kept = (channel < channels)[:, None] & (place < width_out)[None, :]
        digits(value, scale, out, into, kept, slice_step, SLICES)


@triton.jit
def _over_taps(
    a, b, row, column, first, last, m, copy_step, slice_step, pitch, across, step_y, step_x, dilation_y, dilation_x,
    per_tap, SLICES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Products of all pairs of slices of a tile, summed over loads first .. last - 1."""
    t0 = tl.zeros((ROWS, COLUMNS), tl.int32)
    t1, t2, t3 = t0, t0, t0
    for step in range(first, last):
        tap = step // per_tap
        down, over = (tap // across) * dilation_y, (tap % across) * dilation_x
        shift = (down % step_y * step_x + over % step_x) * copy_step + down // step_y * pitch + over // step_x
        t0, t1, t2, t3 = pairs(
            a, b, row, step * DEPTH, m, column + shift, (step % per_tap) * DEPTH, slice_step, t0, t1, t2, t3, SLICES
        )
    return t0, t1, t2, t3


@triton.jit
def convolve(
    a, b, most_a, most_b, out, m, places, steps, copy_step, slice_step, images, height, width, lines, pitch, across,
    step_y, step_x, dilation_y, dilation_x, per_tap,
    SLICES: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out[image, channel, y, x] of a tile of channels and places. `a`: slices of the weights, [channels out, (tap,
    channel)]; `b`: of the pictures, [phase, place, channel]. `across` taps in a row of the kernel, `per_tap` loads for
    each. AT_ONCE: so many loads surely fit into sums of 32 bits; 0: all of them do."""
    i, j = place_of(tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(places, COLUMNS))
    row, column = i * ROWS, j * COLUMNS
    if AT_ONCE:
        total = tl.zeros((ROWS, COLUMNS), tl.int64)
        for first in range(0, steps, AT_ONCE):
            t0, t1, t2, t3 = _over_taps(
                a, b, row, column, first, min(steps, first + AT_ONCE), m, copy_step, slice_step, pitch, across, step_y,
                step_x, dilation_y, dilation_x, per_tap, SLICES, ROWS, COLUMNS, DEPTH,
            )  # fmt: skip
            total += joined(t0, t1, t2, t3, SLICES)
    else:
        t0, t1, t2, t3 = _over_taps(
            a, b, row, column, 0, steps, m, copy_step, slice_step, pitch, across, step_y, step_x, dilation_y,
            dilation_x, per_tap, SLICES, ROWS, COLUMNS, DEPTH,
        )  # fmt: skip
        total = joined(t0, t1, t2, t3, SLICES)
    rows, place = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    image = place // (lines * pitch)
    within = place % (lines * pitch)
    y, x = within // pitch, within % pitch
    real = (image < images) & (y < height) & (x < width)
    far = tl.load(most_a + rows, mask=rows < m, other=0)[:, None]
    near = tl.load(most_b + image, mask=image < images, other=0)[None, :]
    result = scaled(total, far, near, SLICES)
    result = tl.where((far >= INFINITE) | (near >= INFINITE), float("nan"), result)
    at = (image.to(tl.int64) * m * height + y) * width + x
    at = tl.max_contiguous(at, COLUMNS)  # nearly so: it says which way memory runs
    at = at[None, :] + rows.to(tl.int64)[:, None] * (height * width)
    tl.store(out + at, result, mask=(rows < m)[:, None] & real[None, :])


@triton.jit
def convolve_weights(
    a, b, most_a, most_b, table, out, m, n, places, each, taps, copies,
    SLICES: tl.constexpr, PARTS: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """out[tap, channel out, channel in] of a tile: the gradient, [channel, place], times the image, shifted.

    The copy engine wants places that are multiples of 16, so the image is there in `copies` that are shifted by less.
    `table` says which copy a tap takes, and then how much further on. PARTS: sums of `each` places, as they are: int64
    [parts, tap, M, N]. MORE: added to those that are there, of other images.
    """
    down, over = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    i, j = place_of(tl.program_id(0) % (down * over), down, over)
    tap = tl.program_id(0) // (down * over) % taps
    part = tl.program_id(0) // (down * over * taps)
    row, column = i * ROWS, j * COLUMNS
    copy, shift = tl.load(table + tap), tl.load(table + taps + tap)
    t0 = tl.zeros((ROWS, COLUMNS), tl.int32)
    t1, t2, t3 = t0, t0, t0
    for place in range(part * each, min(places, part * each + each), DEPTH):
        t0, t1, t2, t3 = pairs(
            a, b, row, place, m, copy * n + column, place + shift, copies * n, t0, t1, t2, t3, SLICES
        )
    total = joined(t0, t1, t2, t3, SLICES)
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    at = ((part.to(tl.int64) * taps + tap) * m + rows.to(tl.int64)[:, None]) * n + columns[None, :]
    kept = (rows < m)[:, None] & (columns < n)[None, :]
    if PARTS:
        if MORE:
            total += tl.load(out + at, mask=kept, other=0)
        tl.store(out + at, total, mask=kept)
    else:
        far = tl.load(most_a + rows, mask=rows < m, other=0)[:, None]
        near = tl.load(most_b + columns, mask=columns < n, other=0)[None, :]
        result = scaled(total, far, near, SLICES)
        tl.store(out + at, tl.where((far >= INFINITE) | (near >= INFINITE), float("nan"), result), mask=kept)
