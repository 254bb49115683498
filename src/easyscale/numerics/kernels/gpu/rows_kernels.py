# mypy: ignore-errors
"""Triton kernels of the halving tree. Compiled without fusing multiply-adds (there are none to fuse).

All additions are written out: `tl.reduce` is used on axes of two only, where it is one addition. (`tl.sum` would do,
but the interpreter's makes +0 of two -0.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def _value(x, base, index, length, inner, inner_step, outer_step, here, FLAT: tl.constexpr):
    """Element `index` of the reduction in fp64, by two levels of strides (FLAT: by one); +0 past the end."""
    if FLAT:
        at = base + index.to(tl.int64) * inner_step
    else:
        at = base + (index // inner).to(tl.int64) * outer_step + (index % inner).to(tl.int64) * inner_step
    return tl.load(x + at, mask=here & (index < length), other=0).to(tl.float64)


@triton.jit
def _fold2(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT: tl.constexpr):
    low = _value(x, base, index, length, inner, inner_step, outer_step, here, FLAT)
    return low + _value(x, base, index + step, length, inner, inner_step, outer_step, here, FLAT)


@triton.jit
def _fold4(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT: tl.constexpr):
    low = _fold2(x, base, index, 2 * step, length, inner, inner_step, outer_step, here, FLAT)
    return low + _fold2(x, base, index + step, 2 * step, length, inner, inner_step, outer_step, here, FLAT)


@triton.jit
def _fold8(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT: tl.constexpr):
    low = _fold4(x, base, index, 2 * step, length, inner, inner_step, outer_step, here, FLAT)
    return low + _fold4(x, base, index + step, 2 * step, length, inner, inner_step, outer_step, here, FLAT)


@triton.jit
def _fold16(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT: tl.constexpr):
    low = _fold8(x, base, index, 2 * step, length, inner, inner_step, outer_step, here, FLAT)
    return low + _fold8(x, base, index + step, 2 * step, length, inner, inner_step, outer_step, here, FLAT)


@triton.jit
def _folded(x, base, index, step, length, inner, inner_step, outer_step, here, FOLD: tl.constexpr, FLAT: tl.constexpr):
    """The tree over elements index, index + step, .. index + (FOLD - 1) step: halving means that the even ones of them
    and the odd ones are each summed first."""
    if FOLD == 1:
        return _value(x, base, index, length, inner, inner_step, outer_step, here, FLAT)
    elif FOLD == 2:  # noqa: RET505  Triton wants one of them to be compiled
        return _fold2(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT)
    elif FOLD == 4:
        return _fold4(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT)
    elif FOLD == 8:
        return _fold8(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT)
    else:
        return _fold16(x, base, index, step, length, inner, inner_step, outer_step, here, FLAT)


@triton.jit
def _start(output, low_count, low_step, high_step):
    """Where output number `output` begins: two levels of strides."""
    far = output.to(tl.int64)
    return (far // low_count) * high_step + (far % low_count) * low_step


@triton.jit
def rows(
    x, out, outputs, length, low_count, low_step, high_step, inner, inner_step, outer_step,
    OUTPUTS: tl.constexpr, LANES: tl.constexpr, FOLD: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """Whole sums of OUTPUTS rows: FOLD elements for each of LANES, then the tree across lanes. FOLD * LANES is the
    padded length, never more: another +0 would turn a -0 around."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    base = _start(output, low_count, low_step, high_step)
    lane = tl.arange(0, LANES)
    here = (output < outputs)[:, None]
    part = _folded(x, base[:, None], lane[None, :], LANES, length, inner, inner_step, outer_step, here, FOLD, FLAT)
    part = _across(part, OUTPUTS, LANES)
    tl.store(out + output, tl.reshape(part, (OUTPUTS,)), mask=output < outputs)


@triton.jit
def _across(part, OUTPUTS: tl.constexpr, LANES: tl.constexpr):
    """[OUTPUTS, LANES] to [OUTPUTS, 1]: first half plus second half until one is left. LANES is at most 1024."""
    if LANES >= 1024:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 512)), 1, plus)
    if LANES >= 512:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 256)), 1, plus)
    if LANES >= 256:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 128)), 1, plus)
    if LANES >= 128:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 64)), 1, plus)
    if LANES >= 64:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 32)), 1, plus)
    if LANES >= 32:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 16)), 1, plus)
    if LANES >= 16:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 8)), 1, plus)
    if LANES >= 8:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 4)), 1, plus)
    if LANES >= 4:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 2)), 1, plus)
    if LANES >= 2:
        part = tl.reduce(tl.reshape(part, (OUTPUTS, 2, 1)), 1, plus)
    return part


@triton.jit
def fold(
    x, out, outputs, length, left, low_count, low_step, high_step, inner, inner_step, outer_step, out_step, out_lane,
    OUTPUTS: tl.constexpr, LANES: tl.constexpr, FOLD: tl.constexpr, FLAT: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One pass over long sums: `left` partial sums of each output, of FOLD elements each, `left` apart."""
    blocks = tl.cdiv(outputs, OUTPUTS)
    output = (tl.program_id(0) % blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
    lane = (tl.program_id(0) // blocks) * LANES + tl.arange(0, LANES)
    if WIDE:  # numbers of elements pass 2^31
        lane = lane.to(tl.int64)
    base = _start(output, low_count, low_step, high_step)
    here = (output < outputs)[:, None] & (lane < left)[None, :]
    part = _folded(x, base[:, None], lane[None, :], left, length, inner, inner_step, outer_step, here, FOLD, FLAT)
    at = output.to(tl.int64)[:, None] * out_step + lane.to(tl.int64)[None, :] * out_lane
    tl.store(out + at, part, mask=here)
