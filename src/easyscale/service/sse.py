"""Records as server-sent events: read line by line, taken up again after the last one seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import httpx

from easyscale.core.errors import EasyScaleError
from easyscale.service.models import RecordView
from easyscale.service.wire import BusyError, ServiceFaultError, ServiceUnreachableError, Wire

# The service says something each 15 seconds, if only that it is there.
SILENCE_SECONDS = 45.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


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
        pause, since = FIRST_PAUSE, time.monotonic()
        while True:
            try:
                for record in self._connected():
                    pause = FIRST_PAUSE
                    yield record
                    since = time.monotonic()
            except (ServiceUnreachableError, BusyError, ServiceFaultError) as problem:
                if time.monotonic() - since >= self._patience:
                    raise
                if self._lost is not None and pause == FIRST_PAUSE:
                    self._lost(problem)
            self._wire.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _connected(self) -> Iterator[RecordView]:
        params = {"after": self._after, "job": self._job}
        with self._wire.stream("/stream", params=params, silence=SILENCE_SECONDS) as answer:
            for kind, data in events(_lines(answer)):
                if kind != "record":
                    continue
                record = self._read(data)
                if record.seq > self._after:
                    self._after = record.seq
                    yield record

    def _read(self, data: str) -> RecordView:
        return self._wire.read(RecordView, httpx.Response(200, content=data.encode()))


def _lines(answer: httpx.Response) -> Iterator[str]:
    """Ended by \\n or \\r\\n alone: `iter_lines` also cuts at characters that may stand in a text."""
    rest = b""
    for part in answer.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
