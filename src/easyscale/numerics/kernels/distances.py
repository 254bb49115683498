"""Distances between rows, weights divided by their norm, rows kept below a norm, vector products.

All in fp64, sums by the halving tree, rounded once. cdist and pdist: a norm of x - y, never by way of a matrix product
(stock does so for many rows, and loses small distances). The derivative uses the rounded distance, as stock does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import evaluate, tree_sum
from easyscale.numerics.kernels.reductions import number, root_of, rounded
from easyscale.numerics.kernels.registry import form

_CHUNK = 1 << 22  # differences at a time: bounds the memory


def _power(x: Tensor, exponent: float) -> Tensor:
    return evaluate("pow", [x, torch.full((), exponent, dtype=torch.float64)], dtype=torch.float64)


def norm_of(apart: Tensor, p: float) -> Tensor:
    """fp64 norms over the last dimension, which is left out."""
    if p == 2:
        return root_of(tree_sum(apart * apart, [-1])).squeeze(-1)
    size = apart.abs()
    if p == 1:
        return tree_sum(size, [-1]).squeeze(-1)
    if p == 0:
        return tree_sum((size != 0).double(), [-1]).squeeze(-1)
    if p == math.inf:
        return size.amax(-1) if size.shape[-1] else size.new_zeros(size.shape[:-1])
    return _power(tree_sum(_power(size, p), [-1]), 1.0 / p).squeeze(-1)


def slope_of(apart: Tensor, distance: Tensor, p: float) -> Tensor:
    """The derivative of the norm by each difference, in fp64.

    The distance is the rounded one, of size 1 in the last dimension. For p = inf the differences that are rounded to it
    are the largest.
    """
    if p == 0:
        return torch.zeros_like(apart)
    if p == 1:
        return apart.sign()
    if p == math.inf:
        return apart.sign() * (rounded(apart.abs(), distance.dtype) == distance).double()
    if p == 2:
        return torch.where(distance == 0, 0.0, apart / distance.double())
    size = apart.abs()
    steep = apart.sign() * _power(size, p - 1) / _power(distance.double(), p - 1)
    return torch.where((distance == 0) | (size == 0), 0.0, steep)


def _chunks(rows: int, each: int) -> list[tuple[int, int]]:
    step = max(_CHUNK // max(each, 1), 1)
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


@form("_cdist_forward")
def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    rows, others, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    first, second = (x.double().expand(*batch, *x.shape[-2:]) for x in (x1, x2))
    result = torch.empty((*batch, rows, others), dtype=x1.dtype, device=x1.device)
    for begin, end in _chunks(rows, math.prod(batch) * others * width):
        apart = first[..., begin:end, None, :] - second[..., None, :, :]
        result[..., begin:end, :] = rounded(norm_of(apart, p), x1.dtype)
    return result


@form("_cdist_backward")
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    rows, others, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    first, second = (x.double().expand(*batch, *x.shape[-2:]) for x in (x1, x2))
    result = torch.zeros((*batch, rows, width), dtype=x1.dtype, device=x1.device)
    for begin, end in _chunks(rows, math.prod(batch) * others * width):
        apart = first[..., begin:end, None, :] - second[..., None, :, :]
        slope = slope_of(apart, cdist[..., begin:end, :, None], p)
        gradient = grad[..., begin:end, :, None].double() * slope
        result[..., begin:end, :] = rounded(tree_sum(gradient, [-2]).squeeze(-2), x1.dtype)
    return result


@form("_pdist_forward")
def pdist_forward(self: Tensor, p: float = 2) -> Tensor:
    one, two = torch.triu_indices(self.shape[0], self.shape[0], 1, device=self.device)
    x = self.double()
    return rounded(norm_of(x[one] - x[two], p), self.dtype)


@form("_pdist_backward")
def pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """As that of cdist of the rows with themselves."""
    one, two = torch.triu_indices(self.shape[0], self.shape[0], 1, device=self.device)
    square = []
    for pairs in (grad, pdist):
        filled = torch.zeros((self.shape[0], self.shape[0]), dtype=pairs.dtype, device=self.device)
        filled[one, two] = pairs
        filled[two, one] = pairs
        square.append(filled)
    return cdist_backward(square[0], self, self, p, square[1])


# ------------------------------------------------------------------------------------------------- norms of weights


def _others(x: Tensor, dim: int) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != dim % x.dim()]


@form("_weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v * (g / |v|)"""
    wide = v.double()
    norms = root_of(tree_sum(wide * wide, _others(v, dim)))
    return rounded(wide * (g.double() / norms), v.dtype), rounded(norms, g.dtype)


@form("_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """With n the norm, in fp64 again, and s = sum(grad v): s / n for g; (g / n) (grad - v (s / n^2)) for v."""
    v, gradient, others = saved_v.double(), grad_w.double(), _others(saved_v, dim)
    norms = root_of(tree_sum(v * v, others))
    along = tree_sum(gradient * v, others)
    for_v = (saved_g.double() / norms) * (gradient - v * (along / (norms * norms)))
    return rounded(for_v, saved_v.dtype), rounded(along / norms, saved_g.dtype)


def _scale(norms: Tensor, limit: float) -> Tensor:
    """What brings a norm down to the limit; 1 for those below."""
    return torch.where(norms > limit, number(limit, norms) / (norms + 1e-7), 1.0)


@form("renorm")
def renorm(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    rows = self.double().movedim(dim, 0)
    norms = norm_of(rows.reshape(rows.shape[0], -1), float(p))
    scale = _scale(norms, float(maxnorm)).view(-1, *[1] * (self.dim() - 1))
    return rounded((rows * scale).movedim(0, dim), self.dtype).contiguous()


@form("embedding_renorm_")
def embedding_renorm_(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    places = torch.unique(indices.reshape(-1))
    rows = self[places].double()
    scale = _scale(norm_of(rows, norm_type), max_norm)
    return self.index_copy_(0, places, rounded(rows * scale[:, None], self.dtype))


@form("linalg_cross")
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    first, second = torch.broadcast_tensors(self, other)
    if first.shape[dim] != 3:
        raise RuntimeError(f"linalg.cross: inputs dimension {dim} must have length 3. Got {self.shape[dim]}")
    a, b = first.double(), second.double()
    made = a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)
    return rounded(made, torch.promote_types(self.dtype, other.dtype))
