"""The program that is written of what a form did while it was watched (`steps`): for `replay`.

A program is Python in which nothing is found out any more: addresses are taken of arguments, memory is allocated, and
kernels are launched by Triton's launcher in C with their numbers written out. `_Writer` says what its names mean.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels import watching, weights
from easyscale.numerics.kernels.gpu import launch, workspace
from easyscale.numerics.kernels.gpu.launch import Tiles
from easyscale.numerics.kernels.gpu.steps import Call, Kept, Watch, Zeros, storage_of

Program = Callable[..., Any]
# What a program returns that has done nothing: this call is not as those before, or the workspace is another.
CANNOT, STALE = object(), object()

_ALIGNED = 256  # bytes


class NotOursError(Exception):
    """An address of memory that neither the form nor its caller nor the workspace has."""


def written(watch: Watch, places: list[int], count: int, drawn: int | None, results: Any) -> Program | None:
    """What was watched, to be done again, of `count` arguments; None if that cannot be."""
    if watch.spoiled:
        return None
    try:
        return _Writer(watch, drawn, results).written(places, count)
    except NotOursError:
        return None


class _Writer:
    """Writes a program, in Python: `x3` is a tensor among the arguments, `m0` a piece of memory, `c0` what a call
    returned, `w0` what is kept of a weight, with addresses `x3_`, `m0_`, `c0_`, `w0_`; `k7` is something that the
    program knows."""

    def __init__(self, watch: Watch, drawn: int | None, results: Any) -> None:
        self.watch, self.drawn, self.results = watch, f"x{drawn}", results
        self.uses_drawn = watch.drawn is None
        # by storage: names, the distance from each, what lies there; of several arguments in one storage, several
        self.names: dict[int, list[tuple[str, int, Tensor]]] = {}
        self.known: dict[str, Any] = {}
        self.buffers: dict[Any, Any] = {}
        self.makes: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]] = {}  # not yet allocated
        self.lines: list[str] = []

    def written(self, places: list[int], count: int) -> Program:
        for i, x in zip(places, self.watch.tensors, strict=True):
            self.names.setdefault(storage_of(x), []).append((f"x{i}", 0, x))
        self._allocate()
        for step in self.watch.steps:
            if isinstance(step, Call):
                self._call(step)
            elif isinstance(step, Zeros):
                self._zeros(step.found)
            elif isinstance(step, Kept):
                self._weight(step)
            else:
                self._launch(*step)
        if not self.uses_drawn:
            raise NotOursError  # something was made of the random number
        returned = self._returned()
        device = self.watch.device
        lows, stream = " | ".join(f"x{i}_" for i in places), launch.stream_of(device)
        given = ", ".join(f"x{i}" for i in range(count))
        head = [
            *(f"x{i}_ = x{i}.data_ptr()" for i in places),
            f"if ({lows}) & 15 or stream_of({device}) != {stream} or current() != {device} or watchers:",
            "    return cannot",
        ]  # fmt: skip
        body = self.lines
        if self.buffers:
            gone = " or ".join(
                f"(b := {self._know(buffer)}()) is None or at({self._know(key)}) is not b"
                for key, buffer in self.buffers.items()
            )
            body = ["with lock:", *(f"    {line}" for line in (f"if {gone}:", "    return stale", *body))]
        text = [f"def program({given}):", *(f"    {line}" for line in (*head, *body, f"return {returned}"))]
        self.known |= {
            "cannot": CANNOT, "stale": STALE, "stream_of": launch.stream_of, "current": launch.current_device,
            "at": workspace.at, "watchers": watching.watchers(), "lock": workspace.locked(), "zeros": workspace.zeros,
            "kept": weights.found,
        }  # fmt: skip
        exec(compile("\n".join(text), "<program of a form>", "exec"), self.known)
        return self.known["program"]  # type: ignore[no-any-return]

    def _allocate(self) -> None:
        """Names for memory. All that nobody sees as a tensor is one piece, in which a place is taken from its first use
        to its last."""
        wanted = {storage_of(x): x for x in _tensors(self.results)}
        calls = [step for step in self.watch.steps if isinstance(step, Call)]
        shown = {storage_of(x) for call in calls for x in call.tensors()}
        uses: dict[int, list[int]] = {}
        for number, step in enumerate(self.watch.steps):
            for x in step[3] if isinstance(step, tuple) else []:
                if isinstance(x, Tensor):
                    uses.setdefault(storage_of(x), []).append(number)
        hidden: list[tuple[int, int, int]] = []  # begin, end, last use
        made = []
        for i, x in enumerate(self.watch.made):
            storage = storage_of(x)
            if storage in self.names:
                raise NotOursError
            if storage in wanted or storage in shown:
                piece = wanted.get(storage, x)
                if not _covers(piece):
                    raise NotOursError
                self.names[storage] = [(f"m{i}", 0, piece)]
                self.makes[f"m{i}"] = piece.dtype, tuple(piece.shape), piece.stride()
            elif storage in uses:
                made.append((uses[storage][0], uses[storage][-1], x))
        for first, last, x in sorted(made, key=itemgetter(0)):
            size, begin = -(-x.untyped_storage().nbytes() // _ALIGNED) * _ALIGNED, 0
            for start, end, until in sorted(hidden):
                if until >= first and begin + size > start and begin < end:
                    begin = end
            hidden.append((begin, begin + size, last))
            self.names[storage_of(x)] = [("m", begin, x)]
        if hidden:
            self.makes["m"] = torch.uint8, (max(end for _, end, _ in hidden),), (1,)

    def _use(self, name: str) -> None:
        """Memory is allocated where it is first needed."""
        if name in self.makes:
            dtype, shape, strides = self.makes.pop(name)
            # `empty` takes twice as long, and to read a torch.Size twice as long as a tuple
            device = self.watch.tensors[0].device
            make = self._know(partial(torch.empty_strided, shape, strides, dtype=dtype, device=device))
            self.lines += [f"{name} = {make}()", f"{name}_ = {name}.data_ptr()"]

    def _launch(
        self, run: Any, grid: tuple[int, int, int], settings: tuple[Any, ...], args: list[Any]
    ) -> None:
        run, maps = launch.apart(run)
        shown, number = [], 0
        for x in args:
            if type(x) is Tiles:
                shown.append(self._tiles(x, number, maps))
                number += 1
            else:
                shown.append(self._address(x) if isinstance(x, Tensor) else self._know(x))
        stream = launch.stream_of(self.watch.device)
        passed = ", ".join([*map(str, grid), str(stream), *map(self._know, settings), *shown])
        self.lines.append(f"{self._know(run)}({passed})")

    def _tiles(self, x: Tiles, number: int, maps: Any) -> str:
        if storage_of(x.parts) not in self.names:
            self._in_workspace(x.parts)
            return ", ".join(map(self._know, [x] if maps is None else maps(number, x)))
        name, distance, home = self._home(x.parts)
        if name[0] != "w" or distance or _offset(home) != _offset(x.parts):
            raise NotOursError
        made = f"{self._know(Tiles)}({name}, {self._know(x.block)})"
        return made if maps is None else f"*{self._know(maps)}({number}, {made})"

    def _weight(self, kept: Kept) -> None:
        name, _, home = self._home(kept.of)
        if name[0] != "x":
            raise NotOursError
        further = kept.of.storage_offset() - home.storage_offset()
        facts = (further, kept.of.shape, kept.of.stride(), kept.slices, kept.kind)
        whole = f"w{len(self.lines)}"
        self.lines += [
            f"{whole} = kept({', '.join([name, *map(self._know, facts)])})", f"if {whole} is None:", "    return cannot"
        ]  # fmt: skip
        for i, x in enumerate(kept.found):
            self.names[storage_of(x)] = [(f"{whole}_{i}", 0, x)]
            self.lines += [f"{whole}_{i} = {whole}[{i}]", f"{whole}_{i}_ = {whole}_{i}.data_ptr()"]

    def _call(self, call: Call) -> None:
        passed = [self._passed(x) for x in call.args]
        passed += [f"{key}={self._passed(x)}" for key, x in call.options.items()]
        line = f"{self._know(call.operator)}({', '.join(passed)})"
        if any(storage_of(call.found) == storage_of(x) for x in call.tensors()):
            self.lines.append(line)
            return
        found = f"c{len(self.names)}"
        self.names[storage_of(call.found)] = [(found, 0, call.found)]
        self.lines += [f"{found} = {line}", f"{found}_ = {found}.data_ptr()"]

    def _zeros(self, found: Tensor) -> None:
        name = f"z{len(self.lines)}"
        self.names.setdefault(storage_of(found), []).append((name, 0, found))
        self.lines += [f"{name} = zeros({found.numel()}, {self._know(found.device)})", f"{name}_ = {name}.data_ptr()"]

    def _passed(self, x: Any) -> str:
        """What an operator is given."""
        if not isinstance(x, Tensor):
            return self._know(x)
        name, distance, home = self._home(x)
        self._use(name)
        if distance or home.dtype is not x.dtype:
            raise NotOursError
        if x.shape == home.shape and x.stride() == home.stride() and _offset(x) == _offset(home):
            return name
        begin = x.storage_offset() - home.storage_offset()
        place = f"{name}.storage_offset() + {begin}" if begin else f"{name}.storage_offset()"
        return f"{name}.as_strided({tuple(x.shape)}, {x.stride()}, {place})"

    def _home(self, x: Tensor) -> tuple[str, int, Tensor]:
        found = self.names.get(storage_of(x), [])
        if len(found) > 1:  # arguments in one storage: that of them which the tensor begins in
            found = [home for home in found if _has(home[2], int(x.storage_offset()))]
        if len(found) != 1:
            raise NotOursError
        return found[0]

    def _know(self, value: Any) -> str:
        """As the program writes it."""
        if type(value) is int and value == self.watch.drawn:
            self.uses_drawn = True
            return self.drawn
        if value is None or type(value) in (bool, int):
            return repr(value)
        name = f"k{len(self.known)}"
        self.known[name] = value
        return name

    def _address(self, x: Tensor) -> str:
        if watching.is_lasting(x):
            self._know(x)  # which keeps it
            return str(x.data_ptr())
        if storage_of(x) not in self.names:
            self._in_workspace(x)
            return str(x.data_ptr())
        name, distance, home = self._home(x)
        self._use(name)
        distance += _offset(x) - _offset(home)
        return f"{name}_ + {distance}" if distance else f"{name}_"

    def _in_workspace(self, x: Tensor) -> None:
        holder = workspace.holder(x)
        if holder is None:
            raise NotOursError
        self.buffers[holder[0]] = weakref.ref(holder[1])

    def _returned(self) -> str:
        if isinstance(self.results, tuple | list):
            names = [self._result(x) for x in self.results]
            known = [name for name in names if name != "None"]
            if len(set(known)) != len(known):
                raise NotOursError  # two results in one piece
            return f"({', '.join(names)},)"
        return self._result(self.results)

    def _result(self, x: Any) -> str:
        if x is None:
            return "None"
        if not isinstance(x, Tensor):
            raise NotOursError
        name, _, home = self._home(x)
        if name[0] == "x":  # an argument
            raise NotOursError
        self._use(name)
        same = x.shape == home.shape and x.stride() == home.stride() and _offset(x) == _offset(home)
        if not same or x.dtype is not home.dtype:
            raise NotOursError
        return name


def _covers(x: Tensor) -> bool:
    """Whether a tensor of this shape and these strides has a storage of this one's size."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    size = (last + 1) * x.element_size() if x.numel() else 0
    return x.storage_offset() == 0 and size == x.untyped_storage().nbytes()


def _offset(x: Tensor) -> int:
    return int(x.storage_offset()) * x.element_size()


def _tensors(results: Any) -> list[Tensor]:
    return [x for x in (results if isinstance(results, tuple | list) else [results]) if isinstance(x, Tensor)]


def _has(x: Tensor, place: int) -> bool:
    """Whether an element of x, whose elements do not overlap, is at this place of the storage."""
    left = place - x.storage_offset()
    for step, size in sorted(zip(x.stride(), x.shape, strict=True), reverse=True):
        if step and left > 0:
            left -= min(left // step, size - 1) * step
    return left == 0
