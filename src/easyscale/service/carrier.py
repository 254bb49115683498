"""Carries out what was decided: brings each job's master to use the devices that the job is assigned.

It looks at what is, not at what it did: after any crash the same look leads to the same end. A device goes to its next
job when the processes of the one before have left it. Calls to masters run on threads, one at a time for each job.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from easyscale.core.cluster import Slot
from easyscale.core.errors import EasyScaleError
from easyscale.service.ports import Fleet, Launch, Sight
from easyscale.service.state import Job, State

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks at a job; more where there are many
LOOKS_A_SECOND = 200.0
PATIENCE = 10.0  # seconds that a job waits for all its devices before it begins on those that are free
AGAIN = 2.0  # seconds before a call that failed is made again; twice as long each time
LONGEST_AGAIN = 60.0
ADOPT_AGAIN = 15.0
RESTORE = 5.0  # seconds after which a worker that was lost is asked for again


@dataclass(slots=True)
class Care:
    """What is known of a run and not in the log: it is found out again after a restart."""

    run: int
    commanded: tuple[str, ...] | None = None  # what its master was told last; None: not known yet
    uses: frozenset[str] = frozenset()  # devices that its processes sit on
    sight: Sight | None = None
    call: Future[object] | None = None
    look: Future[Sight] | None = None
    next_look: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    stopping: bool = False
    wanted_since: float | None = None  # devices that it waits for are still in use
    short_since: float | None = None  # it runs on fewer devices than it was told


@dataclass
class Carrier:
    """`carry` in each round of the loop. `launch_of` says what a job is started with."""

    fleet: Fleet
    launch_of: Callable[[Job, tuple[Slot, ...]], Launch]
    begin: Callable[[Sequence[tuple[Job, int]]], None]  # write down that these runs begin
    clock: Callable[[], float] = time.monotonic
    cares: dict[str, Care] = field(default_factory=dict)
    _began: float | None = None  # when it first met a run that it had not seen
    _sitters: Counter[str] = field(default_factory=Counter)  # by device, in this round: how many runs use it
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16, "carry"))

    # ------------------------------------------------------------------------------------ looking

    def look(self, state: State) -> list[tuple[Job, Sight]]:
        """What is new of the active runs. Begins the next looks; never waits."""
        now, found = self.clock(), []
        active = [job for job in state.busy.values() if job.active]
        pause = max(LOOK_SECONDS, len(active) / LOOKS_A_SECOND)
        for job in active:
            care = self.care(job)
            if care.look is not None and care.look.done():
                future, care.look = care.look, None
                try:
                    care.sight = future.result()
                except (EasyScaleError, OSError) as problem:
                    logger.debug("no look at %s: %s", job.id, problem)
                else:
                    self._learn(care, care.sight)
                    found.append((job, care.sight))
                care.next_look = now + pause
            if care.look is None and now >= care.next_look:
                care.look = self._pool.submit(self.fleet.look, job.id, job.run)
        return found

    def care(self, job: Job) -> Care:
        care = self.cares.get(job.id)
        if care is None or care.run != job.run:
            care = self.cares[job.id] = Care(job.run)
        return care

    def forget(self, job: Job) -> None:
        """The run has ended: its devices are free."""
        self.cares.pop(job.id, None)

    def in_use(self) -> set[str]:
        return {device for care in self.cares.values() for device in care.uses}

    def _learn(self, care: Care, sight: Sight) -> None:
        status = sight.status
        if status is not None:
            here = frozenset(status.held)
            if care.commanded is None:
                care.commanded = tuple(sorted(here))
            care.uses = here | (frozenset(care.commanded) if care.call is not None or not here else frozenset())
        elif sight.state in ("ended", "gone", "absent"):
            care.uses = frozenset()

    # ------------------------------------------------------------------------------------ acting

    def carry(self, state: State) -> None:
        now = self.clock()
        for care in self.cares.values():
            self._answered(care, now)
        self._sitters = Counter(device for care in self.cares.values() for device in care.uses)
        blocked = self._is_blind(state, now)
        ready = []
        for job in state.busy.values():
            if job.active:
                self._steer(state, job, now, blocked)
            elif job.wish == "run" and job.assigned and not blocked and (begins := self._startable(job, now)):
                ready.append((job, begins))
        if ready:
            self._start(state, ready)

    def _is_blind(self, state: State, now: float) -> bool:
        """After a start of the service nobody gets a device before all runs were seen once, or were silent for long."""
        cares = (self.care(job) for job in state.busy.values() if job.active)
        if all(care.sight is not None or care.uses for care in cares):
            return False
        if self._began is None:
            self._began = now
        return now - self._began < PATIENCE

    def _steer(self, state: State, job: Job, now: float, blocked: bool) -> None:
        care = self.care(job)
        sight = care.sight
        if care.call is not None or now < care.not_before or sight is None:
            return
        if sight.state == "absent":
            if job.wish == "run" and job.assigned and not blocked:
                slots = self._slots(state, job)
                self._call(care, self.fleet.launch, self.launch_of(job, slots))
                care.commanded = job.assigned
                self._sit(care, frozenset(job.assigned))
        elif sight.state == "masterless":
            self._call(care, self.fleet.adopt, job.id, job.run)
            care.not_before = now + ADOPT_AGAIN
        elif sight.state == "running" and sight.status is not None:
            if job.wish != "run" or not job.assigned:
                if not care.stopping:
                    care.stopping = True
                    self._call(care, self.fleet.stop, job.id, job.run)
            elif not blocked and not care.stopping:
                self._place(state, job, care, now)

    def _place(self, state: State, job: Job, care: Care, now: float) -> None:
        target = self._reachable(job, care, now)
        if target is None or not target:
            return
        if set(target) == set(care.commanded or ()):
            if not self._is_short(care, now):
                return
            care.not_before = now + RESTORE
        slots = tuple(state.devices[device].slot for device in target)
        care.commanded = target
        self._sit(care, care.uses | frozenset(target))
        self._call(care, self.fleet.place, job.id, job.run, slots)

    def _startable(self, job: Job, now: float) -> Care | None:
        """Of a job whose devices can be had: they are its own from now on."""
        care = self.cares.get(job.id)
        if care is None or care.run != job.run + 1:
            care = self.cares[job.id] = Care(job.run + 1)
        if now < care.not_before:
            return None
        target = self._reachable(job, care, now)
        if target is None or len(target) < job.needs().least:
            return None
        care.commanded = target
        self._sit(care, frozenset(target))
        return care

    def _start(self, state: State, ready: list[tuple[Job, Care]]) -> None:
        """Many at once are written down at once: each time costs a write to the disk."""
        try:
            self.begin([(job, care.run) for job, care in ready])
        except EasyScaleError:
            for job, _ in ready:
                del self.cares[job.id]
            raise
        for job, care in ready:
            slots = tuple(state.devices[device].slot for device in care.commanded or ())
            self._call(care, self.fleet.launch, self.launch_of(job, slots))

    def _reachable(self, job: Job, care: Care, now: float) -> tuple[str, ...] | None:
        """Its devices that nobody else sits on; None: wait a little for the others."""
        free = tuple(device for device in job.assigned if self._sitters[device] <= (device in care.uses))
        if len(free) == len(job.assigned):
            care.wanted_since = None
            return free
        if care.wanted_since is None:
            care.wanted_since = now
        return free if now - care.wanted_since > PATIENCE else None

    def _sit(self, care: Care, devices: frozenset[str]) -> None:
        self._sitters.subtract(care.uses - devices)
        self._sitters.update(devices - care.uses)
        care.uses = devices

    def _is_short(self, care: Care, now: float) -> bool:
        """It trains on fewer devices than it was told, and that has lasted: a worker was lost."""
        status = care.sight.status if care.sight is not None else None
        short = (
            status is not None
            and status.state == "training"
            and status.wanted is None
            and not set(care.commanded or ()) <= set(status.held)
        )
        if not short:
            care.short_since = None
            return False
        if care.short_since is None:
            care.short_since = now
        return now - care.short_since > RESTORE

    def _slots(self, state: State, job: Job) -> tuple[Slot, ...]:
        return tuple(state.devices[device].slot for device in job.assigned)

    def _call(self, care: Care, do: Callable[..., object], *arguments: object) -> None:
        care.call = self._pool.submit(do, *arguments)

    def _answered(self, care: Care, now: float) -> None:
        if care.call is None or not care.call.done():
            return
        call, care.call = care.call, None
        try:
            call.result()
        except (EasyScaleError, OSError) as problem:
            logger.warning("a call to a master failed and is made again: %s", problem)
            care.failures += 1
            care.not_before = now + min(LONGEST_AGAIN, AGAIN * 2 ** min(care.failures, 6))
            care.commanded, care.stopping = None, False
        else:
            care.failures = 0
            care.next_look = min(care.next_look, now)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(OSError):
            self.fleet.close()
