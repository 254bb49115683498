"""A master that only answers commands: a thread on a loopback port, and a job folder that leads to it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from easyscale.core.requests import (
    Accepted,
    AskScale,
    AskStatus,
    JobStatus,
    Reply,
    Request,
    Seat,
    pack_reply,
    unpack_request,
)
from easyscale.master.files import process_start
from easyscale.master.registry import JobFolder


class FakeMaster:
    """`answer` says what to reply; `requests` is what was asked. `raw`: these bytes instead of any answer."""

    def __init__(self, folder: JobFolder) -> None:
        record = folder.record()
        assert record is not None
        self.folder, self.token = folder, record.token
        self.requests: list[Request | None] = []
        self.status = JobStatus(
            job=record.id, name=record.name, state="training", ests=record.ests, started=record.started, step=7,
            seats=(Seat(worker=0, pid=11, first=0, count=2), Seat(worker=1, pid=12, first=2, count=2)),
            samples_per_second=1234.5, loss=0.25, plan_epoch=0,
        )  # fmt: skip
        self.answer: Callable[[Request], Reply] = self._answer
        self.raw: bytes | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _answer(self, request: Request) -> Reply:
        if isinstance(request, AskStatus):
            return replace(self.status, events=self.status.events[-request.events :] if request.events else ())
        if isinstance(request, AskScale):
            self.status = replace(self.status, wanted=request.split)
        return Accepted(text=f"accepted {request.kind}")

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
                request = unpack_request(lines.readline(), self.token)
                self.requests.append(request)
                if self.raw is not None:
                    connection.sendall(self.raw)
                elif request is not None:
                    connection.sendall(pack_reply(self.answer(request), self.token))

    def __enter__(self) -> FakeMaster:
        self._thread.start()
        started = process_start(os.getpid())
        assert started is not None
        self.folder.write_master(os.getpid(), started, "127.0.0.1", self.port)
        return self

    def __exit__(self, *problem: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@contextlib.contextmanager
def fake_job(name: str = "train", ests: int = 4) -> Iterator[FakeMaster]:
    with FakeMaster(JobFolder.create(name, ("easyscale", "run", "train.py"), ests)) as master:
        yield master
