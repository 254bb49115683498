"""Norms and softmax on the CPU in C (`c/row_*.c`): the bits of the compositions in `norms` and `softmax`, in one pass.

Tensors are dense; inputs may be fp32, bf16, fp16 or fp64. C computes fp64 where the input is, else fp32, which is then
rounded to the dtype that is wanted (batch norm: by the caller, whose statistics are fp64). Relies on `library` being
available.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.native.rows import CODES, function, tree_sum


def _result(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=x.dtype if x.dtype is torch.float64 else torch.float32)


def _pair(x: Tensor | None) -> tuple[int | None, int]:
    """Pointer and dtype."""
    return (None, 0) if x is None else (x.data_ptr(), CODES[x.dtype])


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.float64)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 to the result's dtype; to the short ones by way of fp32."""
    return x.to(dtype) if dtype in (torch.float64, torch.float32) else x.to(torch.float32).to(dtype)


def _done(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the rows of a D2 operator")


def softmax(x: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of a contiguous tensor that is not empty."""
    out = _result(x)
    length = x.shape[-1]
    _done(function("d2_softmax", "pillipii")(
        *_pair(x), x.numel() // length, length, logarithm, *_pair(out), torch.get_num_threads()
    ))  # fmt: skip
    return out.to(dtype)


def softmax_backward(g: Tensor, y: Tensor, logarithm: bool, dtype: torch.dtype) -> Tensor:
    """Over the last dimension of contiguous tensors that are not empty."""
    out = _result(y)
    length = y.shape[-1]
    _done(function("d2_softmax_backward", "pipillipii")(
        *_pair(g), *_pair(y), y.numel() // length, length, logarithm, *_pair(out), torch.get_num_threads()
    ))  # fmt: skip
    return out.to(dtype)


def row_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, groups: int, inner: int, eps: float,
    centred: bool, saved: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, and mean and rstd of dtype `saved`, of dense rows; without `centred` (RMS norm) the mean is empty."""
    out = _result(x)
    mean = torch.empty(rows if centred else 0, dtype=torch.float64)
    rstd = torch.empty(rows, dtype=torch.float64)
    _done(function("d2_row_norm", "pipipilllldpppii")(
        *_pair(x), *_pair(weight), *_pair(bias), rows, x.numel() // rows, groups, inner, eps,
        mean.data_ptr() if centred else None, rstd.data_ptr(), *_pair(out), torch.get_num_threads(),
    ))  # fmt: skip
    return out.to(x.dtype), mean.to(saved), rstd.to(saved)


def row_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, groups: int, inner: int
) -> Tensor:
    """dx of dense rows from mean (none for RMS norm) and rstd, one of each for a row."""
    out = _result(x)
    rows = rstd.numel()
    mean, rstd = _wide(mean), rstd.to(torch.float64)
    _done(function("d2_row_norm_backward", "pipipillllpppii")(
        *_pair(g), *_pair(x), *_pair(weight), rows, x.numel() // rows, groups, inner,
        None if mean is None else mean.data_ptr(), rstd.data_ptr(), *_pair(out), torch.get_num_threads(),
    ))  # fmt: skip
    return out.to(x.dtype)


def row_norm_weights(
    g: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, dtype: torch.dtype, pair: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the weights of layer and RMS norm, the tree over rows of g * xhat; with a `pair`, of the biases."""
    rows = rstd.numel()
    length = x.numel() // rows
    out = torch.empty(length, dtype=torch.float64)
    mean, rstd = _wide(mean), rstd.to(torch.float64)
    _done(function("d2_row_norm_weights", "pipillpppi")(
        *_pair(g), *_pair(x), rows, length, None if mean is None else mean.data_ptr(), rstd.data_ptr(),
        out.data_ptr(), torch.get_num_threads(),
    ))  # fmt: skip
    return _rounded(out, dtype), _rounded(tree_sum(g.view(rows, length), (0,))[0], dtype) if pair else None


def group_norm_weights(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, samples: int, channels: int, pixels: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias of group norm, from mean and rstd of [samples, groups]."""
    dw = torch.empty(channels, dtype=torch.float64)
    db = torch.empty_like(dw)
    mean, rstd = mean.to(torch.float64), rstd.to(torch.float64)
    _done(function("d2_group_norm_weights", "pipillllppppi")(
        *_pair(g), *_pair(x), samples, channels, pixels, rstd.numel() // samples, mean.data_ptr(), rstd.data_ptr(),
        dw.data_ptr(), db.data_ptr(), torch.get_num_threads(),
    ))  # fmt: skip
    return _rounded(dw, dtype), _rounded(db, dtype)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: tuple[Tensor, Tensor] | None, eps: float,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean, biased variance and rstd of [N, C, ...]; with `statistics` (fp64), of those instead of the batch's."""
    channels = x.shape[1]
    out = _result(x)
    rstd = torch.empty(channels, dtype=torch.float64)
    mean, variance = statistics or (torch.empty_like(rstd), torch.empty_like(rstd))
    _done(function("d2_batch_norm", "pipipillliidppppii")(
        *_pair(x), *_pair(weight), *_pair(bias), x.shape[0], channels, x.numel() // (x.shape[0] * channels),
        channels_last, statistics is None, eps, mean.data_ptr(), variance.data_ptr(), rstd.data_ptr(), *_pair(out),
        torch.get_num_threads(),
    ))  # fmt: skip
    return out, mean, variance, rstd


def batch_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, training: bool, wanted: bool,
    channels_last: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """dx (if wanted), and fp64 dw and db, from fp64 mean and rstd."""
    channels = x.shape[1]
    out = _result(x) if wanted else None
    dw, db = torch.empty_like(mean), torch.empty_like(mean)
    _done(function("d2_batch_norm_backward", "pipipillliipppppii")(
        *_pair(g), *_pair(x), *_pair(weight), x.shape[0], channels, x.numel() // (x.shape[0] * channels),
        channels_last, training, mean.data_ptr(), rstd.data_ptr(), dw.data_ptr(), db.data_ptr(), *_pair(out),
        torch.get_num_threads(),
    ))  # fmt: skip
    return out, dw, db
