"""Margin losses over classes: each term in fp64, sums by the halving tree, one rounding.

    multi margin       w[t] * S over j != t of max(0, margin - x[t] + x[j])^p, / C       p is 1 or 2
    multilabel margin  S over targets t and non-targets j of max(0, 1 - (x[t] - x[j])), / C
The derivatives of the hinge are counted or summed in the same way, and multiplied by the gradient last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.losses import MEAN, NONE
from easyscale.numerics.kernels.primitives import tree_sum
from easyscale.numerics.kernels.reductions import number, rounded
from easyscale.numerics.kernels.registry import form


def _rows(x: Tensor) -> Tensor:
    """[N, C]"""
    return x.reshape(1, -1) if x.dim() < 2 else x


def _reduced(losses: Tensor, reduction: int, shown: Tensor) -> Tensor:
    if reduction == NONE:
        return rounded(losses if shown.dim() == 2 else losses.reshape(()), shown.dtype)
    total = tree_sum(losses, [0]).reshape(())
    return rounded(total / number(losses.numel(), total) if reduction == MEAN else total, shown.dtype)


def _shares(grad_output: Tensor, reduction: int, rows: int) -> Tensor:
    """The gradient of each row, [N, 1] or [1, 1]."""
    gradient = grad_output.double().reshape(-1, 1)
    return gradient / number(rows, gradient) if reduction == MEAN else gradient


# ------------------------------------------------------------------------------------------------- multi margin


def _hinges(x: Tensor, target: Tensor, margin: float) -> Tensor:
    """margin - x[t] + x[j], 0 for j = t."""
    wide, at = x.double(), target.reshape(-1, 1)
    z = (number(margin, wide) - wide.gather(1, at)) + wide
    return torch.where(torch.arange(x.shape[1], device=x.device) == at, 0.0, z)


def _weighted(terms: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    return terms if weight is None else terms * weight.double()[target.reshape(-1)][:, None]


@form("multi_margin_loss")
def multi_margin_loss(
    self: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    if p not in (1, 2):
        raise RuntimeError("only p == 1 and p == 2 supported")
    x = _rows(self)
    z = _hinges(x, target, float(margin))
    z = torch.where(z > 0, z, 0.0)
    terms = _weighted(z * z if p == 2 else z, target, weight)
    sums = tree_sum(terms, [1]).squeeze(1)
    return _reduced(sums / number(x.shape[1], sums), reduction, self)


@form("multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:  # fmt: skip
    x = _rows(self)
    z = _hinges(x, target, float(margin))
    steep = torch.where(z > 0, z * 2.0 if p == 2 else 1.0, 0.0)
    steep = _weighted(steep / number(x.shape[1], z), target, weight)
    here = torch.arange(x.shape[1], device=x.device) == target.reshape(-1, 1)
    slope = torch.where(here, -tree_sum(steep, [1]), steep)
    return rounded(slope * _shares(grad_output, reduction, x.shape[0]), self.dtype).reshape(self.shape)


# ------------------------------------------------------------------------------------------------- multilabel margin


def _targets(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels [N, C] with C for what comes after the first -1; which count; and whether a class is a target."""
    rows = _rows(target)
    counts = torch.cumsum((rows < 0).long(), dim=1) == 0
    labels = torch.where(counts, rows, rows.shape[1])
    marks = torch.zeros((rows.shape[0], rows.shape[1] + 1), dtype=torch.bool, device=rows.device)
    return labels, counts, marks.scatter(1, labels, True)[:, :-1]


def _pairs(x: Tensor, labels: Tensor, counts: Tensor, marks: Tensor) -> Tensor:
    """1 - (x[t] - x[j]) as [N, t, j], 0 where it does not count."""
    wide = x.double()
    at = wide.gather(1, torch.where(counts, labels, 0))
    z = 1.0 - (at[:, :, None] - wide[:, None, :])
    return torch.where(counts[:, :, None] & ~marks[:, None, :], z, 0.0)


@form("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    x = _rows(self)
    labels, counts, marks = _targets(target)
    z = _pairs(x, labels, counts, marks)
    sums = tree_sum(torch.where(z > 0, z, 0.0), [1, 2]).reshape(-1)
    return _reduced(sums / number(x.shape[1], sums), reduction, self), marks.to(self.dtype).reshape(target.shape)


@form("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    x = _rows(self)
    labels, counts, marks = _targets(target)
    above = (_pairs(x, labels, counts, marks) > 0).long()
    lowered = torch.zeros((x.shape[0], x.shape[1] + 1), dtype=torch.int64, device=x.device)
    lowered = lowered.scatter_add(1, labels, above.sum(2))[:, :-1]
    slope = (above.sum(1) - lowered).double() / number(x.shape[1], x)
    return rounded(slope * _shares(grad_output, reduction, x.shape[0]), self.dtype).reshape(self.shape)
