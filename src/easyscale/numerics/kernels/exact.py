"""Operators of one rounding or none that still differ between stock kernels: in zeros, reciprocals, NaN.

Rules made here:
    maximum, minimum, fmax, fmin, clamp with tensors, amax, amin, max, min, aminmax
                        a zero result is +0 (stock: +0 or -0 by the instruction set where both meet)
    relu, clamp with numbers, hardtanh
                        an element inside the bounds is returned as it is, -0 too (stock on CPUs; CUDA makes it +0)
    div, floor_divide   a true division also by a number (stock on CPUs; CUDA multiplies by the reciprocal)
    fmod, remainder     exact (stock on CUDA and plain CPUs; with SIMD, fmod of far magnitudes is NaN)
    softshrink          NaN stays NaN (stock on CPUs: NaN or 0 by the place in a vector)
    arange, linspace, logspace, round to decimals
                        in fp64, rounded once

Relies on `stock` for the kernels underneath.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import evaluate
from easyscale.numerics.kernels.registry import FORMS, form
from easyscale.numerics.kernels.stock import stock

Number = int | float | bool
_HALVES = (torch.bfloat16, torch.float16)

# ------------------------------------------------------------------------------------------- zeros of extremes


def _plus_zero(x: Tensor) -> Tensor:
    """-0 becomes +0, in place; all else stays."""
    return x.add_(0.0) if x.is_floating_point() else x


def _binary(name: str) -> None:
    kernel = stock(name)

    @form(name)
    def extreme(self: Tensor, other: Tensor) -> Tensor:
        return _plus_zero(kernel(self, other))


for _name in ("maximum", "minimum", "fmax", "fmin"):
    _binary(_name)


def _bounded(name: str) -> None:
    kernel = stock(name)

    @form(name)
    def bounded(self: Tensor, *bounds: Tensor | None, **named: Tensor | None) -> Tensor:
        return _plus_zero(kernel(self, *bounds, **named))


for _name in ("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"):
    _bounded(_name)


def _over_dims(name: str) -> None:
    kernel = stock(name)

    @form(name)
    def extreme(self: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
        return _plus_zero(kernel(self, dim or [], keepdim))


_over_dims("amax")
_over_dims("amin")


def _over_all(name: str) -> None:
    kernel = stock(name)

    @form(name)
    def extreme(self: Tensor) -> Tensor:
        return _plus_zero(kernel(self))


_over_all("max")
_over_all("min")

_aminmax = stock("aminmax")


@form("aminmax")
def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    low, high = _aminmax(self, dim=dim, keepdim=keepdim)
    return _plus_zero(low), _plus_zero(high)


# ------------------------------------------------------------------------------------------- bounds on CUDA


def _least(dtype: torch.dtype) -> Number:
    """The positive number next to zero."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps if dtype.is_floating_point else 1


@form("relu", devices=("cuda",))
def relu(self: Tensor) -> Tensor:
    return torch.threshold(self, -_least(self.dtype), 0)


@form("relu_", devices=("cuda",))
def relu_(self: Tensor) -> Tensor:
    return torch.threshold_(self, -_least(self.dtype), 0)


_clamp = stock("clamp")


@form("clamp")
def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    bounds = [bound for bound in (min, max) if bound is not None]
    if self.device.type == "cpu" and not any(math.isnan(bound) for bound in bounds):
        return _clamp(self, min, max)  # type: ignore[no-any-return]  # before torch 2.13 it takes no notice of NaN
    dtype = self.dtype
    for bound in bounds:
        dtype = torch.result_type(torch.empty(self.shape, dtype=dtype, device="meta"), bound)
    x = self.to(dtype)
    if any(math.isnan(bound) for bound in bounds):
        return torch.full_like(x, math.nan)
    if min is not None:
        low = torch.full((), min, dtype=dtype, device=x.device)
        x = torch.where(x < low, low, x)
    if max is not None:
        high = torch.full((), max, dtype=dtype, device=x.device)
        x = torch.where(x > high, high, x)
    return x.clone() if x is self else x


@form("clamp_min")
def clamp_min(self: Tensor, min: Number) -> Tensor:
    return clamp(self, min=min)


@form("clamp_max")
def clamp_max(self: Tensor, max: Number) -> Tensor:
    return clamp(self, max=max)


@form("hardtanh", devices=("cuda",))
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return clamp(self, min_val, max_val)


# ------------------------------------------------------------------------------------------- division


def _number(value: Tensor | Number) -> Number | None:
    """A number that is not on the device: Python's (the dispatcher unwraps them so), or a scalar on the CPU."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.device.type == "cpu" and not value.dim() else None


def by_number(
    kernel: Callable[..., Tensor], self: Tensor, other: Tensor | Number, *, true: bool, **options: Any
) -> Tensor:
    """Divide by a number: as stock on CPUs, in fp32 for bf16 and fp16, rounded once."""
    dtype = torch.result_type(self, other)
    if true and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    inside = torch.float32 if dtype in _HALVES else dtype
    number = other.item() if isinstance(other, Tensor) else other
    divisor = torch.full((), number, dtype=inside, device=self.device)
    return kernel(self.to(inside), divisor, **options).to(dtype)


_div, _div_mode, _floor_divide = stock("div.Tensor"), stock("div.Tensor_mode"), stock("floor_divide")


@form("div.Tensor", devices=("cuda",))
def div(self: Tensor, other: Tensor | Number) -> Tensor:
    if _number(other) is not None:
        return by_number(_div, self, other, true=True)
    return _div(self, other)  # type: ignore[no-any-return]


@form("div.Tensor_mode", devices=("cuda",))
def div_mode(self: Tensor, other: Tensor | Number, *, rounding_mode: str | None) -> Tensor:
    if _number(other) is not None:
        return by_number(_div_mode, self, other, true=rounding_mode is None, rounding_mode=rounding_mode)
    return _div_mode(self, other, rounding_mode=rounding_mode)  # type: ignore[no-any-return]


@form("floor_divide", devices=("cuda",))
def floor_divide(self: Tensor, other: Tensor | Number) -> Tensor:
    if _number(other) is not None:
        return by_number(_floor_divide, self, other, true=False)
    return _floor_divide(self, other)  # type: ignore[no-any-return]


def _exactly(name: str) -> None:
    kernel = stock(name)

    @form(name, devices=("cpu",))
    def exact(self: Tensor | Number, other: Tensor | Number) -> Tensor:
        dtype = torch.result_type(self, other)
        first, second = torch.broadcast_tensors(
            *(x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype) for x in (self, other))
        )
        if not dtype.is_floating_point or not first.numel():
            return kernel(first, second)  # type: ignore[no-any-return]
        # Only the C library's fmod is exact. Stock calls it where the elements do not lie side by side.
        apart = torch.empty((2, *first.shape, 2), dtype=dtype)[..., 0]
        apart[0], apart[1] = first, second
        return kernel(apart[0], apart[1])  # type: ignore[no-any-return]


_exactly("fmod.Tensor")
_exactly("remainder.Tensor")


@form("remainder.Scalar_Tensor", devices=("cpu",))
def remainder_of_number(self: Number, other: Tensor) -> Tensor:
    return FORMS["remainder.Tensor"].function(self, other)  # type: ignore[no-any-return]


@form("softshrink")
def softshrink(self: Tensor, lambd: Number = 0.5) -> Tensor:
    inside = (self * 0).abs_()  # +0, and NaN of a NaN
    return torch.where(self > lambd, self - lambd, torch.where(self < -lambd, self + lambd, inside))


# ------------------------------------------------------------------------------------------- progressions

_arange = stock("arange.start_out")


@form("arange.start_out")
def arange(start: Number, end: Number, step: Number = 1, *, out: Tensor) -> Tensor:
    if not out.is_floating_point():
        return _arange(start, end, step, out=out)  # type: ignore[no-any-return]
    if step == 0 or (end - start) / step < 0 or not math.isfinite(start) or not math.isfinite(end):
        return _arange(start, end, step, out=out)  # type: ignore[no-any-return]  # stock's own complaint
    count = math.ceil((float(end) - float(start)) / float(step))
    places = torch.arange(count, device=out.device)  # whole numbers: stock below
    return _filled(out, places.double() * float(step) + float(start))


def _filled(out: Tensor, values: Tensor) -> Tensor:
    if out.shape != values.shape:
        out.resize_(values.shape)
    return out.copy_(values)


@form("linspace.out")
def linspace(start: Number, end: Number, steps: int, *, out: Tensor) -> Tensor:
    values = _spaced(start, end, steps, out)
    return _filled(out, values if out.is_floating_point() else values.trunc())


def _spaced(start: Number, end: Number, steps: int, like: Tensor) -> Tensor:
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    places = torch.arange(steps, device=like.device).double()
    step = (float(end) - float(start)) / (steps - 1) if steps > 1 else 0.0
    rising = places * step + float(start)
    falling = (places - (steps - 1)) * step + float(end)  # from the other end, so that the last one is `end`
    return torch.where(places < steps // 2 if steps > 1 else places < 1, rising, falling)


@form("logspace.out")
def logspace(start: Number, end: Number, steps: int, base: float = 10.0, *, out: Tensor) -> Tensor:
    exponents = _spaced(start, end, steps, out)
    values = evaluate("pow", [torch.full((), base, dtype=torch.float64), exponents], dtype=torch.float64)
    return _filled(out, values if out.is_floating_point() else values.trunc())


@form("round.decimals")
def round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    factor = torch.full((), 10.0 ** abs(decimals), dtype=torch.float64, device=self.device)
    x = self.double()
    made = (x * factor).round() / factor if decimals >= 0 else (x / factor).round() * factor
    return (made.float() if self.dtype in _HALVES else made).to(self.dtype)
