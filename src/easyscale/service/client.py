"""The typed client of the service. Every wait has a limit; every error has three parts (`wire`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service.connection import Connection
from easyscale.service.models import (
    ENDED,
    AuditView,
    ClusterView,
    Comparison,
    Info,
    JobPage,
    JobRow,
    JobSpec,
    JobView,
    Lend,
    LogFile,
    LogPart,
    NewToken,
    RecordPage,
    RecordView,
    Role,
    ScaleWish,
    Series,
    Submitted,
    TeamIn,
    Timeline,
    TokenIn,
    TokenView,
    UserIn,
    WhatIf,
)
from easyscale.service.sse import Follower
from easyscale.service.wire import (
    ANSWER_SECONDS,
    RETRIES,
    UPLOAD_SECONDS,
    BusyError,
    ServiceFaultError,
    ServiceUnreachableError,
    Wire,
)

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
PAGE = 500

_Wish = TypeVar("_Wish", bound=BaseModel)


class TooLongError(EasyScaleError):
    """What was waited for did not happen within the limit."""


class Patience:
    """For those who look again and again: a service that is away for a while (it may be started anew) is no end."""

    def __init__(self, seconds: float = PATIENCE_SECONDS, lost: Callable[[EasyScaleError], None] | None = None) -> None:
        self._seconds, self._lost = seconds, lost
        self._since: float | None = None

    @contextmanager
    def bear(self) -> Iterator[None]:
        """What is inside may fail for lack of an answer, for so long; then the error goes on. Told once."""
        try:
            yield
        except (ServiceUnreachableError, BusyError, ServiceFaultError) as problem:
            if self._since is None:
                self._since = time.monotonic()
                if self._lost is not None:
                    self._lost(problem)
            elif time.monotonic() - self._since >= self._seconds:
                raise
        else:
            self._since = None


class ServiceClient:
    """A service and one of its users. Close it, or use it in a `with`."""

    def __init__(
        self, url: str, token: str | None, *, fingerprint: str | None = None, cacert: str | None = None,
        answer_seconds: float = ANSWER_SECONDS, retries: int = RETRIES, transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.connection = Connection(url=url, token=token, fingerprint=fingerprint, cacert=cacert)
        self._wire = Wire(
            self.connection, answer_seconds=answer_seconds, retries=retries, transport=transport, sleep=sleep
        )

    @classmethod
    def of(cls, connection: Connection, **options: Any) -> ServiceClient:
        """For a connection that `service.connection` found."""
        return cls(
            connection.url, connection.token, fingerprint=connection.fingerprint, cacert=connection.cacert, **options
        )

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    # ------------------------------------------------------------------------------------ the service

    def ready(self) -> bool:
        """It answers, and takes jobs. Needs no token."""
        try:
            return self._wire.send("GET", "/readyz", prefix="").is_success
        except EasyScaleError:
            return False

    def info(self) -> Info:
        return self._wire.ask(Info, "GET", "/info")

    def cluster(self) -> ClusterView:
        return self._wire.ask(ClusterView, "GET", "/cluster")

    def timeline(self, since: float | None = None, until: float | None = None) -> Timeline:
        return self._wire.ask(Timeline, "GET", "/timeline", params={"since": since, "until": until})

    def what_if(self, policies: Sequence[str]) -> Comparison:
        # Simulations of a long queue take their time.
        wish = _wish(WhatIf, policies=list(policies))
        return self._wire.ask(Comparison, "POST", "/what-if", body=wish, seconds=300.0)

    # ------------------------------------------------------------------------------------ jobs

    def submit(self, spec: JobSpec, key: str | None = None) -> Submitted:
        """One submission, however often it is sent: the key tells the service. None: a new one."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._wire.ask(Submitted, "POST", "/jobs", body=spec, headers=headers, again=True)

    def jobs(
        self, *, states: Sequence[str] = (), team: str | None = None, user: str | None = None, text: str | None = None,
        order: str | None = None, limit: int | None = None, offset: int | None = None,
    ) -> JobPage:  # fmt: skip
        params = {
            "state": list(states), "team": team, "user": user, "text": text, "order": order, "limit": limit,
            "offset": offset,
        }  # fmt: skip
        return self._wire.ask(JobPage, "GET", "/jobs", params=params)

    def all_jobs(self, **query: Any) -> Iterator[JobRow]:
        """Every job that matches, page by page. One that moves to another page meanwhile comes once."""
        seen: set[str] = set()
        offset = 0
        while True:
            page = self.jobs(**{"order": "submitted", **query}, limit=PAGE, offset=offset)
            yield from (row for row in page.jobs if row.id not in seen)
            seen.update(row.id for row in page.jobs)
            offset += len(page.jobs)
            if not page.jobs or offset >= page.total:
                return

    def job(self, job: str) -> JobView:
        return self._wire.ask(JobView, "GET", _path("jobs", job))

    def scale(self, job: str, *, min_workers: int | None = None, max_workers: int | None = None) -> JobView:
        wish = _wish(ScaleWish, min_workers=min_workers, max_workers=max_workers)
        return self._wire.ask(JobView, "POST", _path("jobs", job, "scale"), body=wish)

    def pause(self, job: str) -> JobView:
        return self._wire.ask(JobView, "POST", _path("jobs", job, "pause"))

    def resume(self, job: str) -> JobView:
        return self._wire.ask(JobView, "POST", _path("jobs", job, "resume"))

    def cancel(self, job: str) -> JobView:
        return self._wire.ask(JobView, "POST", _path("jobs", job, "cancel"))

    def series(self, job: str, most: int | None = None) -> Series:
        return self._wire.ask(Series, "GET", _path("jobs", job, "series"), params={"most": most})

    def wait(self, job: str, timeout: float | None = None, poll: float = POLL_SECONDS) -> JobView:
        """Wait for the end of a job."""
        return self.wait_until(job, lambda view: view.state in ENDED, timeout, poll)

    def wait_until(
        self, job: str, true: Callable[[JobView], bool], timeout: float | None = None, poll: float = POLL_SECONDS
    ) -> JobView:
        """Look again and again until it is so, at most `timeout` seconds; also across a restart of the service."""
        ends = None if timeout is None else time.monotonic() + timeout
        view, patience = self.job(job), Patience()
        while not true(view):
            if ends is not None and time.monotonic() >= ends:
                raise TooLongError(
                    f"The job {view.id} has not got there in {timeout:g} seconds.",
                    f"it is {view.state}, at step {view.step}.{' ' + view.waits if view.waits else ''}",
                    "wait longer; what was asked of it still holds.",
                )
            self._wire.sleep(poll)
            with patience.bear():
                view = self.job(job)
        return view

    # ------------------------------------------------------------------------------------ what it printed and did

    def logs(self, job: str) -> list[LogFile]:
        return self._wire.ask(list[LogFile], "GET", _path("jobs", job, "logs"))

    def log(
        self, job: str, *, run: int, worker: int, stream: Literal["out", "err"], start: int = 0, most: int | None = None
    ) -> LogPart:
        params = {"run": run, "worker": worker, "stream": stream, "start": start, "most": most}
        return self._wire.ask(LogPart, "GET", _path("jobs", job, "log"), params=params)

    def records(
        self, job: str | None = None, *, after: int | None = None, limit: int | None = None, newest: bool = False
    ) -> RecordPage:
        path = "/records" if job is None else _path("jobs", job, "records")
        return self._wire.ask(
            RecordPage, "GET", path, params={"after": after, "limit": limit, "newest": newest or None}
        )

    def follow(
        self, job: str | None = None, *, after: int, patience: float = PATIENCE_SECONDS,
        lost: Callable[[EasyScaleError], None] | None = None,
    ) -> Iterator[RecordView]:  # fmt: skip
        """Records after `after` as they come, each once, without an end. A broken connection is taken up where it was
        left, for at most `patience` seconds; `lost` is told of it."""
        return iter(Follower(self._wire, job, after, patience, lost))

    # ------------------------------------------------------------------------------------ devices and people

    def upload(self, archive: Path) -> str:
        """Hand in a packed working directory; returns the sha256 by which a job names it."""

        def content() -> Iterator[bytes]:
            with archive.open("rb") as file:
                while part := file.read(1 << 20):
                    yield part

        headers = {"Content-Type": "application/gzip", "Content-Length": str(archive.stat().st_size)}
        answer = self._wire.ask(
            dict[str, str], "POST", "/snapshots", content=content, headers=headers, again=True, seconds=UPLOAD_SECONDS
        )
        return str(answer["snapshot"])

    def drain(self, device: str) -> ClusterView:
        return self._wire.ask(ClusterView, "POST", _path("devices", device, "drain"))

    def undrain(self, device: str) -> ClusterView:
        return self._wire.ask(ClusterView, "POST", _path("devices", device, "undrain"))

    def lost(self, device: str, why: str | None = None) -> ClusterView:
        return self._wire.ask(ClusterView, "POST", _path("devices", device, "lost"), params={"why": why})

    def lend(self, types: Mapping[str, int], devices: Sequence[str] = ()) -> ClusterView:
        wish = _wish(Lend, types=dict(types), devices=list(devices))
        return self._wire.ask(ClusterView, "POST", "/serving/lend", body=wish)

    def call_back(self, types: Mapping[str, int], devices: Sequence[str] = (), within: float = 5.0) -> ClusterView:
        wish = _wish(Lend, types=dict(types), devices=list(devices), within=within)
        return self._wire.ask(ClusterView, "POST", "/serving/call-back", body=wish)

    def teams(self) -> list[TeamIn]:
        return self._wire.ask(list[TeamIn], "GET", "/teams")

    def set_team(self, name: str, quota: int | None = None, borrow: bool = True) -> None:
        self._wire.send("POST", "/teams", body=_wish(TeamIn, name=name, quota=quota, borrow=borrow), again=True)

    def users(self) -> list[UserIn]:
        return self._wire.ask(list[UserIn], "GET", "/users")

    def set_user(self, name: str, team: str, role: Role = "user") -> None:
        self._wire.send("POST", "/users", body=_wish(UserIn, name=name, team=team, role=role))

    def remove_user(self, name: str) -> None:
        self._wire.send("DELETE", _path("users", name))

    def tokens(self) -> list[TokenView]:
        return self._wire.ask(list[TokenView], "GET", "/tokens")

    def make_token(self, user: str, note: str = "", days: float | None = None) -> NewToken:
        return self._wire.ask(NewToken, "POST", "/tokens", body=_wish(TokenIn, user=user, note=note, days=days))

    def revoke_token(self, token_id: str) -> None:
        self._wire.send("DELETE", _path("tokens", token_id))

    def audit(self, limit: int | None = None) -> list[AuditView]:
        return self._wire.ask(list[AuditView], "GET", "/audit", params={"limit": limit})


def _wish(kind: type[_Wish], **fields: Any) -> _Wish:
    """A body; what cannot be one is told as the service would."""
    try:
        return kind(**fields)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise UsageError(
            f"This cannot be asked for: {place} is {first.get('input')!r}.",
            f"{first['msg']}.",
            "choose another value; names have letters, digits, dots, - and _, at most 63.",
        ) from None


def _path(*parts: str) -> str:
    """Whatever a user typed as an id stays one part of the path."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
