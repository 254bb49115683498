"""Asks a job's master, from another process: one connection, one line there and one line back.

Every wait has a limit. What goes wrong is one of two errors: the master refuses (its own three parts), or it cannot
be reached (`UnreachableError`, after which a caller may look whether the job still runs).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from easyscale.core.cluster import Slot
from easyscale.core.control import MAX_FRAME
from easyscale.core.errors import EasyScaleError
from easyscale.core.requests import (
    Accepted,
    AskCheckpoint,
    AskScale,
    AskStatus,
    AskStop,
    JobStatus,
    Refused,
    Reply,
    Request,
    pack_request,
    unpack_reply,
)

# A master answers from memory, in milliseconds; on a machine that is busy with training it may take some seconds.
ANSWER_SECONDS = 10.0
# How often `wait` looks again.
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a master listens, and the token that it wants to see."""

    host: str
    port: int
    token: str


class UnreachableError(EasyScaleError):
    """Nobody answers for the job, or not as its master would."""


class RefusedError(EasyScaleError):
    """The master said no, and why."""


class TooLongError(EasyScaleError):
    """What was waited for did not happen within the limit."""


class JobClient:
    """A job's master. `find` is asked before each request: a master that is started again may listen elsewhere;
    None: there is no master now."""

    def __init__(self, job: str, find: Callable[[], Address | None], answer_seconds: float = ANSWER_SECONDS) -> None:
        self.job = job
        self._find = find
        self._answer_seconds = answer_seconds

    def status(self, events: int = 1) -> JobStatus:
        reply = self._ask(AskStatus(events=events))
        if not isinstance(reply, JobStatus):
            raise self._stranger("it answered a question for the status with something else")
        return reply

    def scale(
        self,
        *,
        workers: int | None = None,
        split: tuple[int, ...] | None = None,
        leave: int | None = None,
        slots: tuple[Slot, ...] | None = None,
    ) -> Accepted:
        """Ask for another plan; exactly one of the four. It holds some time after this returns: `wait_until`."""
        return self._accepted(AskScale(workers=workers, split=split, leave=leave, slots=slots))

    def stop(self, *, now: bool = False) -> Accepted:
        return self._accepted(AskStop(now=now))

    def checkpoint(self) -> Accepted:
        return self._accepted(AskCheckpoint())

    def wait_until(
        self, true: Callable[[JobStatus], bool], timeout: float | None = None, events: int = 1
    ) -> JobStatus:
        """Look again and again until it is so, at most `timeout` seconds. `UnreachableError` if the master goes."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not true(status := self.status(events)):
            if ends is not None and time.monotonic() >= ends:
                raise TooLongError(
                    f"The job {self.job} has not got there in {timeout:g} seconds.",
                    f"it is at step {status.step}, {status.state}.",
                    "`easyscale top` shows it; what was asked of it still holds.",
                )
            time.sleep(POLL_SECONDS)
        return status

    def wait(self, timeout: float | None = None) -> JobStatus | None:
        """Wait for the end of the job. None: the master left without being seen at the end."""
        try:
            return self.wait_until(lambda status: status.state in ("done", "failed"), timeout)
        except UnreachableError:
            return None

    def _accepted(self, request: Request) -> Accepted:
        reply = self._ask(request)
        if not isinstance(reply, Accepted):
            raise self._stranger("it answered a request with something else")
        return reply

    def _ask(self, request: Request) -> Reply:
        address = self._find()
        if address is None:
            raise UnreachableError(
                f"The job {self.job} has no master.",
                "its process ended, and nothing was started in its place.",
                f"`easyscale attach {self.job}` becomes its master, if workers of it still live.",
            )
        reply = unpack_reply(self._exchange(address, pack_request(request, address.token)), address.token)
        if reply is None:
            raise self._stranger("what it says is not an answer of this job in this version")
        if isinstance(reply, Refused):
            raise RefusedError(reply.what, reply.why, reply.now)
        return reply

    def _exchange(self, address: Address, line: bytes) -> bytes:
        """All of it within the time for an answer, whatever the other side does."""
        ends = time.monotonic() + self._answer_seconds
        received = bytearray()
        try:
            with contextlib.closing(
                socket.create_connection((_reachable(address.host), address.port), self._answer_seconds)
            ) as connection:
                connection.sendall(line)
                while not received.endswith(b"\n") and len(received) <= MAX_FRAME:
                    connection.settimeout(max(0.001, ends - time.monotonic()))
                    part = connection.recv(1 << 16)
                    if not part:
                        break
                    received += part
        except OSError as problem:
            raise UnreachableError(
                f"The master of {self.job} does not answer at {address.host}:{address.port}.",
                f"{problem.strerror or str(problem) or type(problem).__name__}.",
                "`easyscale ps` shows whether it still runs; if it does, try again.",
            ) from None
        if not received:
            raise self._stranger("it closed the connection without a word")
        return bytes(received)

    def _stranger(self, why: str) -> UnreachableError:
        return UnreachableError(
            f"The master of {self.job} gave no answer that can be understood.",
            f"{why}.",
            "see `easyscale ps`; a job that was started by another version of easyscale is asked with that version.",
        )


def _reachable(host: str) -> str:
    """A master that listens on all addresses is reached on the loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
