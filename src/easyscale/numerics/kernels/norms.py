"""Layer, RMS, group and batch norm as D2 forms.

In fp64, with S the sum by the halving tree, n the number of values it runs over, w = 1 where there is no weight, each
operation rounded by itself and each result rounded once to its dtype:

    mean = S(x) / n        var = S((x - mean) * (x - mean)) / n        rstd = 1 / sqrt(var + eps)
    y = ((x - mean) * rstd) * w + b                                    (without a bias nothing is added)

RMS norm: rstd = 1 / sqrt(S(x * x) / n + eps), y = (x * rstd) * w. Batch norm in evaluation takes the running mean and
variance. What is saved for the backward is rounded to fp32 (fp64 for fp64 inputs), on every device, and the backward is
computed from it. Running statistics: (1 - momentum) * running + momentum * batch's, the variance times
n / (n - 1) first.

Backward of layer, RMS and group norm, with xhat = (x - mean) * rstd and gw = g * w:

    dx = ((gw - S(gw) / n) - xhat * (S(gw * xhat) / n)) * rstd         (RMS norm: mean and S(gw) / n are left out)
    dw = S over rows (group norm: samples and pixels) of g * xhat      db = the same of g

Backward of batch norm, with s1 = S(g) and s2 = S(g * (x - mean)) of a channel:

    dx = ((g - s1 / n) - (x - mean) * (((s2 / n) * rstd) * rstd)) * (rstd * w)      in evaluation: g * (rstd * w)
    dw = s2 * rstd         db = s1
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.batches import (
    affine,
    batch_backward,
    batch_forward,
    batch_norm_at_once,
    contiguous,
    is_channels_last,
    last_format,
    saved_dtype,
    update,
)
from easyscale.numerics.kernels.primitives import tree_sum
from easyscale.numerics.kernels.reductions import fused, moments, number, refuse_complex, root_of, rounded
from easyscale.numerics.kernels.registry import form

Maybe = Tensor | None
Three = tuple[Maybe, Maybe, Maybe]


# ---------------------------------------------------------------------------------------------- rows of values


def _rows_forward(
    x: Tensor, weight: Maybe, bias: Maybe, rows: int, groups: int, inner: int, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and rstd as they are saved, of a dense x seen as rows.

    Value i of row r has weight number (r % groups) * (length / inner) + i / inner."""
    saved = saved_dtype(x)
    at_once = fused(x.device, x.numel() // rows)
    if at_once is not None and hasattr(at_once, "row_norm"):
        y, mean, rstd = at_once.row_norm(
            x, contiguous(weight), contiguous(bias), rows, groups, inner, eps, centred, saved
        )
        return y, mean, rstd
    table = x.reshape(rows, -1)
    wide = table.double()
    if centred:
        mean, variance = moments(table, [1], 0.0)
        wide = wide - mean
    else:
        variance = tree_sum(wide * wide, [1]) / number(table.shape[1], x)
        mean = variance.new_empty(0)
    rstd = torch.reciprocal(root_of(variance + number(eps, x)))
    hat = (wide * rstd).reshape(rows // groups, groups, -1, inner)
    shape = (1, groups, -1, 1)
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    y = rounded(affine(hat, weight, bias).reshape(x.shape), x.dtype)
    return y, mean.reshape(-1).to(saved), rstd.reshape(-1).to(saved)


def _rows_backward(
    g: Tensor, x: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor, groups: int, inner: int
) -> Tensor:
    """dx of dense tensors."""
    at_once = fused(x.device, x.numel() // rstd.numel())
    if at_once is not None and hasattr(at_once, "row_norm_backward"):
        return at_once.row_norm_backward(g, x, contiguous(weight), mean, rstd, groups, inner)  # type: ignore[no-any-return]
    rows = rstd.numel()
    hat = _hat(x, mean, rstd)
    wide = g.reshape(rows // groups, groups, -1, inner).double()
    if weight is not None:
        wide = wide * weight.double().reshape(1, groups, -1, 1)
    wide = wide.reshape(rows, -1)
    size = number(wide.shape[1], x)
    second = hat * (tree_sum(wide * hat, [1]) / size)
    if mean is not None:
        wide = wide - tree_sum(wide, [1]) / size
    return rounded(((wide - second) * rstd.double().reshape(-1, 1)).reshape(x.shape), x.dtype)


def _hat(x: Tensor, mean: Maybe, rstd: Tensor) -> Tensor:
    wide = x.reshape(rstd.numel(), -1).double()
    return (wide if mean is None else wide - mean.double().reshape(-1, 1)) * rstd.double().reshape(-1, 1)


def _row_weights(
    g: Tensor, x: Tensor, mean: Maybe, rstd: Tensor, dtype: torch.dtype, pair: bool
) -> tuple[Tensor, Maybe]:
    """dw of layer and RMS norm, and with a `pair` db."""
    at_once = fused(x.device)
    if at_once is not None and hasattr(at_once, "row_norm_weights"):
        return at_once.row_norm_weights(g, x, mean, rstd, dtype, pair)  # type: ignore[no-any-return]
    rows = g.reshape(rstd.numel(), -1)
    dw = rounded(tree_sum(rows.double() * _hat(x, mean, rstd), [0])[0], dtype)
    return dw, rounded(tree_sum(rows, [0])[0], dtype) if pair else None


def _checked(x: Tensor, shape: Sequence[int]) -> tuple[int, list[int]]:
    """Rows, and the shape of the statistics."""
    refuse_complex(x, "a norm")
    return _rows_of(x.shape, tuple(shape))


@functools.lru_cache(maxsize=1024)
def _rows_of(whole: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, list[int]]:
    dims = len(shape)
    if not dims or tuple(whole[-dims:]) != shape:
        raise RuntimeError(f"the input's shape {list(whole)} does not end in the normalized shape {list(shape)}")
    outer = list(whole[: len(whole) - dims])
    return math.prod(outer), [*outer, *([1] * dims)]


@form("native_layer_norm")
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, outer = _checked(input, normalized_shape)
    saved = saved_dtype(input)
    if not input.numel():
        mean = torch.zeros(outer, dtype=saved, device=input.device)
        return torch.empty_like(input), mean, torch.full_like(mean, torch.nan)
    y, mean, rstd = _rows_forward(input.contiguous(), weight, bias, rows, 1, 1, eps, True)
    return y, mean.view(outer), rstd.view(outer)


@form("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Maybe,
    bias: Maybe, output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    return _layer_norm_backward(
        grad_out, input, normalized_shape, mean.contiguous(), rstd.contiguous(), weight, bias, output_mask
    )


def _layer_norm_backward(
    g: Tensor, x: Tensor, shape: Sequence[int], mean: Maybe, rstd: Tensor, weight: Maybe, bias: Maybe,
    wanted: Sequence[bool],
) -> Three:  # fmt: skip
    if not x.numel():
        pairs = zip((weight, bias), wanted[1:], strict=True)
        zero = [None if p is None or not mask else torch.zeros_like(p) for p, mask in pairs]
        return torch.zeros_like(x) if wanted[0] else None, zero[0], zero[1]
    g, x = g.contiguous(), x.contiguous()
    dx = _rows_backward(g, x, weight, mean, rstd, 1, 1) if wanted[0] else None
    dw = db = None
    dtype = (x if bias is None else bias).dtype
    if wanted[1] and weight is not None:
        pair = bool(wanted[2]) and dtype is weight.dtype
        dw, db = _row_weights(g, x, mean, rstd, weight.dtype, pair)
        dw = dw.view(weight.shape)
    if wanted[2] and db is None:
        db = rounded(tree_sum(g.view(rstd.numel(), -1), [0])[0], dtype)
    return dx, dw, None if db is None else db.view(list(shape))


@form("_fused_rms_norm")
def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Maybe, eps: float | None) -> tuple[Tensor, Tensor]:
    rows, outer = _checked(input, normalized_shape)
    saved = saved_dtype(input)
    if not input.numel():
        return torch.empty_like(input), torch.full(outer, torch.nan, dtype=saved, device=input.device)
    eps = torch.finfo(saved).eps if eps is None else eps
    y, _, rstd = _rows_forward(input.contiguous(), weight, None, rows, 1, 1, eps, False)
    return y, rstd.view(outer)


@form("_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:  # fmt: skip
    wanted = [*output_mask, False]
    return _layer_norm_backward(grad_out, input, normalized_shape, None, rstd.contiguous(), weight, None, wanted)[:2]


# ---------------------------------------------------------------------------------------------- group norm


@form("native_group_norm")
def group_norm(
    input: Tensor, weight: Maybe, bias: Maybe, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    refuse_complex(input, "a norm")
    saved = saved_dtype(input)
    if not input.numel():
        mean = torch.zeros((N, group), dtype=saved, device=input.device)
        return torch.empty_like(input), mean, torch.full_like(mean, torch.nan)
    y, mean, rstd = _rows_forward(input.contiguous(), weight, bias, N * group, group, HxW, eps, True)
    if is_channels_last(input):
        y = y.contiguous(memory_format=last_format(input))
    return y, mean.view(N, group), rstd.view(N, group)


@form("native_group_norm_backward")
def group_norm_backward(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Maybe, N: int, C: int, HxW: int, group: int,
    output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    if not input.numel():
        empty = torch.zeros(C, dtype=input.dtype, device=input.device)
        return torch.zeros_like(input), empty, torch.zeros_like(empty)
    g, x = grad_out.contiguous(), input.contiguous()
    means, scales = mean.contiguous(), rstd.contiguous()
    dx = dw = db = None
    if output_mask[0]:
        dx = _rows_backward(g, x, weight, means, scales, group, HxW)
        dx = dx.contiguous(memory_format=last_format(x)) if is_channels_last(input) else dx
    if output_mask[1] or output_mask[2]:
        dtype = x.dtype if weight is None else weight.dtype
        dw, db = _group_weights(g, x, means, scales, N, C, HxW, dtype)
    return dx, dw if output_mask[1] else None, db if output_mask[2] else None


def _group_weights(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, samples: int, channels: int, pixels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """dw and db."""
    at_once = fused(x.device)
    if at_once is not None and hasattr(at_once, "group_norm_weights"):
        return at_once.group_norm_weights(g, x, mean, rstd, samples, channels, pixels, dtype)  # type: ignore[no-any-return]
    shape = (samples, channels, pixels)
    products = g.reshape(shape).double() * _hat(x, mean, rstd).reshape(shape)
    dw, db = (rounded(tree_sum(values, [0, 2]).reshape(channels), dtype) for values in (products, g.reshape(shape)))
    return dw, db


# ---------------------------------------------------------------------------------------------- batch norm


@form("native_batch_norm")
def batch_norm(
    input: Tensor, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    refuse_complex(input, "a norm")
    saved = saved_dtype(input)
    if not input.numel():
        nothing = torch.zeros(input.shape[1] if training else 0, dtype=saved, device=input.device)
        return torch.empty_like(input), nothing, torch.zeros_like(nothing)
    at_once = fused(input.device)
    if at_once is not None and hasattr(at_once, "batch_norm_updating"):
        return batch_norm_at_once(at_once, input, weight, bias, (running_mean, running_var), training, momentum, eps)
    if not training:
        assert running_mean is not None, "batch norm in evaluation needs running statistics"
        assert running_var is not None
        statistics = (running_mean.double().contiguous(), running_var.double().contiguous())
        nothing = torch.empty(0, dtype=saved, device=input.device)
        return batch_forward(input, weight, bias, statistics, eps)[0], nothing, torch.empty_like(nothing)
    y, mean, variance, rstd = batch_forward(input, weight, bias, None, eps)
    update(running_mean, mean, momentum)
    if running_var is not None:
        size = input.numel() // input.shape[1]
        update(running_var, variance * number(size / (size - 1) if size > 1 else math.nan, variance), momentum)
    return y, mean.to(saved), rstd.to(saved)


@form("_native_batch_norm_legit")
def batch_norm_legit(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(*args)


@form("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Tensor, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)


@form("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Tensor, weight: Maybe, bias: Maybe, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@form("_batch_norm_with_update")
def batch_norm_with_update(
    input: Tensor, weight: Maybe, bias: Maybe, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, mean, rstd = batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return y, mean, rstd, torch.empty(0, dtype=torch.uint8, device=input.device)


@form("native_batch_norm_backward")
def batch_norm_backward(
    grad_out: Tensor, input: Tensor, weight: Maybe, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_invstd: Maybe, train: bool, eps: float, output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    assert mean is not None
    assert rstd is not None
    dtype = input.dtype if weight is None else weight.dtype
    if not input.numel():
        zeros = torch.zeros_like(mean, dtype=dtype)
        return torch.zeros_like(input), zeros, torch.zeros_like(zeros)
    dx, dw, db = batch_backward(grad_out, input, weight, mean, rstd, train, eps, output_mask[0], dtype)
    return dx, dw if output_mask[1] else None, db if output_mask[2] else None


@form("batch_norm_backward")
def batch_norm_with_update_backward(
    grad_out: Tensor, input: Tensor, weight: Tensor, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_var: Maybe, update: bool, eps: float, output_mask: Sequence[bool], reserve: Tensor,
) -> Three:  # fmt: skip
    return batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
