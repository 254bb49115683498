"""Operators of one rounding or none that still differ between stock kernels: in zeros, reciprocals, NaN, short types.

Rules made here:
    maximum, minimum, fmax, fmin, clamp with tensors, amax, amin, max, min, aminmax
                        a zero result is +0 (stock: +0 or -0 by the instruction set where both meet)
    relu, clamp with numbers, hardtanh
                        an element inside the bounds is returned as it is, -0 too (stock on CPUs; CUDA makes it +0)
    threshold and its backward
                        bf16 and fp16 are compared in fp32 (stock on CPUs; CUDA rounds the threshold to the dtype)
    hardtanh_backward, hardshrink_backward, softshrink_backward
                        +0 where the input is NaN (stock on CPUs: that or the gradient, by the place in a vector)
    mul, div            a number, or a tensor without dimensions, beside bf16 and fp16 is taken in fp32 (stock on CPUs;
                        CUDA rounds such a tensor to the dtype), and a division by it is one (CUDA: by the reciprocal)
    floor_divide        one sequence of operations (stock on CPUs; CUDA does without some roundings of bf16 and fp16)
    fmod, remainder     exact (stock on CUDA and plain CPUs; with SIMD, fmod of far magnitudes is NaN)
    softshrink          NaN stays NaN (stock on CPUs: NaN or 0 by the place in a vector)
    equal               NaN equals nothing (older stock on CPUs: a tensor equals itself, unread)
    isin with a number  by `==` (stock on CUDA hands on a kind of number that Python's kernels cannot take)
    arange, linspace, logspace, round to decimals
                        in fp64, rounded once

Relies on `stock` for the kernels underneath.
"""

from __future__ import annotations

import ctypes
import functools
import math

import torch
from torch import Tensor

from easyscale.numerics.kernels.elementwise import common, floating
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


@functools.cache
def _least(dtype: torch.dtype) -> Number:
    """The positive number next to zero."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps if dtype.is_floating_point else 1


_threshold, _threshold_, _threshold_backward = (
    stock(name) for name in ("threshold", "threshold_", "threshold_backward")
)


@form("relu", devices=("cuda",))
def relu(self: Tensor) -> Tensor:
    return _threshold(self, -_least(self.dtype), 0)  # type: ignore[no-any-return]


@form("relu_", devices=("cuda",))
def relu_(self: Tensor) -> Tensor:
    return _threshold_(self, -_least(self.dtype), 0)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _fits(number: Number, dtype: torch.dtype) -> bool:
    """Whether comparing with the number in fp32 and in the dtype is the same."""
    single = ctypes.c_float(number).value
    return dtype not in _HALVES or torch.tensor(single, device="cpu").to(dtype).item() == single


@form("threshold", devices=("cuda",))
def threshold(self: Tensor, threshold: Number, value: Number) -> Tensor:
    if _fits(threshold, self.dtype):
        return _threshold(self, threshold, value)  # type: ignore[no-any-return]
    return torch.where(self.float() <= threshold, torch.full((), value, dtype=self.dtype, device=self.device), self)


@form("threshold_backward", devices=("cuda",))
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number) -> Tensor:
    dtype = self.dtype if grad_output.dtype is self.dtype else common(grad_output, self)
    if _fits(threshold, dtype):
        return _threshold_backward(grad_output, self, threshold)  # type: ignore[no-any-return]
    return torch.where(self.to(dtype).float() <= threshold, 0, grad_output.to(dtype))


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


# ------------------------------------------------------------------------------------------- gradients inside bounds


@form("hardtanh_backward")
def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number) -> Tensor:
    dtype = common(grad_output, self)
    bounds = [float(x) if dtype is torch.float64 else ctypes.c_float(x).value for x in (min_val, max_val)]
    return evaluate("hardtanh_backward", (grad_output, self), bounds, dtype=dtype)


@functools.lru_cache(maxsize=256)
def _rounded(number: Number, dtype: torch.dtype) -> float:
    """To the dtype; to bf16 and fp16 by way of fp32."""
    return torch.tensor(number, dtype=torch.float32 if dtype in _HALVES else dtype, device="cpu").to(dtype).item()


def _shrink_backward(name: str) -> None:
    @form(name)
    def backward(gradient: Tensor, self: Tensor, lambd: Number) -> Tensor:
        dtype = common(gradient, self)
        return evaluate("shrink_backward", (gradient, self), (_rounded(lambd, dtype),), dtype=dtype)


_shrink_backward("hardshrink_backward")
_shrink_backward("softshrink_backward")


# ------------------------------------------------------------------------------------------- products and division


def _beside(x: Tensor, other: Tensor) -> bool:
    """Whether a tensor without dimensions counts as a number beside bf16 or fp16."""
    return not other.dim() and x.dtype in _HALVES and x.dim() > 0 and other.dtype in (torch.float32, torch.float64)


_mul, _mul_ = stock("mul.Tensor"), stock("mul_.Tensor")


def _constant(number: Number | complex, dtype: torch.dtype) -> Tensor:
    """On the CPU: kernels take the value from there when they are launched."""
    if not number or isinstance(number, complex):
        return torch.tensor(number, dtype=dtype, device="cpu")  # -0 is not +0
    return _kept_constant(number, dtype)


@functools.lru_cache(maxsize=256)
def _kept_constant(number: Number, dtype: torch.dtype) -> Tensor:
    return torch.tensor(number, dtype=dtype, device="cpu")


def _factor(number: Number, dtype: torch.dtype) -> Tensor:
    """A number that a tensor of the dtype is multiplied by."""
    whole = torch.int64 if dtype is not torch.bool else dtype
    inside = torch.float32 if dtype in _HALVES else dtype
    return _constant(number, inside if dtype.is_floating_point or dtype.is_complex else whole)


def _as_is(x: Tensor, number: Number) -> bool:
    """Whether a product with this number has the dtype of x."""
    return x.is_floating_point() and type(number) is not complex


@form("mul.Tensor", devices=("cuda",))
def mul(self: Tensor | Number, other: Tensor | Number) -> Tensor:
    if isinstance(self, Tensor) and isinstance(other, Tensor) and self.dtype is other.dtype:
        return _mul(self, other)  # type: ignore[no-any-return]
    if not isinstance(self, Tensor):
        self, other = other, self
    assert isinstance(self, Tensor)
    if isinstance(other, Tensor):
        if _beside(self, other):
            return _mul(self.float(), other.float()).to(self.dtype)  # type: ignore[no-any-return]
        return _mul(self, other)  # type: ignore[no-any-return]
    if _as_is(self, other):
        made: Tensor = _mul(self, _factor(other, self.dtype))
        return made if made.dtype is self.dtype else made.to(self.dtype)  # a bf16 without dimensions became fp32
    dtype = torch.result_type(self, other)
    return _mul(self.to(dtype), _factor(other, dtype)).to(dtype)  # type: ignore[no-any-return]


@form("mul_.Tensor", devices=("cuda",))
def mul_(self: Tensor, other: Tensor | Number) -> Tensor:
    if not isinstance(other, Tensor):
        dtype = self.dtype if _as_is(self, other) else torch.result_type(self, other)
        return _mul_(self, _factor(other, dtype))  # type: ignore[no-any-return]
    if _beside(self, other):
        return self.copy_(_mul(self.float(), other.float()))
    return _mul_(self, other)  # type: ignore[no-any-return]


_div, _div_mode, _floor_divide = stock("div.Tensor"), stock("div.Tensor_mode"), stock("floor_divide")


def _operands(self: Tensor | Number, other: Tensor | Number, *, true: bool) -> tuple[Tensor, Tensor, torch.dtype]:
    """On one device and of one dtype, as stock has them on CPUs: bf16 and fp16 in fp32 where the divisor is one
    number, which is then not rounded to the dtype. And the dtype of the result."""
    device = max((x.device for x in (self, other) if isinstance(x, Tensor)), key=lambda device: device.type != "cpu")
    dtype = torch.result_type(self, other)
    dtype = floating(dtype) if true else dtype
    single = not isinstance(other, Tensor) or other.numel() == 1
    inside = torch.float32 if single and dtype in _HALVES else dtype
    return _placed(self, dtype, device).to(inside), _placed(other, inside, device), dtype


def _placed(x: Tensor | Number, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(x, Tensor) and (x.device == device or x.dim()):
        return x.to(dtype)
    return torch.full((), x.item() if isinstance(x, Tensor) else x, dtype=dtype, device=device)


@form("div.Tensor", devices=("cuda",))
def div(self: Tensor | Number, other: Tensor | Number) -> Tensor:
    if isinstance(self, Tensor) and isinstance(other, Tensor) and self.dim() and other.dim():
        return _div(self, other)  # type: ignore[no-any-return]
    first, second, dtype = _operands(self, other, true=True)
    return _div(first, second).to(dtype)  # type: ignore[no-any-return]


@form("div.Tensor_mode")
def div_mode(self: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None) -> Tensor:
    if rounding_mode not in (None, "trunc", "floor"):
        raise RuntimeError(  # stock's words
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )
    first, second, dtype = _operands(self, other, true=rounding_mode is None)
    if rounding_mode is None:
        return _div(first, second).to(dtype)  # type: ignore[no-any-return]
    if not dtype.is_floating_point:
        return _div_mode(first, second, rounding_mode=rounding_mode)  # type: ignore[no-any-return]
    made = _div(first, second).trunc() if rounding_mode == "trunc" else divided_down(first, second)
    return made.to(dtype)


@form("floor_divide")
def floor_divide(self: Tensor | Number, other: Tensor | Number) -> Tensor:
    first, second, dtype = _operands(self, other, true=False)
    if not dtype.is_floating_point:
        return _floor_divide(first, second)  # type: ignore[no-any-return]
    return divided_down(first, second).to(dtype)


def divided_down(a: Tensor, b: Tensor) -> Tensor:
    """The whole number below a / b, by way of the remainder, each operation rounded to the dtype."""
    rest = torch.fmod(a, b)
    quotient = _div(a - rest, b)
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = quotient.floor()
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    plain = _div(a, b)
    whole = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), whole)
    return torch.where(b == 0, plain, whole)


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


# ------------------------------------------------------------------------------------------- comparing

_equal = stock("equal")


@form("equal")
def equal(self: Tensor, other: Tensor) -> bool:
    if self.is_floating_point() and self.data_ptr() == other.data_ptr() and self.shape == other.shape:
        return bool((self == other).all())  # stock did not look at the elements before torch 2.13
    return _equal(self, other)  # type: ignore[no-any-return]


@form("isin.Tensor_Scalar")
def isin_number(elements: Tensor, test_element: Number, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    return elements != test_element if invert else elements == test_element


@form("isin.Scalar_Tensor")
def number_isin(element: Number, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = (test_elements == element).any()
    return ~found if invert else found


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
    factor = torch.full((), float(10 ** abs(decimals)), dtype=torch.float64, device=self.device)
    x = self.double()
    made = (x * factor).round() / factor if decimals >= 0 else (x / factor).round() * factor
    return (made.float() if self.dtype in _HALVES else made).to(self.dtype)
