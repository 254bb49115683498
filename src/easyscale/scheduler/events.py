"""What happens in a cluster, as facts with their time. The state is folded from these and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.cluster import Devices, Needs
from easyscale.planner.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    time: float
    job: str
    needs: Needs
    speed: Speed  # measured or expected; the job's master improves it with `JobProposed`
    work: float | None = None  # global steps in all, where the script says so (es.epochs); None: nobody knows
    requested: int | None = None  # devices that its user asked for; None: as many as it can use
    kind: str = ""  # the type that its user asked for; empty: no matter
    switch_seconds: float | None = None  # what a switch is expected to cost it, before one was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed:
    time: float
    job: str
    done: float  # global steps completed in all
    switch_seconds: float | None = None  # what a switch costs it, where one was measured since
    work: float | None = None  # global steps in all, where it has learned that


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProposed:
    """The job's master has a new view of what devices would bring. `limit`: it wants no more than that for now."""

    time: float
    job: str
    speed: Speed
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """Its user wants other limits. A type that it is bound to stays."""

    time: float
    job: str
    min_workers: int
    max_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """It leaves: it has ended, or its user has paused it."""

    time: float
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    time: float
    job: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesAdded:
    time: float
    devices: Devices


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLost:
    """Gone without notice (a machine died, a spot machine was taken). `held`: by which jobs, how many."""

    time: float
    devices: Devices
    held: dict[str, Devices]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLent:
    """An online service does not need these for now."""

    time: float
    devices: Devices


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesCalledBack:
    """The service wants these back by `by`."""

    time: float
    devices: Devices
    by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A decision was carried out: the job holds these devices from now on (none: it waits, with its state kept)."""

    time: float
    job: str
    devices: Devices
    batch: float = 1.0  # factor of its global batch from now on


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSet:
    """The devices that a tenant is entitled to; None: no limit. `borrow`: it may hold more while others do not."""

    time: float
    tenant: str
    quota: int | None
    borrow: bool = True


Event = (
    JobSubmitted | JobProgressed | JobProposed | JobChanged | JobFinished | JobFailed | QuotaSet
    | DevicesAdded | DevicesLost | DevicesLent | DevicesCalledBack | Allocated
)  # fmt: skip
