"""Norms and softmax on a GPU in few passes: the bits of the compositions in `norms` and `softmax`.

Each form over rows is one launch, whose kernel reads what it needs once where a row fits into registers. Dense tensors
of fp32, bf16, fp16 or fp64 in; results come rounded to the dtype that they are to have, statistics too. Rows are at
most `LONGEST` values. Which program takes which rows changes no bits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu import row_shapes
from easyscale.numerics.kernels.gpu.channels import (
    batch_norm_gradients,
    batch_norm_updating,
    group_norm_weights,
    row_norm_weights,
)
from easyscale.numerics.kernels.gpu.launch import Launch, bits, ceil_div
from easyscale.numerics.kernels.gpu.row_shapes import row_shape
from easyscale.numerics.kernels.gpu.rows import magic_of

LONGEST = row_shapes.LONGEST
PLANS = 2048  # kept, of each kind

__all__ = [
    "LONGEST", "batch_norm_gradients", "batch_norm_updating", "group_norm_weights", "row_norm", "row_norm_backward",
    "row_norm_weights", "softmax", "softmax_backward",
]  # fmt: skip


def softmax(x: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of a contiguous tensor that is not empty."""
    out = torch.empty_like(x, dtype=dtype)
    _softmax_plan(x.numel(), x.shape[-1], logarithm, x.dtype, dtype, x.get_device())(x, out)
    return out


@functools.lru_cache(maxsize=PLANS)
def _softmax_plan(count: int, n: int, logarithm: bool, dtype: torch.dtype, result: torch.dtype, device: int) -> Launch:
    """The dtypes and the device are what it is kept by, as in the plans below."""
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax as kernel

    rows = count // n
    shape, block = row_shape(n, rows, row_shapes.SOFTMAX)
    return Launch(
        kernel, (ceil_div(rows, block),), (rows, n), LOGARITHM=logarithm, ROWS=block, enable_fp_fusion=False,
        **shape,
    )  # fmt: skip


def softmax_backward(g: Tensor, y: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of contiguous tensors that are not empty."""
    out = torch.empty_like(y, dtype=dtype)
    _softmax_backward_plan(y.numel(), y.shape[-1], logarithm, g.dtype, y.dtype, dtype, y.get_device())(g, y, out)
    return out


@functools.lru_cache(maxsize=PLANS)
def _softmax_backward_plan(
    count: int, n: int, logarithm: bool, dtype: torch.dtype, outputs: torch.dtype, result: torch.dtype, device: int
) -> Launch:
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax_backward as kernel

    rows = count // n
    shape, block = row_shape(n, rows, row_shapes.SOFTMAX_BACKWARD)
    return Launch(
        kernel, (ceil_div(rows, block),), (rows, n), LOGARITHM=logarithm, ROWS=block, enable_fp_fusion=False,
        **shape,
    )  # fmt: skip


def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, groups: int, inner: int, eps: float,
    centred: bool, saved: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, and mean and rstd of dtype `saved`, of dense rows; without `centred` (RMS norm) the mean is empty."""
    device = x.device
    out = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=saved, device=device)
    mean = torch.empty(rows if centred else 0, dtype=saved, device=device)
    weights = None if weight is None else weight.dtype, None if bias is None else bias.dtype
    plan = _norm_plan(x.numel() // rows, rows, groups, inner, eps, centred, *weights, x.dtype, saved, device)
    plan(x, x if weight is None else weight, x if bias is None else bias, out, mean, rstd)
    return out, mean, rstd


@functools.lru_cache(maxsize=PLANS)
def _norm_plan(
    n: int, rows: int, groups: int, inner: int, eps: float, centred: bool, weight: torch.dtype | None,
    bias: torch.dtype | None, dtype: torch.dtype, saved: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm as kernel

    shape, block = row_shape(n, rows, row_shapes.NORM)
    return Launch(
        kernel, (ceil_div(rows, block),), (rows, n, groups, inner, *magic_of(inner), bits(float(n)), bits(eps)),
        CENTRED=centred, WEIGHT=weight is not None, BIAS=bias is not None, FLAT=groups == 1 and inner == 1,
        ROWS=block, enable_fp_fusion=False, **shape,
    )  # fmt: skip


def row_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, groups: int, inner: int
) -> Tensor:
    """dx of dense rows from mean (none for RMS norm) and rstd, one of each for a row."""
    rows, out = rstd.numel(), torch.empty_like(x)
    plan = _norm_backward_plan(
        x.numel() // rows, rows, groups, inner, None if mean is None else mean.dtype,
        None if weight is None else weight.dtype, g.dtype, x.dtype, rstd.dtype, x.get_device(),
    )  # fmt: skip
    plan(g, x, x if weight is None else weight, rstd if mean is None else mean, rstd, out)
    return out


@functools.lru_cache(maxsize=PLANS)
def _norm_backward_plan(
    n: int, rows: int, groups: int, inner: int, mean: torch.dtype | None, weight: torch.dtype | None,
    gradient: torch.dtype, dtype: torch.dtype, saved: torch.dtype, device: int,
) -> Launch:  # fmt: skip
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm_backward as kernel

    shape, block = row_shape(n, rows, row_shapes.NORM_BACKWARD)
    return Launch(
        kernel, (ceil_div(rows, block),), (rows, n, groups, inner, *magic_of(inner), bits(float(n))),
        CENTRED=mean is not None, WEIGHT=weight is not None, FLAT=groups == 1 and inner == 1, ROWS=block,
        enable_fp_fusion=False, **shape,
    )  # fmt: skip
