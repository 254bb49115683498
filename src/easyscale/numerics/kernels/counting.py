"""Histograms: the bin of an element is found in fp64, (x - min) * bins / (max - min), and bins are counted."""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.reductions import number
from easyscale.numerics.kernels.registry import form


@form("histc")
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Elements outside are left out; the last bin has both its ends. No bounds: the least and the largest element."""
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    x = self.reshape(-1).double()
    low, high = number(float(min), x), number(float(max), x)
    if min == max and x.numel():
        low, high = x.amin(), x.amax()
    low, high = torch.where(low == high, low - 1.0, low), torch.where(low == high, high + 1.0, high)
    if not bool(torch.isfinite(high - low)):
        raise RuntimeError(f"range of [{low.item()}, {high.item()}] is not finite")
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, ((x - low) * float(bins)) / (high - low), 0.0).long().clamp_(max=bins - 1)
    return torch.bincount(torch.where(inside, place, bins), minlength=bins + 1)[:bins].to(self.dtype)
