"""Convolutions of two dimensions whose groups have few channels on a GPU, and their gradients: a lane for each output.

Such a group has too few rows for a product of matrices to be worth its name. Here each lane makes one output from what
it reads where it lies; padding is a mask, and the phases of a gradient are written into its strided places. Guarantees
the bits that `convolutions` has by products; tiles are chosen by speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, ceil_div
from easyscale.numerics.kernels.gpu.row_shapes import power
from easyscale.numerics.kernels.gpu.rows import tree_sum
from easyscale.numerics.kernels.sliced_convolutions import Correlation

MOST_ROWS = 8  # channels out of a group from which on the rows of a product are filled
MOST_PAIRS = 4  # of channels out and in, for the gradient of the weight
MOST_TAPS = 49  # they are unrolled
VALUES = 512  # outputs of one program
AHEAD = 4  # steps that are loaded before they are needed
PLANS = 4096
_WHOLE = 2**31

# A phase of a gradient: the first input element and how many, the first tap and their step, the place of the first tap,
# its step, and how many taps; each of these for both dimensions.
Phase = tuple[tuple[int, int], ...]


def takes(channels: int, inner: int, kernel: Sequence[int], block: int, *tensors: Tensor) -> bool:
    """Whether groups of so many channels in the result, and `inner` with such a kernel in k, are computed here."""
    taps = prod(kernel)
    few = channels <= MOST_ROWS and taps <= MOST_TAPS and inner * taps <= block and len(kernel) == 2
    return few and all(_extent(x) < _WHOLE for x in tensors)


def takes_gradient(channels: int, inner: int, kernel: Sequence[int], *tensors: Tensor) -> bool:
    """The same for the gradient of a weight."""
    few = channels * inner <= MOST_PAIRS and prod(kernel) <= MOST_TAPS and len(kernel) == 2
    return few and all(_extent(x) < _WHOLE for x in tensors)


def _extent(x: Tensor) -> int:
    return _reach(x.shape, x.stride())


@lru_cache(maxsize=PLANS)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """fp32, laid out as what it is made from."""
    last = not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=torch.float32, device=like.device, memory_format=layout)


# ------------------------------------------------------------------------------------------- forward, gradient of input


def forward(x: Tensor, weight: Tensor, over: Correlation, groups: int) -> Tensor:
    """fp32 [images, channels out, *positions]."""
    out = _empty((x.shape[0], weight.shape[0], *over.size), x)
    if out.numel():
        plan = _forward_plan(
            x.shape, x.stride(), weight.shape, weight.stride(), out.stride(), over, groups, x.dtype, x.device
        )
        plan(x, weight, out)
    return out


def input_gradient(
    grad: Tensor, weight: Tensor, phases: Sequence[tuple[Correlation, Phase]], groups: int, size: Sequence[int]
) -> Tensor:
    """fp32 [images, channels in, *size], phase by phase (hashable: plans are kept by them)."""
    out = _empty((grad.shape[0], groups * weight.shape[1], *size), grad)
    if sum(prod(over.size) for over, _ in phases) < prod(size):
        out.zero_()
    if out.numel():
        plans = _gradient_plans(
            grad.shape, grad.stride(), weight.shape, weight.stride(), out.stride(), tuple(phases), groups, grad.dtype,
            grad.device,
        )  # fmt: skip
        for plan in plans:
            plan(grad, weight, out)
    return out


@lru_cache(maxsize=PLANS)
def _forward_plan(
    shape: torch.Size, strides: tuple[int, ...], weight: torch.Size, factors: tuple[int, ...], places: tuple[int, ...],
    over: Correlation, groups: int, dtype: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    """The last arguments are what a launch is kept by, here and below."""
    m, inner = weight[0] // groups, weight[1]
    return _launch(shape, strides, over, groups, m, inner, (0, m * factors[0], *factors), (0, *places))


@lru_cache(maxsize=PLANS)
def _gradient_plans(
    shape: torch.Size, strides: tuple[int, ...], weight: torch.Size, factors: tuple[int, ...], places: tuple[int, ...],
    phases: tuple[tuple[Correlation, Phase], ...], groups: int, dtype: torch.dtype,
    device: torch.device,
) -> tuple[Launch, ...]:  # fmt: skip
    m, inner = weight[1], weight[0] // groups
    made = []
    for over, phase in phases:
        if not prod(over.size):
            continue
        (first_y, step_y), (first_x, step_x), (tap_y, by_y), (tap_x, by_x) = phase
        first = tap_y * factors[2] + tap_x * factors[3]
        walk = (first, inner * factors[0], factors[1], factors[0], by_y * factors[2], by_x * factors[3])
        start = first_y * places[2] + first_x * places[3]
        into = (start, places[0], places[1], step_y * places[2], step_x * places[3])
        made.append(_launch(shape, strides, over, groups, m, inner, walk, into))
    return tuple(made)


def _launch(
    shape: Sequence[int], strides: Sequence[int], over: Correlation, groups: int, m: int, inner: int,
    factors: Sequence[int], into: Sequence[int],
) -> Launch:  # fmt: skip
    """Of `correlate`: `factors` and `into` are where weights and outputs lie, as the kernel has them."""
    from easyscale.numerics.kernels.gpu.direct_convolution_kernels import correlate

    channels, spots = groups * m, prod(over.size)
    last = strides[1] == 1 != strides[3]
    rows, places = tile_of(channels, last)
    count = shape[0] * ceil_div(channels, rows) * ceil_div(spots, places)
    numbers = (
        channels, spots, over.size[1], *shape[2:], m, inner, *over.low, *over.stride, *over.dilation, *strides,
        *factors, *into,
    )  # fmt: skip
    return Launch(
        correlate, (count,), numbers, DEPTHWISE=m == inner == 1, LAST=last, DOWN=over.kernel[0],
        ACROSS=over.kernel[1], ROWS=rows, PLACES=places, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def tile_of(channels: int, last: bool) -> tuple[int, int]:
    """Channels and positions of one program: lanes of a warp lie side by side in memory; its values share positions."""
    places = VALUES // 32 if last else 32
    return min(VALUES // places, max(4, power(channels))), places


# ----------------------------------------------------------------------------------------------- gradient of the weight


def weight_gradient(grad: Tensor, x: Tensor, over: Correlation, groups: int, block: int, span: int) -> Tensor:
    """fp32 [channels out, channels in of a group, *kernel]."""
    shape = (grad.shape[1], x.shape[1] // groups, *over.kernel)
    k = grad.shape[0] * prod(over.size)
    spans = ceil_div(k, span)
    if not k or not prod(shape):
        return torch.zeros(shape, dtype=torch.float32, device=grad.device)
    out = torch.empty((*shape, spans), dtype=torch.float32, device=grad.device)
    plan = _weight_plan(
        grad.shape, grad.stride(), x.shape, x.stride(), over, groups, block, span, grad.dtype, grad.device
    )
    plan(grad, x, out)
    return out.squeeze(-1) if spans == 1 else tree_sum(out, (-1,), torch.float32, keep=False)


@lru_cache(maxsize=PLANS)
def _weight_plan(
    shape: torch.Size, strides: tuple[int, ...], seen: torch.Size, steps: tuple[int, ...], over: Correlation,
    groups: int, block: int, span: int, dtype: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    from easyscale.numerics.kernels.gpu.direct_convolution_kernels import correlate_images

    m, inner, spots, taps = shape[1] // groups, seen[1] // groups, prod(over.size), prod(over.kernel)
    k = shape[0] * spots
    spans = ceil_div(k, span)
    numbers = (
        m, inner, k, spots, *over.size, spans, *seen[2:], taps, over.kernel[1], *over.low, *over.stride, *over.dilation,
        *strides, *steps,
    )  # fmt: skip
    lanes = span // block * power(taps)
    return Launch(
        correlate_images, (shape[1] * inner * spans,), numbers, TAPS=power(taps), BLOCK=block, BLOCKS=span // block,
        AHEAD=min(AHEAD, block), num_warps=max(1, min(8, lanes // 32)), enable_fp_fusion=False,
    )  # fmt: skip
