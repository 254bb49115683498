"""`easyscale logs`: what the workers of a job printed, also after it ended."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.finding import JobArgument, find_job
from easyscale.cli.remote import Local, Server, Service, Where, found_there
from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from easyscale.master.registry import JobFolder, Stream

POLL_SECONDS = 0.2
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 16


def logs(
    job: JobArgument = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    worker: Annotated[int | None, typer.Option(min=0, help="Only this worker.")] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only the last so many lines of each stream of each worker.")
    ] = None,
    run: Annotated[
        int | None, typer.Option(min=1, help="A job of a service: its so many-th start. Default: the last.")
    ] = None,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """Show what the workers of a job printed. Lines keep their stream, stdout or stderr."""
    if (remote := found_there(job, Where(server, service, local))) is not None:
        from easyscale.cli.service_logs import ServiceLogs

        with remote.client:
            ServiceLogs(remote, worker=worker, run=run).show(tail=tail, follow=follow)
        return
    folder = find_job(job, over=True)
    readers = _Readers(folder, worker)
    if worker is not None and not readers.any() and not follow:
        there = sorted({number for number, _, _ in folder.logs()})
        raise UsageError(
            f"Worker {worker} of {folder.id} has printed nothing.",
            f"there are logs of workers {', '.join(map(str, there))}." if there else "no worker has printed anything.",
            "leave --worker out to see all.",
        )
    readers.show(tail)
    while follow:
        over = folder.state() not in ("running", "masterless")
        readers.show()  # once more after the end: what was written before it
        if over:
            break
        time.sleep(POLL_SECONDS)
    readers.finish()


class _Readers:
    """All logs of a job, each read from where it was left; new ones are found as they appear."""

    def __init__(self, folder: JobFolder, worker: int | None) -> None:
        self._folder, self._worker = folder, worker
        self._logs: dict[Path, _Log] = {}

    def any(self) -> bool:
        return any(self._worker in (None, worker) for worker, _, _ in self._folder.logs())

    def show(self, tail: int | None = None) -> None:
        for worker, stream, path in self._folder.logs():
            if self._worker in (None, worker):
                if path not in self._logs:
                    self._logs[path] = _Log(path, worker, stream)
                self._logs[path].show(tail)

    def finish(self) -> None:
        for log in self._logs.values():
            log.finish()


class _Log:
    def __init__(self, path: Path, worker: int, stream: Stream) -> None:
        from easyscale.master.output import Lines

        self._path, self._place = path, 0
        self._out = sys.stderr if stream == "err" else sys.stdout
        self._label = f"[worker {worker}]"
        self._lines = Lines(_LONGEST_LINE, returns=True)

    def show(self, tail: int | None) -> None:
        """What is new, as far as its lines are complete."""
        from easyscale.master.trimming import read_part

        kept: deque[bytes] = deque(maxlen=tail)
        while (part := read_part(self._path, self._place, _CHUNK)).data:
            if part.start > self._place and self._place > 0:
                self._print(b"(some of it is gone: the log has a limit)")
            self._place = part.next
            for line in self._lines.feed(part.data):
                if tail is None:
                    self._print(line)
                else:
                    kept.append(line)
        for line in kept:
            self._print(line)
        self._out.flush()

    def finish(self) -> None:
        if rest := self._lines.rest():
            self._print(rest)

    def _print(self, line: bytes) -> None:
        encoding = self._out.encoding or "utf-8"
        text = f"{self._label} {line.decode(errors='replace')}\n"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
