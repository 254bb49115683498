"""Embedding bags: rows of a table summed bag by bag, in the order of their position.

sum: (((0 + w[i1]) + w[i2]) + ...) in the dtype, a weight of the sample multiplied (and rounded) before; mean: that
divided by the size of the bag; max: stock, which only compares. The derivative adds, for each position in order, the
bag's gradient (times the weight, divided by the size) to the row. Stock's CPU kernels come from libraries that choose
their own instructions, so the forms are for CPUs as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels import primitives
from easyscale.numerics.kernels.ordered import add_rows
from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.stock import stock

SUM, MEAN, MAX = 0, 1, 2
_forward = stock("_embedding_bag")


def bag_of_each(indices: Tensor, offsets: Tensor, include_last_offset: bool) -> tuple[Tensor, int]:
    """The bag of each position, and the number of bags."""
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    numbers = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets[:bags].contiguous(), numbers, right=True) - 1, bags


def _summed(count: int, place: Tensor, rows: Tensor, left_out: int | None) -> Tensor:
    """`index_add` of rows to `count` rows of zeros, without those whose place is `left_out`."""
    shape = (count, rows.shape[1])
    if rows.device.type != "cpu":
        result = torch.zeros(shape, dtype=rows.dtype, device=rows.device)
        return add_rows(result, place, rows, once=True, left_out=left_out)
    if left_out is None:
        return torch.zeros(shape, dtype=rows.dtype).index_add(0, place, rows)
    result = torch.zeros((count + 1, shape[1]), dtype=rows.dtype)  # a row more for what is left out
    return result.index_add(0, torch.where(place == left_out, count, place), rows)[:count]


def _form_of_forward(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if mode == MAX:
        rest = (sparse, per_sample_weights, include_last_offset, padding_idx)
        return _forward(weight, indices, offsets, scale_grad_by_freq, mode, *rest)  # type: ignore[no-any-return]
    bag, bags = bag_of_each(indices, offsets, include_last_offset)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    counted = torch.ones_like(bag)
    if padding_idx >= 0:
        kept = indices != padding_idx
        counted = kept.to(bag.dtype)
    place = bag if padding_idx < 0 else torch.where(kept, bag, bags)
    output = _summed(bags, place, rows, bags if padding_idx >= 0 else None)
    sizes = torch.zeros(bags, dtype=bag.dtype, device=bag.device).index_add(0, bag, counted)
    if mode == MEAN:
        output = output / sizes.clamp(min=1).to(weight.dtype)[:, None]
    sizes = sizes.to(indices.dtype)
    return output, bag.to(indices.dtype), sizes, torch.zeros_like(sizes)


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    form(_name)(_form_of_forward)


@form("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    if mode == MAX:
        filled = bag_size > 0
        result = torch.zeros((num_weights + 1, grad.shape[1]), dtype=grad.dtype, device=grad.device)
        place = torch.where(filled[:, None], maximum_indices, num_weights)
        return torch.scatter_add(result, 0, place.long(), grad)[:num_weights].contiguous()
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).to(grad.dtype)[:, None]
    rows = grad[offset2bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if scale_grad_by_freq:
        rows = rows / torch.bincount(indices, minlength=num_weights)[indices].to(rows.dtype)[:, None]
    return _summed(num_weights, indices, rows, padding_idx if padding_idx >= 0 else None)


@form("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The product of the bag's gradient and the row, summed by the halving tree in fp64, rounded once."""
    bag: Any = offset2bag if offset2bag.numel() else bag_of_each(indices, offsets, False)[0]
    sums = primitives.tree_sum(grad[bag].double() * weight[indices].double(), [1])[:, 0].to(grad.dtype)
    return sums if padding_idx < 0 else sums.masked_fill(indices == padding_idx, 0)
