"""The state of a cluster: what was told, folded. Policies read it; `apply` alone writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from easyscale.core.cluster import DeviceKind, Devices, Needs, total
from easyscale.planner.speed import Speed


@runtime_checkable
class BatchSpeed(Speed, Protocol):
    """The speed of a job whose global batch may be scaled by a factor."""

    def rate_at(self, devices: Devices, batch: float, nodes: int | None = None) -> float:
        """Steps of the ORIGINAL batch a second when each is `batch` times as large; `rate` is this at 1.0."""
        ...


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that is in the cluster, waiting or running."""

    id: str
    needs: Needs
    speed: Speed
    submitted: float
    work: float | None = None  # global steps in all
    requested: int | None = None  # devices that its user asked for, which policies without elasticity give it
    kind: str = ""  # the type that its user asked for
    limit: int | None = None  # its master wants no more workers than that for now
    done: float = 0.0  # global steps, as of `told`
    told: float = 0.0
    resumes: float = 0.0  # when its last switch is expected to be over; it makes no progress before
    devices: dict[str, int] = field(default_factory=dict)  # that it holds
    since: float = 0.0  # when it came to hold these
    started: float | None = None  # when it first held any
    attained: float = 0.0  # device-seconds until `since`
    switches: int = 0
    switch_seconds: float = 1.0  # what its next switch is expected to cost
    start_seconds: float | None = None  # and a start where it holds nothing; None: as much
    batch: float = 1.0  # factor of its global batch; other than 1 only where it allowed that

    @property
    def most(self) -> int:
        """Workers that it can use now: its maximum, or what its master wants, but never less than it can start with."""
        most = self.needs.most
        return most if self.limit is None else max(self.needs.least, min(most, self.limit))

    @property
    def asked(self) -> int:
        """How many devices a policy without elasticity gives it: what its user asked for, as far as it can use that."""
        return max(self.needs.least, min(self.needs.most, self.requested or self.needs.most))

    def remaining(self, now: float) -> float | None:
        """Global steps to go, by what it has told and its speed since."""
        if self.work is None:
            return None
        return max(0.0, self.work - self.progress(now))

    def progress(self, now: float) -> float:
        """Global steps done, by what it has told and its speed since."""
        seconds = now - max(self.told, self.resumes)
        if seconds <= 0.0 or not self.devices:
            return self.done
        return self.done + self.rate() * seconds

    def rate(self) -> float:
        """Global steps a second on what it holds; with a scaled batch, counted in steps of the original one."""
        if self.batch != 1.0 and isinstance(self.speed, BatchSpeed):
            return self.speed.rate_at(self.devices, self.batch)
        return self.speed.rate(self.devices)

    def attained_by(self, now: float) -> float:
        """Device-seconds that it has had."""
        return self.attained + total(self.devices) * (now - self.since)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """`capacity` is what training may use now: devices of its own and those that are lent to it."""

    now: float = 0.0
    kinds: dict[str, DeviceKind] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)  # of the capacity, what a service may call back
    called: list[tuple[float, dict[str, int]]] = field(default_factory=list)  # called back and still held: (by, what)
    jobs: dict[str, Job] = field(default_factory=dict)  # in the order of their submission
    quotas: dict[str, int] = field(default_factory=dict)  # devices by tenant; who is not in it has no limit
    entitled: dict[str, tuple[int, bool]] = field(default_factory=dict)  # by tenant: (devices, may borrow more)
    held: dict[str, int] = field(default_factory=dict)  # the sum of what the jobs hold
    by_tenant: dict[str, int] = field(default_factory=dict)  # the same, by whose jobs they are
    demand: int = 0  # devices that the users of all jobs asked for
    binds: bool = True  # D0 and D1 jobs stay on the type that they began on: another one has other bits
    priorities: dict[int, int] = field(default_factory=dict)  # how many jobs of each priority there are
    touched: dict[str, None] = field(default_factory=dict)  # jobs with news since the last decision, in their order

    def used(self) -> dict[str, int]:
        return dict(self.held)

    def free(self) -> Devices:
        return {kind: left for kind, count in self.capacity.items() if (left := count - self.held.get(kind, 0)) > 0}

    def over(self) -> dict[str, int]:
        """Devices that jobs still hold and that are no longer ours: called back, to be given up."""
        return {kind: more for kind, count in self.held.items() if (more := count - self.capacity.get(kind, 0)) > 0}

    def over_quota(self) -> bool:
        """Whether a tenant holds more than it may: its quota was lowered, or what it had borrowed is wanted back."""
        return any(self.by_tenant.get(tenant, 0) > quota for tenant, quota in self.quotas.items())
