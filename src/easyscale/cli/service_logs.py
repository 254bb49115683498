"""What a job of the service printed: part by part, from where each stream was left, new ones as they appear."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from easyscale.cli.remote import Found, told_lost
from easyscale.cli.tables import coloured
from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from easyscale.service.models import LogFile

POLL_SECONDS = 1.0
PART = 1 << 18  # bytes of one request
LINE = 200  # bytes of a line, as a guess for --tail


@dataclass(slots=True)
class _Stream:
    file: LogFile
    label: str
    next: int = 0
    rest: str = ""
    over: bool = False
    kept: deque[str] = field(default_factory=deque)

    def feed(self, text: str) -> list[str]:
        *lines, self.rest = (self.rest + text).split("\n")
        return lines

    def print(self, line: str) -> None:
        out = sys.stderr if self.file.stream == "err" else sys.stdout
        encoding = out.encoding or "utf-8"
        text = f"{self.label} {coloured(line)}\n"
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()


class ServiceLogs:
    """`run`: only that one; None: the last one, and those that follow it."""

    def __init__(self, found: Found, *, worker: int | None, run: int | None) -> None:
        self._client, self._job, self._worker, self._run = found.client, found.id, worker, run
        self._streams: dict[tuple[int, int, str], _Stream] = {}
        self._from: int | None = None

    def show(self, *, tail: int | None, follow: bool) -> None:
        from easyscale.service.client import Patience
        from easyscale.service.models import ENDED

        self._look()
        if not self._streams and not follow:
            raise self._nothing()
        for stream in self._streams.values():
            self._show_tail(stream, tail) if tail is not None else self._show_new(stream)
        patience, ended = Patience(lost=told_lost), not follow
        while not ended:
            with patience.bear():
                over = self._client.job(self._job).state in ENDED
                self._look()
                for stream in self._streams.values():
                    self._show_new(stream)
                ended = over  # looked at once more after the end: what was written before it
            if not ended:
                time.sleep(POLL_SECONDS)
        for stream in self._streams.values():
            if stream.rest:
                stream.print(stream.rest)

    def _look(self) -> None:
        files = [file for file in self._client.logs(self._job) if self._worker in (None, file.worker)]
        if self._run is not None:
            files = [file for file in files if file.run == self._run]
        elif files:
            self._from = max(file.run for file in files) if self._from is None else self._from
            files = [file for file in files if file.run >= (self._from or 0)]
        for file in sorted(files, key=lambda file: (file.run, file.worker, file.stream == "err")):
            label = f"[worker {file.worker}]" if file.run in (self._from, self._run) else (
                f"[run {file.run} · worker {file.worker}]"
            )  # fmt: skip
            self._streams.setdefault((file.run, file.worker, file.stream), _Stream(file, label))

    def _show_new(self, stream: _Stream) -> None:
        for line in self._read(stream):
            stream.print(line)

    def _read(self, stream: _Stream) -> list[str]:
        """All that is there now, as far as its lines are complete."""
        lines: list[str] = []
        while not stream.over:
            file = stream.file
            part = self._client.log(
                self._job, run=file.run, worker=file.worker, stream=file.stream, start=stream.next, most=PART
            )
            if part.start > stream.next and stream.next:
                lines.append(f"({part.start - stream.next:,} bytes are gone: the log was full)")
            moved = part.next > stream.next
            lines += stream.feed(part.text)
            stream.next, stream.over = part.next, part.end
            if not moved:
                break
        return lines

    def _show_tail(self, stream: _Stream, tail: int) -> None:
        """The last lines, from a guess at where they begin that grows until it is enough."""
        room = max(1, tail) * LINE
        while True:
            stream.next, stream.rest, stream.over = max(0, stream.file.size - room), "", False
            begin = stream.next
            lines = self._read(stream)
            if begin:
                lines = lines[1:]  # the first may be a part of one
            if len(lines) >= tail or begin == 0:
                break
            room *= 4
        for line in lines[len(lines) - tail :] if tail <= len(lines) else lines:
            stream.print(line)

    def _nothing(self) -> UsageError:
        there = sorted({(file.run, file.worker) for file in self._client.logs(self._job)})
        if not there:
            return UsageError(
                f"{self._job} has printed nothing yet.", "no worker of it has started, or none has printed.",
                f"`easyscale describe {self._job}` shows why it waits; -f waits for its output.",
            )  # fmt: skip
        names = ", ".join(f"worker {worker} of run {run}" for run, worker in there[:8])
        return UsageError(
            f"Nothing of {self._job} was printed by that worker in that run.", f"there are logs of {names}.",
            "leave --worker and --run out to see all of the last run.",
        )  # fmt: skip
