"""Runs the first steps of a script at D1, and at D2 if all its operators have a form, and draws the verdict.

Each run is a job of one worker whose process writes what it has seen to a file (`runtime.observe.scan`). Times of
operators come from a step in which each was watched, times of whole steps from steps without that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from easyscale.backends.local import LocalLauncher
from easyscale.backends.nursery import NurseryLauncher
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.core.observe import Observation
from easyscale.core.plan import Plan, Schedule
from easyscale.core.ports import Launcher
from easyscale.core.spec import Level, Target, WorkerSpec
from easyscale.core.verdict import Verdict
from easyscale.master.files import read_json
from easyscale.master.retold import headline, retold
from easyscale.master.supervisor import Job, Supervisor
from easyscale.master.verify.stage import QuietScreen
from easyscale.master.workspace import workspace

EXTENSIONS = "extensions"  # the family of operators that torch does not bring: nobody knows their level
WATCHED = 3  # steps with every operator timed, before those that are timed as a whole
STEPS = 3
_BY_TORCH = re.compile(r"(\S+) does not have a deterministic implementation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of one module in one phase, in one global step. `d2_seconds`: None where D2 was not run."""

    module: str
    kind: str = ""  # the module's class; empty where the operator is in none
    phase: str
    operator: str
    level: Level
    family: str
    why: str
    line: str
    calls: int
    seconds: float
    share: float  # of the time of all operators
    d2_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Operators of one kind, with the same work at D1 and at D2."""

    name: str
    seconds: float
    share: float
    d2_seconds: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.d2_seconds / self.seconds if self.d2_seconds and self.seconds else None


@dataclass(frozen=True, kw_only=True)
class Scan:
    """`d1_seconds`, `d2_seconds`: of a whole step; None: not measured, and `notes` say why."""

    ests: int
    machine: dict[str, Any]
    kernels: dict[str, Any]
    operators: tuple[Operator, ...]
    families: tuple[Family, ...]
    d1_seconds: float | None
    d2_seconds: float | None
    verdict: Verdict
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What one run left: `facts` is None if it came to no global step."""

    facts: dict[str, Any] | None
    error: str | None = None
    output: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        return [] if self.facts is None else list(self.facts["operators"])

    def step(self) -> float | None:
        """The fastest of the steps that were timed as a whole: others were disturbed."""
        return min(self.facts["steps"], default=None) if self.facts is not None else None


class Scanning:
    """One script. `say` is told what comes next."""

    def __init__(
        self,
        target: Target,
        template: WorkerSpec,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        *,
        steps: int = STEPS,
        quiet: bool = False,
    ) -> None:
        self._target, self._template, self._environment = target, template, dict(environment)
        self._say, self._steps, self._quiet = say, steps, quiet

    def run(self) -> Scan:
        with workspace() as folder, self._launcher() as launcher:
            self._say(f"{self._steps + WATCHED} steps at level D1")
            first = self._run("D1", folder, launcher)
            missing, nondeterministic = _short_of_d2(first)
            if first.error is not None and not nondeterministic:
                raise _failed(self._target, first)
            if first.facts is None and not nondeterministic:
                raise _no_step(self._target)
            if missing:
                return _scan(self._template.ests, first, None, missing, nondeterministic)
            self._say("all operators have a D2 form: the same steps at level D2")
            second = self._run("D2", folder, launcher)
            return _scan(self._template.ests, first, second, _refused(second), ())

    @contextmanager
    def _launcher(self) -> Iterator[Launcher]:
        """Workers are forked from one process that has imported torch, where the machine can do that."""
        if not NurseryLauncher.works():
            yield LocalLauncher(self._environment)
            return
        launcher = NurseryLauncher(self._environment)
        try:
            yield launcher
        finally:
            launcher.close()

    def _run(self, level: Level, folder: Path, launcher: Launcher) -> _Run:
        path = folder / f"scan-{level}.json"
        template = replace(
            self._template, determinism=level, max_steps=WATCHED + self._steps,
            observation=Observation(scan_to=str(path)),
        )  # fmt: skip
        job = Job(target=self._target, schedule=Schedule(((0, Plan((template.ests,))),)), template=template)
        screen = QuietScreen(quiet=self._quiet, color="NO_COLOR" not in os.environ)
        outcome = Supervisor(job, launcher, screen, title=f"scan · {level}").run()
        if outcome.interrupted:
            raise KeyboardInterrupt
        return _Run(facts=read_json(path), error=outcome.error, output=list(screen.lines))


# ---------------------------------------------------------------------------------------- what follows from the runs


def _short_of_d2(run: _Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators without a D2 form, and those of them that are not deterministic either. Each once, in their order."""
    rows = run.rows()
    missing = [row["operator"] for row in rows if row["level"] != "D2"]
    nondeterministic = [row["operator"] for row in rows if row["level"] == "D0" and row["family"] != EXTENSIONS]
    by_torch = _BY_TORCH.search(run.error or "")
    if by_torch is not None:  # refused above the operators, where it could not be let through
        missing.append(by_torch[1])
        nondeterministic.append(by_torch[1])
    return tuple(dict.fromkeys(missing)), tuple(dict.fromkeys(nondeterministic))


def _refused(run: _Run) -> tuple[str, ...]:
    """What stopped a run at D2 of a script that runs at D1."""
    if run.error is None and run.facts is not None:
        return ()
    named = [row["operator"] for row in run.rows() if row["refused"]]
    sentence = headline((run.error or "it came to no global step").strip().splitlines())
    return tuple(dict.fromkeys(named)) or (sentence.rstrip("."),)


def _scan(
    ests: int, first: _Run, second: _Run | None, missing: tuple[str, ...], nondeterministic: tuple[str, ...]
) -> Scan:
    completed = second is not None and not missing
    operators = _operators(first, second if completed else None, second)
    d1, d2 = first.step(), second.step() if second is not None and completed else None
    facts = first.facts or {}
    machine = facts.get("machine", {})
    slowdown = d2 / d1 if d1 and d2 else None
    return Scan(
        ests=ests, machine=machine, kernels=facts.get("kernels", {}), operators=operators,
        families=_families(operators, second if completed else None), d1_seconds=d1, d2_seconds=d2,
        verdict=Verdict(
            mixes=not missing, slowdown=slowdown, device=str(machine.get("device", "")), missing=missing,
            nondeterministic=nondeterministic,
        ),
        notes=_notes(first, second, missing),
    )  # fmt: skip


def _operators(first: _Run, completed: _Run | None, second: _Run | None) -> tuple[Operator, ...]:
    """The rows of the run at D1, with the times of the one at D2, and with what that one refused."""
    rows = first.rows()
    whole = sum(row["seconds"] for row in rows)
    times = {_key(row): row["seconds"] for row in (completed.rows() if completed is not None else [])}
    refused = {_key(row): row for row in (second.rows() if second is not None else []) if row["refused"]}
    found = []
    for row in [*rows, *(row for key, row in refused.items() if key not in {_key(one) for one in rows})]:
        level, why = row["level"], row["why"]
        if _key(row) in refused:
            level, why = refused[_key(row)]["level"], refused[_key(row)]["refused"]
        found.append(
            Operator(
                module=row["module"], kind=row["kind"], phase=row["phase"], operator=row["operator"], level=level,
                family=row["family"], why=why, line=row["line"], calls=row["calls"], seconds=row["seconds"],
                share=row["seconds"] / whole if whole else 0.0, d2_seconds=times.get(_key(row)),
            )
        )  # fmt: skip
    return tuple(found)


def _families(operators: tuple[Operator, ...], second: _Run | None) -> tuple[Family, ...]:
    """The most time first. At D2 an operator may be computed by others: of families, not of rows, sums are the same."""
    at_d2: dict[str, float] = {}
    for row in second.rows() if second is not None else []:
        at_d2[row["family"]] = at_d2.get(row["family"], 0.0) + row["seconds"]
    at_d1: dict[str, float] = {}
    for one in operators:
        at_d1[one.family] = at_d1.get(one.family, 0.0) + one.seconds
    whole = sum(at_d1.values())
    names = sorted({*at_d1, *at_d2}, key=lambda name: (-at_d1.get(name, 0.0), name))
    return tuple(
        Family(
            name=name, seconds=at_d1.get(name, 0.0), share=at_d1.get(name, 0.0) / whole if whole else 0.0,
            d2_seconds=at_d2.get(name, 0.0) if second is not None else None,
        )
        for name in names
    )  # fmt: skip


def _notes(first: _Run, second: _Run | None, missing: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if second is None:
        notes.append("Not all operators have a D2 form, so what D2 would cost was not measured.")
    elif missing:
        notes.append("Level D2 refused the script; there may be more behind the first that it refused.")
    foreign = list(dict.fromkeys(row["operator"] for row in first.rows() if row["family"] == EXTENSIONS))
    if foreign:
        names = ", ".join(foreign)
        notes.append(f"Nobody knows the kernels of {names}: `easyscale verify SCRIPT` shows if D1 holds with them.")
    if first.facts is not None and first.facts["traced"] == 1:
        notes.append("The script has one global step: times are of a first step, which are longer than later ones.")
    elif first.step() is None and first.error is None:
        ended = first.facts["traced"] if first.facts is not None else 0
        notes.append(f"The script ended after {ended} global steps: no whole step was timed.")
    if second is not None and second.facts is not None and second.facts["kernels"].get("cpu") == "portable":
        notes.append("D2's C library is not there: its fallback is far slower. Install with a C compiler.")
    return tuple(notes)


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["module"], row["phase"], row["operator"]


# ---------------------------------------------------------------------------------------- errors


def _failed(target: Target, run: _Run) -> EasyScaleError:
    cure = "see that `easyscale run` runs it; arguments of the script come after it."
    return retold(f"The script {target.name} failed, so it could not be scanned.", run.error, run.output, cure)


def _no_step(target: Target) -> UsageError:
    return UsageError(
        f"The script {target.name} ran no global step.",
        "a scan watches the loop over a loader that es.prepare() has returned.",
        "see that the script calls es.init() and es.prepare(), and has data.",
    )
