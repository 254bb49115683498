"""The simulation: a heap of what will happen, and the scheduler's own loop on it.

All that happens at one time is told before one decision is asked for. What is predicted of a job carries the job's
version; a prediction that a change has overtaken is dropped when its time comes. Relies on nothing but its arguments:
the same workload, cluster, policy and options give the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from easyscale.core.cluster import Devices, total
from easyscale.core.errors import UsageError
from easyscale.scheduler.events import Allocated, Event, JobFinished, JobProgressed, JobSubmitted
from easyscale.scheduler.loop import Change, Scheduler
from easyscale.scheduler.placing import Placer
from easyscale.scheduler.policy import Policy
from easyscale.simulator.arrivals import arrange
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.fits import check_fits, rate_alone
from easyscale.simulator.masters import Masters
from easyscale.simulator.options import Options
from easyscale.simulator.progress import NEVER, Run
from easyscale.simulator.result import Records, Result, Segment
from easyscale.simulator.usage import Usage
from easyscale.simulator.workload import Workload
from easyscale.simulator.world import World

FINISH, STAGE, WORLD, ARRIVAL, DECIDE = range(5)  # in this order at one time
PATIENCE = 1000  # decisions without effect, with nothing running and nothing to come, until a run is called stuck
BARREN = 20_000  # moments without an arrival or an end, after which somebody must at least be training
ROUNDS = 3  # decisions at one time: what a job's master says to one may call for another


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler said at a time, for the log."""

    time: float
    changes: tuple[Change, ...]


Log = list[Event | Decision]
Report = Callable[[int, float], None]  # jobs finished, virtual time


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    policy: Policy,
    options: Options | None = None,
    *,
    log: Log | None = None,
    report: Report | None = None,
) -> Result:
    """Run a workload under a policy to its end. `log` gets events and decisions, `report` is called now and then."""
    options = options or Options()
    check_fits(workload, cluster)
    return Simulation(workload, cluster, policy, options, log, report).run()


class Simulation:
    def __init__(
        self, workload: Workload, spec: ClusterSpec, policy: Policy, options: Options, log: Log | None,
        report: Report | None,
    ) -> None:  # fmt: skip
        if options.interval is not None:
            policy.interval = options.interval
        self.workload, self.spec, self.options = workload, spec, options
        state = spec.state()
        state.binds = not options.any_type
        self.scheduler = Scheduler(state, policy)
        self.log, self.report = log, report
        self.order = iter(arrange(workload, options))
        self.runs: dict[str, Run] = {}
        self.running = 0  # of these, how many hold devices
        self.arriving = True  # more jobs will come
        self.placer = Placer(spec.kinds, spec.counts) if options.locality else None
        self.most = spec.most()
        self.usage = Usage(self.most, min([workload.arrivals[0].time, *(coming.time for coming in spec.comings)]))
        self.usage.capacity.update(spec.counts)
        self.capacity = total(spec.counts)
        self.demand, self.contention = 0, 0.0  # devices asked for; the integral of (asked for / there), at least 1
        self.records = Records.empty(len(workload.arrivals))
        self.timeline: list[Segment] = []
        self.heap: list[tuple[float, int, int, Any, int]] = []
        self.counter = count()
        self.finished = self.decisions = self.events = self.most_active = 0
        self.world = World(self)
        self.masters = Masters(self) if options.measured or options.stragglers is not None else None

    # ------------------------------------------------------------------------------------ the loop

    def run(self) -> Result:
        begun = time.perf_counter()
        heap, jobs = self.heap, len(self.workload.arrivals)
        self._next_arrival()
        self.world.begin()
        if self.masters is not None:
            self.masters.begin()
        planned, idle, barren, last = NEVER, 0, 0, 0
        while heap and self.finished < jobs:
            now = heap[0][0]
            barren = barren + 1 if self.events == last else 0
            last = self.events
            if barren >= BARREN and not any(run.rate > 0 or run.later for run in self.runs.values()):
                break
            self._let_pass(now)
            while heap and heap[0][0] == now:
                _, kind, _, subject, version = heappop(heap)
                if kind == FINISH:
                    if version == subject.version:
                        self._finish(subject, now)
                elif kind == ARRIVAL:
                    self._arrive(subject, version, now)
                elif kind == STAGE:
                    if version == subject.version:
                        self._next_stage(subject, now)
                elif kind == WORLD:
                    subject(now)
                elif planned == now:
                    planned = NEVER
            if self.finished == jobs:
                break
            due, rounds = self.scheduler.next_decision(now), 0
            while due is not None and due <= now and rounds < ROUNDS:
                idle = 0 if self._decide(now) or self.running or self.arriving else idle + 1
                due, rounds = self.scheduler.next_decision(now), rounds + 1
            if idle > PATIENCE:
                break
            if due is not None and now < due < planned:
                planned = due
                heappush(heap, (due, DECIDE, next(self.counter), None, 0))
        if self.finished < jobs:
            self._stuck()
        return self._result(time.perf_counter() - begun)

    def push(self, when: float, kind: int, subject: Any, version: int = 0) -> None:
        heappush(self.heap, (when, kind, next(self.counter), subject, version))

    def tell(self, event: Event) -> None:
        self.scheduler.take(event)
        if self.log is not None:
            self.log.append(event)

    def _let_pass(self, now: float) -> None:
        seconds = now - self.usage.now
        assert seconds >= 0, "time runs backwards"
        if seconds:
            self.contention += seconds * max(1.0, self.demand / max(1, self.capacity))
            self.world.let_pass(now)
            self.usage.advance(now)

    # ------------------------------------------------------------------------------------ jobs

    def _next_arrival(self) -> None:
        if (following := next(self.order, None)) is not None:
            when, index = following
            heappush(self.heap, (when, ARRIVAL, next(self.counter), self.workload.arrivals[index], index))
        else:
            self.arriving = False

    def _arrive(self, arrival: Any, index: int, now: float) -> None:
        self._next_arrival()
        run = Run(arrival, index, now, self.contention)
        self.runs[arrival.name] = run
        self.demand += arrival.requested
        self.records.alone[index] = arrival.work / rate_alone(arrival, self.most)
        self.events += 1
        self.most_active = max(self.most_active, len(self.runs))
        speed = arrival.speed
        if self.masters is not None:
            run.master = self.masters.add(run)
            speed = run.master.mind.speed if run.master is not None and self.options.measured else speed
        self.tell(JobSubmitted(
            time=now, job=arrival.name, needs=arrival.needs, speed=speed, work=arrival.work,
            requested=arrival.requested, kind=arrival.kind, switch_seconds=self.options.change_seconds,
        ))  # fmt: skip

    def _finish(self, run: Run, now: float) -> None:
        run.advance(now)
        assert run.arrival.work - run.done <= 1e-6 * run.arrival.work, "finished before its work was done"
        run.version += 1
        self.hold(run, {}, now)
        if self.masters is not None:
            self.masters.forget(run)
        del self.runs[run.arrival.name]
        self.finished += 1
        self.events += 1
        self.demand -= run.arrival.requested
        self.tell(JobFinished(time=now, job=run.arrival.name))
        self._write(run, now)
        if self.report is not None and self.finished % 256 == 0:
            self.report(self.finished, now)

    def _write(self, run: Run, now: float) -> None:
        records, index = self.records, run.index
        stay = now - run.begun
        records.submitted[index] = run.begun
        records.started[index] = run.started
        records.finished[index] = now
        records.contention[index] = (self.contention - run.contention) / stay if stay > 0 else 1.0
        records.device_seconds[index] = run.device_seconds
        records.paused[index] = run.paused
        records.switches[index] = run.switches
        records.lost[index] = run.lost

    def _next_stage(self, run: Run, now: float) -> None:
        run.next_stage()
        self.report_progress(run, now)
        self.predict(run)

    def report_progress(self, run: Run, now: float) -> None:
        self.tell(JobProgressed(time=now, job=run.arrival.name, done=run.done))

    def predict(self, run: Run) -> None:
        """When it will be done, or at its next stage."""
        finish = run.finish()
        if run.later is not None and run.later[0] < finish:
            heappush(self.heap, (run.later[0], STAGE, next(self.counter), run, run.version))
        elif finish < NEVER:
            heappush(self.heap, (finish, FINISH, next(self.counter), run, run.version))

    # ------------------------------------------------------------------------------------ devices

    def _decide(self, now: float) -> bool:
        changes = self.scheduler.decide(now)
        self.decisions += 1
        if self.log is not None:
            self.log.append(Decision(now, tuple(changes)))
        before: dict[str, Devices] = {}  # a job may come twice, and pays once
        for change in changes:
            run = self.runs[change.job]
            self.move(run, before.setdefault(change.job, run.devices), change.devices, now, change.batch)
        self.world.answer(now)
        return bool(changes)

    def move(self, run: Run, before: Devices, devices: Devices, now: float, batch: float = 1.0) -> None:
        """A job holds other devices from now on; `before` are those that it had trained on."""
        run.advance(now)
        name = run.arrival.name
        if run.started < now:
            self.report_progress(run, now)
        self.hold(run, devices, now)
        run.batch = batch
        run.saved = run.done  # a planned change takes the state along
        self.go_on(run, before, now)
        self.tell(Allocated(time=now, job=name, devices=devices, batch=batch))

    def go_on(self, run: Run, before: Devices, now: float) -> None:
        """After `hold`: what a change costs, and when the job will be done."""
        kept = {kind: kept for kind, had in before.items() if (kept := min(had, run.devices.get(kind, 0)))}
        if run.devices:
            run.switches += run.started < now and run.changed < now
            run.started, run.changed = min(run.started, now), now
        if run.master is not None:
            run.master.granted(run.devices, now)
        meanwhile = self.rate(run, kept) if kept and self.options.warm_up else 0.0
        run.go_on(before, meanwhile, self.rate(run, run.devices), now, self.options)
        self.predict(run)

    def rate(self, run: Run, devices: Devices) -> float:
        """Global steps a second on these, as things are."""
        needs, held = run.arrival.needs, total(devices)
        if held < needs.least or held > needs.most:  # after a loss
            return 0.0
        nodes = self.nodes(run) if devices is run.devices else None
        if run.master is not None and devices is run.devices:
            return run.master.rate(nodes)
        speed: Any = run.arrival.speed
        found: float = speed.rate(devices, nodes) if run.batch == 1.0 else speed.rate_at(devices, run.batch, nodes)
        return found

    def nodes(self, run: Run) -> int | None:
        """Over how many machines it is spread; None: nobody tells them apart."""
        return self.placer.nodes(run.arrival.name) if self.placer is not None else None

    def hold(self, run: Run, devices: Devices, now: float) -> None:
        """Books who holds what; nothing is ever held twice."""
        used = self.usage.used
        self.running += bool(devices) - bool(run.devices)
        if run.devices and run.index < self.options.timeline_jobs and now > run.held_since:
            self.timeline.append(Segment(run.index, run.held_since, now, run.devices))
        for kind, held in run.devices.items():
            used[kind] -= held
        for kind, held in devices.items():
            used[kind] += held
            assert 0 <= used[kind] <= self.usage.capacity[kind] or not held, f"{kind} is held twice"
        if self.placer is not None:
            self.placer.place(run.arrival.name, devices)
        run.hold(devices, now)

    # ------------------------------------------------------------------------------------ the end

    def _stuck(self) -> None:
        run = next(iter(self.runs.values()))
        arrival = run.arrival
        raise UsageError(
            f"under {self.scheduler.policy.name}, {len(self.runs)} jobs wait for ever; the first is "
            f"{arrival.name} (line {arrival.line} of {self.workload.name}).",
            f"it asks for {arrival.requested} {arrival.kind or 'devices'} and may use {arrival.needs.least} to "
            f"{arrival.needs.most}; the cluster has {', '.join(f'{n} {k}' for k, n in self.most.items())}.",
            "use a larger cluster, or --misfits shrink (what is asked for is cut to what there is) or drop.",
        )

    def _result(self, seconds: float) -> Result:
        usage = self.usage
        return Result(
            workload=self.workload.name, policy=self.scheduler.policy.name, seed=self.options.seed,
            counts=dict(self.most), jobs=self.records, curve=usage.curve(), used_seconds=usage.used_seconds,
            capacity_seconds=usage.capacity_seconds, timeline=self.timeline, lending=self.world.lending,
            failures=self.world.failures, stragglers=self.masters.stragglers if self.masters else 0,
            resplits=self.masters.resplits if self.masters else 0,
            decisions=self.decisions, events=self.events, most_active=self.most_active, wall_seconds=seconds,
        )  # fmt: skip
