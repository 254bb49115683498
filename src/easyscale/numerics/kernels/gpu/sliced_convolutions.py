"""Convolutions of two dimensions by exact integer slices on a GPU, and the gradients of their weights.

Both factors are cut once, by image for what is multiplied with weights, by channel for the gradient of weights, and the
tensor cores multiply the slices where they lie (`sliced_convolution_kernels`). Guarantees the bits of
`sliced_convolutions.forward` and `weight_gradient` by any other implementation.
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

SMALL = Tile(64, 64, 64, 4, 3)  # for few channels


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
    return torch.tensor(phases, dtype=torch.int32, device=device)


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
    return (
        torch.tensor(copies, dtype=torch.int32, device=device), torch.tensor(table, dtype=torch.int32, device=device)
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- images


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
    places, cutting = _cutting(_Image.of(x), layout, slices, copies.shape[0], by_image, deep)
    (out,) = places.at(x.device, slot)
    cutting(x, most, out, copies)
    return out


@lru_cache(maxsize=PLANS)
def _cutting(
    image: _Image, layout: Layout, slices: int, copies: int, by_image: bool, deep: int
) -> tuple[workspace.Places, Launch]:
    """Where the result goes, and what writes it."""
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
    out_channels = weight.shape[0]
    layout = layout_of(x.shape, over, False)
    out = torch.empty((x.shape[0], out_channels, *over.size), dtype=torch.float32, device=x.device)
    tile = _tile(min(out_channels, x.shape[1]), x.device)
    most = largest(x, True)
    with workspace.locked():
        image = cut_image(x, most, layout, slices, _phases(over.stride, x.device), True, tile.depth, 0)
        if weights.keeps(weight):
            kind = f"gpu, taps first, by {tile.depth}"
            parts, most_weight = weights.cut(weight, slices, kind, lambda: _cut_taps(weight, slices, tile, None))
        else:
            parts, most_weight = _cut_taps(weight, slices, tile, 1)
        plan = _convolving(out_channels, image.shape[1], over, layout, slices, tile)
        blocks = Tiles(parts, (tile.rows, tile.depth)), Tiles(image, (tile.columns, tile.depth))
        plan(*blocks, most_weight, most, out)
    return out


@lru_cache(maxsize=PLANS)
def _convolving(out: int, channels: int, over: Correlation, layout: Layout, slices: int, tile: Tile) -> Launch:
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
    layout = layout_of(x.shape, over, taps > 1)
    plain = Layout(layout.images, layout.lines, layout.pitch, 0, 0, 1, 1, layout.behind)
    copies, table = _shifted(over, layout.pitch, x.device)
    tile = _tile(min(m, n), x.device)
    number, whole, join = _weighing(m, n, taps, layout.places, copies.shape[0], slices, tile, x.device)
    dtype = torch.float32 if join is None else torch.int64
    found = torch.empty((number, taps, m, n), dtype=dtype, device=x.device)
    most, most_x = largest(grad, False), largest(x, False)
    with workspace.locked():
        left = cut_image(grad, most, plain, slices, _phases((1, 1), x.device), False, ALIGNED, 0)
        right = cut_image(x, most_x, layout, slices, copies, False, ALIGNED, 1)
        blocks = Tiles(left, (tile.rows, tile.depth)), Tiles(right, (tile.columns, tile.depth))
        whole(*blocks, most, most_x, table, found)
    if join is not None:
        parts, found = found, torch.empty((1, taps, m, n), dtype=torch.float32, device=x.device)
        join(parts, most, most_x, most, found)
    return found[0].permute(1, 2, 0).reshape(m, n, *over.kernel)


@lru_cache(maxsize=PLANS)
def _weighing(
    m: int, n: int, taps: int, places: int, copies: int, slices: int, tile: Tile, device: torch.device
) -> tuple[int, Launch, Launch | None]:
    """In how many parts, and what computes and joins them."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import convolve_weights

    tiles = taps * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
    number, each = parts_of(tiles, places, tile, device)
    whole = Launch(
        convolve_weights, (number * tiles,), (m, n, places, each, taps, copies),
        SLICES=slices, PARTS=number > 1, enable_fp_fusion=False, **tile.options(),
    )  # fmt: skip
    return number, whole, joining(taps * m * n, m, n, number, slices, True) if number > 1 else None
