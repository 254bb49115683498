"""Runs trials one after the other, quietly, and keeps what they said."""

from __future__ import annotations

import json
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from easyscale.backends.local import LocalLauncher, plain_environment
from easyscale.backends.nursery import NurseryLauncher
from easyscale.core.observe import Observation
from easyscale.core.plan import Plan, Schedule
from easyscale.core.ports import Launcher
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.progress import Progress, Screen
from easyscale.master.supervisor import Job, Outcome, Supervisor
from easyscale.master.verify.trials import Trial

PLAIN_COMMAND = (sys.executable, "-m", "easyscale.runtime.observe.plain")
_TAIL = 60  # lines of the script's output that are kept for a failure


@dataclass(kw_only=True)
class Run:
    """What one run said, by global step (from 0)."""

    name: str
    steps: int
    fingerprints: dict[int, str] = field(default_factory=dict)
    losses: dict[int, list[float | None]] = field(default_factory=dict)
    witnesses: dict[int, dict[int, dict[str, str]]] = field(default_factory=dict)
    epochs: int = 0
    evidence: dict[str, list[str]] = field(default_factory=dict)  # what was asked for -> lines of the script
    record: dict[str, Any] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None
    checkpoints: Path | None = None  # where its states lie, if it was asked to keep them


class QuietScreen(Screen):
    """Keeps the workers' lines for a failure; shows one line of progress with the trial's name."""

    def __init__(self, *, quiet: bool, color: bool) -> None:
        super().__init__(sys.stderr, sys.stderr, quiet=quiet, color=color)
        self.lines: deque[str] = deque(maxlen=_TAIL)
        self.errors: list[str] = []

    def worker_line(self, label: str, text: str, *, error: bool) -> None:
        self.lines.append(f"[{label}] {text}")

    def notice(self, text: str) -> None:
        """Plans and checkpoints of a trial are not news."""

    def error(self, text: str) -> None:
        self.errors.append(text)

    def show(self, progress: Progress, now: float) -> None:
        if self._live:  # elsewhere the table at the end says it all
            super().show(progress, now)


@dataclass(frozen=True, kw_only=True)
class Extras:
    """How a run differs from the trial's plain form."""

    observation: Observation = field(default_factory=Observation)
    resume: Path | None = None
    checkpoint_every: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Stage:
    """One script, ready to be run under any trial. `folder` is the verification's own, for checkpoints and traces."""

    def __init__(
        self, target: Target, template: WorkerSpec, environment: Mapping[str, str], folder: Path, *, quiet: bool
    ) -> None:
        self._target, self._template, self._environment = target, template, dict(environment)
        self.folder, self._quiet, self._count = folder, quiet, 0
        self._warm: Launcher | None = None

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Inside, workers are forked from one process that has imported torch, where the machine can do that."""
        if not NurseryLauncher.works():
            yield
            return
        launcher = self._warm = NurseryLauncher(self._environment)
        try:
            yield
        finally:
            self._warm = None
            launcher.close()

    def run(self, trial: Trial, steps: int, extras: Extras | None = None) -> Run:
        """The script under a plan, for so many global steps."""
        extras = extras or Extras()
        checkpoints = self.new_folder("checkpoints") if trial.engine == "est" else None
        template = replace(
            self._template, engine=trial.engine, max_steps=steps, fingerprint_every=1, observation=extras.observation,
            checkpoint_dir=None if checkpoints is None else str(checkpoints), checkpoint_every=extras.checkpoint_every,
            checkpoint_keep=max(3, steps + 1), resume=None if extras.resume is None else str(extras.resume),
        )  # fmt: skip
        launcher = self._warm
        if launcher is None or extras.environment:  # other surroundings need a process that starts in them
            launcher = LocalLauncher({**self._environment, **extras.environment})
        job = Job(target=self._target, schedule=trial.schedule, template=template)
        run = self._collect(trial.name, job, launcher)
        if extras.checkpoint_every is not None:
            run.checkpoints = checkpoints
        elif checkpoints is not None:
            shutil.rmtree(checkpoints, ignore_errors=True)
        return run

    def run_plain(self, name: str, steps: int | None, extras: Extras | None = None) -> Run:
        """The script as python would run it, for so many steps of its optimizers."""
        extras = extras or Extras()
        template = replace(self._template, ests=1, max_steps=steps, observation=extras.observation)
        job = Job(target=self._target, schedule=Schedule(((0, Plan((1,))),)), template=template)
        environment = {**self._environment, **extras.environment}
        return self._collect(name, job, LocalLauncher(environment, PLAIN_COMMAND, plain_environment))

    def new_folder(self, name: str) -> Path:
        self._count += 1
        folder = self.folder / f"{name}-{self._count}"
        folder.mkdir(parents=True)
        return folder

    def _collect(self, name: str, job: Job, launcher: Launcher) -> Run:
        screen = QuietScreen(quiet=self._quiet, color=True)
        outcome = Supervisor(job, launcher, screen, title=f"verify · {name}").run()
        if outcome.interrupted:  # not a failing run: whoever said stop means the whole verification
            raise KeyboardInterrupt
        return run_of(name, outcome, screen)


def run_of(name: str, outcome: Outcome, screen: QuietScreen) -> Run:
    state = outcome.state
    evidence: dict[str, list[str]] = {}
    record: dict[str, Any] = {}
    for event in state.events:
        if event.what.startswith("evidence:"):
            places = evidence.setdefault(event.what.removeprefix("evidence:"), [])
            places += [event.text] if event.text not in places else []
        elif event.what == "record":
            record = json.loads(event.text)
    error = outcome.error
    if outcome.exit_code != 0 and error is None:
        error = f"exit code {outcome.exit_code}"
    return Run(
        name=name, steps=state.steps, fingerprints={step - 1: sha for step, sha in state.step_fingerprints.items()},
        losses=state.losses, witnesses=state.witnesses, epochs=state.epochs, evidence=evidence, record=record,
        output=list(screen.lines), seconds=outcome.seconds, error=error,
    )  # fmt: skip


Announce = Callable[[str], None]
