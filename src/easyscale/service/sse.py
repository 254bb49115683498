"""Records as server-sent events: read line by line, taken up again after the last one seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import httpx

from easyscale.core.errors import EasyScaleError
from easyscale.service.models import Problem, RecordView
from easyscale.service.wire import BusyError, ServiceFaultError, ServiceUnreachableError, TokenError, Wire

# The service says something each 15 seconds, if only that it is there.
SILENCE_SECONDS = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

_Kind = TypeVar("_Kind", RecordView, Problem)


def events(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(event, data) of each. Comments and fields that we have no use for are left out."""
    kind, data = "message", list[str]()
    for line in lines:
        if line == "":
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)


class Follower:
    """Iterate over it: records after `after`, each once, across broken connections and restarts of the service."""

    def __init__(
        self, wire: Wire, job: str | None, after: int, patience: float, lost: Callable[[EasyScaleError], None] | None
    ) -> None:
        self._wire, self._job, self._after = wire, job, after
        self._patience, self._lost = patience, lost

    def __iter__(self) -> Iterator[RecordView]:
        pause = FIRST_PAUSE
        self._heard = time.monotonic()
        while True:
            began = self._heard
            try:
                yield from self._connected()
            except (ServiceUnreachableError, BusyError, ServiceFaultError) as problem:
                if time.monotonic() - self._heard >= self._patience:
                    raise
                if self._lost is not None and (pause == FIRST_PAUSE or self._heard != began):
                    self._lost(problem)
            if self._heard != began:  # it was there in between
                pause = FIRST_PAUSE
            self._wire.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _connected(self) -> Iterator[RecordView]:
        """Until the connection ends; the service ends it now and then."""
        params = {"after": self._after, "job": self._job}
        with self._wire.stream("/stream", params=params, silence=SILENCE_SECONDS) as answer:
            for kind, data in events(self._noticed(_lines(answer))):
                if kind == "end":
                    problem = self._read(Problem, data)
                    raise TokenError(problem.what, problem.why, problem.now)
                if kind != "record":
                    continue
                record = self._read(RecordView, data)
                if record.seq > self._after:
                    self._after = record.seq
                    yield record

    def _noticed(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._heard = time.monotonic()
            yield line

    def _read(self, kind: type[_Kind], data: str) -> _Kind:
        return self._wire.read(kind, httpx.Response(200, content=data.encode()))


def _lines(answer: httpx.Response) -> Iterator[str]:
    """Ended by \\n or \\r\\n alone: `iter_lines` also cuts at characters that may stand in a text."""
    rest = b""
    for part in answer.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
