"""D2 forms of convolution, in one to three dimensions, transposed and grouped, and of its gradients.

All are products of a matrix of weights with a matrix of columns: FMA chains (`products.chains`), or, where they are
large enough, exact slices (`sliced_convolutions`). Only the order of k is left to be defined:

    forward      k over (channel of the group, taps), taps in row-major order; a tap that lies in the padding takes
                 part with +0. A bias is added after, in fp32.
    weight       k over (image, output positions), in row-major order.
    input        k over (output channel of the group, output positions that touch the input element, ascending in
                 row-major order); positions that lie outside take part with +0. With a stride, elements whose position
                 leaves the same rest have the same taps: one product for each rest (a phase). No taps: +0.
    bias         the fp64 tree over (image, output positions).

The forward of a transposed convolution is the input gradient of the convolution that it transposes, and the other way
round. Which form is used depends on dtype and on the shape of the whole product, (channels out of a group, images times
positions, k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from itertools import product as pairs
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives, products, sliced_convolutions
from easyscale.numerics.kernels.products import chains, check_dtype, reads_views, view_chains
from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.sliced_convolutions import Correlation, always_chains, slices_by_image, slices_of

# Positions of one image below which all images are joined to one wide product: speed only. The other number holds for
# kernels of one tap on a GPU, where joining needs a copy or a gathering.
_NARROW, _NARROW_MATRIX = 256, 32

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True)
class Window:
    """How taps lie over an input: one number for each dimension of space."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def over(self, positions: Sequence[int]) -> Correlation:
        """This window over so many positions, as slices have it."""
        return Correlation(self.kernel, self.padding, tuple(positions), self.stride, self.dilation)

    def reach(self) -> list[int]:
        """Input elements from the first tap to the last."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def positions(self, size: Sequence[int]) -> list[int]:
        """Output positions over an input of this size."""
        return [
            (n + 2 * p - r) // s + 1
            for n, p, r, s in zip(size, self.padding, self.reach(), self.stride, strict=True)
        ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ columns


def columns(x: Tensor, window: Window, low: Sequence[int], high: Sequence[int], count: Sequence[int]) -> Tensor:
    """What each tap sees: a view [images, channels, *kernel, *count] of x padded with +0 by `low` and `high`."""
    if any(low) or any(high):
        pads = [side for pair in zip(reversed(low), reversed(high), strict=True) for side in pair]
        x = torch.constant_pad_nd(x, pads)
    step = x.stride()
    taps = [s * d for s, d in zip(step[2:], window.dilation, strict=True)]
    moves = [s * d for s, d in zip(step[2:], window.stride, strict=True)]
    return x.as_strided((*x.shape[:2], *window.kernel, *count), (*step[:2], *taps, *moves), x.storage_offset())


def _correlate(weight: Tensor, seen: Tensor, groups: int, dims: int) -> Tensor:
    """fp32 [images, channels out, *positions]: weight [groups, out, k] times what is seen, a view by `columns`."""
    images, positions = seen.shape[0], seen.shape[2 + dims :]
    out, depth = weight.shape[1:]
    spots = positions.numel()
    # Kernels of one tap: the view is a matrix for each image already, and so are the results.
    matrices = seen.shape[2 : 2 + dims].numel() == 1
    if matrices and groups == 1 and spots >= _NARROW_MATRIX and _direct(seen.device):
        return chains(weight.expand(images, -1, -1), seen.reshape(images, depth, spots)).view(images, out, *positions)
    ready = matrices and seen.device.type == "cpu" and spots >= _NARROW
    if (reads_views(seen.device) and not ready) or (spots < _NARROW and images > 1):
        view = seen.unflatten(1, (groups, -1)).movedim((1, 0), (0, 2 + dims))
        return view_chains(weight, view, 1 + dims).view(groups * out, images, *positions).movedim(1, 0)
    matrix = seen.reshape(images * groups, depth, spots)
    repeated = weight if images == 1 else weight.expand(images, *weight.shape).reshape(-1, out, depth)
    return chains(repeated, matrix).view(images, groups * out, *positions)


def _direct(device: torch.device) -> Any:
    """What computes groups of few channels without products of matrices, where there is such a thing."""
    return getattr(primitives.implementation(device), "direct_convolutions", None)


class _Pointwise:
    """Products of one matrix, by kernels of one tap, with what lies at each place of all images."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, run: Callable[..., None]) -> None:
        self.shape, self.device, self.run = shape, device, run

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        out = torch.empty(self.shape, dtype=torch.float32, device=self.device)
        self.run(weight, x, out)
        return out


@lru_cache(maxsize=4096)
def _pointwise(
    shape: tuple[int, ...], strides: tuple[int, ...], m: int, row: int, step: int, window: Window, groups: int,
    dtype: torch.dtype, device: torch.device,
) -> _Pointwise | None:  # fmt: skip
    """On a GPU, one launch for images of this shape and layout and a matrix of `m` rows with these strides. None where
    it needs more than that, or slices: then as other windows."""
    if groups != 1 or any(window.padding) or not all(n == 1 for n in (*window.kernel, *window.stride)):
        return None
    spots, k = prod(shape[2:]), shape[1]
    sides = [side for side in zip(shape[2:], strides[2:], strict=True) if side[0] != 1]
    joined = all(outer == size * inner for (_, outer), (size, inner) in pairwise(sides))
    walk = sides[-1][1] if sides else 1
    if slices_by_image(shape, m, window.over(shape[2:]), groups, dtype):
        return None
    if not joined or not shape[0] or not m or not k or k > products.SPAN or spots < _NARROW_MATRIX:
        return None
    if gpu.products.turned(m, (strides[1], walk)):
        return None
    of = shape[0], m, spots, k
    run = gpu.products.chain_plan(of, (0, row, step), (strides[0], strides[1], walk), products.BLOCK, dtype, device)
    return _Pointwise((shape[0], m, *shape[2:]), device, run)


# ------------------------------------------------------------------------------------------------ the three products


@lru_cache(maxsize=4096)
def _over(window: Window, shape: tuple[int, ...]) -> Correlation:
    return window.over(window.positions(shape[2:]))


def forward(x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """fp32 [images, channels out, *positions]."""
    over = _over(window, x.shape)
    slices = slices_by_image(x.shape, weight.shape[0], over, groups, x.dtype)
    if slices:
        return sliced_convolutions.forward(x, weight, over, slices)
    direct = _direct(x.device)
    if direct and direct.takes(weight.shape[0] // groups, weight.shape[1], over.kernel, products.BLOCK, x, weight):
        found: Tensor = direct.forward(x, weight, over, groups)
        return found
    if direct:
        outputs = weight.shape[0], weight.stride(0), weight.stride(1)
        plan = _pointwise(x.shape, x.stride(), *outputs, window, groups, x.dtype, x.device)
        if plan is not None:
            return plan(weight, x)
    seen = columns(x, window, window.padding, window.padding, over.size)
    return _correlate(weight.reshape(groups, weight.shape[0] // groups, -1), seen, groups, len(window.kernel))


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """fp32 [channels out, channels in of a group, *kernel]."""
    dims = len(window.kernel)
    over = window.over(grad.shape[2:])
    slices = slices_of(x.shape[0], weight.shape[1], weight.shape[0], over, groups, x.dtype)
    if slices:
        return sliced_convolutions.weight_gradient(grad, x, over, slices)
    direct = _direct(x.device)
    if direct and direct.takes_gradient(grad.shape[1] // groups, weight.shape[1], over.kernel, grad, x):
        found: Tensor = direct.weight_gradient(grad, x, over, groups, products.BLOCK, products.SPAN)
        return found
    alone = groups == 1 and not any(window.padding) and all(n == 1 for n in (*window.kernel, *window.stride))
    if direct and alone and x.shape[2:] == grad.shape[2:] and x.numel() and grad.numel():
        matrix = x.movedim(1, -1).reshape(-1, x.shape[1])  # channels are neighbours
        rows = grad.transpose(0, 1).reshape(grad.shape[1], -1)
        plan = gpu.products.matrix_chains(
            rows.shape[0], matrix.shape[1], matrix.shape[0], rows.stride(), matrix.stride(), x.dtype, x.device,
            products.BLOCK, products.SPAN,
        )  # fmt: skip
        return plan(rows, matrix).view(weight.shape)
    seen = columns(x, window, window.padding, window.padding, grad.shape[2:])
    rows = grad.movedim(0, 1).reshape(groups, grad.shape[1] // groups, grad.shape[0] * grad.shape[2:].numel())
    if direct and groups == 1 and weight.shape[2:].numel() == 1:
        matrix = seen.movedim(1, -1).reshape(1, rows.shape[2], seen.shape[1])  # channels are neighbours
        return view_chains(rows, matrix, 1).view(weight.shape)
    if reads_views(seen.device):
        view = seen.unflatten(1, (groups, -1)).movedim((1, 0), (0, 1)).movedim(
            tuple(range(-dims, 0)), tuple(range(2, 2 + dims))
        )
        return view_chains(rows, view, 1 + dims).view(weight.shape)
    depth = seen.shape[1] // groups * seen.shape[2 : 2 + dims].numel()
    matrix = seen.movedim(0, 1 + dims).reshape(groups, depth, seen.shape[0] * grad.shape[2:].numel())
    return chains(rows, matrix.mT).view(weight.shape)


def input_gradient(grad: Tensor, weight: Tensor, window: Window, groups: int, size: Sequence[int]) -> Tensor:
    """fp32 [images, channels in, *size]."""
    dims = len(window.kernel)
    inner, outer = weight.shape[1], weight.shape[0] // groups
    direct, few = _direct(grad.device), always_chains(inner, outer, window.kernel, groups)
    if direct and few and direct.takes(inner, outer, window.kernel, products.BLOCK, grad, weight):
        found: Tensor = direct.input_gradient(grad, weight, _phases(window, tuple(size)), groups, size)
        return found
    if direct and grad.shape[2:] == tuple(size):
        outputs = inner, weight.stride(1), weight.stride(0)
        plan = _pointwise(grad.shape, grad.stride(), *outputs, window, groups, grad.dtype, grad.device)
        if plan is not None:
            return plan(weight, grad)
    # [groups, channels out of a group, channels in of a group, *kernel] -> channels in first
    turned = weight.unflatten(0, (groups, weight.shape[0] // groups)).transpose(1, 2)
    if all(s == 1 for s in window.stride):
        return _phase(grad, turned, [_Phase.of(window, d, 0, size[d]) for d in range(dims)], groups)
    out = torch.zeros((grad.shape[0], groups * inner, *size), dtype=torch.float32, device=grad.device)
    for rests in pairs(*(range(s) for s in window.stride)):
        phases = [_Phase.of(window, d, rest, size[d]) for d, rest in enumerate(rests)]
        if all(phase.count and phase.taps for phase in phases):
            place = [slice(phase.first, None, s) for phase, s in zip(phases, window.stride, strict=True)]
            out[:, :, *place] = _phase(grad, turned, phases, groups)
    return out


@dataclass(frozen=True, slots=True)
class _Phase:
    """Input elements of one dimension whose position, with the padding, leaves one rest modulo the stride."""

    first: int  # the first of these elements
    count: int  # how many there are
    taps: range  # the taps that reach them, descending: output positions ascend
    dilation: int  # output positions between two taps
    start: int  # the output position of the first tap over the first element; may lie outside

    @classmethod
    def of(cls, window: Window, dim: int, rest: int, size: int) -> _Phase:
        stride, dilation, padding = window.stride[dim], window.dilation[dim], window.padding[dim]
        first = (rest - padding) % stride
        count = max(0, -(-(size - first) // stride))
        common = gcd(stride, dilation)
        fitting = [tap for tap in range(window.kernel[dim]) if tap * dilation % stride == rest]
        if not fitting:
            return cls(first, count, range(0), 1, 0)
        taps = range(fitting[-1], fitting[0] - 1, -(stride // common))
        return cls(first, count, taps, dilation // common, (first + padding - taps[0] * dilation) // stride)


@lru_cache(maxsize=4096)
def _phases(window: Window, size: tuple[int, ...]) -> tuple[tuple[Correlation, tuple[tuple[int, int], ...]], ...]:
    """All that have elements and taps, each as a correlation; with the first element and the step to the next, and the
    first tap and the step to the next, of each dimension."""
    found = []
    for rests in pairs(*(range(s) for s in window.stride)):
        phases = [_Phase.of(window, d, rest, size[d]) for d, rest in enumerate(rests)]
        if not all(phase.count and phase.taps for phase in phases):
            continue
        ones = (1,) * len(phases)
        over = Correlation(
            tuple(len(p.taps) for p in phases), tuple(-p.start for p in phases), tuple(p.count for p in phases), ones,
            tuple(p.dilation for p in phases),
        )  # fmt: skip
        elements = [(p.first, s) for p, s in zip(phases, window.stride, strict=True)]
        found.append((over, (*elements, *((p.taps[0], p.taps.step) for p in phases))))
    return tuple(found)


def _phase(grad: Tensor, turned: Tensor, phases: list[_Phase], groups: int) -> Tensor:
    """One dense correlation of the gradient with the taps of a phase."""
    dims = len(phases)
    sizes = turned.shape[3:]
    if any(phase.taps != range(size) for phase, size in zip(phases, sizes, strict=True)):  # taps descend
        chosen = [
            slice(size - 1 - phase.taps[0], size - phase.taps[-1], -phase.taps.step)
            for phase, size in zip(phases, sizes, strict=True)
        ]  # fmt: skip
        turned = turned.flip(tuple(range(3, 3 + dims)))[:, :, :, *chosen]
    ones = (1,) * dims
    counts = [phase.count for phase in phases]
    window = Window(tuple(len(p.taps) for p in phases), ones, (0,) * dims, tuple(p.dilation for p in phases))
    starts = tuple(-phase.start for phase in phases)
    over = Correlation(window.kernel, starts, tuple(counts), ones, window.dilation)
    slices = slices_by_image(grad.shape, turned.shape[1], over, groups, grad.dtype)
    if slices:
        return sliced_convolutions.forward(grad, turned[0], over, slices)
    # a negative padding crops
    low = [-phase.start for phase in phases]
    high = [
        phase.start + reach - 1 + phase.count - size
        for phase, reach, size in zip(phases, window.reach(), grad.shape[2:], strict=True)
    ]  # fmt: skip
    seen = columns(grad, window, low, high, counts)
    matrix = turned.reshape(groups, turned.shape[1], -1)
    return _correlate(matrix, seen, groups, dims)


# ------------------------------------------------------------------------------------------------ forms


def _window(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, groups: int,
) -> Window:  # fmt: skip
    """Checked against the input; each number is given once for all dimensions, or for each."""
    return _checked(
        x.shape, weight.shape, x.dtype, weight.dtype, tuple(stride), tuple(padding), tuple(dilation), transposed, groups
    )


@lru_cache(maxsize=4096)
def _checked(
    x: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, other: torch.dtype, stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], transposed: bool, groups: int,
) -> Window:  # fmt: skip
    dims = len(weight) - 2

    def each(values: tuple[int, ...]) -> tuple[int, ...]:
        return values if len(values) == dims else (values[0],) * dims

    window = Window(tuple(weight[2:]), each(stride), each(padding), each(dilation))
    check_dtype("convolution", dtype)
    if other is not dtype:
        raise RuntimeError(f"convolution: expected tensors of one dtype, but got {dtype} and {other}")
    expected = weight[0] if transposed else weight[1] * groups
    if len(x) != len(weight) or x[1] != expected or weight[0] % groups:
        raise RuntimeError(
            f"convolution: weight of shape {tuple(weight)} with {groups} group(s) does not fit an input of shape "
            f"{tuple(x)}"
        )
    if min(window.stride) < 1 or min(window.dilation) < 1 or min(window.padding) < 0:
        raise RuntimeError(f"convolution: stride and dilation must be positive, padding not negative: {window}")
    if not transposed and min(window.positions(x[2:])) < 1:
        raise RuntimeError(f"convolution: the kernel is larger than the padded input: {window} over {tuple(x)}")
    return window


def _layout(x: Tensor, weight: Tensor) -> torch.memory_format:
    """Channels last where stock would have it: input or weight is laid out so."""
    wanted = _CHANNELS_LAST.get(x.dim())
    if wanted is not None and not (x.is_contiguous() and weight.is_contiguous()):
        for tensor in (x, weight):
            if tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous():
                return wanted
    return torch.contiguous_format


@form("convolution")
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    window = _window(input, weight, stride, padding, dilation, transposed, groups)
    if transposed:
        extra = tuple(output_padding) * (len(window.kernel) if len(output_padding) == 1 else 1)
        size = [
            (n - 1) * s - 2 * p + r + more
            for n, s, p, r, more in zip(
                input.shape[2:], window.stride, window.padding, window.reach(), extra, strict=True
            )
        ]  # fmt: skip
        if min(size) < 1:
            raise RuntimeError(f"convolution: the output would have size {size}")
        out = input_gradient(input, weight, window, groups, size)
    else:
        out = forward(input, weight, window, groups)
    if bias is not None:
        out += bias.view(-1, *(1,) * len(window.kernel))  # in place: one more of it may be the most that fits
    return out.to(input.dtype).contiguous(memory_format=_layout(input, weight))


@form("_convolution")
def convolution_with_flags(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, benchmark: bool,
    deterministic: bool, cudnn_enabled: bool, allow_tf32: bool,
) -> Tensor:  # fmt: skip
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@form("convolution_backward")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    window = _window(input, weight, stride, padding, dilation, transposed, groups)
    layout = _layout(input, weight)
    for_input = for_weight = for_bias = None
    if output_mask[0]:
        if transposed:
            for_input = forward(grad_output, weight, window, groups)
            for_input = for_input[:, :, *[slice(n) for n in input.shape[2:]]]  # output_padding may leave one more
        else:
            for_input = input_gradient(grad_output, weight, window, groups, input.shape[2:])
        for_input = for_input.to(input.dtype).contiguous(memory_format=layout)
    if output_mask[1]:
        seen_by, over = (input, grad_output) if transposed else (grad_output, input)
        for_weight = weight_gradient(seen_by, over, weight, window, groups)
        for_weight = for_weight.to(weight.dtype).contiguous(memory_format=layout)
    if output_mask[2]:
        dims = (0, *range(2, grad_output.dim()))
        for_bias = primitives.tree_sum(grad_output, dims).view(-1).to(torch.float32).to(weight.dtype)
    return for_input, for_weight, for_bias
