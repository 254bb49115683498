"""Sums by place: contributions are added to their destination one after the other, in the order of their position.

    result[d] = ((destination[d] + source[i1]) + source[i2]) + ...   for i1 < i2 < ... with index[i] = d

one addition in the dtype of the tensors for each, which is what stock kernels do on CPUs. Here it is written for any
device: the r-th contributions of all places are added together in round r, and within a round all places differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives

Operation = Callable[[Tensor, Tensor], Tensor]


def _ranks(index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions sorted by round and then by place; where each round begins, and the end."""
    ordered, positions = torch.sort(index, stable=True)
    numbers = torch.arange(index.numel(), device=index.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = torch.cummax(torch.where(begins, numbers, 0), dim=0)[0]
    rank = numbers - first
    by_rank, again = torch.sort(rank, stable=True)
    rounds = int(by_rank[-1]) + 1
    bounds = torch.searchsorted(by_rank, torch.arange(rounds + 1, device=index.device))
    return positions[again], bounds


def add_rows(destination: Tensor, index: Tensor, source: Tensor, operation: Operation = torch.add) -> Tensor:
    """Add row i of source [N, ...] to row index[i] of destination [R, ...], in place, in the order of i."""
    if not index.numel() or not source.numel():
        return destination
    if operation is torch.add and hasattr(gpu, "add_rows") and primitives.implementation(destination.device) is gpu:
        return gpu.add_rows(destination, index, source)  # type: ignore[no-any-return]
    positions, bounds = _ranks(index)
    marks = bounds.tolist()
    for begin, end in itertools.pairwise(marks):
        chosen = positions[begin:end]
        places = index[chosen]
        destination.index_copy_(0, places, operation(destination[places], source[chosen]))
    return destination


def add_elements(destination: Tensor, places: Tensor, source: Tensor, operation: Operation = torch.add) -> Tensor:
    """A copy of destination with each element of source added to the one, counted row-major, that `places` names."""
    result = destination.contiguous().clone()
    add_rows(result.view(-1, 1), places.reshape(-1), source.reshape(-1, 1), operation)
    return result


def places_along(shape: torch.Size, dim: int, index: Tensor) -> Tensor:
    """For `scatter`: the place of each element of the index, counted row-major in a tensor of this shape."""
    places = torch.zeros_like(index)
    apart = 1
    for axis in range(len(shape) - 1, -1, -1):
        if axis == dim:
            step = index
        else:
            step = torch.arange(index.shape[axis], device=index.device).view(-1, *[1] * (index.dim() - 1 - axis))
        places = places + step * apart
        apart *= shape[axis]
    return places
