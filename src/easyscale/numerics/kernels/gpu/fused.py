"""Norms and softmax on a GPU in few passes: the bits of the compositions in `norms` and `softmax`.

Each form over rows is one launch, whose kernel reads what it needs once where a row fits into registers. Dense tensors
of fp32, bf16, fp16 or fp64 in; results come rounded to the dtype that they are to have, statistics too. Rows are at
most `LONGEST` values. Which program takes which rows changes no bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.channels import (
    batch_norm_gradients,
    batch_norm_updating,
    group_norm_weights,
    row_norm_weights,
)
from easyscale.numerics.kernels.gpu.launch import bits, ceil_div, launch
from easyscale.numerics.kernels.gpu.rows import ROW, magic_of, row_shape, row_shape_at_once

LONGEST = ROW
KEPT = 8  # chunks of a row that a thread keeps, of one tensor
KEPT_OF_TWO = 4

__all__ = [
    "LONGEST", "batch_norm_gradients", "batch_norm_updating", "group_norm_weights", "row_norm", "row_norm_backward",
    "row_norm_weights", "softmax", "softmax_backward",
]  # fmt: skip


def softmax(x: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of a contiguous tensor that is not empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax as kernel

    n = x.shape[-1]
    rows, out = x.numel() // n, torch.empty_like(x, dtype=dtype)
    shape, block = row_shape(n, rows, KEPT)
    launch(
        kernel, (ceil_div(rows, block),), x, out, rows, n, LOGARITHM=logarithm, ROWS=block, enable_fp_fusion=False,
        **shape,
    )  # fmt: skip
    return out


def softmax_backward(g: Tensor, y: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of contiguous tensors that are not empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax_backward as kernel

    n = y.shape[-1]
    rows, out = y.numel() // n, torch.empty_like(y, dtype=dtype)
    shape, block = row_shape(n, rows, KEPT_OF_TWO)
    launch(
        kernel, (ceil_div(rows, block),), g, y, out, rows, n, LOGARITHM=logarithm, ROWS=block, enable_fp_fusion=False,
        **shape,
    )  # fmt: skip
    return out


def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, groups: int, inner: int, eps: float,
    centred: bool, saved: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, and mean and rstd of dtype `saved`, of dense rows; without `centred` (RMS norm) the mean is empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm as kernel

    n, out = x.numel() // rows, torch.empty_like(x)
    rstd = torch.empty(rows, dtype=saved, device=x.device)
    mean = torch.empty_like(rstd) if centred else rstd.new_empty(0)
    shape, block = row_shape_at_once(n, rows)
    launch(
        kernel, (ceil_div(rows, block),), x, x if weight is None else weight, x if bias is None else bias, out, mean,
        rstd, rows, n, groups, inner, *magic_of(inner), bits(float(n)), bits(eps), CENTRED=centred,
        WEIGHT=weight is not None, BIAS=bias is not None, FLAT=groups == 1 and inner == 1, ROWS=block,
        enable_fp_fusion=False, **shape,
    )  # fmt: skip
    return out, mean, rstd


def row_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, groups: int, inner: int
) -> Tensor:
    """dx of dense rows from mean (none for RMS norm) and rstd, one of each for a row."""
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm_backward as kernel

    rows, out = rstd.numel(), torch.empty_like(x)
    n = x.numel() // rows
    shape, block = row_shape(n, rows, KEPT_OF_TWO)
    launch(
        kernel, (ceil_div(rows, block),), g, x, x if weight is None else weight, rstd if mean is None else mean, rstd,
        out, rows, n, groups, inner, *magic_of(inner), bits(float(n)), CENTRED=mean is not None,
        WEIGHT=weight is not None, FLAT=groups == 1 and inner == 1, ROWS=block, enable_fp_fusion=False, **shape,
    )  # fmt: skip
    return out
