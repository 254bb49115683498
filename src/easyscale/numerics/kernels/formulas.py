"""The table of elementwise formulas: every D2 function of single elements, written down once (see `tracing`).

A formula takes `tensors` elements and `scalars` numbers, all as fp64, and gives an fp64; whoever evaluates it rounds
once to the dtype of the output (to bf16 and fp16 by way of fp32). Names are those of the aten operators where there is
one; where there is NAME_single too, that is evaluated for outputs other than fp64 (`SINGLE`): a program over fp32,
whose inputs are rounded to fp32 first. `emit_c`, `emit_triton` and `portable.elementwise` are made from this table.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable

from easyscale.numerics.kernels import formula_functions as fn
from easyscale.numerics.kernels import formula_losses as losses
from easyscale.numerics.kernels import formula_powers as powers
from easyscale.numerics.kernels import formula_singles as singles
from easyscale.numerics.kernels.tracing import Formula, Value, fused, traced, where

FORMULAS: dict[str, Formula] = {}

RSQRT_2PI = 0.3989422804014327
SQRT_2_OVER_PI = 0.7978845608028654
CUBIC = 0.044715  # of the tanh form of GELU
# twice the square root of 2 / pi, and 3 CUBIC, as fp32
STEEP_SINGLE, CUBIC_SINGLE, CUBIC_3_SINGLE = 1.5957691669464111, 0.044714998453855515, 0.13414500653743744


def formula(tensors: int, scalars: int = 0, name: str = "") -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Trace the decorated function and put it into the table, under its own name unless another is given. NAME_single
    is over fp32."""

    def note(function: Callable[..., Value]) -> Callable[..., Value]:
        title = name or function.__name__
        assert title not in FORMULAS, f"two formulas {title}"
        FORMULAS[title] = traced(title, function, tensors, scalars, title.endswith("_single"))
        return function

    return note


for _function in (
    fn.exp, fn.expm1, fn.exp2, fn.log, fn.log1p, fn.log2, fn.log10, fn.tanh, fn.sigmoid, fn.erf, fn.erfc, fn.erfinv,
    fn.sin, fn.cos, fn.tan, fn.asin, fn.acos, fn.atan, fn.sinh, fn.cosh, fn.asinh, fn.acosh, fn.atanh,
):  # fmt: skip
    formula(1)(_function)
for _function in (singles.exp_single, singles.tanh_single, singles.sigmoid_single):
    formula(1)(_function)
for _loss in (losses.square_loss, losses.entropy, losses.entropy_of_logits, losses.soft_margin):
    formula(2)(_loss)
formula(2, 1)(losses.smooth_l1)
formula(2, 1)(losses.huber)
formula(3)(losses.entropy_backward)
formula(3)(losses.entropy_of_logits_weighed)
formula(3, 1)(losses.square_loss_backward)
formula(3, 1)(losses.soft_margin_backward)
formula(3, 2)(losses.smooth_l1_backward)
formula(3, 2)(losses.huber_backward)
formula(2)(fn.atan2)
formula(2, name="pow")(powers.power)
formula(2, 1, name="add_scaled")(powers.fused_for_single)
formula(2, 1, name="add_scaled_double")(powers.fused)


# ------------------------------------------------------------------------------------------------ roots and sums


@formula(1)
def sqrt(x: Value) -> Value:
    return x.sqrt()


@formula(1)
def rsqrt(x: Value) -> Value:
    return 1.0 / x.sqrt()


@formula(1)
def cube(x: Value) -> Value:
    return x * x * x


@formula(2)
def hypot(x: Value, y: Value) -> Value:
    a, b = abs(x), abs(y)
    large = (a > 2.0**500) | (b > 2.0**500)
    small = (a < 2.0**-500) & (b < 2.0**-500)
    there, back = where(large, 2.0**-600, where(small, 2.0**600, 1.0)), where(large, 2.0**600, 2.0**-600)
    back = where(large | small, back, 1.0)
    a, b = a * there, b * there
    result = (a * a + b * b).sqrt() * back
    return where(a.equals(fn.INF) | b.equals(fn.INF), fn.INF, result)


@formula(2, 1)
def lerp(start: Value, end: Value, weight: Value) -> Value:
    difference = end - start
    return where(abs(weight) < 0.5, start + weight * difference, end - difference * (1.0 - weight))


formula(3, name="lerp_weights")(lerp)


@formula(3, 1)
def addcmul(x: Value, first: Value, second: Value, factor: Value) -> Value:
    return x + factor * (first * second)


@formula(3, 1)
def addcdiv(x: Value, first: Value, second: Value, factor: Value) -> Value:
    return x + factor * (first / second)


def _joined(x: Value, y: Value, rest: Callable[[Value], Value]) -> Value:
    same = x.equals(y) & abs(x).equals(fn.INF)
    return where(same, x, where(x < y, y, x) + rest(-abs(x - y)))


@formula(2)
def logaddexp(x: Value, y: Value) -> Value:
    return _joined(x, y, lambda gap: fn.log1p(fn.exp(gap)))


@formula(2)
def logaddexp2(x: Value, y: Value) -> Value:
    return _joined(x, y, lambda gap: where(gap.equals(0.0), 1.0, fn.log1p(fn.exp2(gap)) * fn.LOG2_E))


@formula(2)
def xlogy(x: Value, y: Value) -> Value:
    return where(y.is_nan(), y, where(x.equals(0.0), 0.0, x * fn.log(y)))


@formula(2)
def xlog1py(x: Value, y: Value) -> Value:
    return where(y.is_nan(), y, where(x.equals(0.0), 0.0, x * fn.log1p(y)))


# --------------------------------------------------------------------------------------------------- activations


@formula(2)
def sigmoid_backward(grad: Value, result: Value) -> Value:
    return grad * ((1.0 - result) * result)


@formula(2)
def tanh_backward(grad: Value, result: Value) -> Value:
    return grad * (1.0 - result * result)


@formula(1)
def silu(x: Value) -> Value:
    return x / (1.0 + fn.exp(-x))


@formula(2)
def silu_backward(grad: Value, x: Value) -> Value:
    s = fn.sigmoid(x)
    return grad * (s * (1.0 + x * (1.0 - s)))


def _normal(x: Value) -> tuple[Value, Value]:
    """The normal distribution up to x, and e^(-x^2 / 2)."""
    z = x * -fn.SQRT_HALF
    near, far, e = fn.erf_parts(z)
    return 0.5 * fn.erfc_from(z, near, far), e


@formula(1)
def silu_single(x: Value) -> Value:
    return x * singles.sigmoid_single(x)


@formula(2)
def silu_backward_single(grad: Value, x: Value) -> Value:
    s = singles.sigmoid_single(x)
    return grad * (s * fused(x, 1.0 - s, 1.0))


@formula(1)
def gelu(x: Value) -> Value:
    return x * _normal(x)[0]


@formula(2)
def gelu_backward(grad: Value, x: Value) -> Value:
    below, density = _normal(x)
    return grad * (below + x * (density * RSQRT_2PI))


@formula(1)
def gelu_single(x: Value) -> Value:
    return x * singles.normal_single(x)[0]


@formula(2)
def gelu_backward_single(grad: Value, x: Value) -> Value:
    below, density = singles.normal_single(x)
    return grad * fused(x, density * singles.RSQRT_2PI_SINGLE, below)


def _gelu_angle(x: Value) -> Value:
    """Twice the argument of tanh: 0.5 (1 + tanh u) is sigmoid(2 u)."""
    return (2.0 * SQRT_2_OVER_PI) * (x + CUBIC * (x * x * x))


@formula(1)
def gelu_tanh(x: Value) -> Value:
    return x / (1.0 + fn.exp(-_gelu_angle(x)))


@formula(2)
def gelu_tanh_backward(grad: Value, x: Value) -> Value:
    u = _gelu_angle(x)
    e = fn.exp(-abs(u))
    near, far = 1.0 / (1.0 + e), e / (1.0 + e)
    s, rest = where(u < 0.0, far, near), where(u < 0.0, near, far)
    slope = (2.0 * SQRT_2_OVER_PI) * (1.0 + (3.0 * CUBIC) * (x * x))
    return grad * (s + x * (s * rest) * slope)


def _gelu_angle_single(x: Value, square: Value) -> Value:
    return (STEEP_SINGLE * x) * fused(square, CUBIC_SINGLE, 1.0)


@formula(1)
def gelu_tanh_single(x: Value) -> Value:
    return x * singles.sigmoid_single(_gelu_angle_single(x, x * x))


@formula(2)
def gelu_tanh_backward_single(grad: Value, x: Value) -> Value:
    a = singles.between(x, -9.875, 9.875)  # further out all is 0 or 1
    square = a * a
    u = _gelu_angle_single(a, square)
    e = singles.exp_between(-abs(u))
    near = singles.inverse(1.0 + e)
    far = e * near
    slope = STEEP_SINGLE * fused(square, CUBIC_3_SINGLE, 1.0)
    return grad * fused(a * (near * far), slope, where(u < 0.0, far, near))


@formula(1, 2)
def softplus(x: Value, beta: Value, threshold: Value) -> Value:
    steep = x * beta
    return where(steep > threshold, x, fn.log1p(fn.exp(steep)) / beta)


@formula(2, 2)
def softplus_backward(grad: Value, x: Value, beta: Value, threshold: Value) -> Value:
    steep = x * beta
    return where(steep > threshold, grad, grad / (1.0 + fn.exp(-steep)))


@formula(1, 3)
def elu(x: Value, alpha: Value, scale: Value, input_scale: Value) -> Value:
    return where(x < 0.0, fn.expm1(x * input_scale) * (alpha * scale), x * scale)


@formula(2, 3)
def elu_backward(grad: Value, x: Value, alpha: Value, scale: Value, input_scale: Value) -> Value:
    below = grad * (input_scale * (alpha * scale)) * fn.exp(x * input_scale)
    return where(x <= 0.0, below, grad * scale)


@formula(2, 3)
def elu_backward_of_result(grad: Value, result: Value, alpha: Value, scale: Value, input_scale: Value) -> Value:
    return where(result <= 0.0, grad * input_scale * (result + alpha * scale), grad * scale)


def _mish_parts(x: Value) -> tuple[Value, Value]:
    """(e, n) with e = e^x and tanh(log(1 + e)) = n / (n + 2). From x = 40 on the tanh is 1."""
    e = fn.exp(fn.minimum(x, 40.0))
    return e, e * (e + 2.0)


@formula(1)
def mish(x: Value) -> Value:
    _, n = _mish_parts(x)
    return x * (n / (n + 2.0))


@formula(2)
def mish_backward(grad: Value, x: Value) -> Value:
    e, n = _mish_parts(x)
    bend = 4.0 * (n + 1.0) / ((n + 2.0) * (n + 2.0))
    return grad * (n / (n + 2.0) + fn.minimum(x, 40.0) * ((e / (1.0 + e)) * bend))


@formula(1)
def log_sigmoid(x: Value) -> Value:
    return fn.minimum(x, 0.0) - fn.log1p(fn.exp(-abs(x)))


@formula(2)
def log_sigmoid_backward(grad: Value, x: Value) -> Value:
    e = fn.exp(-abs(x))
    return grad * (where(x < 0.0, 1.0, e) / (1.0 + e))


@formula(1)
def hardsigmoid(x: Value) -> Value:
    return fn.minimum(fn.maximum(x + 3.0, 0.0), 6.0) / 6.0


@formula(2)
def hardsigmoid_backward(grad: Value, x: Value) -> Value:
    return where((x > -3.0) & (x < 3.0), grad / 6.0, 0.0)


@formula(1)
def hardswish(x: Value) -> Value:
    return x * fn.minimum(fn.maximum(x + 3.0, 0.0), 6.0) / 6.0


@formula(2)
def hardswish_backward(grad: Value, x: Value) -> Value:
    return where(x <= -3.0, 0.0, where(x < 3.0, grad * (x / 3.0 + 0.5), grad))


@formula(2, 2)
def hardtanh_backward(grad: Value, x: Value, low: Value, high: Value) -> Value:
    return where((x > low) & (x < high), grad, 0.0)


@formula(2, 1)
def shrink_backward(grad: Value, x: Value, bound: Value) -> Value:
    return where((x < -bound) | (x > bound), grad, 0.0)


@formula(2)
def glu(x: Value, gate: Value) -> Value:
    return x / (1.0 + fn.exp(-gate))


@formula(2)
def glu_backward_gate(grad_times_x: Value, gate: Value) -> Value:
    s = fn.sigmoid(gate)
    return grad_times_x * ((1.0 - s) * s)


@formula(1, 2)
def logit(x: Value, low: Value, high: Value) -> Value:
    bounded = where(x < low, low, where(x > high, high, x))
    return fn.log(bounded / (1.0 - bounded))


@formula(2, 3)
def logit_backward(grad: Value, x: Value, low: Value, high: Value, outside: Value) -> Value:
    return where((x < low) | (x > high), outside, grad / (x * (1.0 - x)))


@formula(1)
def special_entr(x: Value) -> Value:
    inside = where(x > 0.0, -x * fn.log(x), -fn.INF)
    return where(x.is_nan(), x, where(x.equals(0.0), 0.0, inside))


# What is evaluated in the place of a formula where the result is fp32, bf16 or fp16.
SINGLE = {name.removesuffix("_single"): name for name in FORMULAS if name.endswith("_single")}
