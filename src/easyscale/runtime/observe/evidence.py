"""Surroundings of a process, changed or written down: the clock, the order of folders, generators without a seed.

A reproducible script does not notice the changes. Where a script is not reproducible, taking one cause away at a time
shows which one it was, and the `witnesses` treatment tells the lines of the script that asked.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from easyscale.core.observe import Treatment

Seeder = Callable[[], int]
_A_DAY = 86_400.0 + 1.0
_BEGINNING = 1_700_000_000.0  # where the counting clock starts; any fixed moment will do
_found: dict[tuple[str, str], None] = {}
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen")
_LIBRARY = (*_STANDARD, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def apply_treatments(treatments: Iterable[Treatment]) -> None:
    """Once, before the script runs."""
    for name in treatments:
        match name:
            case "reversed-folders":
                _order_folders(reverse=True)
            case "sorted-folders":
                _order_folders(reverse=False)
            case "shifted-clock":
                _use_clock(_shifted(time.time))
            case "counting-clock":
                _use_clock(_counting())
            case "seeded-generators":
                _seed_generators(itertools.count(1).__next__)
            case "witnesses":
                _write_down()


def take_evidence() -> list[tuple[str, str]]:
    """(what was asked for, file:line of the script), each once."""
    found = list(_found)
    _found.clear()
    return found


# ---------------------------------------------------------------------------------------- changes


def _order_folders(*, reverse: bool) -> None:
    listdir, scandir = os.listdir, os.scandir

    def ordered_listdir(*args: Any) -> Any:
        return sorted(listdir(*args), reverse=reverse)

    class OrderedScan:
        """os.scandir's answer: an iterator that is also a context."""

        def __init__(self, *args: Any) -> None:
            with scandir(*args) as entries:
                self._entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=reverse))

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return next(self._entries)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *args: Any) -> None:
            self.close()

        def close(self) -> None:
            self._entries = iter(())

    os.listdir, os.scandir = ordered_listdir, OrderedScan  # type: ignore[assignment]


def _shifted(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() + _A_DAY


def _counting() -> Callable[[], float]:
    """Each look at the clock is a millisecond after the one before."""
    ticks = itertools.count()
    return lambda: _BEGINNING + next(ticks) * 1e-3


def _use_clock(now: Callable[[], float]) -> None:
    """`time.monotonic` stays: timeouts of libraries hang on it."""
    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    time.perf_counter = now
    time.perf_counter_ns = lambda: int(now() * 1e9)
    _replace_datetime(now)


def _replace_datetime(now: Callable[[], float]) -> None:
    import datetime

    real = datetime.datetime

    class Anything(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, real)

    class Moment(real, metaclass=Anything):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.fromtimestamp(now(), tz)

        @classmethod
        def today(cls) -> Any:
            return real.fromtimestamp(now())

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    datetime.datetime = _named_like(real, Moment)  # type: ignore[misc]


def _named_like(real: type, ours: Any) -> Any:
    """pickle finds a class by its name, and then asks whether it is the same."""
    ours.__module__, ours.__name__, ours.__qualname__ = real.__module__, real.__name__, real.__qualname__
    return ours


def _seed_generators(number: Seeder) -> None:
    """What would take its seed from the operating system takes the next number instead."""
    python, numpy_new, numpy_old = random.Random, np.random.default_rng, np.random.RandomState
    random_seed, numpy_seed = random.seed, np.random.seed

    class Random(python):  # type: ignore[misc, valid-type]
        def __init__(self, x: Any = None) -> None:
            super().__init__(number() if x is None else x)

    class RandomState(numpy_old):  # type: ignore[misc, valid-type]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(number() if seed is None else seed)

    def urandom(size: int) -> bytes:
        return python(number()).randbytes(size)

    def torch_seed() -> int:
        value = number()
        torch.manual_seed(value)
        return value

    random.seed(number())  # the shared generators too: a script that never seeds them gets a seed here
    np.random.seed(number())
    random.Random = _named_like(python, Random)  # type: ignore[misc]
    np.random.RandomState = RandomState  # type: ignore[misc]
    np.random.default_rng = lambda seed=None: numpy_new(number() if seed is None else seed)
    random.seed = lambda a=None, version=2: random_seed(number() if a is None else a, version)
    np.random.seed = lambda seed=None: numpy_seed(number() if seed is None else seed)
    os.urandom = urandom
    torch.seed = torch_seed


# ---------------------------------------------------------------------------------------- witnesses


def _write_down() -> None:
    _tell(time, "time", "the clock", _caller)
    _tell(time, "time_ns", "the clock", _caller)
    _tell(time, "perf_counter", "the clock", _caller)
    _tell(os, "listdir", "the order of a folder", _first_outside_libraries)
    _tell(os, "scandir", "the order of a folder", _first_outside_libraries)
    _tell(os, "urandom", "the system's random numbers", _first_outside_libraries)
    _tell(np.random, "default_rng", "a generator without a seed", _caller, only_unseeded=True)
    _tell(np.random, "seed", "a generator without a seed", _caller, only_unseeded=True)
    _tell(random, "seed", "a generator without a seed", _caller, only_unseeded=True)
    _tell(torch, "seed", "a generator without a seed", _caller)

    python = random.Random

    class Random(python):  # type: ignore[misc, valid-type]
        def __init__(self, x: Any = None) -> None:
            if x is None:
                _note("a generator without a seed", _caller(sys._getframe(1)))
            super().__init__(x)

    random.Random = _named_like(python, Random)  # type: ignore[misc]


def _tell(
    module: Any, name: str, what: str, place: Callable[[types.FrameType], str | None], only_unseeded: bool = False
) -> None:
    real = getattr(module, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        seeded = any(value is not None for value in (*args, *kwargs.values()))
        if not (only_unseeded and seeded):
            _note(what, place(sys._getframe(1)))
        return real(*args, **kwargs)

    setattr(module, name, told)


def _note(what: str, place: str | None) -> None:
    if place is not None:
        _found[what, place] = None


def _caller(frame: types.FrameType) -> str | None:
    return None if is_library(frame) else shown(frame)


def _first_outside_libraries(frame: types.FrameType | None) -> str | None:
    """The script's line behind `glob.glob` or `Path.iterdir`, where only the standard library lies in between."""
    while frame is not None and is_library(frame):
        name = frame.f_code.co_filename
        if "site-packages" in name or not name.startswith(_STANDARD):
            return None
        frame = frame.f_back
    return None if frame is None else shown(frame)


def is_library(frame: types.FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_LIBRARY) or f"{os.sep}easyscale{os.sep}runtime{os.sep}" in name


def shown(frame: types.FrameType) -> str:
    name = frame.f_code.co_filename
    if "site-packages" + os.sep in name:
        return f"{name.rpartition('site-packages' + os.sep)[2]}:{frame.f_lineno}"
    local = os.path.relpath(name) if os.path.isabs(name) else name
    return f"{name if local.startswith('..') else local}:{frame.f_lineno}"
