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
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

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
RESTORE = 5.0  # seconds after which a worker that was lost is asked for again; twice as long each time
LONGEST_RESTORE = 600.0
STOP_AGAIN = 10.0  # seconds after which a run that was told to stop is told again
CANCEL_SECONDS = 30.0  # that a cancelled run has to end with a checkpoint; then it is ended without
STOP_SECONDS = 600.0  # the same of one that has to make room or is paused


@dataclass(slots=True)
class Care:
    """What is known of a run and not in the log: it is found out again after a restart."""

    run: int
    maybe: frozenset[str] = frozenset()  # devices of calls that nobody knows the outcome of
    commanded: tuple[str, ...] | None = None  # what its master was told last; None: not known
    target: tuple[str, ...] | None = None  # what the call that is under way tells it
    held: frozenset[str] = frozenset()  # devices that its processes sit on, as last seen
    uses: frozenset[str] = frozenset()  # these, and all that it may come to sit on by itself
    sight: Sight | None = None
    fresh: bool = False  # the sight is younger than the last call
    call: Future[object] | None = None
    look: Future[Sight] | None = None
    next_look: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    stopping: bool = False
    stop_since: float | None = None
    wanted_since: float | None = None  # devices that it waits for are still in use
    short_since: float | None = None  # it runs on fewer devices than it was told
    restores: int = 0


@dataclass
class Carrier:
    """`carry` in each round of the loop, and `start` what it returns. `launch_of`: what a job is started with."""

    fleet: Fleet
    launch_of: Callable[[Job, tuple[Slot, ...]], Launch]
    begin: Callable[[Sequence[tuple[Job, int]]], None]  # write down that these runs begin
    clock: Callable[[], float] = time.monotonic
    cares: dict[str, Care] = field(default_factory=dict)
    _sitters: Counter[str] = field(default_factory=Counter)  # by device, in this round: how many runs use it
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(16, "carry"))

    # ------------------------------------------------------------------------------------ looking

    def look(self, state: State) -> list[tuple[Job, Sight]]:
        """What is new of the active runs. Begins the next looks; never waits."""
        now, found = self.clock(), []
        active = [job for job in state.busy.values() if job.active]
        pause = max(LOOK_SECONDS, len(active) / LOOKS_A_SECOND)
        for job in active:
            care = self.care(job)
            self._answered(care, now)
            if care.look is not None and care.look.done():
                future, care.look = care.look, None
                care.next_look = now + pause
                try:
                    care.sight = future.result()
                except Exception as problem:  # whatever it is, it is of this job alone
                    logger.debug("no look at %s: %s", job.id, problem)
                else:
                    care.fresh = True
                    self._learn(care, care.sight)
                    found.append((job, care.sight))
            if care.look is None and care.call is None and now >= care.next_look:
                care.look = self.pool.submit(self.fleet.look, job.id, job.run)
        return found

    def care(self, job: Job) -> Care:
        """Of a run that nobody here has begun or seen, all devices that it was ever given count as used."""
        care = self.cares.get(job.id)
        if care is None or care.run != job.run:
            care = self.cares[job.id] = Care(job.run, maybe=job.reach, uses=job.reach)
        return care

    def forget(self, job: Job) -> None:
        """The run has ended: its devices are free."""
        self.cares.pop(job.id, None)

    def in_use(self) -> set[str]:
        return {device for care in self.cares.values() for device in care.uses}

    def _learn(self, care: Care, sight: Sight) -> None:
        if sight.status is not None:
            care.held = frozenset(sight.status.held)
            care.uses = care.held | care.maybe | frozenset(care.commanded or ())
        elif sight.state in ("ended", "gone", "absent"):
            care.held = care.uses = frozenset()

    # ------------------------------------------------------------------------------------ acting

    def carry(self, state: State) -> list[tuple[Job, Care]]:
        """Steer those that run. Returns those that can begin."""
        now = self.clock()
        for name, care in list(self.cares.items()):
            if name in state.busy:
                self._answered(care, now)
            else:
                del self.cares[name]
        self._sitters = Counter(device for care in self.cares.values() for device in care.uses)
        ready = []
        for job in state.busy.values():
            if job.active:
                self._steer(state, job, now)
            elif job.wish == "run" and (begins := self._startable(job, now)):
                ready.append((job, begins))
        return ready

    def _steer(self, state: State, job: Job, now: float) -> None:
        care = self.care(job)
        sight = care.sight
        if care.call is not None or care.look is not None or not care.fresh or now < care.not_before or sight is None:
            return
        wanted = job.wish == "run" and bool(job.assigned)
        if sight.state == "absent" and wanted and not care.stopping:
            self._launch(state, job, care, now)
        elif sight.state == "masterless":
            self._call(care, self.fleet.adopt, job.id, job.run)
            care.not_before, care.stopping = now + ADOPT_AGAIN, False
        elif sight.state in ("absent", "starting", "running") and (care.stopping or not wanted):
            self._stop(job, care, now)
        elif sight.state == "running" and sight.status is not None:
            self._place(state, job, care, now)

    def _launch(self, state: State, job: Job, care: Care, now: float) -> None:
        """Its start was written down, and it has not begun. Perhaps it does after all, on devices of an earlier try."""
        target = self._reachable(job, care, now)
        if target is not None and len(target) >= job.least:
            care.maybe |= frozenset(target)
            self._sit(care, care.uses | care.maybe)
            self._call(care, self.fleet.launch, self.launch_of(job, _slots(state, target)))

    def _place(self, state: State, job: Job, care: Care, now: float) -> None:
        target = self._reachable(job, care, now)
        if target is None:
            return
        if len(target) < job.least:
            if care.wanted_since is not None and self._blocks(state, job, care):
                self._stop(job, care, now)
            return
        known = care.commanded is not None
        if known and set(target) == set(care.commanded or ()) and not self._must_restore(care, now):
            return
        if job.spec.determinism == "D0" and known:  # its plan is never changed: it goes on from a checkpoint
            self._stop(job, care, now)
            return
        care.maybe |= frozenset(target) | frozenset(care.commanded or ())
        care.target, care.stop_since = target, None
        self._sit(care, care.uses | care.maybe)
        self._call(care, self.fleet.place, job.id, job.run, _slots(state, target))

    def _blocks(self, state: State, job: Job, care: Care) -> bool:
        """It sits on what others are to have while others sit on what it is to have: one has to let go first."""
        others = [state.devices[device] for device in care.uses if device not in job.assigned]
        return any(device.job is not None or device.standing != "in" for device in others)

    def _stop(self, job: Job, care: Care, now: float) -> None:
        """Again and again until it has ended: a stop that it was told of may be lost with its master."""
        if care.stop_since is None:
            care.stop_since = now
        late = now - care.stop_since > (CANCEL_SECONDS if job.wish == "cancel" else STOP_SECONDS)
        care.not_before, care.stopping = now + STOP_AGAIN, True
        self._call(care, partial(self.fleet.stop, now=late), job.id, job.run)

    def _startable(self, job: Job, now: float) -> Care | None:
        """Of a job whose devices can be had: they are its own from now on."""
        care = self.cares.get(job.id)
        if care is None or care.run != job.run + 1:
            care = self.cares[job.id] = Care(job.run + 1)
        target = self._reachable(job, care, now)
        if target is None or len(target) < job.least:
            return None
        care.target, care.maybe = target, frozenset(target)
        self._sit(care, care.maybe)
        return care

    def start(self, state: State, ready: list[tuple[Job, Care]]) -> None:
        """Many at once are written down at once: each time costs a write to the disk."""
        if not ready:
            return
        try:
            self.begin([(job, care.run) for job, care in ready])
        except EasyScaleError:
            for _, care in ready:
                care.target, care.maybe, care.uses = None, frozenset(), frozenset()
            raise
        for job, care in ready:
            self._call(care, self.fleet.launch, self.launch_of(job, _slots(state, care.target or ())))

    def _reachable(self, job: Job, care: Care, now: float) -> tuple[str, ...] | None:
        """Its devices that nobody else sits on; None: wait a little for the others."""
        free = tuple(
            device for device in job.assigned if device in care.held or self._sitters[device] <= (device in care.uses)
        )
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

    def _must_restore(self, care: Care, now: float) -> bool:
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
        if now - care.short_since <= min(LONGEST_RESTORE, RESTORE * 2 ** min(care.restores, 10)):
            return False
        care.short_since, care.restores = None, care.restores + 1
        return True

    def _call(self, care: Care, do: Callable[..., object], *arguments: object) -> None:
        care.fresh = False
        care.call = self.pool.submit(do, *arguments)

    def _answered(self, care: Care, now: float) -> None:
        if care.call is None or not care.call.done():
            return
        call, care.call = care.call, None
        target, care.target = care.target, None
        care.next_look = min(care.next_look, now)
        try:
            call.result()
        except Exception as problem:
            logger.warning("a call to a master failed and is made again: %s", problem)
            care.failures += 1
            care.not_before = now + min(LONGEST_AGAIN, AGAIN * 2 ** min(care.failures, 6))
            care.commanded, care.stopping = None, False
        else:
            care.failures = 0
            if target is not None:  # all that it was told before is void
                care.commanded, care.maybe = target, frozenset()
                care.uses = care.held | frozenset(target)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(OSError):
            self.fleet.close()


def _slots(state: State, devices: tuple[str, ...]) -> tuple[Slot, ...]:
    return tuple(state.devices[device].slot for device in devices)
