"""What a form does while it is watched: for `programs`.

Launches, what is allocated and copied by torch, zeros and kept slices: in their order, with the tensors that they were
done with. Whatever else happens spoils it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from easyscale.numerics.kernels import watching
from easyscale.numerics.kernels.gpu import launch

aten = torch.ops.aten
_MAKES = frozenset([
    aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
    aten.new_empty_strided.default,
])  # fmt: skip
# A program calls them, as the form does.
_CALLS = frozenset([
    aten.clone.default, aten._to_copy.default, aten.constant_pad_nd.default, aten.zero_.default, aten.copy_.default,
    aten.add.Tensor, aten.add_.Tensor, aten.flip.default, aten.zeros.default,
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """Of an operator of torch."""

    operator: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    found: Tensor

    def tensors(self) -> list[Tensor]:
        return [x for x in (*self.args, *self.options.values()) if isinstance(x, Tensor)]


@dataclass(frozen=True, slots=True)
class Zeros:
    """That the workspace gave away."""

    found: Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """Slices of a weight."""

    of: Tensor
    slices: int
    kind: str
    found: tuple[Tensor, ...]


class Watch(TorchDispatchMode):
    """Of one call: what it allocates, copies and launches. Entered in the thread that it is called in."""

    def __init__(self, tensors: list[Tensor], drawn: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors, self.drawn = tensors, drawn
        self.made: list[Tensor] = []  # allocated
        self.steps: list[Any] = []  # launches, as `launched` gets them, `Call`s, `Zeros` and `Kept`s
        self.spoiled = self.too_early = False
        self.device = tensors[0].get_device()

    def may_begin(self) -> bool:
        return (
            not watching.is_watched()
            and all(x.get_device() == self.device and launch.is_aligned(x) for x in self.tensors)
            and self.device == launch.current_device()
        )

    def __enter__(self) -> Watch:
        watching.watch(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        watching.watch(None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        found = func(*args, **options)
        if func in _MAKES:
            self.made.append(found)
        elif func in _CALLS:
            self.steps.append(Call(func, args, options, found))
        elif not _returns_memory(func) or not isinstance(found, Tensor):
            self.spoiled = True
        elif storage_of(found) != storage_of(args[0]):  # `contiguous`, `reshape`: sometimes a copy
            self.steps.append(Call(func, args, options, found))
        return found

    def zeros(self, found: Tensor) -> None:
        self.steps.append(Zeros(found))

    def kept(self, v: Tensor, slices: int, kind: str, found: Any) -> None:
        self.steps.append(Kept(v, slices, kind, found))

    def later(self) -> None:
        self.too_early = True

    def spoil(self) -> None:
        self.spoiled = True

    def launched(
        self, run: Callable[..., None] | None, grid: tuple[int, int, int], settings: tuple[Any, ...],
        args: Sequence[Any], constants: Sequence[Any],
    ) -> None:  # fmt: skip
        if run is None:
            self.spoiled = True
        else:
            self.steps.append((run, grid, settings, [*args, *constants]))


def storage_of(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


@cache
def _returns_memory(func: Any) -> bool:
    """Whether an operator gives its argument's memory another shape, or copies it where that cannot be."""
    if func is aten._unsafe_view.default:
        return True
    schema = func._schema
    returns = [r.alias_info for r in schema.returns]
    return not schema.is_mutable and len(returns) == 1 and returns[0] is not None
