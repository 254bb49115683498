"""Operators on lists of tensors (`_foreach_*`) and fused optimizer steps as loops over the single operators.

On the CPU stock loops in the same way; on CUDA its joined kernels have bits of their own. With these forms an optimizer
gives the same bits with `foreach`, `fused` and neither. Joined multiplications, divisions and additions of numbers stay
stock: IEEE fixes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels import updates
from easyscale.numerics.kernels.elementwise import UNARY
from easyscale.numerics.kernels.registry import form

_NOT_JOINED = {"exp2", "erfinv", "asinh", "acosh", "atanh", "silu", "mish", "hardswish", "hardsigmoid", "special_entr"}
Tensors = Sequence[Tensor]


def both(name: str, overload: str, each: Callable[..., list[tuple[tuple[Any, ...], dict[str, Any]]]]) -> None:
    """Forms of `_foreach_NAME` and `_foreach_NAME_`. `each` gives the arguments for every tensor of the list, from
    those of the list operator; `Tensor.NAME` and `Tensor.NAME_` do the work."""
    single, single_in_place = getattr(torch, name), getattr(Tensor, f"{name}_", None)
    ending = f".{overload}" if overload else ""

    @form(f"_foreach_{name}{ending}")
    def functional(self: Tensors, *args: Any, **options: Any) -> list[Tensor]:
        return [single(x, *more, **named) for x, (more, named) in zip(self, each(self, *args, **options), strict=True)]

    @form(f"_foreach_{name}_{ending}")
    def in_place(self: Tensors, *args: Any, **options: Any) -> None:
        for x, (more, named) in zip(self, each(self, *args, **options), strict=True):
            if single_in_place is None:
                x.copy_(single(x, *more, **named))
            else:
                single_in_place(x, *more, **named)


def _nothing(self: Tensors) -> list[Any]:
    return [((), {})] * len(self)


def _with_factor(self: Tensors, other: Tensors, *, alpha: float = 1) -> list[Any]:
    return [((y,), {"alpha": alpha}) for y in other]


def _one_with_factor(self: Tensors, other: Tensor, *, alpha: float = 1) -> list[Any]:
    return [((other,), {"alpha": alpha})] * len(self)


def _lists(self: Tensors, *others: Any) -> list[Any]:
    return [(items, {}) for items in zip(*others, strict=True)]


def _list_and_number(self: Tensors, tensors: Tensors, number: float) -> list[Any]:
    return [((y, number), {}) for y in tensors]


def _number(self: Tensors, number: float) -> list[Any]:
    return [((number,), {})] * len(self)


def _value(self: Tensors, first: Tensors, second: Tensors, value: float = 1) -> list[Any]:
    return [((a, b), {"value": value}) for a, b in zip(first, second, strict=True)]


def _values(self: Tensors, first: Tensors, second: Tensors, scalars: Any) -> list[Any]:
    numbers = scalars.tolist() if isinstance(scalars, Tensor) else scalars
    return [((a, b), {"value": value}) for a, b, value in zip(first, second, numbers, strict=True)]


for _name in UNARY:
    if _name not in _NOT_JOINED:
        both(_name, "", _nothing)
for _name in ("add", "sub"):
    both(_name, "List", _with_factor)
both("add", "Tensor", _one_with_factor)
for _name in ("addcmul", "addcdiv"):
    both(_name, "Scalar", _value)
    both(_name, "ScalarList", _values)
    both(_name, "Tensor", _values)
for _name in ("maximum", "minimum"):  # single ones have a form for the sign of zeros
    both(_name, "List", _lists)


def _as_tensors(self: Tensors, numbers: Any) -> list[Any]:
    """One number for all, or one for each, as tensors: maximum takes no number."""
    each = numbers if isinstance(numbers, list | tuple) else [numbers] * len(self)
    pairs = zip(self, each, strict=True)
    return [((torch.full((), value, dtype=x.dtype, device=x.device),), {}) for x, value in pairs]


for _name in ("maximum", "minimum"):
    both(_name, "Scalar", _as_tensors)
    both(_name, "ScalarList", _as_tensors)
both("lgamma", "", _nothing)
for _name in ("clamp_min", "clamp_max"):
    both(_name, "List", _lists)
    both(_name, "ScalarList", _lists)
    both(_name, "Scalar", _number)
both("lerp", "List", _lists)
both("lerp", "ScalarList", _lists)
both("lerp", "Scalar", _list_and_number)
both("pow", "List", _lists)
both("pow", "ScalarList", _lists)
both("pow", "Scalar", _number)


@form("_foreach_max")
def largest(self: Tensors) -> list[Tensor]:
    return [x.max() for x in self]


@form("_foreach_pow.ScalarAndTensor")
def pow_of_number(self: float, exponent: Tensors) -> list[Tensor]:
    return [torch.pow(self, x) for x in exponent]


# ---------------------------------------------------------------------------------------------- fused optimizers


def unscaled(grads: Tensors, grad_scale: Tensor | None, found_inf: Tensor | None) -> Tensors | None:
    """The gradients without the scaler's factor, or None if the step is to be left out."""
    if found_inf is not None and found_inf.item():
        return None
    if grad_scale is not None:
        for grad in grads:
            grad.div_(grad_scale)
    return grads


def _adam(decoupled: bool) -> Callable[..., None]:
    """The operators of torch.optim's plain loop, in its order."""

    def step(
        self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
        state_steps: Tensors, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
        maximize: bool, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
    ) -> None:  # fmt: skip
        lr = float(lr)
        ready = unscaled(grads, grad_scale, found_inf)
        if ready is None or not self:
            return
        steps = torch.stack([step.reshape(()) for step in state_steps]).tolist()  # one wait for the device, not many
        places = list(range(len(self)))
        if not amsgrad and not maximize:
            places = updates.adam(
                self, ready, exp_avgs, exp_avg_sqs, steps, lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay,
                eps=eps, decoupled=decoupled,
            )  # fmt: skip
        for i in places:
            param, grad, number = self[i], -ready[i] if maximize else ready[i], steps[i]
            if weight_decay != 0:
                if decoupled:
                    param.mul_(1 - lr * weight_decay)
                else:
                    grad = grad.add(param, alpha=weight_decay)
            exp_avgs[i].lerp_(grad, 1 - beta1)
            squares = exp_avg_sqs[i].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if amsgrad:
                squares = max_exp_avg_sqs[i].copy_(torch.maximum(max_exp_avg_sqs[i], squares))
            bias1, bias2 = 1 - beta1**number, 1 - beta2**number
            denominator = (squares.sqrt() / bias2**0.5).add_(eps)
            param.addcdiv_(exp_avgs[i], denominator, value=-(lr / bias1))

    return step


form("_fused_adam_", "_fused_adam_.tensor_lr")(_adam(decoupled=False))
form("_fused_adamw_", "_fused_adamw_.tensor_lr")(_adam(decoupled=True))


@form("_fused_sgd_", "_fused_sgd_.tensor_lr")
def fused_sgd(
    self: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    """The operators of torch.optim's plain loop, in its order."""
    ready = unscaled(grads, grad_scale, found_inf)
    if ready is None:
        return
    places = list(range(len(self)))
    if not maximize and not (is_first_step and momentum != 0):
        places = updates.sgd(
            self, ready, momentum_buffer_list, lr=float(lr), weight_decay=weight_decay, momentum=momentum,
            dampening=dampening, nesterov=nesterov,
        )  # fmt: skip
    for i in places:
        param, grad = self[i], -ready[i] if maximize else ready[i]
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if momentum != 0:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        param.add_(grad, alpha=-float(lr))


@form("_fused_adagrad_", "_fused_adagrad_.tensor_lr")
def fused_adagrad(
    self: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    """The operators of torch.optim's plain loop, in its order."""
    ready = unscaled(grads, grad_scale, found_inf)
    if ready is None or not self:
        return
    steps = torch.stack([step.reshape(()) for step in state_steps]).tolist()
    for i, (param, grad, number) in enumerate(zip(self, ready, steps, strict=True)):
        grad = -grad if maximize else grad
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        sums = state_sums[i].addcmul_(grad, grad, value=1)
        param.addcdiv_(grad, sums.sqrt().add_(eps), value=-(float(lr) / (1 + (number - 1) * lr_decay)))
