"""Sums over windows: for each output element, the inputs of a range in every dimension, added in row-major order.

    sum = ((0 + x[first]) + x[second]) + ...      in fp32 (fp64 for fp64)

Ranges are given for each dimension as begins and ends, so that pooling, adaptive pooling and both their derivatives
(where the ranges are those of the outputs that cover an input) are the same function: on CUDA one kernel
(`gpu.windows`), elsewhere plain torch operators.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives
from easyscale.numerics.kernels.gpu import windows as gpu_windows

Ranges = tuple[tuple[int, int], ...]  # (begin, end) for each output of a dimension
Divisors = tuple[tuple[int, ...], ...]  # for each dimension, one factor for each place of it


@functools.lru_cache(maxsize=1024)
def pooled(size: int, outputs: int, kernel: int, stride: int, padding: int) -> Ranges:
    """The inputs of each output of a pooling."""
    begins = [number * stride - padding for number in range(outputs)]
    return tuple((max(begin, 0), max(min(begin + kernel, size), 0)) for begin in begins)


@functools.lru_cache(maxsize=1024)
def adaptive(size: int, outputs: int) -> Ranges:
    """The inputs of each output of an adaptive pooling."""
    return tuple((number * size // outputs, -(-(number + 1) * size // outputs)) for number in range(outputs))


@functools.lru_cache(maxsize=1024)
def covering(ranges: Ranges, size: int) -> Ranges:
    """For each of `size` inputs: the outputs from the first to the last whose range it lies in."""
    found = []
    for place in range(size):
        outputs = [number for number, (begin, end) in enumerate(ranges) if begin <= place < end]
        found.append((outputs[0], outputs[-1] + 1) if outputs else (0, 0))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _steps(ranges: Ranges, size: int, device: torch.device) -> list[tuple[Tensor, Tensor | None]]:
    """For step k: the k-th element of each range, and whether it has one (None where all have)."""
    steps = []
    for k in range(max((end - begin for begin, end in ranges), default=0)):
        there = [begin + k < end for begin, end in ranges]
        places = [min(begin + k, size - 1) for begin, _ in ranges]
        mask = None if all(there) else torch.tensor(there, device=device)
        steps.append((torch.tensor(places, device=device), mask))
    return steps


@functools.lru_cache(maxsize=1024)
def _number(divisors: Divisors, device: torch.device) -> Tensor:
    """What each element of the last dimensions is divided by: the product of one number for each dimension."""
    total = torch.ones([1] * len(divisors), dtype=torch.int64, device=device)
    for axis, each in enumerate(divisors):
        total = total * torch.tensor(each, device=device).view(-1, *[1] * (len(divisors) - 1 - axis))
    return total


def layout_of(shown: Tensor) -> torch.memory_format:
    """The memory format that a result like this tensor has."""
    layout = torch.channels_last if shown.dim() == 4 else torch.channels_last_3d
    if shown.dim() in (4, 5) and shown.is_contiguous(memory_format=layout) and not shown.is_contiguous():
        return layout
    return torch.contiguous_format


def window_sum(
    x: Tensor, ranges: Sequence[Ranges], *, chosen: Tensor | None = None, each: Divisors | None = None,
    whole: Divisors | None = None, layout: torch.memory_format = torch.contiguous_format,
) -> Tensor:  # fmt: skip
    """Sums over the last len(ranges) dimensions, rounded to the dtype of x.

    With `chosen`, whole numbers of x's shape, only those elements count that name the output they are added to
    (row-major in those dimensions). With `each` the elements, with `whole` the sums, are divided by a number.
    """
    if primitives.implementation(x.device) is gpu and x.is_floating_point():
        rows = [gpu_windows.rows_of(one) for one in ranges]
        return gpu_windows.window_sum(x, rows, chosen=chosen, each=each, whole=whole, layout=layout)
    dims = len(ranges)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if each is not None:
        wide = wide / _number(each, x.device).to(wide.dtype)
    sizes = [len(one) for one in ranges]
    own = torch.arange(math.prod(sizes), device=x.device).view(sizes)
    total = torch.zeros((*x.shape[: x.dim() - dims], *sizes), dtype=wide.dtype, device=x.device)
    steps = [_steps(one, x.shape[axis - dims], x.device) for axis, one in enumerate(ranges)]
    for combination in itertools.product(*steps):
        summand = _picked(wide, combination)
        if chosen is not None:
            summand = torch.where(_picked(chosen, combination) == own, summand, 0)
        for axis, (_, mask) in enumerate(combination):
            if mask is not None:
                summand = torch.where(mask.view(-1, *[1] * (dims - 1 - axis)), summand, 0)
        total = total + summand
    if whole is not None:
        total = total / _number(whole, x.device).to(total.dtype)
    return total.to(x.dtype, memory_format=layout)


def _picked(x: Tensor, combination: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    for axis, (places, _) in enumerate(combination):
        x = x.index_select(axis - len(combination), places)
    return x
