# mypy: ignore-errors
"""Triton kernels of batch norm, and of the gradients of the weights of norms: sums of many values for each channel.

`fold` is one pass of the halving tree over values that it computes from x and g; sums of what is left are `rows`'.
Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.fused_kernels import _pick, _push, _turned, number

SQUARE = tl.constexpr(0)  # (x - mean) * (x - mean)
PRODUCT = tl.constexpr(1)  # g * (x - mean)
NORMAL = tl.constexpr(2)  # g * ((x - mean) * rstd), mean and rstd of the sample's group
PLAIN = tl.constexpr(3)  # g * (x * rstd), without a mean


@triton.jit
def _term(
    g, x, mean, rstd, channel, index, here, pixels, x_sample, x_channel, x_pixel, groups, per_group,
    KIND: tl.constexpr,
):  # fmt: skip
    """Value `index` = (sample, pixel) of a channel; +0 where it is not `here`."""
    sample = index // pixels
    at = channel.to(tl.int64)[:, None] * x_channel + sample.to(tl.int64)[None, :] * x_sample
    at += (index % pixels).to(tl.int64)[None, :] * x_pixel
    v = tl.load(x + at, mask=here, other=0).to(tl.float64)
    if KIND <= PRODUCT:
        v = v - tl.load(mean + channel[:, None] + index[None, :] * 0, mask=here, other=0)
    else:
        group = (channel // per_group)[:, None] + (sample * groups)[None, :]
        if KIND == NORMAL:
            v = v - tl.load(mean + group, mask=here, other=0)
        v = v * tl.load(rstd + group, mask=here, other=0)
    other = v if KIND == SQUARE else tl.load(g + at, mask=here, other=0).to(tl.float64)
    return tl.where(here, other * v, tl.zeros_like(v))


@triton.jit
def fold(
    g, x, mean, rstd, out, outputs, length, left, pixels, x_sample, x_channel, x_pixel, groups, per_group, out_step,
    out_lane, KIND: tl.constexpr, OUTPUTS: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """`left` partial sums of each channel, of 2^LEVELS values each, `left` apart."""
    blocks = tl.cdiv(outputs, OUTPUTS)
    channel = (tl.program_id(0) % blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane = (tl.program_id(0) // blocks) * LANES + tl.arange(0, LANES)
    kept = (channel < outputs)[:, None] & (lane < left)[None, :]
    zero = tl.zeros((OUTPUTS, LANES), dtype=tl.float64)
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    for i in tl.static_range(2**LEVELS):
        index = lane + left * _turned(i, LEVELS)
        here = kept & (index < length)[None, :]
        v = _term(g, x, mean, rstd, channel, index, here, pixels, x_sample, x_channel, x_pixel, groups, per_group, KIND)
        s0, s1, s2, s3, s4, s5, s6, s7 = _push(i, v, s0, s1, s2, s3, s4, s5, s6, s7)
    at = channel.to(tl.int64)[:, None] * out_step + lane.to(tl.int64)[None, :] * out_lane
    tl.store(out + at, _pick(s0, s1, s2, s3, s4, s5, s6, s7, LEVELS), mask=kept)


@triton.jit(do_not_specialize=["size", "eps"], do_not_specialize_on_alignment=["size", "eps"])
def scales(total, variance, rstd, channels, size, eps, BLOCK: tl.constexpr):
    """variance = total / size and rstd = 1 / sqrt(variance + eps) of each channel."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < channels
    v = tl.load(total + at, mask=here, other=1) / number(size)
    one = tl.full((), 1, tl.int32).to(tl.float64)
    tl.store(variance + at, v, mask=here)
    tl.store(rstd + at, one / tl.sqrt(v + number(eps)), mask=here)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["size"])
def slopes(
    first, second, rstd, w, shift, slope, scale, dw, channels, size, WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """s1 / n, ((s2 / n) * rstd) * rstd and rstd * w of each channel, for `apply_backward`; and dw = s2 * rstd."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < channels
    r, s2 = tl.load(rstd + at, mask=here, other=1), tl.load(second + at, mask=here, other=0)
    tl.store(shift + at, tl.load(first + at, mask=here, other=0) / number(size), mask=here)
    tl.store(slope + at, ((s2 / number(size)) * r) * r, mask=here)
    tl.store(dw + at, s2 * r, mask=here)
    if WEIGHT:
        r = r * tl.load(w + at, mask=here, other=0).to(tl.float64)
    tl.store(scale + at, r, mask=here)


@triton.jit
def _place(count, inner, channels, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Elements of a program, which of them there are, and their channels."""
    if WIDE:  # more than an int32 counts
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    else:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return at, at < count, (at // inner) % channels


@triton.jit
def _stored(out, at, here, value):
    if out.dtype.element_ty != tl.float64:
        value = value.to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def apply(
    x, w, b, mean, rstd, out, count, inner, channels,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """((x - mean) * rstd) * w + b."""
    at, here, channel = _place(count, inner, channels, WIDE, BLOCK)
    v = tl.load(x + at, mask=here, other=0).to(tl.float64)
    v = (v - tl.load(mean + channel, mask=here, other=0)) * tl.load(rstd + channel, mask=here, other=0)
    if WEIGHT:
        v = v * tl.load(w + channel, mask=here, other=0).to(tl.float64)
    if BIAS:
        v = v + tl.load(b + channel, mask=here, other=0).to(tl.float64)
    _stored(out, at, here, v)


@triton.jit
def apply_backward(
    g, x, mean, shift, slope, scale, out, count, inner, channels,
    TRAINING: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """((g - shift) - (x - mean) * slope) * scale; in evaluation g * scale."""
    at, here, channel = _place(count, inner, channels, WIDE, BLOCK)
    v = tl.load(g + at, mask=here, other=0).to(tl.float64)
    if TRAINING:
        apart = tl.load(x + at, mask=here, other=0).to(tl.float64) - tl.load(mean + channel, mask=here, other=0)
        v = (v - tl.load(shift + channel, mask=here, other=0)) - apart * tl.load(slope + channel, mask=here, other=0)
    _stored(out, at, here, v * tl.load(scale + channel, mask=here, other=0))
