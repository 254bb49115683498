"""Sums by place: contributions are added to their destination one after the other, in the order of their position.

    result[d] = ((destination[d] + source[i1]) + source[i2]) + ...   for i1 < i2 < ... with index[i] = d

one addition in the dtype of the tensors for each, which is what stock kernels do on CPUs. `gpu.places` does it by one
kernel after a sort. Here it is also written for any device: the r-th contributions of all places are added together in
round r, and within a round all places differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives
from easyscale.numerics.kernels.gpu import places as gpu_places

Operation = Callable[[Tensor, Tensor], Tensor]
_HALVES = (torch.bfloat16, torch.float16)


def larger(a: Tensor, b: Tensor) -> Tensor:
    """b where it is larger or NaN, else a: of equal ones the first stays."""
    return torch.where((b > a) | (b != b), b, a)


def smaller(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b < a) | (b != b), b, a)


_NUMBERS: dict[Operation, int] = {torch.add: 0, torch.mul: 1, larger: 2, smaller: 3}  # by which the kernel knows them


def _by_kernel(x: Tensor) -> bool:
    return primitives.implementation(x.device) is gpu and x.dtype in gpu_places.DTYPES


def add_rows(
    destination: Tensor, index: Tensor, source: Tensor, operation: Operation = torch.add, *, dim: int = 0,
    once: bool = False, left_out: int | None = None, from_end: bool = False,
) -> Tensor:  # fmt: skip
    """Add row i of `source` to row index[i] of the contiguous `destination`, in place, in the order of i. Rows are the
    slices of dimension `dim`.

    `once`: sums of bf16 and fp16 are in fp32 and rounded at the end. Indices equal to `left_out` are left out; with
    `from_end` those below zero count from the end.
    """
    wanted = (*destination.shape[:dim], index.numel(), *destination.shape[dim + 1 :])
    if tuple(source.shape) != wanted or source.dtype is not destination.dtype:
        raise RuntimeError(
            f"cannot add {source.dtype} of shape {tuple(source.shape)} by {index.numel()} indices of dimension {dim} "
            f"to {destination.dtype} of shape {tuple(destination.shape)}"
        )
    if not source.numel():
        return destination
    index = index.reshape(-1)
    if _by_kernel(destination):
        places = gpu_places.sort_places(index, destination.shape[dim], left_out=left_out, from_end=from_end)
        gpu_places.add_sorted(destination, *places, source.contiguous(), dim, _NUMBERS[operation], once)
        return destination
    if once and destination.dtype in _HALVES:
        wide = add_rows(
            destination.float(), index, source.float(), operation, dim=dim, left_out=left_out, from_end=from_end
        )
        return destination.copy_(wide)
    return _add_in_rounds(destination, index.long(), source, operation, dim, left_out, from_end)


def _add_in_rounds(
    destination: Tensor, index: Tensor, source: Tensor, operation: Operation, dim: int, left_out: int | None,
    from_end: bool,
) -> Tensor:  # fmt: skip
    if from_end:
        index = torch.where(index < 0, index + destination.shape[dim], index)
    if left_out is not None:
        kept = (index != left_out).nonzero()[:, 0]
        index, source = index[kept], source.index_select(dim, kept)
    if not index.numel():
        return destination
    into, rows = destination.movedim(dim, 0), source.movedim(dim, 0)
    positions, bounds = _ranks(index)
    marks = bounds.tolist()
    for begin, end in itertools.pairwise(marks):
        chosen = positions[begin:end]
        places = index[chosen]
        into.index_copy_(0, places, operation(into[places], rows[chosen]))
    return destination


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


def add_elements(
    destination: Tensor, places: Tensor, source: Tensor, operation: Operation = torch.add, *, from_end: bool = False
) -> Tensor:
    """Add each element of `source`, in place, to the one of the contiguous `destination`, counted row-major, that
    `places` names."""
    add_rows(destination.view(-1), places.reshape(-1), source.reshape(-1), operation, from_end=from_end)
    return destination


def add_along(
    destination: Tensor, dim: int, index: Tensor, source: Tensor, operation: Operation, once: bool
) -> Tensor:
    """`scatter`'s sum: element [.., i, ..] of `source` is added, in place, to element [.., index[.., i, ..], ..] of the
    contiguous `destination`. `index` has the shape of `source`, and at most the destination's sizes beside `dim`."""
    sizes, shape = index.shape, destination.shape
    others = [axis for axis in range(index.dim()) if axis != dim]
    whole = all(sizes[axis] == shape[axis] for axis in others)
    if whole and all(index.stride(axis) == 0 or sizes[axis] == 1 for axis in others):  # one index for a whole row
        row = index[tuple(slice(None) if axis == dim else 0 for axis in range(index.dim()))]
        return add_rows(destination, row, source, operation, dim=dim, once=once)
    if whole and _by_kernel(destination):
        inner = index[(0,) * dim + (0,)].numel()
        places = gpu_places.sort_places(index, shape[dim], spread=(sizes[dim], inner))
        flat, values = destination.view(-1), source.reshape(-1)
        gpu_places.add_sorted(flat, *places, values, 0, _NUMBERS[operation], once)
        return destination
    places_of_all = places_along(shape, dim, index).reshape(-1)
    add_rows(destination.view(-1), places_of_all, source.reshape(-1), operation, once=once)
    return destination


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
