"""Steps of SGD, Adam and AdamW on lists of parameters, all at once where there is a kernel for that.

torch.optim's plain loops take a dozen operators for each parameter, which on a GPU is a dozen launches. While D2 is
installed, `joined` puts loops of ours in their place: parameters on a GPU are updated by one launch, the others by
torch's own loop. States are those of the plain loop, `step` on the CPU among them, so they go to workers of all kinds.
Relies on the sequence of operators in docs/numerics.md; guarantees the bits of the plain loop.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import adam as torch_adam
from torch.optim import sgd as torch_sgd

from easyscale.numerics.kernels import primitives

Tensors = Sequence[Tensor]
Loop = Callable[..., None]


def joint(like: Tensor) -> Any:
    """The module of kernels for lists on this tensor's device, or None."""
    return getattr(primitives.implementation(like.device), "lists", None)


@functools.cache
def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every place between the first and the last element is one element's."""
    return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride() == strides


def _one_layout(first: Tensor, others: Tensors) -> bool:
    """Whether the tensors can be walked through side by side: one dtype, one device, one dense layout."""
    contiguous = first.is_contiguous()
    if not contiguous and not _is_dense(first.shape, first.stride()):
        return False
    for x in others:
        if x.dtype is not first.dtype or x.get_device() != first.get_device() or x.shape != first.shape:
            return False
        if not (x.is_contiguous() if contiguous else x.stride() == first.stride()):
            return False
    return True


def _groups(
    columns: Sequence[Sequence[Tensor | None]], numbers: Sequence[float]
) -> tuple[dict[tuple[Any, ...], list[int]], list[int]]:
    """The places that can be updated at once, by device, dtype and number of the step; and the others."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    others: list[int] = []
    shown = columns[0][0]
    assert shown is not None
    module = joint(shown)
    for i, (row, number) in enumerate(zip(zip(*columns, strict=True), numbers, strict=True)):
        first, *rest = row
        known = [x for x in rest if type(x) in (Tensor, Parameter) and x.layout is torch.strided]
        if (
            module is not None and first is not None and first.dtype in module.DTYPES and len(known) == len(rest)
            and first.is_cuda == shown.is_cuda and _one_layout(first, known)
        ):  # fmt: skip
            groups.setdefault((first.get_device(), first.dtype, number), []).append(i)
        else:
            others.append(i)
    return groups, others


def _picked(columns: Sequence[Sequence[Any]], places: Sequence[int]) -> list[list[Any]]:
    return [[column[i] for i in places] for column in columns]


def _plain(*numbers: Any) -> bool:
    return all(isinstance(x, int | float) for x in numbers)


def adam(
    params: Tensors, grads: Tensors, means: Tensors, squares: Tensors, numbers: Sequence[float], *, lr: Any,
    beta1: Any, beta2: Any, weight_decay: Any, eps: Any, decoupled: bool,
) -> list[int]:  # fmt: skip
    """A step of Adam or AdamW for each parameter that can be updated with others, `numbers` being those of the steps.
    Returns the places of those that could not."""
    if not params or not _plain(lr, beta1, beta2, weight_decay, eps):
        return list(range(len(params)))
    columns = (params, grads, means, squares)
    groups, others = _groups(columns, numbers)
    for (_, _, number), places in groups.items():
        picked = _picked(columns, places)
        joint(picked[0][0]).adam(
            picked, number=number, lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=eps,
            decoupled=decoupled,
        )  # fmt: skip
        _written(picked[0], picked[2], picked[3])
    return others


def sgd(
    params: Tensors, grads: Tensors, buffers: Sequence[Tensor | None], *, lr: Any, weight_decay: Any, momentum: Any,
    dampening: Any, nesterov: bool,
) -> list[int]:  # fmt: skip
    """A step of SGD for each parameter that can be updated with others. Returns the places of those that could not."""
    if not params or not _plain(lr, weight_decay, momentum, dampening):
        return list(range(len(params)))
    columns = (params, grads, buffers if momentum != 0 else params)
    groups, others = _groups(columns, [0.0] * len(params))
    for places in groups.values():
        picked = _picked(columns, places)
        joint(picked[0][0]).sgd(
            picked, lr=lr, weight_decay=weight_decay, momentum=momentum, dampening=dampening, nesterov=nesterov
        )
        _written(picked[0], picked[2])
    return others


def _written(*lists: list[Tensor]) -> None:
    """As after an in-place operator: what autograd, and whoever keeps slices of weights, must know."""
    torch.autograd.graph.increment_version(list(itertools.chain(*lists)))


# ------------------------------------------------------------------------------------------------ torch's plain loops


def _adam_loop(stock: Loop) -> Loop:
    @functools.wraps(stock)
    def loop(
        params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
        state_steps: Tensors, grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **options: Any,
    ) -> None:  # fmt: skip
        options |= {"grad_scale": grad_scale, "found_inf": found_inf}
        columns = (params, grads, exp_avgs, exp_avg_sqs, state_steps)
        unusual = any(options[name] for name in ("amsgrad", "maximize", "capturable", "differentiable", "has_complex"))
        scaled = grad_scale is not None or found_inf is not None
        if unusual or scaled or not params or joint(params[0]) is None or any(x.is_cuda for x in state_steps):
            return stock(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **options)
        numbers = [number + 1 for number in torch.stack(list(state_steps)).tolist()]
        others = adam(
            *columns[:4], numbers, lr=options["lr"], beta1=options["beta1"], beta2=options["beta2"],
            weight_decay=options["weight_decay"], eps=options["eps"], decoupled=options["decoupled_weight_decay"],
        )  # fmt: skip
        left = set(others)
        for i, (step, number) in enumerate(zip(state_steps, numbers, strict=True)):
            if i not in left:
                step.fill_(number)
        if others:
            *picked, steps = _picked(columns, others)
            stock(*picked, [], steps, **options)
        return None

    return loop


def _sgd_loop(stock: Loop) -> Loop:
    @functools.wraps(stock)
    def loop(
        params: Tensors, grads: Tensors, momentum_buffer_list: list[Tensor | None],
        grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **options: Any,
    ) -> None:  # fmt: skip
        options |= {"grad_scale": grad_scale, "found_inf": found_inf}
        scaled = grad_scale is not None or found_inf is not None
        if options["maximize"] or options["has_sparse_grad"] or scaled or not params or joint(params[0]) is None:
            return stock(params, grads, momentum_buffer_list, **options)
        names = ("lr", "weight_decay", "momentum", "dampening", "nesterov")
        others = sgd(params, grads, momentum_buffer_list, **{name: options[name] for name in names})
        if others:  # in the first step all of them: their buffers are made
            buffers = [momentum_buffer_list[i] for i in others] if momentum_buffer_list else []
            stock(*_picked((params, grads), others), buffers, **options)
            if buffers:
                for i, buffer in zip(others, buffers, strict=True):
                    momentum_buffer_list[i] = buffer
        return None

    return loop


_ADAM = (
    "params grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps grad_scale found_inf amsgrad has_complex beta1 "
    "beta2 lr weight_decay eps maximize capturable differentiable decoupled_weight_decay"
)
_SGD = (
    "params grads momentum_buffer_list grad_scale found_inf weight_decay momentum lr dampening nesterov maximize "
    "has_sparse_grad"
)
_LOOPS: tuple[tuple[Any, str, str, Callable[[Loop], Loop]], ...] = (
    (torch_adam, "_single_tensor_adam", _ADAM, _adam_loop),
    (torch_sgd, "_single_tensor_sgd", _SGD, _sgd_loop),
)


def join() -> Callable[[], None]:
    """Our loops in place of torch's, where those have the arguments that we know. Returns what puts them back."""
    before = []
    for module, name, arguments, loop in _LOOPS:
        stock = getattr(module, name, None)
        if stock is not None and set(inspect.signature(stock).parameters) == set(arguments.split()):
            before.append((module, name, stock))
            setattr(module, name, loop(stock))

    def back() -> None:
        for module, name, stock in before:
            setattr(module, name, stock)

    return back
