"""Pooling. Averages: the window's elements added in row-major order in fp32, divided by their number, rounded once.

The derivative of an average adds the gradients of the outputs that cover an input, each divided by its number, in
row-major order of the outputs; that of a maximum the gradients of the outputs that chose it. Forward maxima only
compare and stay stock. On CPUs stock kernels compute exactly this in fp32 (not for adaptive averages, whose order
depends on the memory format) and stay; bf16 and fp16 go by way of fp32. On CUDA all of it is by `windows`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.stock import stock
from easyscale.numerics.kernels.windows import Divisors, Ranges, adaptive, covering, layout_of, pooled, window_sum

_HALVES = (torch.bfloat16, torch.float16)


def _each(values: Sequence[int], dims: int) -> tuple[int, ...]:
    return (values[0],) * dims if len(values) == 1 else tuple(values)


def _size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How many outputs a pooling has along one dimension."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    outputs = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:
        outputs -= 1  # the last window would begin outside
    return outputs


# ------------------------------------------------------------------------------------------- averages


@functools.lru_cache(maxsize=1024)
def _divisors(
    sizes: tuple[int, ...], outputs: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], include: bool, override: int | None,
) -> Divisors:  # fmt: skip
    """What each sum is divided by."""
    if override is not None:
        return ((override,) * outputs[0], *((1,) * size for size in outputs[1:]))
    found = []
    for axis, size in enumerate(sizes):
        counts = []
        for number in range(outputs[axis]):
            begin = number * stride[axis] - padding[axis]
            end = min(begin + kernel[axis], size + padding[axis])
            counts.append(end - begin if include else min(end, size) - max(begin, 0))
        found.append(tuple(counts))
    return tuple(found)


def _layout(self: Tensor, dims: int) -> torch.memory_format:
    """Averages in three dimensions are row-major whatever the input is, as in stock on CPUs."""
    return layout_of(self) if dims == 2 else torch.contiguous_format


def average(
    self: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None, dims: int,
) -> Tensor:  # fmt: skip
    """Forward, by `windows`."""
    kernel, step = _each(kernel_size, dims), _each(stride or kernel_size, dims)
    pads, sizes = _each(padding, dims), tuple(self.shape[-dims:])
    outputs = tuple(_size(sizes[i], kernel[i], step[i], pads[i], 1, ceil_mode) for i in range(dims))
    ranges = [pooled(sizes[i], outputs[i], kernel[i], step[i], pads[i]) for i in range(dims)]
    divisors = _divisors(sizes, outputs, kernel, step, pads, count_include_pad, divisor_override)
    return window_sum(self, ranges, whole=divisors, layout=_layout(self, dims))


def average_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, dims: int,
) -> Tensor:  # fmt: skip
    """Backward, by `windows`."""
    kernel, step = _each(kernel_size, dims), _each(stride or kernel_size, dims)
    pads, sizes, outputs = _each(padding, dims), tuple(self.shape[-dims:]), tuple(grad_output.shape[-dims:])
    ranges = [covering(pooled(sizes[i], outputs[i], kernel[i], step[i], pads[i]), sizes[i]) for i in range(dims)]
    divisors = _divisors(sizes, outputs, kernel, step, pads, count_include_pad, divisor_override)
    return window_sum(grad_output, ranges, each=divisors, layout=_layout(self, dims))


def _averages(dims: int) -> None:
    forward, backward = stock(f"avg_pool{dims}d"), stock(f"avg_pool{dims}d_backward")

    @form(f"avg_pool{dims}d")
    def avg_pool(
        self: Tensor, kernel_size: list[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        rest = (kernel_size, list(stride), list(padding), ceil_mode, count_include_pad, divisor_override)
        if self.device.type != "cpu":
            return average(self, *rest, dims)
        if self.dtype in _HALVES:
            return forward(self.float(), *rest).to(self.dtype)  # type: ignore[no-any-return]
        return forward(self, *rest)  # type: ignore[no-any-return]

    @form(f"avg_pool{dims}d_backward")
    def avg_pool_backward(
        grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int],
        ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
    ) -> Tensor:  # fmt: skip
        rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        if self.device.type != "cpu":
            return average_backward(grad_output, self, *rest, dims)
        if self.dtype in _HALVES:
            wide = backward(grad_output.float(), self.float(), *rest)
            return wide.to(self.dtype)  # type: ignore[no-any-return]
        return backward(grad_output, self, *rest)  # type: ignore[no-any-return]


_averages(2)
_averages(3)


# ------------------------------------------------------------------------------------------- adaptive averages

_avg_pool = {dims: stock(f"avg_pool{dims}d") for dims in (2, 3)}
_avg_pool_backward = {dims: stock(f"avg_pool{dims}d_backward") for dims in (2, 3)}


def _kernels(sizes: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """The kernel of the plain pooling that an adaptive one is, where all windows have one size and none overlap."""
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        return None
    return [size // output for size, output in zip(sizes, outputs, strict=True)]


def _counts(ranges: Sequence[Ranges]) -> Divisors:
    return tuple(tuple(end - begin for begin, end in each) for each in ranges)


def _adaptive_averages(dims: int) -> None:
    @form(f"_adaptive_avg_pool{dims}d")
    def adaptive_avg_pool(self: Tensor, output_size: list[int]) -> Tensor:
        sizes, outputs = self.shape[-dims:], _each(output_size, dims)
        if self.numel() == 0 or math.prod(outputs) == 0:
            return self.new_zeros((*self.shape[:-dims], *outputs))
        kernel = _kernels(sizes, outputs)
        if kernel is not None and self.device.type == "cpu":
            wide = self.float() if self.dtype in _HALVES else self
            made = _avg_pool[dims](wide, kernel, kernel, [0] * dims, False, True, None)
            return made.to(self.dtype)  # type: ignore[no-any-return]
        ranges = [adaptive(sizes[i], outputs[i]) for i in range(dims)]
        return window_sum(self, ranges, whole=_counts(ranges), layout=layout_of(self))

    @form(f"_adaptive_avg_pool{dims}d_backward")
    def adaptive_avg_pool_backward(grad_output: Tensor, self: Tensor) -> Tensor:
        sizes, outputs = self.shape[-dims:], grad_output.shape[-dims:]
        if grad_output.numel() == 0:
            return torch.zeros_like(self)
        kernel = _kernels(sizes, outputs)
        if kernel is not None and self.device.type == "cpu":
            wide = grad_output.to(torch.promote_types(grad_output.dtype, torch.float32))
            shown = self.to(wide.dtype)
            made = _avg_pool_backward[dims](wide, shown, kernel, kernel, [0] * dims, False, True, None)
            return made.to(self.dtype)  # type: ignore[no-any-return]
        ranges = [adaptive(sizes[i], outputs[i]) for i in range(dims)]
        covered = [covering(ranges[i], sizes[i]) for i in range(dims)]
        return window_sum(grad_output, covered, each=_counts(ranges), layout=layout_of(self))


_adaptive_averages(2)
_adaptive_averages(3)


# ------------------------------------------------------------------------------------------- maxima


def maximum_backward(grad_output: Tensor, self: Tensor, indices: Tensor, ranges: Sequence[Ranges]) -> Tensor:
    """Gradients of the outputs that chose an input; `ranges`: the outputs that may have chosen it."""
    return window_sum(grad_output, ranges, chosen=indices, layout=layout_of(self))


def _maxima(dims: int) -> None:
    backward = stock(f"max_pool{dims}d_with_indices_backward")

    @form(f"max_pool{dims}d_with_indices_backward")
    def max_pool_backward(
        grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int],
        dilation: list[int], ceil_mode: bool, indices: Tensor,
    ) -> Tensor:  # fmt: skip
        rest = (kernel_size, stride, padding, dilation, ceil_mode, indices)
        if self.device.type == "cpu":
            if self.dtype in _HALVES:
                return backward(grad_output.float(), self.float(), *rest).to(self.dtype)  # type: ignore[no-any-return]
            return backward(grad_output, self, *rest)  # type: ignore[no-any-return]
        return maximum_backward(grad_output, self, indices, max_ranges(grad_output, self, *rest[:4], dims))

    backward_adaptive = stock(f"adaptive_max_pool{dims}d_backward")

    @form(f"adaptive_max_pool{dims}d_backward")
    def adaptive_max_pool_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
        if self.device.type == "cpu":
            if self.dtype in _HALVES:
                wide = backward_adaptive(grad_output.float(), self.float(), indices)
                return wide.to(self.dtype)  # type: ignore[no-any-return]
            return backward_adaptive(grad_output, self, indices)  # type: ignore[no-any-return]
        return maximum_backward(grad_output, self, indices, adaptive_ranges(grad_output, self, dims))


def max_ranges(
    grad_output: Tensor, self: Tensor, kernel_size: list[int], stride: list[int], padding: list[int],
    dilation: list[int], dims: int,
) -> list[Ranges]:  # fmt: skip
    kernel, step = _each(kernel_size, dims), _each(stride or kernel_size, dims)
    pads, apart = _each(padding, dims), _each(dilation, dims)
    sizes, outputs = self.shape[-dims:], grad_output.shape[-dims:]
    spans = [apart[i] * (kernel[i] - 1) + 1 for i in range(dims)]
    return [covering(pooled(sizes[i], outputs[i], spans[i], step[i], pads[i]), sizes[i]) for i in range(dims)]


def adaptive_ranges(grad_output: Tensor, self: Tensor, dims: int) -> list[Ranges]:
    sizes, outputs = self.shape[-dims:], grad_output.shape[-dims:]
    return [covering(adaptive(sizes[i], outputs[i]), sizes[i]) for i in range(dims)]


_maxima(2)
_maxima(3)
