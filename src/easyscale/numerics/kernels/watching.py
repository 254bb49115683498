"""Whoever watches a thread is told what forms do there: `gpu.replay` writes programs of it.

Every place that computes in a way of its own says so here: launches of kernels, stock kernels, the workspace, slices of
weights. It costs them a look at an empty dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor


class Watcher(Protocol):
    """Told of all that a thread launches (`replay`)."""

    def launched(
        self, run: Callable[..., None] | None, grid: tuple[int, int, int], settings: tuple[Any, ...],
        args: Sequence[Any], constants: Sequence[Any],
    ) -> None: ...  # fmt: skip

    def zeros(self, found: Tensor) -> None: ...

    def kept(self, v: Tensor, slices: int, kind: str, found: Any) -> None: ...

    def later(self) -> None: ...

    def spoil(self) -> None: ...


_watchers: dict[int, Watcher] = {}  # by thread


def watch(watcher: Watcher | None) -> None:
    """What this thread tells of its launches from here on, or nobody."""
    if watcher is None:
        _watchers.pop(get_ident(), None)
    else:
        _watchers[get_ident()] = watcher


def watchers() -> dict[int, Watcher]:
    """Of all threads: always the same object, empty or not."""
    return _watchers


def is_watched() -> bool:
    """Whether this thread is."""
    return bool(_watchers) and get_ident() in _watchers


def not_a_launch() -> None:
    """Something is about to be computed that no watcher sees."""
    if _watchers:
        watcher = _watchers.get(get_ident())
        if watcher is not None:
            watcher.spoil()


def tell_zeros(found: Tensor) -> None:
    """The workspace has given these away."""
    if _watchers:
        watcher = _watchers.get(get_ident())
        if watcher is not None:
            watcher.zeros(found)


def tell_kept(v: Tensor, slices: int, kind: str, found: Any) -> None:
    """Slices of a weight were found (`weights.cut`)."""
    if _watchers:
        watcher = _watchers.get(get_ident())
        if watcher is not None:
            watcher.kept(v, slices, kind, found)


def tell_later() -> None:
    """Something is done that calls like this one need not do: another one is to be watched."""
    if _watchers:
        watcher = _watchers.get(get_ident())
        if watcher is not None:
            watcher.later()


_lasting: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def lasting(table: Tensor) -> Tensor:
    """The same, known as one that is kept and never changed."""
    _lasting[id(table)] = table
    return table


def is_lasting(x: Tensor) -> bool:
    return _lasting.get(id(x)) is x


def tell_launch(
    run: Callable[..., None] | None, grid: tuple[int, ...], settings: tuple[Any, ...], args: Sequence[Any],
    constants: Sequence[Any],
) -> None:  # fmt: skip
    watcher = _watchers.get(get_ident())
    if watcher is not None:
        size = len(grid)
        whole = grid[0], grid[1] if size > 1 else 1, grid[2] if size > 2 else 1
        watcher.launched(run, whole, settings, args, constants)
