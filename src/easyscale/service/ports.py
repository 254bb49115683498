"""What the parts of the service ask of one another: the desk (all that HTTP needs), the store, the fleet of masters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from easyscale.core.cluster import Devices, Slot
from easyscale.core.requests import JobStatus
from easyscale.service.devices import Found
from easyscale.service.models import (
    AuditView,
    ClusterView,
    Comparison,
    JobPage,
    JobSpec,
    JobView,
    Lend,
    LogFile,
    LogPart,
    NewToken,
    RecordPage,
    Role,
    ScaleWish,
    Series,
    Submitted,
    TeamIn,
    Timeline,
    TokenView,
    UserIn,
)
from easyscale.service.records import News, Record

Order = Literal["submitted", "-submitted", "name", "state", "priority"]


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks."""

    user: str
    team: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    states: tuple[str, ...] = ()
    team: str | None = None
    user: str | None = None
    text: str | None = None  # in the name or the id
    order: Order = "-submitted"
    limit: int = 100
    offset: int = 0


class Desk(Protocol):
    """The service as HTTP sees it. Who may ask is checked there; what cannot be is an EasyScaleError of three parts.

    An unknown job or device is a `NotFoundError`, a wish that does not fit the state of things a `ConflictError`
    (both in `service/errors.py`). All methods may be called from any thread and return soon.
    """

    policy: str
    backend: str
    started: float

    def ready(self) -> str | None:
        """None: all is well. Else what is wrong, in a sentence."""

    def submit(self, spec: JobSpec, who: Person, key: str | None = None) -> Submitted: ...
    def jobs(self, query: JobQuery) -> JobPage: ...
    def job(self, job: str) -> JobView: ...
    def scale(self, job: str, wish: ScaleWish, who: Person) -> JobView: ...
    def pause(self, job: str, who: Person) -> JobView: ...
    def resume(self, job: str, who: Person) -> JobView: ...
    def cancel(self, job: str, who: Person) -> JobView: ...
    def logs(self, job: str) -> list[LogFile]: ...
    def log(
        self, job: str, run: int, worker: int, stream: Literal["out", "err"], start: int, most: int
    ) -> LogPart: ...
    def series(self, job: str, most: int) -> Series: ...
    def records(self, after: int, limit: int, job: str | None = None, newest: bool = False) -> RecordPage:
        """After a seq, the oldest first. `newest`: the last `limit` of all (still the oldest first)."""

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """`wake` is called from another thread after each new record. Returns what ends that."""

    def cluster(self) -> ClusterView: ...
    def timeline(self, since: float, until: float) -> Timeline: ...
    def drain(self, device: str, who: Person) -> ClusterView: ...
    def undrain(self, device: str, who: Person) -> ClusterView: ...
    def lose(self, device: str, why: str, who: Person) -> ClusterView: ...
    def lend(self, wish: Lend, who: Person) -> ClusterView: ...
    def call_back(self, wish: Lend, who: Person) -> ClusterView: ...
    def set_team(self, name: str, quota: int | None, borrow: bool, who: Person) -> None: ...
    def snapshot(self, archive: Path, who: Person) -> str:
        """Take an uploaded tar in; returns its sha256, by which a job names it."""

    def what_if(self, policies: Sequence[str]) -> Comparison: ...


class PeoplePort(Protocol):
    """Who there is. Same errors as the desk's. All methods may be called from any thread."""

    def authenticate(self, token: str) -> Person | None:
        """None: no such token, or it is revoked or too old, or its user is gone. Takes as long in each case."""

    def add_user(self, name: str, team: str, role: Role) -> UserIn: ...
    def remove_user(self, name: str) -> None: ...
    def users(self) -> list[UserIn]: ...
    def add_team(self, name: str, quota: int | None, borrow: bool) -> TeamIn:
        """A team that there is gets the new figures."""

    def teams(self) -> list[TeamIn]: ...
    def add_token(self, user: str, note: str, days: float | None) -> NewToken: ...
    def revoke(self, id: str, /) -> None: ...
    def tokens(self) -> list[TokenView]: ...
    def audit(self, user: str, action: str, target: str, *, ok: bool, address: str, detail: str) -> None: ...
    def audit_list(self, limit: int) -> list[AuditView]:
        """The newest first."""


class Log(Protocol):
    """The append-only log."""

    def append(self, news: Sequence[News], key: tuple[str, str, Sequence[str]] | None = None) -> list[Record]:
        """Durable when it returns, all or nothing. `key`: (user, idempotency key, jobs) of a submission, in the same
        transaction; `KeyUsedError` (with the jobs of then) if it was used before."""

    def records(
        self, after: int = 0, limit: int | None = None, job: str | None = None, newest: bool = False
    ) -> Iterator[Record]: ...
    def last(self) -> int: ...
    def used_key(self, user: str, key: str) -> list[str] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All that a job's master is started with. `run` counts from 1; the same (job, run) is started once at most."""

    job: str
    run: int
    spec: JobSpec
    workdir: Path
    checkpoint_dir: Path
    slots: tuple[Slot, ...]
    kinds: tuple[str, ...] = ()  # the types of devices that there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How a run is. `absent`: it was never begun. `gone`: master and workers ended without a word."""

    state: Literal["absent", "starting", "running", "masterless", "ended", "gone"]
    status: JobStatus | None = None  # of a master that answered
    exit_code: int | None = None
    steps: int = 0
    fingerprint: str | None = None
    error: str | None = None


class Fleet(Protocol):
    """The masters of all jobs, wherever they run. They live on without the service. Calls return soon or time out."""

    name: str

    def launch(self, launch: Launch) -> None:
        """Begin the run; nothing happens where it has begun."""

    def place(self, job: str, run: int, slots: Sequence[Slot]) -> None:
        """The run is to use exactly these devices from now on."""

    def stop(self, job: str, run: int, *, now: bool = False) -> None:
        """End with a checkpoint; `now`: without, even if its master does not answer. A run that has not begun never
        will."""

    def look(self, job: str, run: int, events: int = 50) -> Sight: ...
    def adopt(self, job: str, run: int) -> None:
        """Start a master for workers whose master died."""

    def folder(self, job: str, run: int) -> Path:
        """Where its logs and metrics lie."""

    def stock(self) -> list[Found] | None:
        """The devices that are there now; None: they do not come and go by themselves."""

    def want(self, held: Devices, more: Devices) -> None:
        """Beside what jobs hold they could use more: whoever can bring devices may."""

    def close(self) -> None:
        """The service leaves; the masters stay."""
