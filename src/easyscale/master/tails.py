"""Follows the workers' log files and cuts what is new into lines.

The places reached are kept in a small file, so that a master that is started again goes on where its predecessor was.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from easyscale.master.output import Lines
from easyscale.master.trimming import dropped, trim

_CHUNK = 1 << 16
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class LogLine:
    worker: int
    error: bool
    text: str


class _Tail:
    """`place` counts from the first byte that was ever written, also when the oldest part was dropped."""

    def __init__(self, path: Path, place: int | None, limit: int | None) -> None:
        self._path, self._limit = path, limit
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._gone = dropped(path)
        written = self._gone + os.fstat(self._file).st_size
        self.place = written if place is None else min(place, written)
        self._shown, self._full = 0, False
        self._lines = Lines(_CHUNK, returns=True)

    def take(self, most: int | None = _AT_ONCE) -> Iterator[bytes]:
        """`most`: bytes; whoever writes without end does not keep the reader from everything else."""
        self.place = max(self.place, self._gone)
        while not self._full and (data := os.pread(self._file, _CHUNK, self.place - self._gone)):
            self.place += len(data)
            self._shown += len(data)
            yield from self._lines.feed(data)
            if self._limit is not None and self._shown > self._limit:
                self._full, self._lines = True, Lines(_CHUNK, returns=True)
                # The screen may be a file as well.
                yield b"(it has printed as much as its log may hold; the newest part is in its log only)"
            if most is not None and (most := most - len(data)) <= 0:
                break
        if self._limit is not None and trim(self._path, self._limit):
            self._gone = dropped(self._path)

    def end(self) -> Iterator[bytes]:
        yield from self.take(None)
        rest = self._lines.rest()
        if rest:
            yield rest

    def close(self) -> None:
        os.close(self._file)


class Tails:
    """`follow` a worker, `take` what is new now and then, `end` with its last lines."""

    def __init__(self, places: Path, limit: int | None = None) -> None:
        """`limit`: bytes of a log; of a longer one the oldest part is dropped."""
        self._places, self._limit = places, limit
        self._tails: dict[tuple[int, bool], _Tail] = {}
        self._known: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            self._known = json.loads(places.read_text())
        self._written = dict(self._known)

    def follow(self, worker: int, out: Path, err: Path, *, from_end: bool = False) -> None:
        """`from_end`: what is there now was shown, unless it is known how much."""
        for error, path in ((False, out), (True, err)):
            place = self._known.get(_key(worker, error), None if from_end else 0)
            with contextlib.suppress(FileNotFoundError):
                self._tails[worker, error] = _Tail(path, place, self._limit)

    def take(self) -> list[LogLine]:
        lines = [
            LogLine(worker, error, line.decode(errors="replace"))
            for (worker, error), tail in self._tails.items()
            for line in tail.take()
        ]
        self._note()
        return lines

    def end(self, worker: int) -> list[LogLine]:
        lines = []
        for error in (False, True):
            tail = self._tails.pop((worker, error), None)
            if tail is not None:
                lines += [LogLine(worker, error, line.decode(errors="replace")) for line in tail.end()]
                self._known[_key(worker, error)] = tail.place
                tail.close()
        return lines

    def close(self) -> None:
        for worker in {worker for worker, _ in self._tails}:
            self.end(worker)
        self._note()

    def _note(self) -> None:
        self._known |= {_key(*which): tail.place for which, tail in self._tails.items()}
        if self._known != self._written:
            part = self._places.with_name(f".{self._places.name}.part")
            with contextlib.suppress(OSError):  # a full disk costs some lines told twice, at worst
                part.write_text(json.dumps(self._known))
                part.replace(self._places)
                self._written = dict(self._known)


def _key(worker: int, error: bool) -> str:
    return f"{worker}.{'err' if error else 'out'}"
