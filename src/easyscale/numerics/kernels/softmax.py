"""Softmax and its logarithm as D2 forms.

With m the largest value of a row, S the sum by the halving tree in fp64, exp and log the formulas of `formulas`:

    softmax       e * (1 / S(e)), e = exp(x - m)           backward: (g - S(g * y)) * y
    log_softmax   x - (m + log(S(exp(x - m))))             backward: g - exp(y) * S(g)

Where the result is not fp64, x - m and its exp are fp32 (`exp_single`). Everything else is fp64, with one rounding to
the result's dtype at the end. y is what the forward returned, so it is rounded. A row with NaN or +inf, or of -inf
alone, is all NaN. Results are contiguous, as stock's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import evaluate, tree_sum
from easyscale.numerics.kernels.reductions import fused, refuse_complex, rounded
from easyscale.numerics.kernels.registry import form


def _softmax_of(x: Tensor, dim: int, dtype: torch.dtype, logarithm: bool) -> Tensor:
    refuse_complex(x, "softmax")
    if not x.is_floating_point():
        raise RuntimeError(f"softmax is not implemented for {x.dtype}")
    if not x.dim():
        return _softmax_of(x.reshape(1), 0, dtype, logarithm).reshape(())
    if not x.numel():
        return torch.empty_like(x, dtype=dtype)
    at_once = fused(x.device, x.shape[dim])
    if at_once is not None and hasattr(at_once, "softmax"):
        if dim in (-1, x.dim() - 1):
            return at_once.softmax(x.contiguous(), logarithm, dtype)  # type: ignore[no-any-return]
        rows: Tensor = at_once.softmax(x.movedim(dim, -1).contiguous(), logarithm, dtype)
        return rows.movedim(-1, dim).contiguous()
    width = torch.float64 if dtype is torch.float64 else torch.float32
    top = torch.amax(x, [dim], True)
    powers = evaluate("exp", [x.to(width) - top.to(width)], dtype=width).double()
    total = tree_sum(powers, [dim])
    if logarithm:
        result = x.double() - (top.double() + evaluate("log", [total], dtype=torch.float64))
    else:
        result = powers * (torch.ones_like(total) / total)
    return rounded(result, dtype).contiguous()


def _gradient(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype, logarithm: bool) -> Tensor:
    if not y.dim():
        return _gradient(g.reshape(1), y.reshape(1), 0, dtype, logarithm).reshape(())
    if not y.numel():
        return torch.empty_like(y, dtype=dtype)
    at_once = fused(y.device, y.shape[dim])
    if at_once is not None and hasattr(at_once, "softmax_backward"):
        if dim in (-1, y.dim() - 1):
            return at_once.softmax_backward(g.contiguous(), y.contiguous(), logarithm, dtype)  # type: ignore[no-any-return]
        last = [t.movedim(dim, -1).contiguous() for t in (g, y)]
        rows: Tensor = at_once.softmax_backward(*last, logarithm, dtype)
        return rows.movedim(-1, dim).contiguous()
    wide, outputs = g.double(), y.double()
    if logarithm:
        width = torch.float64 if y.dtype is torch.float64 else torch.float32
        result = wide - evaluate("exp", [y], dtype=width).double() * tree_sum(g, [dim])
    else:
        result = (wide - tree_sum(wide * outputs, [dim])) * outputs
    return rounded(result, dtype).contiguous()


@form("_softmax")
def softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax_of(self, dim, torch.float32 if half_to_float else self.dtype, logarithm=False)


@form("_log_softmax")
def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax_of(self, dim, torch.float32 if half_to_float else self.dtype, logarithm=True)


@form("_softmax_backward_data")
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return _gradient(grad_output, output, dim, grad_output.dtype, logarithm=False).to(input_dtype)


@form("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return _gradient(grad_output, output, dim, grad_output.dtype, logarithm=True).to(input_dtype)


@form("_safe_softmax")
def safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax, but zeros for a row of -inf alone (everything masked)."""
    x = self if dtype is None else self.to(dtype)
    result = _softmax_of(x, dim, x.dtype, logarithm=False)
    if not x.dim() or not x.numel():
        return result
    empty = torch.all(x == -torch.inf, dim, True)
    return torch.where(empty, torch.zeros((), dtype=result.dtype, device=x.device), result)


# ------------------------------------------------------------------------------------------------- masked


def _excluded(mask: Tensor, x: Tensor, mask_type: int | None) -> Tensor:
    """What a mask leaves out (true), in the shape of x: [L, L] of type 0, [B, L] of type 1, else as it is."""
    if mask_type == 0:
        return mask.view(1, 1, *mask.shape).expand(x.shape)
    if mask_type == 1:
        return mask.view(mask.shape[0], 1, 1, mask.shape[1]).expand(x.shape)
    return mask.expand(x.shape)


@form("_masked_softmax")
def masked_softmax(self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """Softmax with -inf in the place of what is masked, so a row that is masked as a whole is NaN."""
    if mask.dtype is not torch.bool:
        raise RuntimeError("Mask should be a boolean tensor")
    x = torch.where(_excluded(mask, self, mask_type), -torch.inf, self)
    return _softmax_of(x, self.dim() - 1 if dim is None else dim, self.dtype, logarithm=False)


@form("_masked_softmax_backward")
def masked_softmax_backward(grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """That of softmax, with a gradient of 0 for what is masked; there the result is 0 too."""
    excluded = mask.expand(output.shape)
    gradient = torch.where(excluded, 0.0, grad_output)
    made = _gradient(gradient, output, output.dim() - 1 if dim is None else dim, output.dtype, logarithm=False)
    return torch.where(excluded, 0.0, made)
