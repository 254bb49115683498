"""aten's elementwise operators as formulas: one rounding at the end, stock's type promotion and layouts.

Additions, multiplications, divisions of tensors, comparisons, rounding to whole numbers and the like stay stock: IEEE
fixes them. What stock does differently on different devices and is corrected here:
    sqrt            neither the CPU's vendor library nor the GPU rounds correctly
    add, sub alpha  a + alpha * b is fused, fma(alpha, b, a) in fp32 or fp64, on CUDA and, but for bf16 and fp16, where
                    torch uses AVX2 or AVX-512; that is the definition, and elsewhere it is computed here
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import evaluate
from easyscale.numerics.kernels.registry import form

# A number beside a tensor reaches a form as a Python number, though the schema says Tensor.
Operand = Tensor | float

UNARY = (
    "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "erfc",
    "erfinv", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "silu", "mish",
    "hardswish", "hardsigmoid", "special_entr",
)  # fmt: skip
BINARY = {
    "atan2": "atan2", "hypot": "hypot", "logaddexp": "logaddexp", "logaddexp2": "logaddexp2", "xlogy.Tensor": "xlogy",
    "special_xlog1py": "xlog1py", "sigmoid_backward": "sigmoid_backward", "tanh_backward": "tanh_backward",
    "silu_backward": "silu_backward", "mish_backward": "mish_backward", "hardswish_backward": "hardswish_backward",
    "hardsigmoid_backward": "hardsigmoid_backward",
}  # fmt: skip


def floating(dtype: torch.dtype) -> torch.dtype:
    """What stock computes whole numbers and truth values in."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def common(*operands: Operand) -> torch.dtype:
    """Stock's type promotion of tensors and numbers, among them a tensor."""
    first = operands[0]
    if isinstance(first, Tensor):  # the most frequent case: tensors of one dtype
        for x in operands:
            if not isinstance(x, Tensor) or x.dtype is not first.dtype:
                break
        else:
            return first.dtype
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(operands) == 2:
        return torch.result_type(operands[0], operands[1])
    with_dimensions = [x for x in tensors if x.dim()] or tensors
    return functools.reduce(torch.promote_types, [x.dtype for x in with_dimensions])


def exact(value: Operand) -> Tensor:
    """A number as a tensor without dimensions on the CPU, which goes with tensors of every device."""
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    def kernel(self: Tensor) -> Tensor:
        return evaluate(name, (self,), dtype=floating(self.dtype))

    return form(name)(kernel)


def _binary(overload: str, name: str) -> Callable[[Operand, Operand], Tensor]:
    def kernel(self: Operand, other: Operand) -> Tensor:
        return evaluate(name, (exact(self), exact(other)), dtype=floating(common(self, other)))

    # backward operators name their arguments otherwise; they are only ever called by position
    return form(overload)(kernel)


for _name in UNARY:
    _unary(_name)
for _overload, _name in BINARY.items():
    _binary(_overload, _name)


# ------------------------------------------------------------------------------------------------------- powers


def whole_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Powers of whole numbers, wrapping around, by squaring; a negative exponent leaves 1, -1 or 0, as in stock."""
    dtype = common(base, exponent)
    base, exponent = base.to(dtype), exponent.to(dtype)
    odd = (exponent & 1) == 1
    below = torch.where(base == 1, 1, torch.where(base == -1, torch.where(odd, -1, 1), 0)).to(dtype)
    shape = torch.broadcast_shapes(base.shape, exponent.shape)
    result, square, left = torch.ones(shape, dtype=dtype, device=base.device), base, exponent
    for _ in range(torch.iinfo(dtype).bits):
        result = torch.where((left & 1) == 1, result * square, result)
        square, left = square * square, left >> 1
    return torch.where(exponent < 0, below, result)


def _number(value: float, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64, device=like.device)


@form("pow.Tensor_Tensor")
def pow_tensors(self: Operand, exponent: Operand) -> Tensor:
    if not isinstance(self, Tensor):
        assert isinstance(exponent, Tensor)
        return pow_of_number(self, exponent)
    if not isinstance(exponent, Tensor):
        return pow_number(self, exponent)
    dtype = common(self, exponent)
    if dtype.is_floating_point:
        return evaluate("pow", (self, exponent), dtype=dtype)
    return whole_power(self, exponent)


@form("pow.Tensor_Scalar")
def pow_number(self: Tensor, exponent: float) -> Tensor:
    """The powers 1, 2, 3, 1/2, -1/2 and -1 by their own short formulas, others as pow of two tensors."""
    dtype = torch.result_type(self, exponent)
    if exponent == 2:
        x = self.to(dtype)
        return x * x
    if exponent == 1:
        return self.to(dtype, copy=True)
    if exponent == 0:
        return torch.ones_like(self, dtype=dtype)
    if not dtype.is_floating_point:
        if exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")  # stock's words
        return whole_power(self, _number(int(exponent), self))
    short = {3.0: "cube", 0.5: "sqrt", -0.5: "rsqrt"}.get(float(exponent))
    if short:
        return evaluate(short, (self,), dtype=dtype)
    if exponent == -1:
        return torch.reciprocal(self.to(dtype))
    return evaluate("pow", (self, exact(exponent)), dtype=dtype)


@form("pow.Scalar")
def pow_of_number(self: float, exponent: Tensor) -> Tensor:
    dtype = torch.result_type(exponent, self)
    if not dtype.is_floating_point:
        return whole_power(_number(int(self), exponent).to(dtype), exponent)
    if self == 1:
        return torch.ones_like(exponent, dtype=dtype)
    return evaluate("pow", (exact(self), exponent), dtype=dtype)


# ---------------------------------------------------------------------------------------- sums with a factor


@form("lerp.Scalar")
def lerp_number(self: Tensor, end: Tensor, weight: float) -> Tensor:
    return evaluate("lerp", (self, end), (float(weight),), dtype=common(self, end))


@form("lerp.Tensor")
def lerp_tensors(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return evaluate("lerp_weights", (self, end, exact(weight)), dtype=common(self, end))


@form("addcmul")
def addcmul(self: Tensor, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Tensor:
    dtype = common(self, tensor1, tensor2)
    if not dtype.is_floating_point:
        return self + tensor1 * tensor2 * value
    return evaluate("addcmul", (self, exact(tensor1), exact(tensor2)), (float(value),), dtype=dtype)


@form("addcdiv")
def addcdiv(self: Tensor, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Tensor:
    dtype = common(self, tensor1, tensor2)
    return evaluate("addcdiv", (self, exact(tensor1), exact(tensor2)), (float(value),), dtype=dtype)


def scaled_sum(self: Operand, other: Operand, factor: float) -> Tensor:
    """fma(factor, other, self) in fp32 (fp64 for fp64), then to the dtype of the result."""
    dtype = common(self, other)
    inputs = typed(self, other, dtype)
    if dtype is torch.float64:
        return evaluate("add_scaled_double", inputs, (float(factor),), dtype=dtype)
    return evaluate("add_scaled", inputs, (ctypes.c_float(factor).value,), dtype=dtype)


def typed(self: Operand, other: Operand, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two operands in the dtype that they are added in: fp32 for a bf16 or fp16 and a number, as on CUDA."""
    if isinstance(self, Tensor) and isinstance(other, Tensor):
        return self.to(dtype), other.to(dtype)
    inside = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    first, second = (x.to(inside) if isinstance(x, Tensor) else torch.full((), x, dtype=inside) for x in (self, other))
    return first, second


# Where torch's own sum with a factor is fused, and in fp32: its bf16 and fp16 round the factor first on CPUs.
_FUSED = (torch.float32, torch.float64) if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") else ()


def _cpu_kernel(name: str) -> Callable[..., Tensor]:
    """As `stock.stock`, with less work for each call: sums are the most frequent operators."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return functools.partial(torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed, keys)


def _sum_forms(name: str, sign: int) -> None:
    """The CPU's forms of `add` or `sub`. Stock's kernels are called directly: through the dispatcher they are these."""
    plain, in_place = _cpu_kernel(f"{name}.Tensor"), _cpu_kernel(f"{name}_.Tensor")

    @form(f"{name}.Tensor", devices=("cpu",))
    def functional(self: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
        tensors = isinstance(self, Tensor) and isinstance(other, Tensor)
        if alpha == 1 and tensors:
            return plain(self, other, alpha=1)
        dtype = common(self, other)
        if alpha != 1 and dtype.is_floating_point and dtype not in _FUSED:
            return scaled_sum(self, other, sign * alpha)
        if tensors:
            return plain(self, other, alpha=alpha)
        return plain(*typed(self, other, dtype), alpha=alpha).to(dtype)

    @form(f"{name}_.Tensor", devices=("cpu",))
    def over(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
        if isinstance(other, Tensor) and (alpha == 1 or common(self, other) in _FUSED):
            return in_place(self, other, alpha=alpha)
        if not isinstance(other, Tensor) and self.dtype in _FUSED:
            return in_place(self, torch.full((), other, dtype=self.dtype), alpha=alpha)
        return self.copy_(functional(self, other, alpha=alpha))


_sum_forms("add", 1)
_sum_forms("sub", -1)


# --------------------------------------------------------------------------------------------------- activations


@form("gelu")
def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    return evaluate(_gelu_name(approximate), (self,), dtype=self.dtype)


@form("gelu_backward")
def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    return evaluate(f"{_gelu_name(approximate)}_backward", (grad_output, self), dtype=common(grad_output, self))


def _gelu_name(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")  # stock's words
    return "gelu" if approximate == "none" else "gelu_tanh"


@form("softplus")
def softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return evaluate("softplus", (self,), (float(beta), float(threshold)), dtype=self.dtype)


@form("softplus_backward")
def softplus_backward(grad_output: Tensor, self: Tensor, beta: float, threshold: float) -> Tensor:
    scalars = (float(beta), float(threshold))
    return evaluate("softplus_backward", (grad_output, self), scalars, dtype=common(grad_output, self))


@form("elu")
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return evaluate("elu", (self,), (float(alpha), float(scale), float(input_scale)), dtype=self.dtype)


@form("elu_backward")
def elu_backward(
    grad_output: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Tensor:
    name = "elu_backward_of_result" if is_result else "elu_backward"
    scalars = (float(alpha), float(scale), float(input_scale))
    return evaluate(name, (grad_output, self_or_result), scalars, dtype=common(grad_output, self_or_result))


@form("log_sigmoid_forward")
def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    """The buffer is empty, as in stock on CUDA: the backward form does without."""
    return evaluate("log_sigmoid", (self,), dtype=self.dtype), self.new_empty(0)


@form("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    return evaluate("log_sigmoid_backward", (grad_output, self), dtype=common(grad_output, self))


@form("logit")
def logit(self: Tensor, eps: float | None = None) -> Tensor:
    bounds = (-math.inf, math.inf) if eps is None else (eps, 1 - eps)
    return evaluate("logit", (self,), bounds, dtype=floating(self.dtype))


@form("logit_backward")
def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Tensor:
    bounds = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    return evaluate("logit_backward", (grad_output, self), bounds, dtype=common(grad_output, self))


@form("glu")
def glu(self: Tensor, dim: int = -1) -> Tensor:
    if self.shape[dim] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]}")
    x, gate = self.chunk(2, dim)
    return evaluate("glu", (x, gate), dtype=self.dtype)


@form("glu_backward")
def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    x, gate = self.chunk(2, dim)
    parts: list[Any] = [
        evaluate("glu", (grad_output, gate), dtype=self.dtype),
        evaluate("glu_backward_gate", (grad_output.double() * x.double(), gate), dtype=self.dtype),
    ]
    return torch.cat(parts, dim)
