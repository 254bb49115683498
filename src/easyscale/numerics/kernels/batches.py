"""What batch norm computes, for the forms of `norms`; and what other norms share with it.

By the kernels of `gpu.fused` or `native.fused` where they are, else by torch operators. Relies on the tensors having
elements; guarantees the definitions of `norms`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import tree_sum
from easyscale.numerics.kernels.reductions import fused, moments, number, root_of, rounded

Maybe = Tensor | None


def saved_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def contiguous(x: Maybe) -> Maybe:
    return None if x is None else x.contiguous()


def affine(x: Tensor, weight: Maybe, bias: Maybe) -> Tensor:
    x = x if weight is None else x * weight.double()
    return x if bias is None else x + bias.double()


def last_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def is_channels_last(x: Tensor) -> bool:
    return x.dim() in (4, 5) and not x.is_contiguous() and x.is_contiguous(memory_format=last_format(x))


def dense_of(x: Tensor) -> tuple[Tensor, bool]:
    """The tensor without holes, and whether its channels are last in memory."""
    last = is_channels_last(x)
    return (x if last else x.contiguous()), last or math.prod(x.shape[2:]) == 1


def batch_forward(
    x: Tensor, weight: Maybe, bias: Maybe, statistics: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, and mean, biased variance and rstd in fp64, each of C values."""
    x, last = dense_of(x)
    at_once = fused(x.device)
    if at_once is not None and hasattr(at_once, "batch_norm"):
        y, *values = at_once.batch_norm(x, contiguous(weight), contiguous(bias), statistics, eps, last)
        return rounded(y, x.dtype), values[0], values[1], values[2]
    shape = [1, -1, *([1] * (x.dim() - 2))]
    dims = [dim for dim in range(x.dim()) if dim != 1]
    mean, variance = moments(x, dims, 0.0) if statistics is None else (v.reshape(shape) for v in statistics)
    rstd = torch.reciprocal(root_of(variance + number(eps, x)))
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    y = rounded(affine((x.double() - mean) * rstd, weight, bias), x.dtype)
    return y, mean.reshape(-1), variance.reshape(-1), rstd.reshape(-1)


def update(running: Maybe, batch: Tensor, momentum: float) -> None:
    if running is not None:
        kept, taken = number(1.0 - momentum, batch), number(momentum, batch)
        running.copy_(running.double() * kept + batch * taken)


def batch_norm_at_once(
    module: Any, x: Tensor, weight: Maybe, bias: Maybe, running: tuple[Maybe, Maybe], training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """All of `batch_norm`, with the running statistics, by kernels that want them dense."""
    given = None
    if running[0] is not None or running[1] is not None:
        given = [x.new_ones(x.shape[1]) if p is None else p.contiguous() for p in running]
    dense, last = dense_of(x)
    results = module.batch_norm_updating(
        dense, contiguous(weight), contiguous(bias), given, training, momentum, eps, last, saved_dtype(x)
    )
    for before, after in zip(running, given or (), strict=False):
        if training and before is not None and after is not before:
            before.copy_(after)
    return results  # type: ignore[no-any-return]


def batch_backward(
    g: Tensor, x: Tensor, weight: Maybe, mean: Tensor, rstd: Tensor, training: bool, eps: float, wanted: bool,
    dtype: torch.dtype,
) -> tuple[Maybe, Tensor, Tensor]:  # fmt: skip
    """dx, dw and db; in evaluation mean and rstd are the running mean and variance."""
    x, last = dense_of(x)
    g = g.contiguous(memory_format=last_format(x)) if last and x.dim() in (4, 5) else g.contiguous()
    mean, rstd, weight, at_once = mean.contiguous(), rstd.contiguous(), contiguous(weight), fused(x.device)
    if at_once is not None and hasattr(at_once, "batch_norm_gradients"):
        return at_once.batch_norm_gradients(  # type: ignore[no-any-return]
            g, x, weight, mean, rstd, training, eps, wanted, last, dtype
        )
    mean, rstd = mean.double(), rstd.double()
    if not training:
        rstd = torch.reciprocal(root_of(rstd + number(eps, mean)))
    if at_once is not None and hasattr(at_once, "batch_norm_backward"):
        dx, dw, db = at_once.batch_norm_backward(g, x, weight, mean, rstd, training, wanted, last)
        return None if dx is None else rounded(dx, x.dtype), rounded(dw, dtype), rounded(db, dtype)
    shape = [1, -1, *([1] * (x.dim() - 2))]
    dims = [dim for dim in range(x.dim()) if dim != 1]
    mean, rstd = mean.reshape(shape), rstd.reshape(shape)
    wide, apart = g.double(), x.double() - mean
    first, second = tree_sum(g, dims), tree_sum(wide * apart, dims)
    size = number(x.numel() // x.shape[1], x)
    scale = rstd if weight is None else rstd * weight.double().reshape(shape)
    dx = None
    if wanted and training:
        dx = ((wide - first / size) - apart * (((second / size) * rstd) * rstd)) * scale
    elif wanted:
        dx = wide * scale
    dw, db = (rounded(values.reshape(-1), dtype) for values in (second * rstd, first))
    return None if dx is None else rounded(dx, x.dtype), dw, db
