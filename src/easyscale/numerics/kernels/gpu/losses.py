"""The negative log likelihood of a batch on a GPU: the bits of the composition in `losses`, in one launch, its gradient
in two. For rows of classes that are dense, up to `MOST` of them; relies on that, guarantees results of x's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import ceil_div, launch
from easyscale.numerics.kernels.gpu.row_shapes import SUM_OF_FEW, row_shape

MOST = 2**17  # targets of the one program that adds up
COLUMNS = 2048


def nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, mean: bool, ignore: int) -> tuple[Tensor, Tensor]:
    """The loss of x [rows, classes], and the sum of the targets' weights."""
    out, weighed = (torch.empty((), dtype=x.dtype, device=x.device) for _ in range(2))
    _total(x, target, weight, out, weighed, ignore, LOSS=True, MEAN=mean)
    return out, weighed


def _total(
    x: Tensor, target: Tensor, weight: Tensor | None, out: Tensor, weighed: Tensor, ignore: int, LOSS: bool, MEAN: bool
) -> None:
    from easyscale.numerics.kernels.gpu.loss_kernels import total

    shape, _ = row_shape(x.shape[0], 1, SUM_OF_FEW)
    x, target, weight = x.contiguous(), target.contiguous(), None if weight is None else weight.contiguous()
    launch(
        total, (1,), x, target, x if weight is None else weight, out, weighed, x.shape[0], x.shape[1], ignore,
        LOSS=LOSS, MEAN=MEAN, WEIGHT=weight is not None, enable_fp_fusion=False, **shape,
    )  # fmt: skip


def nll_loss_backward(g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, mean: bool, ignore: int) -> Tensor:
    """The gradient of x; g is one number, or one for each row."""
    from easyscale.numerics.kernels.gpu.loss_kernels import gradient

    g, target, weight = g.contiguous(), target.contiguous(), None if weight is None else weight.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    weighed = torch.empty((), dtype=torch.float64, device=x.device)
    if mean:  # computed again: what the forward returned has been rounded
        _total(x, target, weight, weighed, weighed, ignore, LOSS=False, MEAN=False)
    rows, classes = x.shape
    columns = min(COLUMNS, 1 << (classes - 1).bit_length())
    launch(
        gradient, (rows * ceil_div(classes, columns),), g, weighed, target, x if weight is None else weight, out, rows,
        classes, ignore, MEAN=mean, EACH=g.dim() > 0, WEIGHT=weight is not None, COLUMNS=columns,
        num_warps=max(1, min(8, columns // 256)), enable_fp_fusion=False,
    )  # fmt: skip
    return out
