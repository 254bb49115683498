"""Sums over windows: for each output element, the inputs of a range in every dimension, added in row-major order.

    sum = ((0 + x[first]) + x[second]) + ...      in fp32 (fp64 for fp64)

Ranges are given for each dimension as begins and ends, so that pooling, adaptive pooling and both their derivatives
(where the ranges are those of the outputs that cover an input) are the same function. Plain torch operators.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]  # (begin, end) for each output of a dimension


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


def window_sum(
    x: Tensor, ranges: Sequence[Ranges], keep: Callable[[Callable[[Tensor], Tensor]], Tensor] | None = None
) -> Tensor:
    """Sums over the last len(ranges) dimensions. `keep` is given a function that picks the elements of this step out of
    a tensor like x, and says which of them count; without it all do."""
    dims = len(ranges)
    dtype = torch.promote_types(x.dtype, torch.float32)
    outer = x.shape[: x.dim() - dims]
    total = torch.zeros((*outer, *map(len, ranges)), dtype=dtype, device=x.device)
    steps = [_steps(each, x.shape[axis - dims], x.device) for axis, each in enumerate(ranges)]
    for combination in itertools.product(*steps):

        def pick(tensor: Tensor, chosen: tuple[tuple[Tensor, Tensor | None], ...] = combination) -> Tensor:
            for axis, (places, _) in enumerate(chosen):
                tensor = tensor.index_select(axis - dims, places)
            return tensor

        summand = pick(x).to(dtype)
        if keep is not None:
            summand = torch.where(keep(pick), summand, 0)
        for axis, (_, mask) in enumerate(combination):
            if mask is not None:
                summand = torch.where(mask.view(-1, *[1] * (dims - 1 - axis)), summand, 0)
        total = total + summand
    return total
