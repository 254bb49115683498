"""Differences put in on purpose (`easyscale verify --negative-control`): a judge that never says no proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from easyscale.core.observe import Plant

# A middle bit of each format's mantissa: large enough to survive the rounding that follows.
_BITS = {torch.float32: (torch.int32, 12), torch.bfloat16: (torch.int16, 4), torch.float16: (torch.int16, 6),
         torch.float64: (torch.int64, 40)}  # fmt: skip


@contextmanager
def planted(plant: Plant, model: torch.nn.Module | None, batch: Any) -> Iterator[Any]:
    """The loop body of one EST in one global step, with a difference in it."""
    if plant.kind == "random":
        torch.rand(())
    if plant.kind == "batch":
        batch = _with_one_bit_changed(batch)
    with _OneBit(model) if plant.kind == "operator" else nullcontext():
        yield batch


class _OneBit(TorchDispatchMode):
    """Changes a bit of each element of the first operator that reads a parameter of the model (or of any)."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._done = False
        self._parameters = None if model is None else {parameter.data_ptr() for parameter in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._done and self._reads_a_parameter(args) and _may_change(func, output):
            self._done = True
            flip(output)
        return output

    def _reads_a_parameter(self, args: Any) -> bool:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if self._parameters is None:
            return any(value.requires_grad or isinstance(value, torch.nn.Parameter) for value in tensors)
        return any(value.data_ptr() in self._parameters for value in tensors)


def _may_change(func: Any, output: Any) -> bool:
    fresh = all(result.alias_info is None for result in func._schema.returns)
    return fresh and isinstance(output, torch.Tensor) and output.dtype in _BITS and output.numel() > 0


def flip(tensor: torch.Tensor) -> None:
    """A middle bit of each element: one alone might meet a ReLU or a dropout and be gone."""
    integers, bit = _BITS[tensor.dtype]
    changed = tensor.contiguous().clone()
    changed.view(integers).bitwise_xor_(1 << bit)
    tensor.copy_(changed)


def _with_one_bit_changed(batch: Any) -> Any:
    done = False

    def change(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal done
        if done or not tensor.numel():
            return tensor
        done = True
        other = tensor.clone()
        if tensor.dtype in _BITS:
            flip(other)
        else:  # token or item numbers: two of them change places
            flat = other.view(-1)
            flat[0], flat[-1] = tensor.reshape(-1)[-1].clone(), tensor.reshape(-1)[0].clone()
        return other

    return tree_map_only(torch.Tensor, change, batch)
