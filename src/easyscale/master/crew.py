"""The living workers of one plan: hears their pipes, notices their ends, passes signals on.

Knows processes and lines, not what the lines mean.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from easyscale.core.messages import MAX_LINE
from easyscale.core.ports import WorkerProcess
from easyscale.master.output import Lines
from easyscale.master.state import Exit

Channel = Literal["events", "stdout", "stderr"]
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Line:
    worker: int
    channel: Channel
    data: bytes


class _Pipe:
    def __init__(self, worker: int, channel: Channel, fd: int) -> None:
        self.worker, self.channel, self.fd = worker, channel, fd
        self._lines = Lines(MAX_LINE) if channel == "events" else Lines(_CHUNK, returns=True)

    def take(self) -> bytes | None:
        """What is there now: None if nothing, empty if the pipe has ended."""
        try:
            return os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None

    def cut(self, data: bytes) -> list[Line]:
        return [Line(self.worker, self.channel, line) for line in self._lines.feed(data)]

    def drain(self) -> list[Line]:
        """All that is left, the unfinished last line too."""
        heard: list[Line] = []
        while data := self.take():
            heard += self.cut(data)
        rest = self._lines.rest()
        return [*heard, Line(self.worker, self.channel, rest)] if rest else heard


@dataclass(frozen=True)
class _Member:
    process: WorkerProcess
    pipes: tuple[_Pipe, ...]


class Crew:
    """Add workers, `listen` while some are `alive`, `close` in the end."""

    def __init__(self) -> None:
        self.exits: list[Exit] = []
        self._members: dict[int, _Member] = {}
        self._asked: set[int] = set()
        self._selector = selectors.DefaultSelector()

    @property
    def alive(self) -> Collection[int]:
        return self._members.keys()

    def add(self, number: int, process: WorkerProcess) -> None:
        pipes = (
            _Pipe(number, "events", process.events),
            _Pipe(number, "stdout", process.stdout),
            _Pipe(number, "stderr", process.stderr),
        )
        self._members[number] = _Member(process, pipes)
        for pipe in pipes:
            self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
        if process.ended is not None:
            self._selector.register(process.ended, selectors.EVENT_READ, None)

    def listen(self, seconds: float) -> list[Line]:
        """What was said, at the latest after `seconds`. The last lines of a worker come with its exit."""
        heard: list[Line] = []
        for key, _ in self._selector.select(seconds):
            pipe: _Pipe | None = key.data
            data = pipe.take() if pipe is not None else None
            if pipe is not None and data:
                heard += pipe.cut(data)
            elif data is not None:
                self._selector.unregister(key.fd)
        for number, member in list(self._members.items()):
            code = member.process.poll()
            if code is not None:
                heard += self._part_with(number)
                self.exits.append(Exit(worker=number, code=code, asked=number in self._asked))
        return heard

    def ask(self, signal_for: Callable[[int], int], spare: Collection[int] = ()) -> None:
        """Send to each worker the signal chosen for it; its end is then no surprise."""
        for number, member in self._members.items():
            if number not in spare:
                self._asked.add(number)
                member.process.signal(signal_for(number))

    def kill(self) -> None:
        for number, member in self._members.items():
            self._asked.add(number)
            member.process.kill()

    def close(self, grace: float) -> None:
        """No worker outlives its crew, whatever went wrong."""
        self.ask(lambda _: signal.SIGTERM)
        for number, member in list(self._members.items()):
            member.process.stop(grace)
            self._part_with(number)
        self._selector.close()

    def _part_with(self, number: int) -> list[Line]:
        member = self._members.pop(number)
        heard = [line for pipe in member.pipes for line in pipe.drain()]
        for fd in (*(pipe.fd for pipe in member.pipes), member.process.ended):
            if fd is not None:
                with contextlib.suppress(KeyError):  # it had ended before
                    self._selector.unregister(fd)
        member.process.close()
        return heard
