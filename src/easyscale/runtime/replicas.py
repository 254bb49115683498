"""Contexts of all ESTs as they were at one boundary between rounds, on every worker: who dies takes nothing along.

A context is cut into leaves (a random state, a part of a loader's cursor, ...). Each worker sends those leaves of its
own ESTs that changed since the boundary before; the others keep them as bytes and read them only if they adopt the EST.
Most leaves of most steps do not change, and telling so is cheap: by identity, then by value.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from easyscale.numerics.rng import NumpyState, RngState
from easyscale.runtime import codec
from easyscale.runtime.context import EstContext

if TYPE_CHECKING:
    from easyscale.runtime.loop import PreparedLoader

Leaves = dict[str, bytes]
_RNG = "rng."
_PLAIN = (int, float, str, bool, type(None))


class Replicas:
    """`boundary`: how many rounds were complete; `leaves[est]`: that EST's context then. `serial` tells two exchanges
    at one boundary apart (before and after a loop begins)."""

    def __init__(self) -> None:
        self.boundary = self.serial = 0
        self.leaves: dict[int, Leaves] = {}

    def take(self, boundary: int, serial: int, payloads: Iterable[bytes]) -> None:
        """What all workers sent at a boundary."""
        for payload in payloads:
            for est, changed in unpack(payload).items():
                self.leaves.setdefault(est, {}).update(changed)
        self.boundary, self.serial = boundary, serial

    def hold(self, boundary: int, serial: int, leaves: Mapping[int, Leaves]) -> None:
        """A worker that is alone has all there is."""
        self.leaves = {est: dict(own) for est, own in leaves.items()}
        self.boundary, self.serial = boundary, serial

    @property
    def size(self) -> int:
        return sum(len(raw) for leaves in self.leaves.values() for raw in leaves.values())

    def tree(self, est: int) -> dict[str, Any]:
        """As checkpoints have it: `{"context": ..., "cursors": [...]}`."""
        return tree_of(est, self.leaves[est])


class Sender:
    """This worker's ESTs: what was sent of them, and what changed since."""

    def __init__(self) -> None:
        self._values: dict[int, dict[str, Any]] = {}
        self.leaves: dict[int, Leaves] = {}  # as they were noted last
        self._unsent: dict[int, Leaves] = {}

    def note(self, contexts: Mapping[int, EstContext], loaders: list[PreparedLoader]) -> None:
        """Bring all ESTs up to date; those that are not here any more go."""
        for est, context in contexts.items():
            self.take(est, context, loaders)
        for est in [est for est in self.leaves if est not in contexts]:
            del self.leaves[est]
            self._values.pop(est, None)
            self._unsent.pop(est, None)

    def take(self, est: int, context: EstContext, loaders: list[PreparedLoader]) -> None:
        """Bring one EST up to date."""
        before, known = self._values.get(est, {}), self.leaves.setdefault(est, {})
        now = dict(_values(context, loaders))
        changed = self._unsent.setdefault(est, {})
        for name, value in now.items():
            if name in before and _same(before[name], value):
                continue
            raw = _encode(name, value)
            if known.get(name) != raw:
                known[name] = changed[name] = raw
        self._values[est] = now

    def changes(self, *, all_of_them: bool) -> bytes:
        """What was noted since the last call; everything for peers that may not have what came before."""
        leaves = self.leaves if all_of_them else self._unsent
        self._unsent = {}
        return pack(leaves)


def first_slot(size: int) -> int:
    """Bytes to expect in the first exchange of a plan, where contexts of all ESTs had `size`: a loop that begins makes
    them grow."""
    return 2 * size + (1 << 16)


def pack(leaves: Mapping[int, Leaves]) -> bytes:
    index = [[est, [[name, len(raw)] for name, raw in changed.items()]] for est, changed in leaves.items()]
    head = json.dumps(index, separators=(",", ":")).encode()
    bodies = [raw for changed in leaves.values() for raw in changed.values()]
    return b"".join((len(head).to_bytes(4, "little"), head, *bodies))


def unpack(payload: bytes) -> dict[int, Leaves]:
    at = 4 + int.from_bytes(payload[:4], "little")
    found: dict[int, Leaves] = {}
    for est, names in json.loads(payload[4:at]):
        found[est] = {}
        for name, length in names:
            found[est][name] = payload[at : at + length]
            at += length
    return found


def leaves_of(est: int, tree: Mapping[str, Any]) -> Leaves:
    """The leaves of a context that came from a checkpoint or another worker."""
    context = EstContext.from_tree(tree["context"])
    assert context.est == est
    values = [*_context_values(context)]
    for index, cursor in enumerate(tree["cursors"]):
        values += _cursor_values(index, cursor["taken"], cursor["opened"], cursor["feed"])
    return {name: _encode(name, value) for name, value in values}


def tree_of(est: int, leaves: Mapping[str, bytes]) -> dict[str, Any]:
    values = {name: value_of(name, raw) for name, raw in leaves.items()}
    extra = [values[name] for name in sorted(n for n in values if n.startswith("rng.extra."))]
    rng = RngState(values["rng.python"], values["rng.numpy"], values["rng.torch"], values["rng.cuda"], tuple(extra))
    own = values["own"]
    context = EstContext(est, rng, own[0], own[1], own[2], own[3])
    cursors: list[dict[str, Any]] = []
    while (opened := values.get(f"loader.{len(cursors)}")) is not None:
        prefix = f"loader.{len(cursors)}."
        feed = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        cursors.append({"taken": feed.pop("taken"), "opened": opened, "feed": feed})
    return {"context": context.to_tree(), "cursors": cursors}


def _values(context: EstContext, loaders: list[PreparedLoader]) -> Iterable[tuple[str, Any]]:
    yield from _context_values(context)
    for loader in loaders:
        taken, opened, feed = loader.place_of(context.est)
        yield from _cursor_values(loader.index, taken, opened, feed)


def _context_values(context: EstContext) -> Iterable[tuple[str, Any]]:
    rng = context.rng
    yield "rng.python", rng.python
    yield "rng.numpy", rng.numpy
    yield "rng.torch", rng.cpu
    yield "rng.cuda", rng.cuda
    for i, state in enumerate(rng.extra):
        yield f"rng.extra.{i:06}", state
    yield "own", (context.synchronise_buffers, context.buffers, context.gradients, context.registered)


def _cursor_values(index: int, taken: int, opened: int, feed: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield f"loader.{index}", opened
    yield f"loader.{index}.taken", taken
    for name, value in feed.items():
        yield f"loader.{index}.{name}", value


def _same(before: Any, now: Any) -> bool:
    """Certainly unchanged. False where it would cost as much to find out as to send it."""
    if before is now:
        return True
    if isinstance(now, torch.Tensor):
        return isinstance(before, torch.Tensor) and before.shape == now.shape and torch.equal(before, now)
    if isinstance(now, (NumpyState, *_PLAIN)):
        return type(before) is type(now) and bool(before == now)
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        if len(now) == 3 and isinstance(now[1], tuple):  # Python's random state: three plain values
            return before == now
        return all(
            (isinstance(b, _PLAIN) and type(a) is type(b) and a == b) or (b == {} and a == {})
            for a, b in zip(before, now, strict=True)
        )
    return bool(before == [] and now == [])


def _encode(name: str, value: Any) -> bytes:
    if name == "rng.python":
        version, words, gauss = value
        return json.dumps([version, gauss]).encode() + b"\n" + array("I", words).tobytes()
    if name == "rng.numpy":
        return json.dumps([value.has_gauss, value.gauss]).encode() + b"\n" + bytes(value.raw)
    if name.startswith(_RNG):  # of torch: bytes already
        return b"" if value is None else value.cpu().numpy().tobytes()
    if isinstance(value, _PLAIN):  # most of what changes in each step: counters
        return b"=" + json.dumps(value).encode()
    structure, tensors = codec.encode(codec.to_host(value))
    text = json.dumps(structure, separators=(",", ":")).encode()
    return b":" + len(text).to_bytes(4, "little") + text + (safetensors.torch.save(tensors) if tensors else b"")


def value_of(name: str, raw: bytes) -> Any:
    """What a leaf says."""
    if name in ("rng.python", "rng.numpy"):
        head, _, body = raw.partition(b"\n")
        first, second = json.loads(head)
        if name == "rng.numpy":
            return NumpyState(body, first, second)
        return (first, tuple(array("I", body)), second)
    if name.startswith(_RNG):
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else None
    if raw[:1] == b"=":
        return json.loads(raw[1:])
    length = int.from_bytes(raw[1:5], "little")
    tensors = safetensors.torch.load(raw[5 + length :]) if len(raw) > 5 + length else {}
    return codec.decode(json.loads(raw[5 : 5 + length]), tensors)
