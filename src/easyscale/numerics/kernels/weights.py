"""Slices of weights, cut once per global step and shared by all ESTs of the worker.

Between two optimizer steps a parameter does not change, and each EST multiplies by it forward and backward. The session
declares its parameters; what is cut of them is kept until the session says that a global step is over. Nothing is kept
of other tensors, nor outside a session. A parameter that is changed in between counts up its version, and is cut again.

The key has the version counter, the place in memory, shape and strides. What is handed out was cut from exactly these
values, as long as changes go through torch: `parameter.data.copy_` and the like are not counted. The optimizer's step,
after which everything is dropped, may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, TypeVar

from torch import Tensor

from easyscale.numerics.kernels import watching

Cut = TypeVar("Cut")

_declared: set[int] = set()  # storages of parameters
_kept: dict[Hashable, Any] = {}


def declare(parameters: Iterable[Tensor]) -> None:
    """From here on, keep what is cut of these."""
    for parameter in parameters:
        _declared.add(parameter.untyped_storage().data_ptr())


def forget() -> None:
    """Parameters may have changed: drop what was kept."""
    _kept.clear()


def end() -> None:
    """The job is over in this process."""
    _declared.clear()
    _kept.clear()


def declared() -> Collection[int]:
    """What slices are kept of: always the same object, empty or not."""
    return _declared


def keeps(v: Tensor) -> bool:
    """Whether what is cut of it is kept. A tensor of inference mode has no version counter."""
    return bool(_declared) and not v.is_inference() and v.untyped_storage().data_ptr() in _declared


def found(v: Tensor, further: int, shape: tuple[int, ...], strides: tuple[int, ...], slices: int, kind: str) -> Any:
    """What is kept of a view of v that begins so much further on, if anything is."""
    return _kept.get((
        v.untyped_storage().data_ptr(), v.storage_offset() + further, shape, strides, v.dtype, v.device, slices, kind,
        v._version,
    ))  # fmt: skip


def cut(v: Tensor, slices: int, kind: str, make: Callable[[], Cut]) -> Cut:
    """`make()`, or what it gave before for this very tensor. `kind` says how its slices are laid out."""
    if not keeps(v):
        return make()
    key = (
        v.untyped_storage().data_ptr(), v.storage_offset(), v.shape, v.stride(), v.dtype, v.device, slices, kind,
        v._version,
    )  # fmt: skip
    if key not in _kept:
        watching.tell_later()
        _kept[key] = make()
    known: Cut = _kept[key]
    watching.tell_kept(v, slices, kind, known)
    return known
