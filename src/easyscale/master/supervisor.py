"""Runs a job to its end: one generation of workers after the other, as the schedule says.

A change of plan stops the workers at a global step, lets them hand their state over, and starts the
next ones from it. Relies on `backends` for processes and on `state` for every decision that needs no
process; guarantees that no worker outlives it and that a failure is shown once.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from easyscale.core.messages import decode
from easyscale.core.plan import Plan, Schedule
from easyscale.core.ports import Launcher
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.crew import Crew, Line
from easyscale.master.interrupts import Interrupts
from easyscale.master.progress import Progress, Screen
from easyscale.master.resume import first_step
from easyscale.master.state import Exit, Failure, JobState, StepRecord, find_failure, label
from easyscale.master.workspace import workspace

TICK = 0.1  # seconds after which signals, deadlines and the progress line are looked at, if nothing is heard
# Seconds to wait for the cause where workers only say that they lost a peer: its process may still be closing down.
PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run. `template` is what all workers are told alike; the supervisor adds each one's place."""

    target: Target
    schedule: Schedule
    template: WorkerSpec
    # Seconds that workers have to leave after one of them failed. They have nothing to save: the step is lost.
    grace: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: int
    state: JobState
    seconds: float
    error: str | None = None
    interrupted: bool = False  # someone asked the launcher to stop


class StepListener(Protocol):
    """Whoever wants each completed global step: the metrics log."""

    def step(self, record: StepRecord) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """One generation: its plan, where it begins and where it must hand over."""

    number: int
    plan: Plan
    step: int
    stop_at: int | None
    resume: str | None
    handoff: str | None
    rendezvous: str
    # It begins with state that lies nowhere else and is to be checkpointed: a signal waits until it is loaded.
    precious: bool


class Supervisor:
    """One job, once: `run`."""

    def __init__(
        self,
        job: Job,
        launcher: Launcher,
        screen: Screen,
        listeners: Sequence[StepListener] = (),
        title: str = "",
    ) -> None:
        self.state = JobState(job.template.ests, job.template.engine)
        self._job, self._launcher, self._screen = job, launcher, screen
        self._listeners, self._progress = list(listeners), Progress(title)
        self._interrupts = Interrupts()
        self._told = 0  # how many of the state's events the screen has shown

    def run(self) -> Outcome:
        began = time.monotonic()
        step = first_step(self._job.template.resume, self._job.template.checkpoint_dir)
        try:
            with self._interrupts, workspace() as folder:
                exits = self._run_generations(step, folder)
        finally:
            self._screen.close()
            for listener in self._listeners:
                with contextlib.suppress(OSError):
                    listener.close()
        return self._conclude(exits, time.monotonic() - began)

    def _run_generations(self, step: int, folder: Path) -> list[Exit]:
        resume, number, spent = self._job.template.resume, 0, None
        while True:
            plan, stop_at = self._job.schedule.at(step)
            turn = _Turn(
                number=number, plan=plan, step=step, stop_at=stop_at, resume=resume,
                handoff=None if stop_at is None else str(folder / f"handoff-{number}"),
                rendezvous=str(folder / f"rendezvous-{number}"),
                precious=number > 0 and self._job.template.checkpoint_dir is not None,
            )  # fmt: skip
            exits = self._run_generation(turn, spent)
            generation = self.state.generation
            assert generation is not None
            handed_over = generation.handed_over
            if handed_over is None or any(end.code != 0 for end in exits):
                return exits
            if self._interrupts.count and self._job.template.checkpoint_dir is None:
                return exits
            step, resume, number, spent = handed_over, turn.handoff, number + 1, turn.handoff

    def _run_generation(self, turn: _Turn, spent: str | None) -> list[Exit]:
        """`spent`: the hand-over that can go once these workers have loaded it."""
        self.state.begin(turn.plan, turn.step, time.time())
        self._progress.begin(turn.plan)
        orders = _Orders(self._job, self._interrupts, precious=turn.precious)
        crew = Crew()
        try:
            for worker in range(turn.plan.workers):
                crew.add(worker, self._launcher.start(self._spec(turn, worker), self._job.target))
            while crew.alive:
                for line in crew.listen(TICK):
                    self._hear(line)
                self._pass_on()
                orders.give(crew, self.state)
                self._screen.show(self._progress, time.monotonic())
                assert self.state.generation is not None
                if spent is not None and self.state.generation.all_ready:
                    shutil.rmtree(spent, ignore_errors=True)
                    spent = None
        finally:
            crew.close(self._job.grace)
        return crew.exits

    def _spec(self, turn: _Turn, worker: int) -> WorkerSpec:
        return replace(
            self._job.template,
            split=turn.plan.split,
            worker=worker,
            rendezvous=turn.rendezvous,
            resume=turn.resume,
            stop_at=turn.stop_at,
            handoff=turn.handoff,
        )

    def _hear(self, line: Line) -> None:
        if line.channel != "events":
            text = line.data.decode(errors="replace")
            self._screen.worker_line(label(self.state, line.worker), text, error=line.channel == "stderr")
        elif (message := decode(line.data)) is not None:
            self.state.apply(message, time.time())

    def _pass_on(self) -> None:
        """What is new to those who want to know: steps to the listeners, events to the screen."""
        for record in self.state.take_steps():
            self._progress.step(record)
            for listener in list(self._listeners):
                try:
                    listener.step(record)
                except OSError as problem:  # a full disk costs the metrics, not the training
                    self._listeners.remove(listener)
                    text = f"Metrics are no longer written: {problem.strerror or problem}."
                    self.state.note(time.time(), record.step, "metrics-failed", text)
        for event in self.state.events[self._told :]:
            if event.what != "failed":  # shown whole, once, in the end
                self._screen.notice(event.text)
        self._told = len(self.state.events)

    def _conclude(self, exits: list[Exit], seconds: float) -> Outcome:
        state, stopped_by = self.state, self._interrupts.first
        generation = state.generation
        assert generation is not None
        clean = all(end.code == 0 for end in exits)
        if stopped_by is not None and not (clean and generation.all_done):
            error = f"Stopped by {stopped_by.name} after {state.steps} global steps."
            self._screen.notice(error)
            return Outcome(exit_code=128 + stopped_by, state=state, seconds=seconds, error=error, interrupted=True)
        failure = find_failure(state, exits)
        if failure is not None:
            self._screen.error(_shown(failure, state))
            return Outcome(exit_code=failure.exit_code, state=state, seconds=seconds, error=failure.text)
        if not generation.ready and not generation.done:
            self._screen.notice("note: the script ended without es.init(); each worker ran it on its own.")
        else:
            sha = f" · sha256 {state.fingerprint[:16]}" if state.fingerprint else ""
            self._screen.notice(f"done: {state.steps} global steps in {seconds:.1f} s{sha}")
        return Outcome(exit_code=0, state=state, seconds=seconds)


class _Orders:
    """Which signals the workers of one generation get, and when: each order is given once."""

    def __init__(self, job: Job, interrupts: Interrupts, *, precious: bool) -> None:
        self._job, self._interrupts, self._precious = job, interrupts, precious
        self._stopping = False
        self._deadline = self._patience = float("inf")

    def give(self, crew: Crew, state: JobState) -> None:
        generation = state.generation
        assert generation is not None
        if self._interrupts.count > 1 or time.monotonic() > self._deadline:
            crew.kill()
            return
        if self._stopping:
            return
        failed = {message.worker for message in generation.failed}
        if failed or any(end.code != 0 for end in crew.exits):
            self._patience = min(self._patience, time.monotonic() + PATIENCE)
            if find_failure(state, crew.exits, only_causes=True) is None and time.monotonic() < self._patience:
                return
            self._stop(self._job.grace)
            crew.ask(lambda _: signal.SIGTERM, spare=failed)
        elif self._interrupts.first is not None and (generation.all_ready or not self._precious):
            # They have to agree on a step, finish it and write a checkpoint: as long as a peer may be silent.
            self._stop(self._job.template.timeout)
            number = signal.SIGINT if self._interrupts.first is signal.SIGINT else signal.SIGTERM
            # A worker that is not ready has nothing to save and may not know what to do with Ctrl-C.
            crew.ask(lambda worker: number if worker in generation.ready else signal.SIGTERM)

    def _stop(self, grace: float) -> None:
        self._stopping = True
        self._deadline = time.monotonic() + grace


def _shown(failure: Failure, state: JobState) -> str:
    who = label(state, failure.worker)
    if failure.ours:
        return f"error: {failure.text}" + (f"\n  ({who})" if who not in failure.text else "")
    return f"[{who}] failed:\n{failure.text.rstrip()}"
