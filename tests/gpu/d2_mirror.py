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
from easyscale.numerics.kernels.gpu.replay import REPLAYED
from easyscale.numerics.kernels.install import installed

# What they return is memory that nobody has written, or speaks of the memory and not of values.
SILENT = frozenset([
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "set_", "resize", "resize_", "resize_as_",
    "is_set_to", "detach", "lift_fresh", "_make_dep_token", "_assert_async", "_local_scalar_dense", "_fused_sdp_choice",
    "is_pinned", "_pin_memory", "_efficientzerotensor", "sym_size", "sym_stride", "record_stream",
])  # fmt: skip
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PROGRAMMED = 3  # calls, until a form is done by a program (`gpu.replay`)
EXAMPLES = 2  # of the differing calls of an operator, so many are described


def same(a: Any, b: Any) -> bool:
    """The same bits in all tensors (NaN is NaN), dtypes and shapes."""
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(left) == len(right) and all(_same(x, y) for x, y in zip(left, right, strict=True))


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (isinstance(a, torch.device | torch.Generator) or a == b)
    return a.dtype is b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(a: Tensor) -> Tensor:
    """Whole numbers to compare on the CPU, one for each element (of complex ones two); one for all NaN."""
    a = a.detach().cpu()
    if a.is_complex():
        return _bits(torch.view_as_real(a.resolve_conj()))
    if not a.is_floating_point():
        return a
    nothing = torch.full((), float("nan"), dtype=a.dtype)
    return torch.where(a != a, nothing, a).contiguous().view(_WHOLE[a.element_size()])


# ------------------------------------------------------------------------------------------------ what differs


def described(func: Any, given: Any, wanted: Any, found: Any) -> str:
    """A call in words: the overload, its arguments, and the first element that differs with what it was made of."""
    arguments = ", ".join(_shown(value) for value in pytree.tree_leaves(given))
    return f"{func}({arguments}): {_first_difference(given, wanted, found)}"


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)[:60]
    layout = "" if value.is_contiguous() else f" strides {list(value.stride())}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"


def _first_difference(given: Any, wanted: Any, found: Any) -> str:
    here, there = pytree.tree_leaves(wanted), pytree.tree_leaves(found)
    if len(here) != len(there):
        return f"{len(here)} results on the CPU, {len(there)} there"
    place = next(i for i, pair in enumerate(zip(here, there, strict=True)) if not _same(*pair))
    x, y = here[place], there[place]
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return f"result {place} is {x!r} on the CPU, {y!r} there"
    if x.dtype is not y.dtype or x.shape != y.shape:
        return f"result {place} is {_shown(x)} on the CPU, {_shown(y)} there"
    unlike = _bits(x) != _bits(y)
    if x.is_complex():
        unlike = unlike.any(-1)
    at = tuple(unlike.nonzero()[0].tolist())
    made_of = [_element(value, at, x.shape) for value in pytree.tree_leaves(given) if isinstance(value, Tensor)]
    return (
        f"{int(unlike.sum())} of {x.numel()} elements of result {place} differ, at {list(at)} "
        f"{_element(x, at, x.shape)} on the CPU, {_element(y.detach().cpu(), at, x.shape)} there, "
        f"of the inputs {', '.join(filter(None, made_of)) or '(other shapes)'}"
    )


def _element(x: Tensor, at: tuple[int, ...], shape: torch.Size) -> str:
    """The element that broadcasting puts there, with its bits; nothing if the shapes do not fit."""
    try:
        one = x.detach().expand(shape)[at]
    except RuntimeError:
        return ""
    if not one.is_floating_point():
        return str(one.item())
    bits = one.contiguous().view(_WHOLE[one.element_size()]).item()
    return f"{one.item():.9g} ({bits % (1 << 8 * one.element_size()):#x})"


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
    examples: list[str] = field(default_factory=list)  # of what differs
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
        spaces = ("aten::", "easyscale::")
        known = func._schema.name.startswith(spaces) and not func.is_view and packet not in SILENT
        if not known or any(_no_memory(value) for value in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        changed = func._schema.is_mutable
        times = PROGRAMMED if self.device != "cpu" and _is_replayed(func) else 1
        there = [_moved((args, kwargs), self.device) for _ in range(times)]
        given = _moved((args, kwargs), "cpu") if changed else (args, kwargs)
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        after = torch.get_rng_state()
        for moved in there:
            torch.set_rng_state(before)
            wanted = result, (args, kwargs) if changed else ()
            self._compare(func, given, lambda m=moved: self._again(func, *m), wanted)
        torch.set_rng_state(after)
        return result

    def _again(self, func: Any, args: Any, kwargs: Any) -> Any:
        with elsewhere(self.device):
            result = func(*args, **kwargs)
        return result, (args, kwargs) if func._schema.is_mutable else ()

    def _compare(self, func: Any, given: Any, run: Callable[[], Any], wanted: Any) -> None:
        outcome = self.outcomes.setdefault(func._schema.name.removeprefix("aten::"), Outcome())
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
                if len(outcome.examples) < EXAMPLES:
                    outcome.examples.append(described(func, given, wanted, found))


def _is_replayed(func: Any) -> bool:
    """Whether a GPU does it by a program from the third call on."""
    space, _, name = str(func).removesuffix(".default").partition(".")
    return space == "easyscale" or name in REPLAYED


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
        for name, outcome in self.bad.items():
            lines.append(f"  {name}: {outcome.different} differ; {'; '.join(outcome.problems)}")
            lines += [f"    {example}" for example in outcome.examples]
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
