"""Convolutions of two dimensions by exact integer slices on a GPU, and the gradients of their weights.

Both factors are cut once, by image for what is multiplied with weights, by channel for the gradient of weights, and the
tensor cores multiply the slices where they lie (`sliced_convolution_kernels`). Guarantees the bits of
`sliced_convolutions.forward` and `weight_gradient` by any other implementation.

Slices take as much memory as what is cut, and with shifted copies several times as much. So images are cut and
multiplied in groups whose slices fit into MOST_BYTES: each has a scale of its own, or a channel's, which is known
before, and a gradient of weights is a sum of whole numbers, to which each group adds its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.gpu import workspace
from easyscale.numerics.kernels.gpu.launch import Launch, Tiles, ceil_div, is_aligned
from easyscale.numerics.kernels.gpu.slices import (
    ALIGNED,
    MOST_STEPS,
    PLANS,
    Cut,
    Tile,
    cut,
    joining,
    parts_of,
    tile_for,
)
from easyscale.numerics.kernels.sliced_convolutions import Correlation
from easyscale.numerics.kernels.watching import lasting

SMALL = Tile(64, 64, 64, 4, 3)  # for few channels
# Of slices at a time: of ResNet50 and VGG19 at 32 to 64 images, the layers with the most pixels and wide ones of 3 x 3
# taps are in groups, each of which still gives every SM several tiles to compute.
MOST_BYTES = workspace.MOST_KEPT
EVENLY = 4  # images: each group then begins at a multiple of 16 bytes where the whole does


def _tile(channels: int, device: torch.device) -> Tile:
    """For factors the smaller of which has so many channels."""
    usual = tile_for(device)
    return SMALL if channels <= SMALL.rows and SMALL.memory <= usual.memory else usual


@dataclass(frozen=True, slots=True)
class Layout:
    """How the pixels of pictures lie among zeros, for each phase of the stride: see `sliced_convolution_kernels`."""

    images: int
    lines: int
    pitch: int
    top: int
    left: int
    step_y: int
    step_x: int
    behind: int  # zeros behind the last image, which its last taps see

    @property
    def places(self) -> int:
        return self.images * self.lines * self.pitch


@lru_cache(maxsize=PLANS)
def layout_of(shape: torch.Size, over: Correlation, aligned: bool) -> Layout:
    """Aligned: rows begin at multiples of 16, or of 8, places if that costs little."""
    (lines, full), (pitch, wide) = (_extent(shape[2 + dim], over, dim) for dim in range(2))
    if aligned:
        wider = (ceil_div(pitch, step) * step for step in (16, 8))
        pitch = next((size for size in wider if size <= 1.2 * pitch), pitch)
    behind = max(0, full - lines) * pitch + max(0, wide - pitch)
    (top, left), (step_y, step_x) = over.low, over.stride
    return Layout(shape[0], lines, pitch, top, left, step_y, step_x, behind)


def _extent(size: int, over: Correlation, dim: int) -> tuple[int, int]:
    """How far apart two images, or two rows, are; and how much of them taps see. With a stride of one the margin behind
    the one is that before the next."""
    low, count, step = over.low[dim], over.size[dim], over.stride[dim]
    full = count + (over.kernel[dim] - 1) * over.dilation[dim] // step
    if step > 1:
        return full, full
    return max(count, full - max(low, 0), min(low + size, full)), full


@lru_cache(maxsize=PLANS)
def _phases(stride: tuple[int, ...], device: torch.device) -> Tensor:
    """int32 [phases, 3]: what `cut_image` is told of copies that are not shifted."""
    phases = [[y, x, 0] for y in range(stride[0]) for x in range(stride[1])]
    return lasting(torch.tensor(phases, dtype=torch.int32, device=device))


@lru_cache(maxsize=PLANS)
def _shifted(over: Correlation, pitch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The copies of pictures that taps need at multiples of ALIGNED, as `_phases`; and for each tap its copy, and by
    how much it is shifted in that."""
    (down, right), (high, wide) = over.stride, over.dilation
    taps = []
    for y in range(0, over.kernel[0] * high, high):
        for x in range(0, over.kernel[1] * wide, wide):
            shift = y // down * pitch + x // right
            taps.append((y % down, x % right, shift % ALIGNED, shift - shift % ALIGNED))
    copies = sorted({tap[:3] for tap in taps})
    table = [[copies.index(tap[:3]) for tap in taps], [tap[3] for tap in taps]]
    first, second = (lasting(torch.tensor(rows, dtype=torch.int32, device=device)) for rows in (copies, table))
    return first, second


# --------------------------------------------------------------------------------------------------------- images


@lru_cache(maxsize=PLANS)
def groups_of(images: int, each: int) -> tuple[tuple[int, int], ...]:
    """The first image of each group, and the one behind its last, if the slices of an image take so many bytes. One
    image that takes more than MOST_BYTES is a group nevertheless."""
    most = max(1, MOST_BYTES // each)
    if images <= most:
        return ((0, images),)
    even = ceil_div(ceil_div(images, ceil_div(images, most)), EVENLY) * EVENLY
    size = min(even, most // EVENLY * EVENLY or most)
    return tuple((first, min(images, first + size)) for first in range(0, images, size))


def _part(v: Tensor, first: int, end: int) -> Tensor:
    return v if end - first == v.shape[0] else v[first:end]


@dataclass(frozen=True, slots=True)
class _Image:
    """How images of one shape and layout are looked through and cut."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> _Image:
        return cls(x.shape, x.stride(), x.dtype, is_aligned(x), x.device)


def largest(x: Tensor, by_image: bool) -> Tensor:
    """int32 bits of the largest |v| of each image, or of each channel."""
    most = workspace.zeros(x.shape[0 if by_image else 1], x.device)
    _finding(_Image.of(x), by_image)(x, most)
    return most


@lru_cache(maxsize=PLANS)
def _finding(image: _Image, by_image: bool) -> Launch:
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import find_plane_most

    images, channels, height, width = image.shape
    pixels = height * width
    block = min(1024, max(16, 1 << (pixels - 1).bit_length()))
    planes = max(1, 4096 // block)
    grid = images, ceil_div(channels, planes), max(1, min(8, pixels // (8 * block)))
    dense = image.strides[2:] == (width, 1)
    return Launch(
        find_plane_most, grid, (channels, height, width, *image.strides),
        BY_IMAGE=by_image, DENSE=dense, CHANNELS=planes, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def cut_image(
    x: Tensor, most: Tensor, layout: Layout, slices: int, copies: Tensor, by_image: bool, deep: int, slot: int
) -> Tensor:
    """int8 [slices * copies * places, channels], or [slices * copies * channels, places], rows padded to multiples of
    `deep`; in the workspace."""
    places, cutting = _cutting(_Image.of(x), is_aligned(most), layout, slices, copies.shape[0], by_image, deep)
    (out,) = places.at(x.device, slot)
    cutting(x, most, out, copies)
    return out


@lru_cache(maxsize=PLANS)
def _cutting(
    image: _Image, aligned: bool, layout: Layout, slices: int, copies: int, by_image: bool, deep: int
) -> tuple[workspace.Places, Launch]:
    """Where the result goes, and what writes it, from scales that are aligned or not."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import cut_image as kernel

    images, channels, height, width = image.shape
    places = layout.places + layout.behind
    rows, long = (places, channels) if by_image else (channels, places)
    long = ceil_div(long, deep) * deep
    across, along = (long, places) if by_image else (channels, long)
    numbers = (
        places, long, images, channels, height, width, layout.lines, layout.pitch, layout.top, layout.left,
        layout.step_y, layout.step_x, *image.strides, copies * rows * long,
    )  # fmt: skip
    return workspace.Places(((torch.int8, (slices * copies * rows, long)),)), Launch(
        kernel, (ceil_div(across, 32), ceil_div(along, 128), copies), numbers,
        SLICES=slices, BY_IMAGE=by_image, CHANNELS=32, PLACES=128, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- convolution


def sliced_convolution(x: Tensor, weight: Tensor, over: Correlation, slices: int) -> Tensor:
    """fp32 [images, channels out, *positions] of [images, channels, H, W] and [channels out, channels, *kernel]."""
    out_channels, copies = weight.shape[0], _phases(over.stride, x.device)
    out = torch.empty((x.shape[0], out_channels, *over.size), dtype=torch.float32, device=x.device)
    tile = _tile(min(out_channels, x.shape[1]), x.device)
    most = largest(x, True)
    one = layout_of(torch.Size((1, *x.shape[1:])), over, False)
    width = ceil_div(x.shape[1], tile.depth) * tile.depth
    with workspace.locked():
        if weights.keeps(weight):
            kind = f"gpu, taps first, by {tile.depth}"
            parts, most_weight = weights.cut(weight, slices, kind, lambda: _cut_taps(weight, slices, tile, None))
        else:
            parts, most_weight = _cut_taps(weight, slices, tile, 1)
        for first, end in groups_of(x.shape[0], slices * copies.shape[0] * width * one.places):
            group, scales, results = (_part(v, first, end) for v in (x, most, out))
            layout = layout_of(group.shape, over, False)
            image = cut_image(group, scales, layout, slices, copies, True, tile.depth, 0)
            plan = _convolving(
                out_channels, width, over, layout, slices, tile, is_aligned(scales), is_aligned(results)
            )  # fmt: skip
            blocks = Tiles(parts, (tile.rows, tile.depth)), Tiles(image, (tile.columns, tile.depth))
            plan(*blocks, most_weight, scales, results)
    return out


@lru_cache(maxsize=PLANS)
def _convolving(
    out: int, channels: int, over: Correlation, layout: Layout, slices: int, tile: Tile, aligned: bool,
    aligned_out: bool,
) -> Launch:  # fmt: skip
    """The last arguments are what a launch is kept by."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import convolve

    per_tap = channels // tile.depth
    steps = over.kernel[0] * over.kernel[1] * per_tap
    copy = layout.places + layout.behind
    numbers = (
        out, layout.places, steps, copy, layout.step_y * layout.step_x * copy, layout.images, *over.size, layout.lines,
        layout.pitch, over.kernel[1], *over.stride, *over.dilation, per_tap,
    )  # fmt: skip
    tiles = ceil_div(out, tile.rows) * ceil_div(layout.places, tile.columns)
    at_once = 0 if steps * tile.depth <= MOST_STEPS else MOST_STEPS // tile.depth
    return Launch(
        convolve, (tiles,), numbers, SLICES=slices, AT_ONCE=at_once, enable_fp_fusion=False, **tile.options()
    )  # fmt: skip


def _cut_taps(weight: Tensor, slices: int, tile: Tile, slot: int | None) -> Cut:
    """Slices of the weights as rows (tap, channel), channels padded with zeros."""
    rows = weight.permute(0, 2, 3, 1)
    missing = -rows.shape[3] % tile.depth
    padded = torch.constant_pad_nd(rows, [0, missing]) if missing else rows
    return cut(padded.contiguous().view(rows.shape[0], -1), slices, slot)


# ----------------------------------------------------------------------------------------------- weight gradient


def sliced_weight_gradient(grad: Tensor, x: Tensor, over: Correlation, slices: int) -> Tensor:
    """fp32 [channels out, channels in, *kernel]."""
    m, n, taps = grad.shape[1], x.shape[1], over.kernel[0] * over.kernel[1]
    one = layout_of(torch.Size((1, *x.shape[1:])), over, taps > 1)
    copies, table = _shifted(over, one.pitch, x.device)
    tile, shifts = _tile(min(m, n), x.device), copies.shape[0]
    groups = groups_of(x.shape[0], slices * (m + shifts * n) * one.places)
    number, each = _divided(m, n, taps, groups[0][1] * one.places, tile, x.device)
    parted = number > 1 or len(groups) > 1
    found = torch.empty((number, taps, m, n), dtype=torch.int64 if parted else torch.float32, device=x.device)
    most, most_x = largest(grad, False), largest(x, False)
    with workspace.locked():
        for first, end in groups:
            layout = layout_of(torch.Size((end - first, *x.shape[1:])), over, taps > 1)
            plain = Layout(layout.images, layout.lines, layout.pitch, 0, 0, 1, 1, layout.behind)
            slopes, seen = _part(grad, first, end), _part(x, first, end)
            left = cut_image(slopes, most, plain, slices, _phases((1, 1), x.device), False, ALIGNED, 0)
            right = cut_image(seen, most_x, layout, slices, copies, False, ALIGNED, 1)
            whole = _weighing(m, n, taps, layout.places, number, each, shifts, slices, tile, parted, first > 0)
            blocks = Tiles(left, (tile.rows, tile.depth)), Tiles(right, (tile.columns, tile.depth))
            whole(*blocks, most, most_x, table, found)
    if parted:
        parts, found = found, torch.empty((1, taps, m, n), dtype=torch.float32, device=x.device)
        _joining(m, n, taps, number, slices)(parts, most, most_x, most, found)
    return found[0].permute(1, 2, 0).reshape(m, n, *over.kernel)


def _divided(m: int, n: int, taps: int, places: int, tile: Tile, device: torch.device) -> tuple[int, int]:
    """In how many parts places are added up, and how many each has."""
    return parts_of(taps * ceil_div(m, tile.rows) * ceil_div(n, tile.columns), places, tile, device)


@lru_cache(maxsize=PLANS)
def _weighing(
    m: int, n: int, taps: int, places: int, number: int, each: int, copies: int, slices: int, tile: Tile, parted: bool,
    more: bool,
) -> Launch:  # fmt: skip
    """What computes the parts of one group of images; `more`: added to what other groups have left there."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import convolve_weights

    tiles = taps * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
    return Launch(
        convolve_weights, (number * tiles,), (m, n, places, each, taps, copies),
        SLICES=slices, PARTS=parted, MORE=more, enable_fp_fusion=False, **tile.options(),
    )  # fmt: skip


@lru_cache(maxsize=PLANS)
def _joining(m: int, n: int, taps: int, number: int, slices: int) -> Launch:
    return joining(taps * m * n, m, n, number, slices, True)
