"""Random lives of a cluster, for property tests: events that could happen, and speeds with simple shapes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from easyscale.core.cluster import DeviceKind, Devices, Needs, minus, total
from easyscale.scheduler.events import (
    Allocated,
    DevicesAdded,
    DevicesCalledBack,
    DevicesLent,
    DevicesLost,
    Event,
    JobChanged,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobProposed,
    JobSubmitted,
    QuotaSet,
)
from easyscale.scheduler.loop import Change, Scheduler
from easyscale.scheduler.policy import Policy
from easyscale.scheduler.rules import check_job
from easyscale.scheduler.state import Cluster

KINDS = {
    "a": DeviceKind(name="a", memory_gb=32, per_node=4),
    "b": DeviceKind(name="b", memory_gb=16, per_node=4),
    "c": DeviceKind(name="c", memory_gb=16, per_node=2),
}


@dataclass(frozen=True, eq=False)
class Power:
    """Devices of a type are worth so much each; n of them bring n ** power."""

    worth: dict[str, float]
    power: float
    level: str = "D2"

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        if self.level != "D2" and sum(n > 0 for n in devices.values()) > 1:
            return 0.0
        return float(sum(self.worth[kind] * n for kind, n in devices.items()) ** self.power)


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    ests = draw(st.integers(1, 8))
    gang = draw(st.sampled_from([None, None, None, 1, 4]))
    least = draw(st.integers(1, min(3, ests))) if gang is None else 1
    return Needs(
        ests=ests,
        min_workers=least,
        max_workers=draw(st.none() | st.integers(least, 8)),
        level=draw(st.sampled_from(["D1", "D2"])),
        types=draw(st.sampled_from([None, None, ("a",), ("b", "c")])),
        memory_gb=draw(st.sampled_from([0.0, 0.0, 20.0])),
        gang=gang,
        priority=draw(st.sampled_from([0, 0, 0, 1, 2])),
        tenant=draw(st.sampled_from(["", "x", "y"])),
        batch=draw(st.sampled_from([None, (0.5, 4.0)])),
    )


@st.composite
def speeds(draw: st.DrawFn) -> Power:
    worth = {kind: draw(st.sampled_from([1.0, 0.5, 0.3])) for kind in KINDS}
    return Power(worth, draw(st.sampled_from([1.0, 0.8, 0.5])))


@dataclass
class Life:
    """A scheduler and what happens to it. Whatever would contradict its state is left out."""

    scheduler: Scheduler
    decisions: list[list[Change]]

    @classmethod
    def under(cls, policy: Policy, quotas: dict[str, int] | None = None) -> Life:
        cluster = Cluster(kinds=dict(KINDS), capacity={"a": 4, "b": 4, "c": 2}, quotas=quotas or {})
        return cls(Scheduler(cluster, policy), [])

    @property
    def cluster(self) -> Cluster:
        return self.scheduler.cluster

    def happen(self, event: Event) -> None:
        self.scheduler.take(event)

    def decide(self, now: float) -> list[Change]:
        changes = self.scheduler.decide(now)
        for change in changes:
            assert dict(change.before) == self.cluster.jobs[change.job].devices
            grown = {kind: n for kind, n in minus(change.devices, change.before).items() if n > 0}
            assert all(n <= self.cluster.free().get(kind, 0) for kind, n in grown.items()), "its devices are not free"
            self.happen(Allocated(time=now, job=change.job, devices=change.devices, batch=change.batch))
        assert not self.cluster.over(), "carried out, nothing is held that is not there"
        for job in self.cluster.jobs.values():
            check_job(self.cluster, job, job.devices)
        for tenant, quota in self.cluster.quotas.items():
            assert self.cluster.by_tenant.get(tenant, 0) <= quota, tenant
        self.decisions.append(changes)
        return changes


Deed = tuple[str, float, object, object]
deeds: st.SearchStrategy[list[Deed]] = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([0.0, 1.0, 30.0, 400.0]), needs(), speeds()),
        st.tuples(st.just("submit"), st.sampled_from([0.0, 1.0, 30.0, 400.0]), needs(), speeds()),
        st.tuples(
            st.sampled_from(["finish", "fail", "progress", "propose", "change", "quota"]),
            st.sampled_from([0.0, 5.0, 90.0]), st.integers(0, 20), st.integers(0, 4),
        ),
        st.tuples(
            st.sampled_from(["add", "lend", "call", "lose"]), st.sampled_from([0.0, 5.0, 90.0]),
            st.sampled_from(sorted(KINDS)), st.integers(1, 3),
        ),
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


def event_of(cluster: Cluster, deed: Deed, now: float, number: int) -> Event | None:
    """The event, if it can happen in this cluster."""
    what, _, one, two = deed
    if what == "submit":
        assert isinstance(one, Needs)
        assert isinstance(two, Power)
        known = number % 3 != 0
        return JobSubmitted(
            time=now, job=f"j{number}", needs=one, speed=two, work=50.0 * (1 + number % 7) if known else None,
            requested=1 + number % 5, kind=("", "a", "b")[number % 3],
        )  # fmt: skip
    if what in ("finish", "fail", "progress", "propose", "change", "quota"):
        assert isinstance(one, int)
        assert isinstance(two, int)
        if what == "quota":
            return QuotaSet(time=now, tenant=("x", "y")[one % 2], quota=two, borrow=one % 3 > 0)
        names = list(cluster.jobs)
        if not names:
            return None
        job = cluster.jobs[names[one % len(names)]]
        if what == "finish":
            return JobFinished(time=now, job=job.id)
        if what == "fail":
            return JobFailed(time=now, job=job.id, why="it broke")
        if what == "change":
            if job.needs.gang is not None:
                return JobChanged(time=now, job=job.id, min_workers=1, max_workers=1 + two)
            least = 1 + two % job.needs.ests
            return JobChanged(time=now, job=job.id, min_workers=least, max_workers=max(least, one))
        if what == "progress":
            return JobProgressed(time=now, job=job.id, done=job.progress(now), switch_seconds=float(two))
        return JobProposed(time=now, job=job.id, speed=job.speed, limit=two or None)
    assert isinstance(one, str)
    assert isinstance(two, int)
    if what == "add":
        return DevicesAdded(time=now, devices={one: two})
    if what == "lend":
        return DevicesLent(time=now, devices={one: two})
    if what == "call":
        two = min(two, cluster.lent.get(one, 0))
        return DevicesCalledBack(time=now, devices={one: two}, by=now + 5.0) if two else None
    return lost(cluster, one, min(two, cluster.capacity.get(one, 0)), now)


def lost(cluster: Cluster, kind: str, count: int, now: float) -> DevicesLost | None:
    """Free devices first, then those of the first jobs."""
    if not count:
        return None
    held: dict[str, Devices] = {}
    left = count - max(0, cluster.capacity[kind] - cluster.held.get(kind, 0))
    for job in cluster.jobs.values():
        gone = min(left, job.devices.get(kind, 0))
        if gone > 0:
            held[job.id], left = {kind: gone}, left - gone
    return DevicesLost(time=now, devices={kind: count}, held=held)


def live(life: Life, stream: list[Deed]) -> None:
    """All of it, with a decision after each event."""
    now = 0.0
    for number, deed in enumerate(stream):
        now += deed[1]
        event = event_of(life.cluster, deed, now, number)
        if event is not None:
            life.happen(event)
        life.decide(now)
        assert total(life.cluster.held) == sum(total(job.devices) for job in life.cluster.jobs.values())
