"""Training on what an online service leaves idle. The service says what it needs; devices are lent and called back.

A curve of demand known beforehand or a live signal are the same here: `signal` is told a time and what is needed from
then on, and answers with events for the scheduler. The service's head-room is never lent: it is there for the seconds
that a call takes. `Ledger` and rules need no word of this: what is called back is no longer capacity, so the next
decision, which the loop asks for at once, gives it up. When it was carried out, `settle` says which calls that answers.
Live and simulated clusters both ask here, and what was gained and what came too late is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from easyscale.core.cluster import Devices, total
from easyscale.core.errors import UsageError
from easyscale.scheduler.events import DevicesCalledBack, DevicesLent
from easyscale.scheduler.state import Cluster

LIMIT = 5.0  # s; a switch takes one global step and a transfer, so this leaves room for both


@dataclass(slots=True)
class Figures:
    """What lending brought, in device-seconds, and what it broke."""

    owned: float = 0.0
    needed: float = 0.0  # by the service itself
    trained: float = 0.0  # on lent devices
    short: float = 0.0  # that the service needed while training still held them
    calls: int = 0
    slowest: float = 0.0  # seconds until a call was answered in full
    violations: int = 0  # calls that were not answered within the limit

    @property
    def utilization(self) -> tuple[float, float]:
        """Of the service's devices: without training, and with it."""
        if self.owned <= 0.0:
            return 0.0, 0.0
        return self.needed / self.owned, (self.needed + self.trained) / self.owned


@dataclass(slots=True)
class Call:
    """Devices of one type that the service wants back."""

    asked: float
    by: float
    kind: str
    count: int
    in_use: bool  # some job held them, and leaves them at a switch
    late: bool = False


@dataclass(slots=True, kw_only=True)
class Colocation:
    """A service that owns devices. `headroom`: of each type, idle devices that it keeps to itself."""

    owned: Devices
    headroom: Devices = field(default_factory=dict)
    limit: float = LIMIT
    figures: Figures = field(default_factory=Figures)
    lent: dict[str, int] = field(default_factory=dict)
    _needs: dict[str, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)  # that are not answered yet, the oldest first
    _now: float | None = None

    def __post_init__(self) -> None:
        for kind, kept in self.headroom.items():
            if not 0 <= kept <= self.owned.get(kind, 0):
                raise UsageError(
                    f"a head-room of {kept} {kind} for a service with {self.owned.get(kind, 0)}.",
                    "what a service keeps free is part of what it owns.",
                    "ask for less head-room, or give the service more devices.",
                )

    def signal(self, now: float, needs: Devices, cluster: Cluster) -> list[DevicesLent | DevicesCalledBack]:
        """From now on the service needs these. What the scheduler is to be told."""
        self.pass_to(now, cluster)
        self._needs = {kind: min(needs.get(kind, 0), count) for kind, count in self.owned.items()}
        more, fewer = dict[str, int](), dict[str, int]()
        for kind, count in self.owned.items():
            spare = max(0, count - self._needs[kind] - self.headroom.get(kind, 0))
            change = spare - self.lent.get(kind, 0)
            if change > 0:
                # what is on its way back cannot be lent again before it is there
                change = max(0, change - self._outstanding(kind))
                if change:
                    more[kind] = change
            elif change < 0:
                fewer[kind] = -change
            self.lent[kind] = self.lent.get(kind, 0) + change
        events: list[DevicesLent | DevicesCalledBack] = []
        if fewer:
            events.append(DevicesCalledBack(time=now, devices=fewer, by=now + self.limit))
            for kind, count in fewer.items():
                in_use = cluster.held.get(kind, 0) > cluster.capacity.get(kind, 0) - count
                self.calls.append(Call(now, now + self.limit, kind, count, in_use))
                self.figures.calls += 1
        if more:
            events.append(DevicesLent(time=now, devices=more))
        return events

    def settle(self, now: float, cluster: Cluster, leaving: float = 0.0) -> list[Call]:
        """The calls that are answered by now. `leaving`: seconds until a job has left devices that it gave up."""
        self.pass_to(now, cluster)
        over, answered = cluster.over(), list[Call]()
        for call in reversed(self.calls):  # the latest wait for what is still held
            if (still := over.get(call.kind, 0)) > 0:
                over[call.kind] = still - call.count
            else:
                answered.append(call)
        answered.reverse()
        for call in answered:
            self.calls.remove(call)
            taken = now - call.asked + (leaving if call.in_use else 0.0)
            self.figures.slowest = max(self.figures.slowest, taken)
            if taken > self.limit:
                self._break(call)
        return answered

    def pass_to(self, now: float, cluster: Cluster) -> None:
        """Time passes: call it before events of that time are folded, as often as things change."""
        if self._now is not None and (seconds := now - self._now) > 0.0:
            self._count(seconds, cluster)
            for call in self.calls:
                if now > call.by:
                    self._break(call)
        self._now = now

    def _count(self, seconds: float, cluster: Cluster) -> None:
        figures = self.figures
        figures.owned += total(self.owned) * seconds
        figures.needed += total(self._needs) * seconds
        for kind, lent in self.lent.items():
            own = cluster.capacity.get(kind, 0) - cluster.lent.get(kind, 0)  # training fills these first
            figures.trained += max(0, min(lent, cluster.held.get(kind, 0) - own)) * seconds
            free = self.owned.get(kind, 0) - lent - self._outstanding(kind)
            figures.short += max(0, self._needs.get(kind, 0) - free) * seconds

    def _break(self, call: Call) -> None:
        """Too late, and counted once."""
        self.figures.violations += not call.late
        call.late = True

    def _outstanding(self, kind: str) -> int:
        return sum(call.count for call in self.calls if call.kind == kind)
