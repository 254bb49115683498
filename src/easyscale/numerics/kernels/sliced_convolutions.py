"""Convolutions of two dimensions by exact integer slices, and the gradients of their weights.

As products by slices (`primitives.sliced_product`), but what is convolved is cut once and not for each of the windows
that see it. So it is scaled by the largest value of an image (forward, gradient of the input) or of a channel over all
images (gradient of the weight), and the weights, or the gradient's channels, by the largest of theirs. All is summed
exactly, in any order, and rounded once. What is not finite gives NaN: to all that its image, or its channel, takes part
in. Whether a convolution is computed so depends on shape and dtype alone (`slices_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels import primitives, products
from easyscale.numerics.kernels.portable.products import largest_bits

SLICED_CHANNELS = 64  # of input and of output: fewer do not fill what a tensor core takes at a time
# Values of an image, which are scaled by the largest of them: with more, one outlier costs all others too many bits
# (benchmarks/d2_accuracy.py).
SLICED_VALUES = 2**21
_COLUMNS_BYTES = 2**28  # of columns at a time


@dataclass(frozen=True, slots=True)
class Correlation:
    """How taps lie over pictures, each number for both dimensions: output y sees the picture's rows
    y * stride - low + tap * dilation; what is not there counts as +0."""

    kernel: tuple[int, ...]
    low: tuple[int, ...]
    size: tuple[int, ...]  # of the output
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def always_chains(inner: int, out: int, kernel: Sequence[int], groups: int) -> bool:
    """Whether these channels are never computed by slices, wherever the taps lie."""
    return groups != 1 or len(kernel) != 2 or min(out, inner) < SLICED_CHANNELS


def slices_of(images: int, inner: int, out: int, over: Correlation, groups: int, dtype: torch.dtype) -> int:
    """How many slices the gradient of the weights of a correlation is computed by; 0: by FMA chains."""
    if always_chains(inner, out, over.kernel, groups):
        return 0
    depth, positions = inner * prod(over.kernel), images * prod(over.size)
    if out * positions * depth < products.SLICED_FROM or max(depth, positions) >= products.SLICED_MOST:
        return 0
    return products.SLICES if dtype is torch.float32 else products.SLICES_HALF


def slices_by_image(shape: Sequence[int], out: int, over: Correlation, groups: int, dtype: torch.dtype) -> int:
    """How many slices a correlation of images [images, channels, *positions] is computed by; 0: by FMA chains."""
    if prod(shape[1:]) > SLICED_VALUES:
        return 0
    return slices_of(shape[0], shape[1], out, over, groups, dtype)


def forward(x: Tensor, weight: Tensor, over: Correlation, slices: int) -> Tensor:
    """fp32 [images, channels out, *positions]."""
    there = primitives.implementation(x.device)
    if hasattr(there, "sliced_convolution"):
        return there.sliced_convolution(x, weight, over, slices)  # type: ignore[no-any-return]
    matrix = weight.reshape(weight.shape[0], -1)
    most_rows, most = largest_bits(matrix, (1,)), largest_bits(x, (1, 2, 3))
    found = []
    for number, image in enumerate(x):
        columns = _windows(image[None], over).reshape(matrix.shape[1], -1)
        scales = most[number].expand(columns.shape[1])
        found.append(primitives.sliced_product(matrix, columns, slices, most_rows, scales).view(-1, *over.size))
    return torch.stack(found)


def weight_gradient(grad: Tensor, x: Tensor, over: Correlation, slices: int) -> Tensor:
    """fp32 [channels out, channels in, *kernel]."""
    there = primitives.implementation(x.device)
    if hasattr(there, "sliced_weight_gradient"):
        found: Tensor = there.sliced_weight_gradient(grad, x, over, slices)
        return found
    rows = grad.movedim(0, 1).reshape(grad.shape[1], -1)
    taps = prod(over.kernel)
    most_rows, most = largest_bits(rows, (1,)), largest_bits(x, (0, 2, 3))
    each = max(1, _COLUMNS_BYTES // (4 * rows.shape[1] * taps))
    parts = []
    for part, scales in zip(x.split(each, 1), most.split(each), strict=True):
        columns = _windows(part, over).movedim(0, 3).reshape(-1, rows.shape[1])
        scales = scales[:, None].expand(-1, taps).reshape(-1)
        parts.append(primitives.sliced_product(rows, columns.t(), slices, most_rows, scales))
    return torch.cat(parts, 1).view(grad.shape[1], x.shape[1], *over.kernel)


def _windows(x: Tensor, over: Correlation) -> Tensor:
    """What each tap sees: a view [images, channels, *kernel, *positions] of x padded with +0."""
    sides = []
    for size, low, count, step, reach, taps in zip(
        x.shape[2:], over.low, over.size, over.stride, over.dilation, over.kernel, strict=True
    ):
        sides.append((low, (count - 1) * step + reach * (taps - 1) + 1 - low - size))  # negative: cut off
    x = torch.constant_pad_nd(x, [side for pair in reversed(sides) for side in pair])
    step = x.stride()
    taps_ = [s * d for s, d in zip(step[2:], over.dilation, strict=True)]
    moves = [s * d for s, d in zip(step[2:], over.stride, strict=True)]
    return x.as_strided((*x.shape[:2], *over.kernel, *over.size), (*step[:2], *taps_, *moves), x.storage_offset())
