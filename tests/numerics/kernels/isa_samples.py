"""Inputs for isa_probe.py: every safe stock operator that has a kernel of its own, on large, odd and special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 3.4e38, -3.4e38,
           16777215.5, 8388609.0, float("inf"), -float("inf"), float("nan")]  # fmt: skip
LARGE = 70_001  # more than torch's grain for threads, and not a multiple of any vector
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Sample = Callable[[], Any]
aten = torch.ops.aten


def numbers(count: int, dtype: torch.dtype = torch.float32, seed: int = 1, special: bool = True) -> Tensor:
    """Random numbers of many magnitudes, special ones in between; whole numbers for whole types."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randperm(count, generator=generator) * 48271 % (2**21) - 2**20
    if not dtype.is_floating_point:
        return whole % 2 == 0 if dtype is torch.bool else (whole % 100).to(dtype)
    scale = torch.tensor([2.0**-e for e in range(8, 45)], dtype=torch.float64)[
        torch.randperm(count, generator=generator) % 37
    ]
    values = (whole.double() * scale).to(dtype)
    if not special:
        return values
    place = torch.randperm(count, generator=generator) % 12 == 0
    return torch.where(place, torch.tensor(SPECIAL).repeat(count // len(SPECIAL) + 1)[:count].to(dtype), values)


def positions(count: int, below: int, seed: int = 3) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % below


# ------------------------------------------------------------------------------------------------- elementwise

UNARY = """
abs ceil floor frac frexp isinf isnan isneginf isposinf logical_not nan_to_num neg reciprocal round sgn sign trunc
relu
""".split()  # noqa: SIM905  names read better so
UNARY_WHOLE = ["bitwise_not", "abs", "sign", "neg", "relu", "logical_not"]
BINARY = """
div eq fmod floor_divide ge gt heaviside le logical_and logical_or logical_xor lt mul ne nextafter remainder
""".split()  # noqa: SIM905
BINARY_WHOLE = """
bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ gcd lcm mul eq lt
floor_divide remainder fmod
""".split()  # noqa: SIM905


def elementwise() -> Iterator[Sample]:
    for dtype in FLOATS:
        a, b = numbers(LARGE, dtype), numbers(LARGE, dtype, seed=2)
        half = dtype in (torch.bfloat16, torch.float16)
        signs = torch.where(a.isnan(), 1, a), torch.where(b.isnan(), 1, b)  # the sign of NaN is not defined
        yield lambda signs=signs: (torch.signbit(signs[0]), torch.copysign(*signs), torch.copysign(signs[0], -3.0))
        for name in UNARY:
            if not (name == "frexp" and dtype is torch.bfloat16):
                yield partial(getattr(torch, name), a)
        for name in BINARY:
            if name == "nextafter" and half:
                continue
            yield partial(getattr(torch, name), a, b)
            if not name.startswith(("heaviside", "nextafter", "logical")):
                yield partial(getattr(torch, name), a, 3.0)
        yield lambda a=a, b=b: (torch.div(a, b, rounding_mode="floor"), torch.div(a, 0.3, rounding_mode="trunc"))
        yield lambda a=a: (a.clamp(-1, 1), a.clamp_min(0), a.clamp_max(0), F.hardtanh(a), F.relu6(a))
        yield lambda a=a: (a * 0.1, a / 0.1, a / 7, 1 / a, a == 1, a < 0.5, a == 0.1, a >= 0.1)
        third = torch.tensor(1 / 3)  # beside bf16 and fp16, what has no dimensions is a case of its own
        one = third[None].to(dtype)
        for f in (torch.mul, torch.div, torch.add, torch.sub, torch.floor_divide, torch.remainder):
            yield lambda f=f, a=a, t=third, one=one: (f(a, t), f(t, a), f(a, t.double()), f(a, one), f(one, a))
        yield lambda a=a, t=third: (a.clone().mul_(t), a.clone().div_(t))
        yield lambda a=a, t=third, one=one: [torch.div(a, x, rounding_mode="trunc") for x in (t, one)]
        yield lambda a=a, b=b: (torch.div(a, b, rounding_mode="trunc"), torch.floor_divide(a, 0.1), torch.div(2.5, a))
        yield lambda a=a, b=b: (torch.ldexp(a, torch.tensor(2)), torch.where(a < b, a, b), torch.rsub(a, 1))
        yield lambda a=a, b=b: (
            aten.leaky_relu(a, 0.01), aten.leaky_relu_backward(a, b, 0.01, False), aten.threshold(a, 0.1, 2.0),
            aten.threshold_backward(a, b, 0), aten.hardtanh_backward(a, b, -1, 1), aten.hardshrink(a, 0.5),
            aten.hardshrink_backward(a, b, 0.5), aten.softshrink(a, 0.5), aten.softshrink_backward(a, b, 0.5),
            aten._prelu_kernel(a, b), aten._prelu_kernel_backward(a, a, b),
        )  # fmt: skip
        yield lambda a=a, b=b: (  # bounds that bf16 and fp16 have not
            aten.threshold_backward(a, b, 0.1), aten.hardtanh_backward(a, b, -0.3, 0.1), aten.hardshrink(a, 0.1),
            aten.hardshrink_backward(a, b, 0.1), aten.softshrink(a, 0.1), aten.softshrink_backward(a, b, 0.1),
            aten.leaky_relu(a, 0.3), a.clamp(-0.3, 0.1), a.masked_fill(b > 0.1, 0.1),
        )  # fmt: skip
    a, b = numbers(LARGE, torch.int64), numbers(LARGE, torch.int64, seed=2).abs() % 7 + 1
    for name in UNARY_WHOLE:
        yield partial(getattr(torch, name), a)
    for name in BINARY_WHOLE:
        yield partial(getattr(torch.Tensor, name, None) or getattr(torch, name), a, b)
    yield lambda: (a.clone().__ilshift__(b), a.clone().__irshift__(b), a.clone().__ilshift__(2), a << 2, a >> 2)
    yield _scaling


def _scaling() -> None:
    gradients = [numbers(5001), numbers(77, seed=2)]
    found, scale, growth = torch.zeros(1), torch.tensor([65536.0]), torch.zeros(1, dtype=torch.int32)
    aten._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.tensor([1 / 3000.0]))
    aten._amp_update_scale_(scale, growth, found, 2.0, 0.3, 2000)


# ------------------------------------------------------------------------------------------------- moving and choosing


def moving() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = numbers(6 * 60 * 120, dtype).reshape(6, 60, 120)
        at, mask = positions(60, 60), numbers(6 * 60 * 120, torch.bool).reshape(6, 60, 120)
        where = positions(x.numel(), 60).reshape(6, 60, 120)
        once = torch.argsort(x.transpose(0, 1).float().nan_to_num(), dim=1, stable=True).transpose(0, 1) % 6
        yield lambda x=x, at=at: (x[at % 6], x[:, at], x.index_select(1, at), x[at % 6, at, at], x.take(at))
        yield lambda x=x, where=where: (x.gather(1, where), x[x > 0])
        yield lambda x=x, mask=mask: (
            x.masked_fill(mask, 3),
            x.masked_select(mask),
            x.masked_scatter(mask, x),
            mask.nonzero(),
        )
        yield lambda x=x, once=once: (
            torch.zeros_like(x).scatter(0, once[:1], x),
            torch.zeros_like(x).scatter(0, once, 4),
        )
        yield lambda x=x, at=at: (x.index_copy(1, at, x), x.index_fill(1, at[:3], 7), torch.nonzero_static(x, size=9))
        yield lambda x=x: (x.flip(0, 2), x.roll(3, 1), x.tril(), x.triu(-1), torch.cat([x, x], 1), torch.stack([x, x]))
        yield lambda x=x: (
            x.unfold(1, 3, 2).clone(),
            x.repeat(2, 1, 1),
            x.transpose(0, 2).contiguous(),
            x.narrow_copy(1, 2, 3),
        )
        yield lambda x=x: (
            x.clone().set_(x.clone()),
            x.clone().resize_(3, 4).zero_(),
            aten._reshape_alias(x, [360, 120], [120, 1]),
        )
        yield lambda x=x: (x.clone().fill_(2), x.as_strided((5, 5), (7, 1)).clone(), x.new_full((3,), 2))
        yield lambda x=x: (
            torch.eye(33, 44),
            torch.tril_indices(5, 7),
            torch.triu_indices(5, 7),
            x[0, 0, 0].item(),
            x.is_set_to(x),
        )
        yield lambda x=x: (aten._stack([x, x]), torch.equal(x, x), torch.randperm(999), x.repeat_interleave(2, 0))
        picture = x.reshape(6, 4, 30, 60)
        yield lambda x=picture: (
            F.channel_shuffle(x, 2),
            F.pixel_shuffle(x, 2),
            F.pixel_unshuffle(x, 2),
            F.pad(x, (1, 2)),
        )
        yield lambda x=picture: aten.native_channel_shuffle(x, 2)
        if dtype.is_floating_point:
            yield lambda x=picture: [F.pad(x, (2, 1, 1, 3), mode=mode) for mode in ("reflect", "replicate")]
            yield lambda x=picture: [F.pad(x[0], (2, 1), mode=mode) for mode in ("reflect", "replicate")]
            yield lambda x=picture: [F.pad(x, (1, 1, 2, 1, 1, 1), mode=mode) for mode in ("reflect", "replicate")]
            yield lambda x=picture: F.unfold(x, 3, padding=1, stride=2)
        yield lambda x=x: (
            x.max(1),
            x.min(2),
            x.argmax(1),
            x.argmin(),
            x.any(1),
            x.all(),
            x.count_nonzero(1),
            x.any(),
            x.all(1),
        )
        yield lambda x=x: (x.cummax(1), x.cummin(2), torch.isin(x, x[0, 0, :5]), torch.isin(x, 2), torch.isin(2, x))
        yield lambda x=x: (torch.isin(x, x[0, 0]), torch.isin(0.3, x), torch.equal(x, x.clone()))
        yield lambda x=x: (x.any((0, 1)), x.all((0, 1)))
        edges = torch.arange(-50, 50).to(dtype)
        yield lambda x=x, e=edges: (
            torch.bucketize(x, e),
            torch.bucketize(2, e),
            torch.searchsorted(e, x),
            torch.searchsorted(e, 2),
        )
    rows = positions(50, 9).sort(stable=True)[0]
    yield lambda: aten._convert_indices_from_csr_to_coo(aten._convert_indices_from_coo_to_csr(rows, 9), rows)
    small = [numbers(64 * 64, torch.int8, seed).reshape(64, 64) for seed in (1, 2)]
    yield lambda: torch._int_mm(*small)
    yield lambda: (torch._assert_async(torch.ones(1)), aten._make_dep_token())
    q = numbers(2 * 3 * 8 * 4, special=False).reshape(2, 3, 8, 4)
    yield lambda: aten._fused_sdp_choice(q, q, q)


# ------------------------------------------------------------------------------------------------- sums by place


def _with_gradient(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Forward, and backward from a fixed gradient."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    result = function(*inputs)
    gradient = numbers(result.numel(), result.dtype, seed=9, special=False).reshape(result.shape)
    if result.is_contiguous(memory_format=torch.channels_last) and not result.is_contiguous():
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    torch.autograd.grad(result, inputs, gradient)


def accumulating() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        x = numbers(400 * 70, dtype, special=False).reshape(400, 70)
        target, at = numbers(50 * 70, dtype, 5, special=False).reshape(50, 70), positions(400, 50) % 37
        many = at[:, None].expand(400, 70).contiguous() + positions(70, 13)
        yield lambda x=x, t=target, at=at: (t.index_add(0, at, x), t.t().contiguous().index_add(1, at, x.t()))
        yield lambda x=x, t=target, m=many: (t.scatter_add(0, m, x), t.t().contiguous().scatter_add(1, m.t(), x.t()))
        yield lambda x=x, t=target, m=many: [
            t.scatter_reduce(0, m, x, how) for how in ("sum", "mean", "prod", "amax", "amin")
        ]
        yield lambda x=x, t=target, m=many: (t.scatter(0, m, x, reduce="add"), t.scatter(0, m, 1.5, reduce="multiply"))
        yield lambda x=x, t=target, at=at: (
            t.index_put((at,), x, accumulate=True),
            t.index_put((at, at), x[:, 0], accumulate=True),
        )
        yield lambda x=x, t=target, at=at: (
            t.put(at, x[:, 0], accumulate=True),
            aten._unsafe_index_put(t, [at], x, True),
        )
        yield lambda x=x, at=at: aten.embedding_dense_backward(x, at, 50, 3, False)
        yield lambda x=x, at=at: aten.embedding_dense_backward(x, at, 50, -1, True)
        yield lambda t=target, at=at: _with_gradient(lambda w: F.embedding(at, w), t)
        for mode in ("sum", "mean", "max"):
            yield lambda t=target, at=at, mode=mode: _with_gradient(
                lambda w: F.embedding_bag(at.view(40, 10), w, mode=mode), t
            )
        each = numbers(400, dtype, 8, special=False).view(40, 10)
        yield lambda t=target, at=at, e=each: _with_gradient(
            lambda w, e: F.embedding_bag(at.view(40, 10), w, mode="sum", per_sample_weights=e), t, e)  # fmt: skip
        wide = numbers(4 * 18 * 30, dtype, special=False).reshape(4, 18, 30)
        yield lambda w=wide: _with_gradient(lambda w: F.fold(w, (7, 8), 3, stride=1), w[:, :, :30])
        yield lambda w=wide: _with_gradient(lambda w: w.unfold(2, 5, 2), w)
        yield lambda w=wide: _with_gradient(lambda w: w.repeat_interleave(3, 1), w)
        yield lambda w=wide, at=at: _with_gradient(lambda w: w.index_select(1, at % 18), w)
        yield lambda w=wide, at=at: _with_gradient(lambda w: w.gather(1, (at % 18).view(4, 10, 10)), w)
        yield lambda at=at, x=x: torch.bincount(at, x[:, 0].double())
        picture = numbers(2 * 5 * 20 * 23, dtype, special=False).reshape(2, 5, 20, 23)
        yield from (
            lambda p=picture, m=m: _with_gradient(lambda p: F.pad(p, (5, 3, 2, 6), mode=m), p)
            for m in ("reflect", "replicate")
        )
        yield from (
            lambda p=picture, m=m: _with_gradient(lambda p: F.pad(p, (5, 3), mode=m), p[0])
            for m in ("reflect", "replicate")
        )
        yield from (
            lambda p=picture, m=m: _with_gradient(lambda p: F.pad(p, (5, 3, 2, 6, 1, 1), mode=m), p[None])
            for m in ("reflect", "replicate")
        )


def pooling() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        flat = numbers(3 * 20 * 21 * 22, dtype, special=False).reshape(3, 20, 21, 22)
        flats = [flat, flat.contiguous(memory_format=torch.channels_last)]
        deep = numbers(2 * 18 * 9 * 10 * 11, dtype, special=False).reshape(2, 18, 9, 10, 11)
        deeps = [deep, deep.contiguous(memory_format=torch.channels_last_3d)]
        for x in flats:
            yield lambda x=x: _with_gradient(lambda x: F.max_pool2d(x, 3, 2, 1), x)
            yield lambda x=x: _with_gradient(lambda x: F.max_pool2d(x, (2, 3), 1, dilation=2), x)
            yield lambda x=x: _with_gradient(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
            yield lambda x=x: _with_gradient(
                lambda x: F.avg_pool2d(x, (2, 3), 1, ceil_mode=True, count_include_pad=False), x
            )
            yield lambda x=x: _with_gradient(lambda x: F.adaptive_avg_pool2d(x, (4, 7)), x)
            yield lambda x=x: _with_gradient(lambda x: F.adaptive_avg_pool2d(x, 1), x)
            yield lambda x=x: _with_gradient(lambda x: F.adaptive_max_pool2d(x, (4, 7)), x)
        yield lambda x=flat[0]: _with_gradient(lambda x: F.max_pool1d(x, 3, 2, 1), x)
        yield lambda x=flat[0]: _with_gradient(lambda x: F.avg_pool1d(x, 3, 2, 1), x)
        for x in deeps:
            yield lambda x=x: _with_gradient(lambda x: F.max_pool3d(x, 3, 2, 1), x)
            yield lambda x=x: _with_gradient(lambda x: F.avg_pool3d(x, 3, 2, 1), x)
            yield lambda x=x: _with_gradient(lambda x: F.adaptive_avg_pool3d(x, (4, 3, 7)), x)
            yield lambda x=x: _with_gradient(lambda x: F.adaptive_max_pool3d(x, (4, 3, 7)), x)


def interpolating() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        flat = numbers(2 * 17 * 9 * 11, dtype, special=False).reshape(2, 17, 9, 11)
        flats = [flat, flat.contiguous(memory_format=torch.channels_last)]
        deep = numbers(2 * 17 * 5 * 6 * 7, dtype, special=False).reshape(2, 17, 5, 6, 7)
        for size in ((18, 22), (13, 5), (9, 11)):
            for x in flats:
                for mode in ("nearest", "nearest-exact"):
                    yield lambda x=x, s=size, m=mode: _with_gradient(lambda x: F.interpolate(x, s, mode=m), x)
                for mode in ("bilinear", "bicubic"):
                    for corners in (False, True):
                        yield lambda x=x, s=size, m=mode, c=corners: _with_gradient(
                            lambda x: F.interpolate(x, s, mode=m, align_corners=c), x)  # fmt: skip
                    yield lambda x=x, s=size, m=mode: _with_gradient(
                        lambda x: F.interpolate(x, s, mode=m, antialias=True), x
                    )
        for mode in ("nearest", "nearest-exact", "linear"):
            yield lambda x=flat[0], m=mode: _with_gradient(lambda x: F.interpolate(x, 17, mode=m), x)
        for mode in ("nearest", "nearest-exact", "trilinear"):
            yield lambda x=deep, m=mode: _with_gradient(lambda x: F.interpolate(x, (7, 9, 10), mode=m), x)
        yield lambda x=flat: _with_gradient(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), x)
        if dtype is torch.float32:
            grid = (numbers(2 * 8 * 9 * 2, special=False) % 2.4 - 1.2).reshape(2, 8, 9, 2)
            for mode in ("bilinear", "nearest", "bicubic"):
                yield lambda x=flat, g=grid, m=mode: _with_gradient(
                    lambda x, g: F.grid_sample(x, g, m, align_corners=False), x, g)  # fmt: skip


def samples() -> Iterator[Sample]:
    """All of them."""
    torch.manual_seed(0)
    yield from elementwise()
    yield from moving()
    yield from accumulating()
    yield from pooling()
    yield from interpolating()
