# mypy: ignore-errors
"""Triton kernels of pooling and interpolation: one output element is a loop over its inputs, in the defined order.

Which inputs an output has is read from a table for each dimension, [outputs, K] with -1 where there are fewer than K.
Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _split(at, channels, depth, height, width, LAST: tl.constexpr):
    """(image, channel, d, h, w) of an element counted in memory: channels outside, or (LAST) inside the picture."""
    if LAST:
        c = at % channels
        at = at // channels
    w = at % width
    at = at // width
    h = at % height
    at = at // height
    d = at % depth
    n = at // depth
    if not LAST:
        c = n % channels
        n = n // channels
    return n, c, d, h, w


@triton.jit
def _numbered(count, BLOCK: tl.constexpr, FAR: tl.constexpr):
    first = tl.program_id(0)
    if FAR:  # more than 2^31 elements
        first = first.to(tl.int64)
    at = first * BLOCK + tl.arange(0, BLOCK)
    return at, at < count


@triton.jit
def _number(counts_d, counts_h, counts_w, d, h, w, here, dtype: tl.constexpr):
    number = tl.load(counts_d + d, mask=here, other=1).to(tl.int64) * tl.load(counts_h + h, mask=here, other=1)
    return (number * tl.load(counts_w + w, mask=here, other=1)).to(dtype)


@triton.jit
def _over(x, y):
    """x / y, rounded correctly: Triton's fp32 division is not."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:  # noqa: RET505  Triton wants one of them to be compiled
        return x / y


@triton.jit
def _tap(
    total, x, chosen, counts_d, counts_h, counts_w, base, d, h, w, own, step_d, step_h, step_w,
    EACH: tl.constexpr, CHOSEN: tl.constexpr, STEPWISE: tl.constexpr,
):  # fmt: skip
    """The sum with the input at (d, h, w), if there is one."""
    here = (d >= 0) & (h >= 0) & (w >= 0)
    place = base + d.to(tl.int64) * step_d + h.to(tl.int64) * step_h + w.to(tl.int64) * step_w
    value = tl.load(x + place, mask=here, other=0).to(total.dtype)
    if EACH:
        value = _over(value, _number(counts_d, counts_h, counts_w, d, h, w, here, total.dtype))
    if CHOSEN:
        here = here & (tl.load(chosen + place, mask=here, other=-1) == own)
    more = total + value
    if STEPWISE:
        more = more.to(x.dtype.element_ty).to(total.dtype)
    return tl.where(here, more, total)


_UNCOUNTED = tl.constexpr(32)  # inputs of an output, up to which the loops are written out


@triton.jit(do_not_specialize=["count", "channels", "depth", "height", "width"])
def window_sums(
    x, out, chosen, counts_d, counts_h, counts_w, places_d, places_h, places_w, count, channels, depth, height, width,
    step_n, step_c, step_d, step_h, step_w,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr,
    CHOSEN: tl.constexpr, STEPWISE: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of inputs in fp32 (fp64 of fp64), row-major. EACH input, or the WHOLE sum, is divided by a number; CHOSEN:
    only inputs that chose this output count; STEPWISE: each addition is rounded to the dtype of the inputs."""
    at, here = _numbered(count, BLOCK, FAR)
    n, c, d, h, w = _split(at, channels, depth, height, width, LAST)
    base = n.to(tl.int64) * step_n + c.to(tl.int64) * step_c
    own = (d.to(tl.int64) * height + h) * width + w
    dtype: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BLOCK,), dtype=dtype)
    if KD * KH * KW <= _UNCOUNTED:
        for kd in tl.static_range(KD):
            of_d = tl.load(places_d + d * KD + kd, mask=here, other=-1)
            for kh in tl.static_range(KH):
                of_h = tl.load(places_h + h * KH + kh, mask=here, other=-1)
                for kw in tl.static_range(KW):
                    of_w = tl.load(places_w + w * KW + kw, mask=here, other=-1)
                    total = _tap(
                        total, x, chosen, counts_d, counts_h, counts_w, base, of_d, of_h, of_w, own, step_d, step_h,
                        step_w, EACH, CHOSEN, STEPWISE,
                    )  # fmt: skip
    else:
        for kd in range(KD):
            of_d = tl.load(places_d + d * KD + kd, mask=here, other=-1)
            for kh in range(KH):
                of_h = tl.load(places_h + h * KH + kh, mask=here, other=-1)
                for kw in range(KW):
                    of_w = tl.load(places_w + w * KW + kw, mask=here, other=-1)
                    total = _tap(
                        total, x, chosen, counts_d, counts_h, counts_w, base, of_d, of_h, of_w, own, step_d, step_h,
                        step_w, EACH, CHOSEN, STEPWISE,
                    )  # fmt: skip
    if WHOLE:
        total = _over(total, _number(counts_d, counts_h, counts_w, d, h, w, here, total.dtype))
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["count", "channels", "depth", "height", "width"])
def copies(
    x, out, places_d, places_h, places_w, count, channels, depth, height, width,
    step_n, step_c, step_d, step_h, step_w, LAST: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each output is one input."""
    at, here = _numbered(count, BLOCK, FAR)
    n, c, d, h, w = _split(at, channels, depth, height, width, LAST)
    place = n.to(tl.int64) * step_n + c.to(tl.int64) * step_c
    place += tl.load(places_d + d, mask=here, other=0).to(tl.int64) * step_d
    place += tl.load(places_h + h, mask=here, other=0).to(tl.int64) * step_h
    place += tl.load(places_w + w, mask=here, other=0).to(tl.int64) * step_w
    tl.store(out + at, tl.load(x + place, mask=here, other=0), mask=here)


@triton.jit
def _along(
    x, place, places, weights, w, step, here, K: tl.constexpr,
):  # fmt: skip
    """The weighted sum along the last dimension, in fp64."""
    total = place.to(tl.float64) * 0
    for k in range(K):
        at = tl.load(places + w * K + k, mask=here, other=-1)
        there = at >= 0
        value = tl.load(x + place + at.to(tl.int64) * step, mask=there, other=0).to(tl.float64)
        weight = tl.load(weights + w * K + k, mask=there, other=0)
        total = tl.where(there, total + value * weight, total)
    return total


@triton.jit
def _across(
    x, place, places_h, weights_h, places_w, weights_w, h, w, step_h, step_w, here, KH: tl.constexpr, KW: tl.constexpr,
):  # fmt: skip
    """The same along the last two; KH = 0: along the last one."""
    if KH == 0:
        return _along(x, place, places_w, weights_w, w, step_w, here, KW)
    else:  # noqa: RET505  Triton wants one of them to be compiled
        total = place.to(tl.float64) * 0
        for k in range(KH):
            at = tl.load(places_h + h * KH + k, mask=here, other=-1)
            there = at >= 0
            value = _along(x, place + at.to(tl.int64) * step_h, places_w, weights_w, w, step_w, there, KW)
            weight = tl.load(weights_h + h * KH + k, mask=there, other=0)
            total = tl.where(there, total + value * weight, total)
        return total


@triton.jit(do_not_specialize=["count", "channels", "depth", "height", "width"])
def weighted_sums(
    x, out, places_d, weights_d, places_h, weights_h, places_w, weights_w, count, channels, depth, height, width,
    step_n, step_c, step_d, step_h, step_w,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums in fp64 of inputs times weights: along the last dimension, of these along the one before, of these along
    the first. K = 0: that dimension has one place, and no weights."""
    at, here = _numbered(count, BLOCK, FAR)
    n, c, d, h, w = _split(at, channels, depth, height, width, LAST)
    place = n.to(tl.int64) * step_n + c.to(tl.int64) * step_c
    if KD == 0:
        total = _across(x, place, places_h, weights_h, places_w, weights_w, h, w, step_h, step_w, here, KH, KW)
    else:
        total = place.to(tl.float64) * 0
        for k in range(KD):
            far = tl.load(places_d + d * KD + k, mask=here, other=-1)
            there = far >= 0
            start = place + far.to(tl.int64) * step_d
            value = _across(x, start, places_h, weights_h, places_w, weights_w, h, w, step_h, step_w, there, KH, KW)
            weight = tl.load(weights_d + d * KD + k, mask=there, other=0)
            total = tl.where(there, total + value * weight, total)
    if out.dtype.element_ty != tl.float64:
        total = total.to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)
