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
from collections.abc import Mapping, Sequence
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
    """The generators that each EST's data set holds, with a state for each EST. One EST's states are live.

    `roots` names, for each EST, the objects that make its data; ESTs may share all of them, some, or none.
    """

    def __init__(self, roots: Mapping[int, Sequence[object]], but: Sequence[torch.Generator]) -> None:
        self._roots, self._but = roots, but
        self._holders = {est: self._find(est) for est in roots}
        self._states = {est: capture(holders) for est, holders in self._holders.items()}
        self._live = next(iter(roots))

    def switch(self, est: int) -> None:
        if est != self._live:
            self._states[self._live] = capture(self._holders[self._live])
            restore(self._holders[est], self._states[est])
            self._live = est

    def begin_epoch(self) -> None:
        """What the script changed since `end_epoch`, the script of each rank would have changed."""
        holders, known = self._find(self._live), self._holders[self._live]
        untouched = len(holders) == len(known) and all(a is b for a, b in zip(holders, known, strict=True))
        if not untouched or not same(capture(holders), self._states[self._live]):
            self._holders = {est: self._find(est) for est in self._roots}
            self._states = {est: capture(found) for est, found in self._holders.items()}

    def look_again(self, est: int) -> None:
        """After the EST's first batch: it may have made a generator only now."""
        found, known = self._find(est), self._holders[est]
        new = [holder for holder in found if not any(holder is other for other in known)]
        shared = [other for other in self._roots if other != est and _overlap(self._find(other), new)] if new else []
        if shared:
            raise PromiseError(
                f"The data set made a random generator ({type(new[0]).__name__}) while it was being read.",
                f"ESTs {est} and {shared[0]} of this worker read the same object, where N ranks would make one each.",
                "create the generator in the data set's __init__: its state is then kept for each EST.",
            )
        self._holders[est] = found

    def end_epoch(self) -> None:
        self._states[self._live] = capture(self._holders[self._live])

    def state(self, est: int) -> list[Any]:
        return capture(self._holders[est]) if est == self._live else self._states[est]

    def set_state(self, est: int, states: list[Any]) -> None:
        if est == self._live:
            restore(self._holders[est], states)
        self._states[est] = states

    def _find(self, est: int) -> list[Holder]:
        found = find_generators(*self._roots[est])
        return [holder for holder in found if not any(holder is other for other in self._but)]
