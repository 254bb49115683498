"""Each operator that a program calls on the CPU, computed a second time elsewhere, and the bits compared.

`Mirror` sits in torch's dispatcher below autograd, so it sees forward and backward operators one by one, with the very
inputs that they got: an operator with other bits does not accuse those that come after it. Elsewhere is a CUDA device;
or, for trying this file out without one, the CPU again with D2's torch operators in place of its C kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from easyscale.numerics.kernels import primitives
from easyscale.numerics.kernels.install import installed

# What they return is memory that nobody has written, or speaks of the memory and not of values.
SILENT = frozenset([
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "set_", "resize", "resize_", "resize_as_",
    "is_set_to", "detach", "lift_fresh", "_make_dep_token", "_assert_async", "_local_scalar_dense", "_fused_sdp_choice",
    "is_pinned", "_pin_memory", "_efficientzerotensor", "sym_size", "sym_stride", "record_stream",
])  # fmt: skip
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(a: Any, b: Any) -> bool:
    """The same bits in all tensors (NaN is NaN), dtypes and shapes."""
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(left) == len(right) and all(_same(x, y) for x, y in zip(left, right, strict=True))


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (isinstance(a, torch.device | torch.Generator) or a == b)
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a.is_complex():
        return _same(torch.view_as_real(a), torch.view_as_real(b))
    if not a.is_floating_point():
        return torch.equal(a, b)
    nothing = a != a
    if not torch.equal(nothing, b != b):
        return False
    whole = _WHOLE[a.element_size()]
    x, y = (torch.where(nothing, torch.zeros((), dtype=v.dtype), v).contiguous().view(whole) for v in (a, b))
    return torch.equal(x, y)


@contextmanager
def elsewhere(device: str) -> Iterator[None]:
    """Inside, tensors of this device are computed by another implementation than the CPU's."""
    if device != "cpu":
        yield
        return
    primitives.use_portable(True)
    try:
        yield
    finally:
        primitives.use_portable(False)


@dataclass
class Outcome:
    """Of one operator."""

    same: int = 0
    different: int = 0
    problems: list[str] = field(default_factory=list)
    absent: int = 0  # torch has no kernel of it there for these inputs

    @property
    def good(self) -> bool:
        return not self.different and not self.problems


class Mirror(TorchDispatchMode):
    """`outcomes` by operator. To be entered under `installed()`."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.outcomes: dict[str, Outcome] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._schema.name.removeprefix("aten::")
        known = func._schema.name.startswith("aten::") and not func.is_view and packet not in SILENT
        if not known or any(_no_memory(value) for value in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        there = _moved((args, kwargs), self.device)
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        changed = func._schema.is_mutable
        self._compare(packet, lambda: self._again(func, *there), (result, (args, kwargs) if changed else ()))
        torch.set_rng_state(after)
        return result

    def _again(self, func: Any, args: Any, kwargs: Any) -> Any:
        with elsewhere(self.device):
            result = func(*args, **kwargs)
        return result, (args, kwargs) if func._schema.is_mutable else ()

    def _compare(self, name: str, run: Callable[[], Any], wanted: Any) -> None:
        outcome = self.outcomes.setdefault(name, Outcome())
        try:
            found = run()
        except NotImplementedError:
            outcome.absent += 1
        except Exception as problem:
            text = str(problem).split("\n")[0][:200]
            if "not implemented for" in text and "D2" not in text:  # stock's own words where a dtype has no kernel
                outcome.absent += 1
            elif text not in outcome.problems:
                outcome.problems.append(text)
        else:
            if same(found, wanted):
                outcome.same += 1
            else:
                outcome.different += 1


def _no_memory(value: Any) -> bool:
    """Autograd's zeros without storage."""
    return isinstance(value, Tensor) and value._is_zerotensor()


def _moved(values: Any, device: str) -> Any:
    """Copies there: a tensor that occurs twice stays one."""
    known: dict[int, Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if not isinstance(value, Tensor):
            return value
        if id(value) not in known:
            known[id(value)] = value.to(device) if device != "cpu" else value.clone(memory_format=torch.preserve_format)
        return known[id(value)]

    moved = pytree.tree_map(move, values)
    if not known and "device" not in moved[1] and device != "cpu":  # it makes a tensor of nothing
        moved[1]["device"] = torch.device(device)
    return moved


@dataclass(frozen=True)
class Mirrored:
    """What came of some samples."""

    outcomes: dict[str, Outcome]
    broken: list[str]  # samples that raise on the CPU already: tests of the CPU see to those

    @property
    def bad(self) -> dict[str, Outcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if not outcome.good}

    def __str__(self) -> str:
        compared = sum(outcome.same for outcome in self.outcomes.values())
        absent = sorted(name for name, outcome in self.outcomes.items() if outcome.absent)
        lines = [f"{len(self.outcomes)} operators, {compared} calls with the same bits, {len(self.bad)} operators bad"]
        lines += [
            f"  {name}: {outcome.different} differ; {'; '.join(outcome.problems)}" for name, outcome in self.bad.items()
        ]
        lines += [f"  without a kernel there for some inputs: {', '.join(absent)}"] if absent else []
        return "\n".join(
            [*lines, *(f"  not computed on the CPU either: {text}" for text in dict.fromkeys(self.broken))]
        )


def mirrored(samples: Iterable[Callable[[], Any]], device: str) -> Mirrored:
    """Run the samples under D2 on the CPU, each operator on the device too."""
    broken = []
    with installed(), Mirror(device) as mirror:
        for sample in samples:
            try:
                sample()
            except Exception as problem:
                broken.append(str(problem).split("\n")[0][:200])
    return Mirrored(mirror.outcomes, broken)
