"""Sums by the halving tree in torch operators: additions of whole tensors, the same on every device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """fp64 sums over `dims` (kept with size 1), by the halving tree (`primitives.tree_sum`)."""
    return halved(x, dims, torch.float64, 0)


def halved(x: Tensor, dims: Sequence[int], dtype: torch.dtype, neutral: int) -> Tensor:
    """The halving tree over `dims` in any dtype: of sums (neutral 0) or products (neutral 1)."""
    rows, kept = as_rows(x, dims)
    length = rows.shape[-1]
    if not length:
        return torch.full(kept, neutral, dtype=dtype, device=x.device)
    rows = rows.to(dtype)
    padded = 1 << (length - 1).bit_length()
    if padded != length:
        padding = rows.new_full((*rows.shape[:-1], padded - length), neutral)
        rows = torch.cat((rows, padding), -1)
    while padded > 1:
        padded //= 2
        rows = rows[..., :padded] * rows[..., padded:] if neutral else rows[..., :padded] + rows[..., padded:]
    return rows.reshape(kept)


def as_rows(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, list[int]]:
    """The reduced dimensions, in ascending order, flattened into the last one; and the shape of the result."""
    reduced = sorted({dim % x.dim() for dim in dims}) if x.dim() else []
    others = [dim for dim in range(x.dim()) if dim not in reduced]
    kept = [1 if dim in reduced else size for dim, size in enumerate(x.shape)]
    length = 1
    for dim in reduced:
        length *= x.shape[dim]
    return x.permute([*others, *reduced]).reshape([*(x.shape[dim] for dim in others), length]), kept
