"""What a data set keeps for itself, kept apart for each EST.

On N stock ranks, and in each of their loader processes, the data set is a copy of its own. The ESTs of a worker share
one process, so three things are kept apart here: attributes that the data set (or a `worker_init_fn`) assigns, by a
copy of the object; its position, if it is its own iterator, by a deep copy; and the random generators that it holds
(`self.rng = numpy.random.default_rng(0)`, those of its transforms), by swapping their states.

What is not kept apart: mutable objects inside a data set other than generators, such as a cache in a dict.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from easyscale.core.errors import PromiseError, UnsupportedError

Holder = random.Random | np.random.Generator | np.random.RandomState | torch.Generator
_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_OPAQUE = (torch.Tensor, np.ndarray, str, bytes, int, float, type(None), type, ModuleType)
# Those behind `random.random`, `numpy.random.rand` and `torch.rand`: each EST has its own anyway.
_GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)
# A data set, its wrappers and its transforms are small; lists longer than this are data.
_MOST_ITEMS, _MOST_OBJECTS, _DEEPEST = 64, 2000, 7


def private_copy(dataset: Dataset[Any]) -> Dataset[Any]:
    """A copy with attributes of its own; also with a position of its own if the data set is its own iterator."""
    if not isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, IterableDataset) and (hasattr(type(dataset), "__next__") or is_stateful(dataset)):
        try:
            return copy.deepcopy(dataset)
        except Exception as problem:
            raise UnsupportedError(
                f"The data set {type(dataset).__name__} cannot be copied ({type(problem).__name__}: {problem}).",
                "it is its own iterator, and each EST needs one of its own.",
                "let __iter__ return a new iterator (a generator will do), or open files there, not in __init__.",
            ) from problem
    try:
        return copy.copy(dataset)
    except Exception:
        return dataset  # an extension type that cannot be copied keeps its attributes on the C side


def rebound(call: Any, dataset: object, copied: object) -> Any:
    """The same function; if it is a method of the data set, that of its copy."""
    if isinstance(call, MethodType) and call.__self__ is dataset:
        return MethodType(call.__func__, copied)
    return call


def private_call(call: Any, dataset: object, copied: object) -> Any:
    """A collate function with attributes of its own. Only where the script cannot reach it any more to change them."""
    call = rebound(call, dataset, copied)
    if isinstance(call, MethodType) and call.__self__ is not copied and not isinstance(call.__self__, type):
        return MethodType(call.__func__, copy.copy(call.__self__))
    if isinstance(call, (MethodType, FunctionType, BuiltinFunctionType, partial, type)):
        return call
    return copy.copy(call)


def is_stateful(dataset: object) -> bool:
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


class Follower:
    """A private copy that follows what the script assigns to the original, as the script of each rank would."""

    def __init__(self, original: Dataset[Any]) -> None:
        self.original, self.copy = original, private_copy(original)
        self._seen = dict(getattr(original, "__dict__", {}))

    def follow(self) -> None:
        for name, value in getattr(self.original, "__dict__", {}).items():
            if name not in self._seen or self._seen[name] is not value:
                self._seen[name] = value
                setattr(self.copy, name, copy.deepcopy(value))


def find_generators(*roots: object) -> list[Holder]:
    """The random generators that these objects hold, in an order that depends on the objects only."""
    found: list[Holder] = []
    # Keeps the objects alive, so that an id is not used twice.
    seen: dict[int, object] = {}
    level = list(roots)
    for _ in range(_DEEPEST):
        below: list[object] = []
        for thing in level:
            if id(thing) in seen or isinstance(thing, _OPAQUE) or len(seen) > _MOST_OBJECTS:
                continue
            seen[id(thing)] = thing
            if isinstance(thing, _KINDS):
                if not isinstance(thing, random.SystemRandom) and not any(thing is known for known in _GLOBAL):
                    found.append(thing)
            else:
                below.extend(_parts(thing))
        level = below
    return found


def _parts(thing: object) -> list[object]:
    if isinstance(thing, (list, tuple)):
        return list(thing) if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, dict):
        return list(thing.values()) if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    return list(getattr(thing, "__dict__", {}).values())


def capture(holders: Sequence[Holder]) -> list[Any]:
    """Their states as plain values and tensors."""
    return [_state_of(holder) for holder in holders]


def restore(holders: Sequence[Holder], states: Sequence[Any]) -> None:
    if len(holders) != len(states):
        raise PromiseError(
            f"The data set holds {len(holders)} random generators of its own, but {len(states)} were saved.",
            "their states decide the data, and it is not known which belongs to which.",
            "create the generators of a data set in its __init__ or in worker_init_fn, always the same ones.",
        )
    for holder, state in zip(holders, states, strict=True):
        _set_state(holder, state)


def same(left: Any, right: Any) -> bool:
    """Equal to the bit, for the trees of `capture`."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _state_of(holder: Holder) -> Any:
    if isinstance(holder, torch.Generator):
        return holder.get_state()
    if isinstance(holder, random.Random):
        version, words, gauss = holder.getstate()
        return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}
    if isinstance(holder, np.random.RandomState):
        return _to_tensors(holder.get_state(legacy=False))
    return _to_tensors(holder.bit_generator.state)


def _set_state(holder: Holder, state: Any) -> None:
    if isinstance(holder, torch.Generator):
        holder.set_state(state)
    elif isinstance(holder, random.Random):
        holder.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    elif isinstance(holder, np.random.RandomState):
        holder.set_state(_to_arrays(state))
    else:
        holder.bit_generator.state = _to_arrays(state)


def _to_tensors(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _to_tensors(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):  # words of 32 or 64 bits; torch's int64 keeps the bits of both
        return {"dtype": tree.dtype.str, "words": torch.from_numpy(tree.astype(np.uint64).view(np.int64))}
    return tree.item() if isinstance(tree, np.generic) else tree


def _to_arrays(tree: Any) -> Any:
    if isinstance(tree, dict) and tree.keys() == {"dtype", "words"}:
        return tree["words"].numpy().view(np.uint64).astype(tree["dtype"])
    if isinstance(tree, dict):
        return {key: _to_arrays(value) for key, value in tree.items()}
    return tree


def _overlap(left: list[Holder], right: list[Holder]) -> bool:
    return any(one is other for one in left for other in right)


class PrivateGenerators:
    """The generators that each EST's data set holds, with a state for each EST. One EST's states are live, or none's.

    `roots` are the script's own objects that make the data. Those of an EST are the same, copies, or share a part.
    """

    def __init__(self, roots: Sequence[object], but: Sequence[torch.Generator]) -> None:
        self._script, self._but = roots, but
        self._roots: dict[int, Sequence[object]] = {}
        self._holders: dict[int, list[Holder]] = {}
        self._states: dict[int, list[Any]] = {}
        self._live: int | None = None
        self._shown: tuple[list[Holder], list[Any]]  # what the script found when it had its last turn
        # What the script changed before this epoch, by place in the list; a new list if there are more or fewer now.
        self._news: dict[int, Any] | list[Any] = {}
        self.end_epoch()
        self._fresh = self._shown[1]  # what an EST finds that has drawn nothing yet

    def add(self, est: int, roots: Sequence[object]) -> None:
        self._roots[est] = roots
        self._holders[est] = self._find(roots)
        self._states[est] = self._fresh

    def remove(self, est: int) -> None:
        del self._roots[est], self._holders[est], self._states[est]
        if est == self._live:
            self._live = None
            self.end_epoch()

    def switch(self, est: int) -> None:
        if est != self._live:
            if self._live is not None:
                self._states[self._live] = capture(self._holders[self._live])
            restore(self._holders[est], self._states[est])
            self._live = est

    def begin_epoch(self) -> None:
        """See what the script changed since `end_epoch`: the script of each rank would have changed it."""
        known, before = self._shown
        holders = self._find(self._script if self._live is None else self._roots[self._live])
        now = capture(holders)
        if len(now) != len(before):
            self._news = now
        else:
            moved = [a is not b or not same(x, y) for a, b, x, y in zip(holders, known, now, before, strict=True)]
            self._news = {place: now[place] for place, changed in enumerate(moved) if changed}
            if not self._news:
                return
        self._holders = {est: self._find(roots) for est, roots in self._roots.items()}
        self._fresh = self._with_news(self._fresh)

    def take_news(self, est: int) -> None:
        """The EST begins an epoch. It may have come from another worker after the epoch had begun on this one."""
        if self._news or isinstance(self._news, list):
            self.set_state(est, self._with_news(self.state(est)))

    def _with_news(self, states: list[Any]) -> list[Any]:
        news = self._news
        return news if isinstance(news, list) else [news.get(place, state) for place, state in enumerate(states)]

    def look_again(self, est: int) -> None:
        """After the EST's first batch: it may have made a generator only now."""
        found, known = self._find(self._roots[est]), self._holders[est]
        new = [holder for holder in found if not any(holder is other for other in known)]
        others = {other: roots for other, roots in self._roots.items() if other != est} if new else {}
        shared = [other for other, roots in others.items() if _overlap(self._find(roots), new)]
        if shared:
            raise PromiseError(
                f"The data set made a random generator ({type(new[0]).__name__}) while it was being read.",
                f"ESTs {est} and {shared[0]} of this worker read the same object, where N ranks would make one each.",
                "create the generator in the data set's __init__: its state is then kept for each EST.",
            )
        self._holders[est] = found

    def end_epoch(self) -> None:
        """The script has its turn: remember what it finds."""
        holders = self._find(self._script) if self._live is None else self._holders[self._live]
        self._shown = holders, capture(holders)

    def state(self, est: int) -> list[Any]:
        return capture(self._holders[est]) if est == self._live else self._states[est]

    def set_state(self, est: int, states: list[Any]) -> None:
        if est == self._live:
            restore(self._holders[est], states)
        self._states[est] = states

    def _find(self, roots: Sequence[object]) -> list[Holder]:
        found = find_generators(*roots)
        return [holder for holder in found if not any(holder is other for other in self._but)]
