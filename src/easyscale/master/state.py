"""What is known of a job, folded from the messages of its workers.

No clock, no files, no processes: times are given. The supervisor feeds it, everything else reads it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from easyscale.core.control import Member
from easyscale.core.errors import WorkerLostError
from easyscale.core.messages import Done, Event, Failed, Fingerprint, HandedOver, Message, Ready, StepDone, Witness
from easyscale.core.plan import Plan
from easyscale.core.spec import Engine


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One global step with the word of all ESTs. `metrics[name][v]` belongs to EST v."""

    step: int
    epoch: int
    time: float
    plan: Plan
    metrics: dict[str, list[float | None]]
    samples: int

    def mean(self, name: str) -> float | None:
        known = [value for value in self.metrics.get(name, ()) if value is not None]
        return fmean(known) if known else None

    @property
    def loss_name(self) -> str | None:
        return loss_name(self.metrics)


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    time: float
    step: int
    what: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a worker ended. `asked`: the launcher had told it to stop before."""

    worker: int
    code: int  # -n: ended by signal n
    asked: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a job failed, as it is shown and written: once."""

    worker: int
    exit_code: int
    text: str
    ours: bool


@dataclass
class Generation:
    """What the workers of the plan in force have said so far."""

    plan: Plan
    step: int
    began: float
    ready: dict[int, Ready] = field(default_factory=dict)
    handed_over: int | None = None
    left: set[int] = field(default_factory=set)
    done: dict[int, Done] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)  # of each name the slowest worker's

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == self.plan.workers

    @property
    def all_done(self) -> bool:
        return len(self.done) == self.plan.workers


class JobState:
    """Fold messages with `apply`; `take_steps` yields each global step once all its ESTs were heard."""

    def __init__(self, ests: int, engine: Engine = "est") -> None:
        self.ests, self.engine = ests, engine
        self.steps = 0
        self.fingerprint: str | None = None
        self.losses: dict[int, list[float | None]] = {}
        self.step_fingerprints: dict[int, str] = {}
        self.witnesses: dict[int, dict[int, dict[str, str]]] = {}  # by global step, then EST
        self.epochs = 0  # that were begun
        self.events: list[JobEvent] = []
        self.plans: list[tuple[int, Plan]] = []
        self.switches: list[tuple[int, float]] = []  # the step and the seconds in which nobody computed
        self.start_seconds: float | None = None
        self.timings: dict[str, float] = {}
        self.bytes_sent = 0
        self.total: int | None = None  # global steps in all, where the script has said
        self.generation: Generation | None = None
        # Of elastic jobs: who runs which ESTs now, what losses cost, and what was not heeded on the control channel.
        self.places: dict[int, range] | None = None
        self.meant: dict[int, range] = {}  # the ESTs that a worker was started for
        self.recoveries: list[dict[str, Any]] = []
        self.lost_steps = 0
        self.dropped: dict[str, int] = {}
        self.speeds: dict[str, Any] = {}  # of local steps, by worker and by type of device
        self._pending: dict[int, dict[int, StepDone]] = {}  # by step, then EST
        self._passed: set[int] = set()
        self._complete: list[StepRecord] = []
        self._last_step_at: float | None = None

    def begin(self, plan: Plan, step: int, now: float) -> None:
        """The workers of a plan are being started, to go on at a global step."""
        self._close_timings()
        self.generation = Generation(plan, step, now)
        if self.plans:
            old = self.plans[-1][1]
            self.note(now, step, "plan", f"From step {step} on {_workers(plan)} instead of {_workers(old)}.")
        else:
            self.note(now, step, "plan", f"Starts at step {step} on {_workers(plan)}.")
        self.plans.append((step, plan))

    def expect(self, plan: Plan, step: int, now: float) -> None:
        """An elastic job begins: its workers are being started."""
        self.generation = Generation(plan, step, now)
        self.places = {}
        self.steps = max(self.steps, step)

    def enter(self, members: Sequence[Member], step: int, now: float) -> None:
        """A plan of an elastic job is in force from a global step on."""
        assert self.generation is not None
        self.generation.plan, self.generation.step = Plan(tuple(member.count for member in members)), step
        self.places = {member.worker: member.ests for member in members}
        self.plans.append((step, self.generation.plan))
        self.steps = max(self.steps, step)
        if self.start_seconds is None:
            self.start_seconds = now - self.generation.began

    def close_steps(self, before: int) -> None:
        """Steps that will not be told in full any more, because who ran them is gone, are passed on as they are."""
        for step in sorted(step for step in self._pending if step < before):
            self._pass(step)

    def note(self, now: float, step: int, what: str, text: str) -> None:
        self.events.append(JobEvent(time=now, step=step, what=what, text=text))

    def apply(self, message: Message, now: float) -> None:
        generation = self.generation
        assert generation is not None, "a message before the first worker"
        match message:
            case Ready():
                self._ready(generation, message, now)
            case StepDone():
                self._step_done(message)
            case Fingerprint():
                self.step_fingerprints[message.step] = message.sha
            case Witness():
                self.witnesses.setdefault(message.step, {})[message.est] = message.digests
            case Event():
                self.note(now, message.step, message.what, message.text)
            case HandedOver():
                generation.handed_over = message.step
                self._left(generation, message.worker, message.timings, message.bytes_sent)
                self.steps = max(self.steps, message.step)
            case Done():
                generation.done[message.worker] = message
                self._left(generation, message.worker, message.timings, message.bytes_sent)
                self.steps = max(self.steps, message.steps)
                self.fingerprint = message.fingerprint or self.fingerprint
            case Failed():
                generation.failed.append(message)
                self.note(now, message.step, "failed", f"{label(self, message.worker)}: {_headline(message)}")

    def take_steps(self) -> list[StepRecord]:
        complete, self._complete = self._complete, []
        return complete

    def all_timings(self) -> dict[str, float]:
        """Seconds by name: of each generation the slowest worker's, summed over the generations."""
        self._close_timings()
        return dict(self.timings)

    def _ready(self, generation: Generation, message: Ready, now: float) -> None:
        generation.ready[message.worker] = message
        if message.step != generation.step:  # the checkpoint that could be loaded was another one
            generation.step = message.step
            self.plans[-1] = (message.step, generation.plan)
        if generation.all_ready:
            if self.start_seconds is None:
                self.start_seconds = now - generation.began
            elif self._last_step_at is not None:
                self.switches.append((generation.step, now - self._last_step_at))
        self.steps = max(self.steps, message.step)

    def _step_done(self, message: StepDone) -> None:
        self.epochs = max(self.epochs, message.epoch + 1)
        self.total = message.total if message.total is not None else self.total
        if message.step in self._passed:  # told twice, after a loss: the bits are the same
            return
        parts = self._pending.setdefault(message.step, {})
        parts.update(dict.fromkeys(message.ests, message))
        name = loss_name(message.metrics)
        losses = self.losses.setdefault(message.step, [None] * self.ests)
        if name is not None:
            for est, value in zip(message.ests, message.metrics[name], strict=True):
                losses[est] = value
        if len(parts) == self.ests:
            self._pass(message.step)

    def _pass(self, step: int) -> None:
        told = self._pending.pop(step)
        self._passed.add(step)
        parts = list({id(part): part for part in told.values()}.values())
        self._complete.append(_joined(parts, self.ests, self._plan_at(step)))
        self.steps = max(self.steps, step + 1)
        self._last_step_at = max(part.time for part in parts)

    def _plan_at(self, step: int) -> Plan:
        assert self.generation is not None
        past = [plan for begins, plan in self.plans if begins <= step]
        return past[-1] if past else self.generation.plan

    def _left(self, generation: Generation, worker: int, timings: dict[str, float], sent: int) -> None:
        if worker in generation.left:
            return
        generation.left.add(worker)
        self.bytes_sent += sent
        for name, seconds in timings.items():
            generation.timings[name] = max(seconds, generation.timings.get(name, 0.0))

    def _close_timings(self) -> None:
        if self.generation is not None:
            for name, seconds in self.generation.timings.items():
                self.timings[name] = self.timings.get(name, 0.0) + seconds
            self.generation.timings = {}


def loss_name(metrics: dict[str, list[float | None]]) -> str | None:
    """`loss` where it was logged, else whatever was logged first."""
    return "loss" if "loss" in metrics else next(iter(metrics), None)


def label(state: JobState, worker: int) -> str:
    """What a worker is called in front of its output: `worker 0 · EST 0-1`, or `rank 2` of stock DDP."""
    assert state.generation is not None
    if state.engine == "ddp":
        return f"rank {worker}"
    ests = state.generation.plan.range_of(worker) if state.places is None else state.places.get(worker)
    ests = ests or state.meant.get(worker)
    if ests is None:
        return f"worker {worker}"
    return f"worker {worker} · EST {ests[0]}" + (f"-{ests[-1]}" if len(ests) > 1 else "")


def find_failure(state: JobState, exits: list[Exit], *, only_causes: bool = False) -> Failure | None:
    """The one failure that explains the others: a worker that names its own trouble, else one that died
    without a word, else, unless `only_causes`, one that only lost a peer."""
    assert state.generation is not None
    failed = state.generation.failed
    codes = {end.worker: end for end in exits}
    own = [message for message in failed if not message.lost_peer]
    spoke = {message.worker for message in failed}
    silent = [end for end in exits if end.code != 0 and not end.asked and end.worker not in spoke]
    if not own and silent:
        return _died(state, silent[0])
    for message in own or ([] if only_causes else failed):
        end = codes.get(message.worker)
        code = _shell_code(end.code) if end is not None and end.code != 0 and not end.asked else 1
        return Failure(worker=message.worker, exit_code=code, text=message.text, ours=message.ours)
    return None


def _died(state: JobState, end: Exit) -> Failure:
    if end.code < 0:
        name = signal.Signals(-end.code).name if -end.code in set(signal.Signals) else f"signal {-end.code}"
        what, why = f"was ended by {name}", "it had no time to say why."
        if name == "SIGKILL":
            why = "someone killed it; if nobody did, the machine most likely ran out of memory."
    else:
        what, why = f"ended with exit code {end.code}", "the script, or something it calls, ended the process."
    error = WorkerLostError(
        f"{label(state, end.worker)} {what} at step {state.steps}.",
        why,
        "look at its last lines above; a job with --checkpoint-dir goes on with --resume latest.",
    )
    return Failure(worker=end.worker, exit_code=_shell_code(end.code), text=str(error), ours=True)


def _joined(parts: list[StepDone], ests: int, plan: Plan) -> StepRecord:
    metrics: dict[str, list[float | None]] = {}
    for part in sorted(parts, key=lambda part: part.ests[0]):
        for name, values in part.metrics.items():
            row = metrics.setdefault(name, [None] * ests)
            for est, value in zip(part.ests, values, strict=True):
                row[est] = value
    return StepRecord(
        step=parts[0].step,
        epoch=parts[0].epoch,
        time=max(part.time for part in parts),
        plan=plan,
        metrics=metrics,
        samples=sum(part.samples for part in parts),
    )


def _workers(plan: Plan) -> str:
    return f"{plan.workers} worker{'s' if plan.workers > 1 else ''} ({plan})"


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _headline(message: Failed) -> str:
    """Our own messages begin with what happened; a traceback ends with it."""
    lines = message.text.strip().splitlines() or ["(no text)"]
    return lines[0] if message.ours else lines[-1]
