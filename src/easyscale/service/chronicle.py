"""The log, what is folded from it, and the scheduler that hears of it: one after the other, in one order.

A record is durable before it has any effect. The scheduler is told by `bridge`, so that whoever has the log can let
another scheduler hear the same and see the same decisions (`replay`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from easyscale.core.cluster import DeviceKind
from easyscale.scheduler.loop import Change, Scheduler
from easyscale.scheduler.policies import make
from easyscale.scheduler.state import Cluster
from easyscale.service.bridge import events_of
from easyscale.service.choosing import Seating
from easyscale.service.errors import StoreError
from easyscale.service.ports import Log
from easyscale.service.records import News, Record
from easyscale.service.state import State

logger = logging.getLogger(__name__)

Plain = list[list[object]]


class Chronicle:
    """Fold the log, then `write` and `decide`. `state` and `scheduler` are for reading, under `lock`.

    Who looks before it writes holds `writing` (and takes it first): nothing changes meanwhile. `lock` is held for the
    moments of a change alone, so that readers wait neither for the disk nor for a policy that thinks.
    """

    def __init__(self, log: Log, policy: str, clock: Callable[[], float] = time.time) -> None:
        self.log, self.policy, self.clock = log, policy, clock
        self.writing, self.lock = threading.RLock(), threading.RLock()
        self.state = State()
        self.scheduler = Scheduler(Cluster(), make(policy))
        self.appended: Callable[[float, int], None] = lambda seconds, records: None
        self._listeners: list[Callable[[], None]] = []
        self.trouble: tuple[float, str] | None = None  # since when nothing can be written, and why
        self._doubt = False  # a write failed, and may have been done all the same
        self._unheard = False  # the policy said something that was not written down
        for record in log.records():
            self._fold(record)

    def begin(self, policy: str, version: str) -> None:
        """A service starts: its policy looks at the cluster as it stands, with no memory of its own."""
        self.write([self.news("service-started", version=version, policy=policy)])

    def news(self, what: str, about: str | None = None, /, **body: object) -> News:
        return News(time=self.clock(), kind=what, job=about, body=body)

    def write(self, news: Sequence[News], key: tuple[str, str, Sequence[str]] | None = None) -> list[Record]:
        """Durable, then folded. All or nothing."""
        with self.writing:
            self._catch_up()
            began = time.perf_counter()
            try:
                records = self.log.append(news, key)
            except StoreError as problem:
                self._doubt = True
                self.trouble = self.trouble or (self.clock(), problem.what)
                raise
            self.appended(time.perf_counter() - began, len(records))
            with self.lock:
                for record in records:
                    self._fold(record)
                listeners = list(self._listeners)
        for wake in listeners:
            try:
                wake()
            except Exception:  # it is written down, whoever cannot hear of it
                logger.exception("a listener failed")
        return records

    def recover(self) -> None:
        """If nothing could be written before: can it now?"""
        with self.writing:
            if self.trouble is not None:
                since, why = self.trouble
                self.write([self.news("store-failed", since=since, why=why)])
                self.trouble = None

    def _catch_up(self) -> None:
        """A store that was lost in the moment of a write may have done it."""
        if self._doubt:
            missed = list(self.log.records(self.state.seq))
            with self.lock:
                for record in missed:
                    self._fold(record)
            self._doubt = False

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self.lock:
            self._listeners.append(wake)

        def end() -> None:
            with self.lock:
                if wake in self._listeners:
                    self._listeners.remove(wake)

        return end

    def decide(self) -> list[Change] | None:
        """Ask the policy if it is time, and write down what it says. None: it was not asked.

        A policy that failed, or that was not heard because nothing could be written, begins anew the next time.
        """
        with self.writing:
            self._catch_up()
            if self._unheard:
                self.write([self.news("policy-set", policy=self.policy)])
                self._unheard = False
            now = self.clock()
            at = self.scheduler.next_decision(now)
            due = at is not None and at <= now
            self._unheard = due  # until it is written down
            changes = self.scheduler.decide(now) if due else []
            news = [self.news("decided", at=now, changes=plain(changes))] if due else []
            news += self._named(changes)
            if news:
                self.write(news)
            self._unheard = False
            return changes if due else None

    def _named(self, changes: Sequence[Change]) -> list[News]:
        """Which devices, by name. Who keeps as many, but sits on one that is wanted back, gets another one for it."""
        wanted_back = {d.job: None for d in self.state.devices.values() if d.job is not None and d.standing != "in"}
        if not changes and not wanted_back:
            return []
        seating = Seating(self.state.devices.values())
        given = [(change.job, seating.give(change.job, change.devices)) for change in changes]
        for job in wanted_back:
            if seating.sits_on_wanted(job) and (moved := seating.moved(job)) is not None:
                given.append((job, moved))
        return [self.news("job-allocated", job, devices=list(devices)) for job, devices in given]

    def _fold(self, record: Record) -> None:
        hear(self.scheduler, self.state, record)
        if record.kind in ("service-started", "policy-set"):
            self.scheduler = afresh(self.scheduler, str(record.body["policy"]))
        self.state.apply(record)


def hear(scheduler: Scheduler, state: State, record: Record) -> None:
    if record.kind == "device-added" and record.body["kind"] not in scheduler.cluster.kinds:
        kind, memory = str(record.body["kind"]), record.body.get("memory_gb")
        gigabytes = float("inf") if memory is None else float(memory)
        scheduler.cluster.kinds[kind] = DeviceKind(name=kind, memory_gb=gigabytes)
    for event in events_of(state, record):
        scheduler.take(event)


def afresh(scheduler: Scheduler, policy: str) -> Scheduler:
    """The cluster stays; the policy begins anew, and every job is news to it."""
    cluster = scheduler.cluster
    cluster.touched = dict.fromkeys(cluster.jobs)
    return Scheduler(cluster, make(policy))


def plain(changes: Iterable[Change]) -> Plain:
    return [[change.job, dict(change.before), dict(change.devices)] for change in changes]


# ------------------------------------------------------------------------------------------ replay


@dataclass(frozen=True, slots=True)
class Difference:
    seq: int
    live: object
    replayed: Plain


def replay(records: Iterable[Record]) -> tuple[int, list[Difference]]:
    """Let another scheduler hear what a live one heard. How many decisions there were, and which differ."""
    state, scheduler = State(), Scheduler(Cluster(), make("fifo"))
    count, different = 0, []
    for record in records:
        if record.kind == "decided":
            count += 1
            found = plain(scheduler.decide(float(record.body["at"])))
            if found != record.body["changes"]:
                different.append(Difference(record.seq, record.body["changes"], found))
        hear(scheduler, state, record)
        if record.kind in ("service-started", "policy-set"):
            scheduler = afresh(scheduler, str(record.body["policy"]))
        state.apply(record)
    return count, different
