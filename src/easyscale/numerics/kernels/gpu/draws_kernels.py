# mypy: ignore-errors
"""Triton kernels of random numbers: Philox 4x32-10 in whole numbers, and what is made of its words.

Each lane computes blocks of four words and keeps them side by side, so that nothing but results is written to memory.
Compiled without fusing multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.elementwise import function

_cos, _log, _sqrt = function("cos"), function("log"), function("sqrt")


@triton.jit
def _u32(value: tl.constexpr):
    return tl.full((), value, tl.uint32)


@triton.jit
def philox_blocks(counter, key):
    """The four words of each block."""
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2, c3 = c0 ^ c0, c0 ^ c0
    whole = key.to(tl.int64)
    k0, k1 = whole.to(tl.uint32), (whole >> 32).to(tl.uint32)
    m0, m1, w0, w1 = _u32(0xD2511F53), _u32(0xCD9E8D57), _u32(0x9E3779B9), _u32(0xBB67AE85)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    return c0, c1, c2, c3


@triton.jit
def _words(first, key, BLOCK: tl.constexpr):
    """int64: BLOCK words from word `first` (a multiple of 4) on."""
    c0, c1, c2, c3 = philox_blocks(first // 4 + tl.arange(0, BLOCK // 4), key)
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), (BLOCK,)).to(tl.int64)


@triton.jit
def _pairs(first, key, BLOCK: tl.constexpr):
    """fp64: words 2i and 2i + 1 of the elements i from `first` (a multiple of 2) on."""
    c0, c1, c2, c3 = philox_blocks(first // 2 + tl.arange(0, BLOCK // 2), key)
    one, two = tl.reshape(tl.join(c0, c2), (BLOCK,)), tl.reshape(tl.join(c1, c3), (BLOCK,))
    return one.to(tl.int64), two.to(tl.int64)


@triton.jit
def _fp64(bits):
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _places(count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    return first, at, at < count


@triton.jit
def _store(out, at, value, here):
    if out.dtype.element_ty != tl.float64:
        value = value.to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["count", "key", "start"])
def philox_words(out, count, key, start, BLOCK: tl.constexpr):
    first, at, here = _places(count, BLOCK)
    tl.store(out + at, _words(first + start, key, BLOCK), mask=here)


@triton.jit(do_not_specialize=["count", "key", "limit"])
def bernoulli(out, count, key, limit, BLOCK: tl.constexpr):
    first, at, here = _places(count, BLOCK)
    _store(out, at, (_words(first, key, BLOCK) < limit).to(tl.float32), here)


@triton.jit(do_not_specialize=["count", "key", "limit", "noise"])
def dropout(x, out, mask, key, count, limit, noise, BLOCK: tl.constexpr):
    """x times the noise, in the dtype, where the word is below the limit; x times 0 elsewhere."""
    first, at, here = _places(count, BLOCK)
    kept = _words(first, key, BLOCK) < limit
    dtype: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    value = tl.load(x + at, mask=here, other=0).to(dtype)
    factor = tl.where(kept, _fp64(noise), 0.0).to(dtype)
    tl.store(out + at, (value * factor).to(out.dtype.element_ty), mask=here)
    tl.store(mask + at, kept.to(tl.uint8), mask=here)


@triton.jit(do_not_specialize=["count", "noise"])
def dropout_backward(g, mask, out, count, noise, BLOCK: tl.constexpr):
    _, at, here = _places(count, BLOCK)
    dtype: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
    value = tl.load(g + at, mask=here, other=0).to(dtype)
    factor = tl.where(tl.load(mask + at, mask=here, other=0) != 0, _fp64(noise), 0.0).to(dtype)
    tl.store(out + at, (value * factor).to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["count", "key", "low", "span", "top", "bottom"])
def uniform(out, count, key, low, span, top, bottom, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """low + u * span; what is rounded up to `top`, a number of the dtype, becomes `bottom`. BITS of u."""
    first, at, here = _places(count, BLOCK)
    if BITS == 53:
        upper, lower = _pairs(first, key, BLOCK)
        whole = upper * 2097152 + (lower >> 11)
        scale = _fp64(tl.full((), 4368491638549381120, tl.int64))  # 2^-53
    else:
        whole = _words(first, key, BLOCK) >> (32 - BITS)
        scale = _fp64(tl.full((), (1023 - BITS) << 52, tl.int64))  # 2^-BITS
    value = whole.to(tl.float64) * scale * _fp64(span) + _fp64(low)
    if BITS != 53:
        value = value.to(tl.float32)
        value = value.to(out.dtype.element_ty)
    value = tl.where(value.to(tl.float64) < _fp64(top), value.to(tl.float64), _fp64(bottom))
    _store(out, at, value, here)


@triton.jit(do_not_specialize=["count", "key", "mean", "std", "turn"])
def normal(out, count, key, mean, std, turn, BLOCK: tl.constexpr):
    """sqrt(log((W[2i] + 0.5) / 2^32) * -2) * cos(W[2i + 1] * turn) * std + mean."""
    first, at, here = _places(count, BLOCK)
    one, two = _pairs(first, key, BLOCK)
    scale = _fp64(tl.full((), 991 << 52, tl.int64))  # 2^-32
    radius = _sqrt(_log((one.to(tl.float64) + 0.5) * scale) * -2.0)
    _store(out, at, radius * _cos(two.to(tl.float64) * _fp64(turn)) * _fp64(std) + _fp64(mean), here)


@triton.jit(do_not_specialize=["count", "key", "rate"])
def exponential(out, count, key, rate, BLOCK: tl.constexpr):
    """log((W[i] + 0.5) / 2^32) * -1 / rate."""
    first, at, here = _places(count, BLOCK)
    scale = _fp64(tl.full((), 991 << 52, tl.int64))  # 2^-32
    inside = (_words(first, key, BLOCK).to(tl.float64) + 0.5) * scale
    _store(out, at, _log(inside) * -1.0 / _fp64(rate), here)
