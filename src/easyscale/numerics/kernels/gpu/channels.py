"""Batch norm, and the gradients of the weights of norms, on a GPU: the bits of the compositions in `norms`.

Sums over a channel are the halving tree over (sample, pixel). One kernel computes the values and does the first four
folds of it, so that no tensor of fp64 values is written; `rows.tree_sum` does the rest. Part of `gpu.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import bits, ceil_div, on
from easyscale.numerics.kernels.gpu.rows import tree_sum

FOLDS = 4
BLOCK = 1024  # elements of one program of the elementwise kernels
SQUARE, PRODUCT, NORMAL, PLAIN = range(4)  # what `channel_kernels.fold` sums


def _folded(
    kind: int, g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, channels: int, samples: int, pixels: int,
    steps: tuple[int, int, int], groups: int = 1, per_group: int = 1,
) -> Tensor:  # fmt: skip
    """fp64 sums of each channel; `steps` are those of samples, channels and pixels in memory."""
    from easyscale.numerics.kernels.gpu.channel_kernels import fold

    length = samples * pixels
    padded = 1 << (length - 1).bit_length()
    levels = min(FOLDS, padded.bit_length() - 1)
    left = padded >> levels
    across = steps[1] == 1 and channels > 1  # neighbouring channels are neighbours in memory
    outputs = min(128, 1 << (channels - 1).bit_length()) if across else 1
    lanes = min(left, max(1, 256 // outputs))
    part = torch.empty((left, channels) if across else (channels, left), dtype=torch.float64, device=x.device)
    places = (1, channels) if across else (left, 1)
    fold[(ceil_div(channels, outputs) * ceil_div(left, lanes),)](
        g, x, mean, rstd, part, channels, length, left, pixels, *steps, groups, per_group, *places,
        KIND=kind, OUTPUTS=outputs, LANES=lanes, LEVELS=levels, num_warps=max(1, min(4, outputs * lanes // 64)),
        enable_fp_fusion=False,
    )  # fmt: skip
    return tree_sum(part, (0,) if across else (1,)).reshape(channels)


def row_norm_weights(g: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor) -> Tensor:
    """fp64 gradients of the weights of layer and RMS norm: the tree over rows of g * xhat."""
    rows = rstd.numel()
    n = x.numel() // rows
    kind = PLAIN if mean is None else NORMAL
    with on(x.device):
        return _folded(kind, g, x, rstd if mean is None else mean, rstd, n, rows, 1, (n, 1, 0), per_group=n)


def group_norm_weights(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, samples: int, channels: int, pixels: int
) -> tuple[Tensor, Tensor]:
    """fp64 gradients of weight and bias of group norm, from fp64 mean and rstd of [samples, groups]."""
    groups = rstd.numel() // samples
    steps = (channels * pixels, pixels, 1)
    with on(x.device):
        dw = _folded(NORMAL, g, x, mean, rstd, channels, samples, pixels, steps, groups, channels // groups)
        return dw, tree_sum(g.reshape(samples, channels, pixels), (0, 2)).reshape(channels)


def _sizes(x: Tensor, last: bool) -> tuple[int, int, int, tuple[int, int, int], int]:
    """Channels, samples, pixels, their steps in memory, and how many neighbours have one channel."""
    samples, channels = x.shape[:2]
    pixels = x.numel() // (samples * channels)
    if last:
        return channels, samples, pixels, (pixels * channels, 1, channels), 1
    return channels, samples, pixels, (pixels * channels, pixels, 1), pixels


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: tuple[Tensor, Tensor] | None, eps: float,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean, biased variance and rstd of [N, C, ...]; with `statistics` (fp64), of those instead of the batch's."""
    from easyscale.numerics.kernels.gpu.channel_kernels import apply, scales

    channels, samples, pixels, steps, inner = _sizes(x, channels_last)
    out = torch.empty_like(x)
    rstd = torch.empty(channels, dtype=torch.float64, device=x.device)
    size = float(samples * pixels)
    with on(x.device):
        if statistics is None:
            dims = (0, *range(2, x.dim()))
            mean = tree_sum(x, dims).reshape(channels) / torch.full_like(rstd, size)
            total = _folded(SQUARE, x, x, mean, rstd, channels, samples, pixels, steps)
            variance = torch.empty_like(rstd)
        else:
            (mean, total), size = statistics, 1.0
            variance = torch.empty_like(rstd)
        scales[(ceil_div(channels, 128),)](
            total, variance, rstd, channels, bits(size), bits(eps), BLOCK=128, num_warps=2, enable_fp_fusion=False
        )
        apply[(ceil_div(x.numel(), BLOCK),)](
            x, x if weight is None else weight, x if bias is None else bias, mean, rstd, out, x.numel(), inner,
            channels, WEIGHT=weight is not None, BIAS=bias is not None, WIDE=x.numel() > 2**30, BLOCK=BLOCK,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out, mean, variance, rstd


def batch_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, training: bool, wanted: bool,
    channels_last: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """dx (if wanted), and fp64 dw and db, from fp64 mean and rstd."""
    from easyscale.numerics.kernels.gpu.channel_kernels import apply_backward, slopes

    channels, samples, pixels, steps, inner = _sizes(x, channels_last)
    with on(x.device):
        first = tree_sum(g, (0, *range(2, g.dim()))).reshape(channels)
        second = _folded(PRODUCT, g, x, mean, rstd, channels, samples, pixels, steps)
        shift, slope, scale, dw = (torch.empty_like(rstd) for _ in range(4))
        slopes[(ceil_div(channels, 128),)](
            first, second, rstd, rstd if weight is None else weight, shift, slope, scale, dw, channels,
            bits(float(samples * pixels)), WEIGHT=weight is not None, BLOCK=128, num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
        if not wanted:
            return None, dw, first
        out = torch.empty_like(x)
        apply_backward[(ceil_div(x.numel(), BLOCK),)](
            g, x, mean, shift, slope, scale, out, x.numel(), inner, channels,
            TRAINING=training, WIDE=x.numel() > 2**30, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out, dw, first
