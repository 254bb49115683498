"""How gradients lie in a bucket: one after the other, each with its parameter's strides, as in stock DDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where one parameter's gradient lies in its bucket."""

    index: int
    offset: int
    numel: int
    shape: torch.Size
    stride: tuple[int, ...] | None  # None: not dense, stored row-major

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        if self.stride is None:
            return flat[self.offset : self.offset + self.numel].view(self.shape)
        return flat.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class Bucket:
    places: tuple[Place, ...]
    elements: int
    dtype: torch.dtype
    row_major: bool  # all gradients in it lie as their shapes say


def lay_out(parameters: Sequence[torch.Tensor], indices: Sequence[int]) -> Bucket:
    """The bucket of these parameters, in this order."""
    places, offset = [], 0
    for index in indices:
        p = parameters[index]
        places.append(Place(index, offset, p.numel(), p.shape, p.stride() if _dense(p) else None))
        offset += p.numel()
    row_major = all(parameters[i].is_contiguous() or not _dense(parameters[i]) for i in indices)
    return Bucket(tuple(places), offset, parameters[indices[0]].dtype, row_major)


def _dense(tensor: torch.Tensor) -> bool:
    """Non-overlapping and dense: some permutation of its dimensions is contiguous."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
