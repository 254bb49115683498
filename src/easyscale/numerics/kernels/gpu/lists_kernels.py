# mypy: ignore-errors
"""Triton kernels that take a list of tensors at once: steps of optimizers, and sums of squares.

A table has a row of addresses for each tensor; for each program there is a number that says which tensor it works on
(from bit 40 on) and from which element. Compiled without fusing multiply-adds, but for those that are written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from easyscale.numerics.kernels.gpu.elementwise import function

f_lerp = function("lerp")
f_addcmul = function("addcmul")
f_addcdiv = function("addcdiv")


@triton.jit
def _double(bits):
    """An fp64 from the whole number of its bits."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _single(bits, BLOCK: tl.constexpr):
    return tl.broadcast_to(_double(bits).to(tl.float32), (BLOCK,))


@triton.jit
def _rounded(x, DTYPE: tl.constexpr):
    """To the dtype, held as fp32."""
    return x.to(tl.float32).to(DTYPE).to(tl.float32)


@triton.jit
def _tensor(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """ALIGNED: the address is a multiple of 16."""
    place = address.to(tl.pointer_type(DTYPE))
    if ALIGNED:
        place = tl.multiple_of(place, 16)
    return place


@triton.jit
def _place(table, row, column, COLUMNS: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where a tensor of the table begins."""
    return _tensor(tl.load(table + row * COLUMNS + column), DTYPE, ALIGNED)


@triton.jit
def _here(at, length, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """Which elements there are. WHOLE: all, which the compiler must know to load 16 bytes at once."""
    return tl.full((BLOCK,), True, tl.int1) if WHOLE else at < length


@triton.jit
def _adam_block(
    parameter, gradient, mean, square, at, length, decay, pull, keep, push, root, eps, size,
    DECOUPLED: tl.constexpr, COUPLED: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    here = _here(at, length, WHOLE, BLOCK)
    p = tl.load(parameter + at, mask=here, other=0).to(tl.float32)
    g = tl.load(gradient + at, mask=here, other=0).to(tl.float32)
    m = tl.load(mean + at, mask=here, other=0).to(tl.float64)
    v = tl.load(square + at, mask=here, other=0).to(tl.float32)
    if DECOUPLED:
        p = _rounded(p * _single(decay, BLOCK), DTYPE)
    if COUPLED:
        g = _rounded(tl.fma(_single(decay, BLOCK), p, g), DTYPE)
    wide = g.to(tl.float64)
    m = _rounded(f_lerp(m, wide, _double(pull)), DTYPE)
    v = _rounded(v * _single(keep, BLOCK), DTYPE)
    v = _rounded(f_addcmul(v.to(tl.float64), wide, wide, _double(push)), DTYPE)
    n = _rounded(tl.sqrt_rn(v), DTYPE)
    n = _rounded(tl.div_rn(n, _single(root, BLOCK)), DTYPE)
    n = _rounded(n + _single(eps, BLOCK), DTYPE)
    p = _rounded(f_addcdiv(p.to(tl.float64), m.to(tl.float64), n.to(tl.float64), _double(size)), DTYPE)
    tl.store(mean + at, m.to(DTYPE), mask=here)
    tl.store(square + at, v.to(DTYPE), mask=here)
    tl.store(parameter + at, p.to(DTYPE), mask=here)


@triton.jit(do_not_specialize=["decay", "pull", "keep", "push", "root", "eps", "size"])
def adam(
    table, chunks, decay, pull, keep, push, root, eps, size,
    DECOUPLED: tl.constexpr, COUPLED: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step, operator by operator (docs/numerics.md). Numbers come as the bits of fp64: `decay` is the factor of the
    parameter (DECOUPLED) or of what is added to the gradient (COUPLED), `root` the divisor of the square root."""
    entry = tl.load(chunks + tl.program_id(0))
    row = entry >> 40
    start = tl.multiple_of(entry & ((1 << 40) - 1), CHUNK)
    length = tl.load(table + row * 5)
    p = _place(table, row, 1, 5, DTYPE, ALIGNED)
    g = _place(table, row, 2, 5, DTYPE, ALIGNED)
    m = _place(table, row, 3, 5, DTYPE, ALIGNED)
    v = _place(table, row, 4, 5, DTYPE, ALIGNED)
    for piece in range(0, CHUNK, BLOCK):
        at = start + piece + tl.arange(0, BLOCK)
        if start + CHUNK <= length:
            _adam_block(
                p, g, m, v, at, length, decay, pull, keep, push, root, eps, size, DECOUPLED, COUPLED, DTYPE, BLOCK, True
            )
        else:
            _adam_block(
                p, g, m, v, at, length, decay, pull, keep, push, root, eps, size, DECOUPLED, COUPLED, DTYPE, BLOCK,
                False,
            )  # fmt: skip


@triton.jit
def _sgd_block(
    parameter, gradient, buffer, at, length, decay, momentum, share, rate,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    here = _here(at, length, WHOLE, BLOCK)
    p = tl.load(parameter + at, mask=here, other=0).to(tl.float32)
    g = tl.load(gradient + at, mask=here, other=0).to(tl.float32)
    if DECAY:
        g = _rounded(tl.fma(_single(decay, BLOCK), p, g), DTYPE)
    if MOMENTUM:
        b = tl.load(buffer + at, mask=here, other=0).to(tl.float32)
        b = _rounded(b * _single(momentum, BLOCK), DTYPE)
        b = _rounded(tl.fma(_single(share, BLOCK), g, b), DTYPE)
        tl.store(buffer + at, b.to(DTYPE), mask=here)
        g = _rounded(tl.fma(_single(momentum, BLOCK), b, g), DTYPE) if NESTEROV else b
    p = _rounded(tl.fma(_single(rate, BLOCK), g, p), DTYPE)
    tl.store(parameter + at, p.to(DTYPE), mask=here)


@triton.jit(do_not_specialize=["decay", "momentum", "share", "rate"])
def sgd(
    table, chunks, decay, momentum, share, rate,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step, operator by operator (docs/numerics.md). Numbers come as the bits of fp64; `share` is the factor of the
    gradient in the buffer, `rate` that of the step, with its sign."""
    entry = tl.load(chunks + tl.program_id(0))
    row = entry >> 40
    start = tl.multiple_of(entry & ((1 << 40) - 1), CHUNK)
    length = tl.load(table + row * 4)
    p = _place(table, row, 1, 4, DTYPE, ALIGNED)
    g = _place(table, row, 2, 4, DTYPE, ALIGNED)
    b = _place(table, row, 3, 4, DTYPE, ALIGNED)
    for piece in range(0, CHUNK, BLOCK):
        at = start + piece + tl.arange(0, BLOCK)
        if start + CHUNK <= length:
            _sgd_block(p, g, b, at, length, decay, momentum, share, rate, DECAY, MOMENTUM, NESTEROV, DTYPE, BLOCK, True)
        else:
            _sgd_block(
                p, g, b, at, length, decay, momentum, share, rate, DECAY, MOMENTUM, NESTEROV, DTYPE, BLOCK, False
            )


# ------------------------------------------------------------------------------------------------ sums of squares


@triton.jit
def _value(x, at, length, here, SQUARE: tl.constexpr):
    value = tl.load(x + at, mask=here & (at < length), other=0).to(tl.float64)
    if SQUARE:
        value = value * value
    return value


@triton.jit
def _fold2(x, at, step, length, here, SQUARE: tl.constexpr):
    return _value(x, at, length, here, SQUARE) + _value(x, at + step, length, here, SQUARE)


@triton.jit
def _fold4(x, at, step, length, here, SQUARE: tl.constexpr):
    return _fold2(x, at, 2 * step, length, here, SQUARE) + _fold2(x, at + step, 2 * step, length, here, SQUARE)


@triton.jit
def _fold8(x, at, step, length, here, SQUARE: tl.constexpr):
    return _fold4(x, at, 2 * step, length, here, SQUARE) + _fold4(x, at + step, 2 * step, length, here, SQUARE)


@triton.jit
def _fold16(x, at, step, length, here, SQUARE: tl.constexpr):
    """The halving tree over 16 elements that lie `step` apart."""
    return _fold8(x, at, 2 * step, length, here, SQUARE) + _fold8(x, at + step, 2 * step, length, here, SQUARE)


@triton.jit
def _plus(x, y):
    return x + y


@triton.jit
def _across(part, LANES: tl.constexpr):
    """First half plus second half until one is left; `tl.reduce` on axes of two is one addition. At most 1024 lanes."""
    if LANES >= 1024:
        part = tl.reduce(tl.reshape(part, (2, 512)), 0, _plus)
    if LANES >= 512:
        part = tl.reduce(tl.reshape(part, (2, 256)), 0, _plus)
    if LANES >= 256:
        part = tl.reduce(tl.reshape(part, (2, 128)), 0, _plus)
    if LANES >= 128:
        part = tl.reduce(tl.reshape(part, (2, 64)), 0, _plus)
    if LANES >= 64:
        part = tl.reduce(tl.reshape(part, (2, 32)), 0, _plus)
    if LANES >= 32:
        part = tl.reduce(tl.reshape(part, (2, 16)), 0, _plus)
    if LANES >= 16:
        part = tl.reduce(tl.reshape(part, (2, 8)), 0, _plus)
    if LANES >= 8:
        part = tl.reduce(tl.reshape(part, (2, 4)), 0, _plus)
    if LANES >= 4:
        part = tl.reduce(tl.reshape(part, (2, 2)), 0, _plus)
    if LANES >= 2:
        part = tl.reduce(tl.reshape(part, (2, 1)), 0, _plus)
    return part


@triton.jit
def fold(table, chunks, work, RAW: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, LANES: tl.constexpr):
    """Partial sums into `work`, of 16 elements each. A row: where it begins (RAW: the address of a tensor, whose
    elements are squared; else a place in `work`), how many elements, how many partial sums, where in `work` they go.
    ALIGNED: addresses, lengths and places are multiples of 16."""
    entry = tl.load(chunks + tl.program_id(0))
    row = entry >> 40
    lane = tl.multiple_of(entry & ((1 << 40) - 1), LANES) + tl.arange(0, LANES)
    source = tl.load(table + row * 4)
    length = tl.load(table + row * 4 + 1)
    left = tl.load(table + row * 4 + 2)
    target = tl.load(table + row * 4 + 3)
    if ALIGNED:
        length = tl.multiple_of(length, 16)
        left = tl.multiple_of(left, 16)
        target = tl.multiple_of(target, 16)
    x = _tensor(source, DTYPE, ALIGNED) if RAW else work + source
    part = _fold16(x, lane, left, length, lane < left, RAW)
    tl.store(work + target + lane, part, mask=lane < left)


@triton.jit
def finish(table, work, out, RAW: tl.constexpr, DTYPE: tl.constexpr, LANES: tl.constexpr):
    """The square root of a whole sum of at most 16 LANES elements. A row: where it begins, how many, which output."""
    row = tl.program_id(0)
    length = tl.load(table + row * 4 + 1)
    lane = tl.arange(0, LANES).to(tl.int64)
    x = _place(table, row, 0, 4, DTYPE, False) if RAW else work + tl.load(table + row * 4)
    part = _across(_fold16(x, lane, LANES, length, lane >= 0, RAW), LANES)
    root = tl.sqrt(tl.reshape(part, (1,))).to(tl.float32)
    at = tl.load(table + row * 4 + 2) + tl.arange(0, 1)
    tl.store(out + at, root.to(out.dtype.element_ty))
