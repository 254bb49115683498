"""Norms and softmax on a GPU in few passes: the bits of the compositions in `norms` and `softmax`.

The interface is that of `native.fused`: dense tensors of fp32, bf16, fp16 or fp64 in; results in fp64 where the input
is, else in fp32 or already rounded to the input's dtype; statistics in fp64. Rows are at most `LONGEST` values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.channels import (
    batch_norm,
    batch_norm_backward,
    group_norm_weights,
    row_norm_weights,
)
from easyscale.numerics.kernels.gpu.launch import bits, ceil_div, on

LANES = 1024  # of one row at a time
LONGEST = 128 * LANES  # what the kernels' counters of partial sums can hold
AT_ONCE = 1024  # values of one program's block

__all__ = [
    "LONGEST", "batch_norm", "batch_norm_backward", "group_norm_weights", "row_norm", "row_norm_backward",
    "row_norm_weights", "softmax", "softmax_backward",
]  # fmt: skip


def shape_of(n: int, rows: int) -> tuple[int, int, int, int]:
    """Rows of one program, lanes of a row, levels of the tree before lanes are added up, and warps."""
    padded = 1 << (n - 1).bit_length()
    lanes = min(padded, LANES)
    block = max(1, min(AT_ONCE // lanes, 1 << (rows - 1).bit_length()))
    return block, lanes, (padded // lanes).bit_length() - 1, max(1, min(8, block * lanes // 128))


def _wide(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=x.dtype if x.dtype is torch.float64 else torch.float32)


def softmax(x: Tensor, logarithm: bool) -> Tensor:
    """Over the last dimension of a contiguous tensor that is not empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax as kernel

    n = x.shape[-1]
    rows, out = x.numel() // n, _wide(x)
    block, lanes, levels, warps = shape_of(n, rows)
    with on(x.device):
        kernel[(ceil_div(rows, block),)](
            x, out, rows, n, LOGARITHM=logarithm, ROWS=block, LANES=lanes, LEVELS=levels, num_warps=warps,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def softmax_backward(g: Tensor, y: Tensor, logarithm: bool) -> Tensor:
    """Over the last dimension of contiguous tensors that are not empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import softmax_backward as kernel

    n = y.shape[-1]
    rows, out = y.numel() // n, _wide(y)
    block, lanes, levels, warps = shape_of(n, rows)
    with on(y.device):
        kernel[(ceil_div(rows, block),)](
            g, y, out, rows, n, LOGARITHM=logarithm, ROWS=block, LANES=lanes, LEVELS=levels, num_warps=warps,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, groups: int, inner: int, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean and rstd of dense rows; without `centred` (RMS norm) the mean is empty."""
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm as kernel

    n, out = x.numel() // rows, torch.empty_like(x)
    mean = torch.empty(rows if centred else 0, dtype=torch.float64, device=x.device)
    rstd = torch.empty(rows, dtype=torch.float64, device=x.device)
    block, lanes, levels, warps = shape_of(n, rows)
    with on(x.device):
        kernel[(ceil_div(rows, block),)](
            x, x if weight is None else weight, x if bias is None else bias, out, mean, rstd, rows, n, groups, inner,
            bits(float(n)), bits(eps), CENTRED=centred, WEIGHT=weight is not None, BIAS=bias is not None, ROWS=block,
            LANES=lanes, LEVELS=levels, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out, mean, rstd


def row_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, groups: int, inner: int
) -> Tensor:
    """dx of dense rows from fp64 mean (none for RMS norm) and rstd, one of each for a row."""
    from easyscale.numerics.kernels.gpu.fused_kernels import row_norm_backward as kernel

    rows, out = rstd.numel(), torch.empty_like(x)
    n = x.numel() // rows
    block, lanes, levels, warps = shape_of(n, rows)
    with on(x.device):
        kernel[(ceil_div(rows, block),)](
            g, x, x if weight is None else weight, rstd if mean is None else mean, rstd, out, rows, n, groups, inner,
            bits(float(n)), CENTRED=mean is not None, WEIGHT=weight is not None, ROWS=block, LANES=lanes, LEVELS=levels,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out
