"""Stock kernels by name, for forms that use one: the dispatcher itself would lead back to the form.

A kernel is looked up when `stock` is called, which is at import of the module of forms: before D2 is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from easyscale.numerics.kernels import watching

_KEYS = {"cpu": "CPU", "cuda": "CUDA"}


def stock(name: str) -> Callable[..., Any]:
    """The stock kernel of an overload ("amax", "div.Tensor"), to be called as the operator."""
    found: dict[str, Callable[..., Any]] = {}
    for device, key in _KEYS.items():
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
            keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
            found[device] = partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed, keys)

    watched, tensor = watching.watchers(), torch.Tensor

    def call(*args: Any, **options: Any) -> Any:
        if watched:
            watching.not_a_launch()
        first = args[0] if args else None
        if not isinstance(first, tensor) or first.is_cpu:
            return found[_device(args, options)](*args, **options)
        return found["cuda" if first.is_cuda else first.device.type](*args, **options)

    return call


def on_cpu(name: str) -> Callable[..., Any]:
    """The CPU's stock kernel of an overload."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return partial(torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed, keys)


def _device(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """That of the first tensor that is not on the CPU: a number on the CPU may go with tensors elsewhere."""
    for value in (*args, *options.values()):
        shown = value[0] if isinstance(value, list) and value else value
        if isinstance(shown, torch.Tensor) and shown.device.type != "cpu":
            return shown.device.type
    return "cpu"
