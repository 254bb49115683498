"""Losses as D2 forms: each element's loss in fp64, by a formula (`formula_losses`); sums by the halving tree; one
rounding.

With d = x - t, n the number of elements, and S the sum over all of them in row-major order (mean: S / n):

    mse          d * d                                      backward: (d * g) * k         k = 2 / n, or 2
    smooth_l1    ((0.5 * z) * z) / beta where z < beta,     backward: ((k * d) * g) / beta where |d| < beta,
                 else z - 0.5 * beta; z = |d|               else +-(k * g)                k = 1 / n, or 1
    huber        (0.5 * z) * z where z < delta,             backward: (k * d) * g where |d| <= delta,
                 else delta * (z - 0.5 * delta)             else +-((k * g) * delta)
    bce          (t - 1) * max(log1p(-x), -100) - t * max(log(x), -100), times the weight
                                                backward: ((g * d) / max((1 - x) * x, 1e-12)) * weight, times k
    bce logits   (1 - t) * x + q * p, times the weight; p = log1p(exp(-|x|)) + max(-x, 0), q = (pos_weight - 1) * t + 1
    soft margin  log1p(exp(-(x * t)))           backward: ((-t / (1 + exp(x * t))) * g) * k
    nll          -(x[target] * w[target]); mean: S / S(w[target])       backward: -((g / S(w[target])) * w[target])

Elements that nll ignores are left out of both sums as +0. bce's max keeps NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, primitives
from easyscale.numerics.kernels.gpu import losses as at_once
from easyscale.numerics.kernels.primitives import evaluate, tree_sum
from easyscale.numerics.kernels.reductions import number, refuse_complex, rounded, summed
from easyscale.numerics.kernels.registry import form

NONE, MEAN, SUM = 0, 1, 2


def _dtype(self: Tensor, target: Tensor) -> torch.dtype:
    refuse_complex(self, "a loss")
    refuse_complex(target, "a loss")
    return torch.promote_types(self.dtype, target.dtype)


def _loss(
    name: str, tensors: Sequence[Tensor], reduction: int, dtype: torch.dtype, scalars: Sequence[float] = (),
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The formula of each element, in fp64 where it is multiplied or added up."""
    if reduction == NONE and weight is None:
        return evaluate(name, tensors, scalars, dtype=dtype)
    losses = evaluate(name, tensors, scalars, dtype=torch.float64)
    if weight is not None:
        losses = losses * weight.double()
    if reduction == NONE:
        return rounded(losses, dtype)
    return summed(losses, range(losses.dim()), dtype, losses.numel() if reduction == MEAN else None).reshape(())


def _share(value: float, reduction: int, *tensors: Tensor) -> float:
    """The factor k of a backward."""
    size = prod(torch.broadcast_shapes(*[x.shape for x in tensors]))
    if reduction == MEAN:
        value = value / size if size else float("nan")
    return value


# ---------------------------------------------------------------------------------------------- distances


@form("mse_loss")
def mse_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return _loss("square_loss", (self, target), reduction, _dtype(self, target))


@form("mse_loss_backward")
def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    share = _share(2.0, reduction, self, target)
    return evaluate("square_loss_backward", (grad_output, self, target), (share,), dtype=_dtype(self, target))


@form("smooth_l1_loss")
def smooth_l1_loss(self: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    return _loss("smooth_l1", (self, target), reduction, _dtype(self, target), (beta,))


@form("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    scalars = beta, _share(1.0, reduction, self, target)
    return evaluate("smooth_l1_backward", (grad_output, self, target), scalars, dtype=_dtype(self, target))


@form("huber_loss")
def huber_loss(self: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    return _loss("huber", (self, target), reduction, _dtype(self, target), (delta,))


@form("huber_loss_backward")
def huber_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    scalars = delta, _share(1.0, reduction, self, target)
    return evaluate("huber_backward", (grad_output, self, target), scalars, dtype=_dtype(self, target))


# ---------------------------------------------------------------------------------------------- probabilities


@form("binary_cross_entropy")
def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    if self.device.type == "cpu" and not bool(torch.all((self >= 0) & (self <= 1))):
        raise RuntimeError("all elements of input should be between 0 and 1")
    _dtype(self, target)
    return _loss("entropy", (self, target), reduction, self.dtype, weight=weight)


@form("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    _dtype(self, target)
    result = evaluate("entropy_backward", (grad_output, self, target), dtype=torch.float64)
    result = result if weight is None else result * weight.double()
    return rounded(result * number(_share(1.0, reduction, result), result), self.dtype)


@form("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    dtype = _dtype(self, target)
    if pos_weight is None:
        return _loss("entropy_of_logits", (self, target), reduction, dtype, weight=weight)
    tensors = self, target, pos_weight
    return _loss("entropy_of_logits_weighed", tensors, reduction, dtype, weight=weight)


@form("soft_margin_loss")
def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return _loss("soft_margin", (self, target), reduction, _dtype(self, target))


@form("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    share = _share(1.0, reduction, self, target)
    return evaluate("soft_margin_backward", (grad_output, self, target), (share,), dtype=_dtype(self, target))


# ---------------------------------------------------------------------------------------------- negative log likelihood


def _check(x: Tensor, target: Tensor, weight: Tensor | None) -> None:
    wanted = [*x.shape[:1], *x.shape[2:]] if x.dim() > 1 else []
    if list(target.shape) != wanted and (x.dim() > 1 or target.numel() != 1):
        raise RuntimeError(f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})")
    if weight is not None and weight.numel() != x.shape[min(x.dim() - 1, 1)]:
        raise RuntimeError(f"weight should hold one number for each class, not {weight.numel()}")


def _at_once(x: Tensor, target: Tensor) -> bool:
    """Whether the kernels of `gpu.losses` can do it: rows of classes in fp32, bf16, fp16 or fp64."""
    if primitives.implementation(x.device) is not gpu or x.dim() != 2 or not x.numel():
        return False
    return x.shape[0] <= at_once.MOST and x.is_floating_point() and target.dtype in (torch.int64, torch.uint8)


def _picked(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The targets with the ignored ones set to 0, the fp64 weights of the targets, and which are not ignored."""
    valid = target != ignore_index
    chosen = torch.where(valid, target, torch.zeros((), dtype=target.dtype, device=target.device)).long()
    if weight is None:
        return chosen, valid.double(), valid
    own = torch.index_select(weight.double(), 0, chosen.reshape(-1)).reshape(chosen.shape)
    return chosen, torch.where(valid, own, torch.zeros((), dtype=torch.float64, device=x.device)), valid


def _total(values: Tensor) -> Tensor:
    return tree_sum(values, range(values.dim())).reshape(())


@form("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    refuse_complex(self, "a loss")
    _check(self, target, weight)
    dim = 1 if self.dim() > 1 else 0
    if reduction != NONE and _at_once(self, target):
        return at_once.nll_loss(self, target, weight, reduction == MEAN, ignore_index)
    chosen, weights, valid = _picked(self, target, weight, ignore_index)
    zero = torch.zeros((), dtype=torch.float64, device=self.device)
    own = torch.gather(self, dim, chosen.unsqueeze(dim)).squeeze(dim).double()
    losses = torch.where(valid, -(own * weights), zero)
    if reduction == NONE and self.dim() > 1:
        return rounded(losses, self.dtype), zero.to(self.dtype)
    total, weighed = _total(losses), _total(weights)
    result = total / weighed if reduction == MEAN else total
    return rounded(result, self.dtype), rounded(weighed, self.dtype)


@form("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int,
    total_weight: Tensor,
) -> Tensor:  # fmt: skip
    """S(w[target]) is computed again: total_weight has been rounded."""
    _check(self, target, weight)
    dim = 1 if self.dim() > 1 else 0
    if _at_once(self, target):
        return at_once.nll_loss_backward(grad_output, self, target, weight, reduction == MEAN, ignore_index)
    chosen, weights, valid = _picked(self, target, weight, ignore_index)
    g = grad_output.double()
    if reduction == MEAN:
        g = g / _total(weights)
    zero = torch.zeros((), dtype=torch.float64, device=self.device)
    values = rounded(torch.where(valid, -(g * weights), zero), self.dtype)
    result = torch.zeros_like(self, memory_format=torch.contiguous_format)
    return result.scatter_(dim, chosen.unsqueeze(dim), values.unsqueeze(dim))
