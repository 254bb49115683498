"""The whole verification: the judge, the trials, and where one differs, the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from easyscale.core.observe import Observation, Plant, PlantKind
from easyscale.core.plan import Plan
from easyscale.master.verify.causes import Cause
from easyscale.master.verify.compare import Difference, first_difference
from easyscale.master.verify.diagnosis import (
    OTHER_SURROUNDINGS,
    Diagnosis,
    last_checkpoint,
    what_it_depends_on,
    why_a_plan_differs,
    why_it_differs_from_itself,
)
from easyscale.master.verify.findings import Finding, first_finding
from easyscale.master.verify.stage import Announce, Extras, Run, Stage
from easyscale.master.verify.trials import Trial, checkpoint_every, plan_trial, resume_trial, stock, widest

Verdict = Literal["reference", "same", "different", "failed"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run and what it says about the promise."""

    name: str
    kind: str
    plans: str
    run: Run
    verdict: Verdict
    difference: Difference | None = None


@dataclass(kw_only=True)
class Verification:
    """All that is known at the end. `depends_on`: what else than the script decides the bits."""

    rows: list[Row] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    diagnosed: str = ""
    depends_on: list[Cause] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        verdicts = {row.verdict for row in self.rows}
        return "failed" if "failed" in verdicts else "different" if "different" in verdicts else "same"


@dataclass(frozen=True, kw_only=True)
class Control:
    """A planted difference, and where it was seen."""

    plant: Plant
    difference: Difference | None
    finding: Finding | None = None

    @property
    def found(self) -> bool:
        """Seen in the very step and EST; an operator also by name."""
        if self.difference is None or self.difference.step != self.plant.step:
            return False
        if self.plant.kind == "operator":
            at = None if self.finding is None else (self.finding.kind, self.finding.step, self.finding.est)
            return at == ("operator", self.plant.step, self.plant.est)
        key = "batch" if self.plant.kind == "batch" else "random.torch"
        return self.difference.seen.get(key) == [self.plant.est]


def verify(
    stage: Stage, ests: int, steps: int, trials_for: Callable[[int], Sequence[Trial]], announce: Announce
) -> Verification:
    """Stock DDP first, then each trial against it. Stops at a run that fails: it has nothing to compare.

    `trials_for` is asked with the steps that the script has, at most `steps`: changes of plan must lie inside.
    """
    result = Verification()
    judge = _with_steps(stage.run(stock(ests), steps))
    result.rows.append(_row(stock(ests), judge, None))
    if judge.error is not None:
        return result
    trials = trials_for(judge.steps)
    if not _agrees_with_itself(stage, judge, ests, result, announce):
        return result
    checkpoints = _run_trials(stage, judge, trials, result, announce)
    different = next((row for row in result.rows if row.verdict == "different"), None)
    if different is not None and different.difference is not None:
        trial = next(trial for trial in trials if trial.name == different.name)
        result.diagnosed = different.name
        result.diagnosis = why_a_plan_differs(
            stage, trial, different.difference, ests, announce,
            widest_agrees=_widest_agrees(stage, judge, ests, result, announce), checkpoints=checkpoints,
        )  # fmt: skip
    return result


def _widest_agrees(stage: Stage, judge: Run, ests: int, result: Verification, announce: Announce) -> bool:
    """Whether EasyScale agrees with stock DDP where no two ESTs share a process. Run now if it was not asked for."""
    trial = widest(ests)
    known = next((row.verdict for row in result.rows if row.name == trial.name), None)
    if known is None:
        announce(trial.name)
        known = _row(trial, stage.run(trial, judge.steps), judge).verdict
    return known == "same"


def _with_steps(judge: Run) -> Run:
    """A judge that trained nothing would agree with everything."""
    if judge.error is None and judge.steps == 0:
        judge.error = "The script trained no global step with es.prepare()d objects: there is nothing to compare."
    return judge


def _agrees_with_itself(stage: Stage, judge: Run, ests: int, result: Verification, announce: Announce) -> bool:
    """Stock DDP in other surroundings; where that differs, stock DDP just as it was."""

    def again(steps: int, extras: Extras) -> Run:
        return stage.run(stock(ests, "again"), steps, extras)

    announce("stock DDP, other surroundings")
    other = stage.run(stock(ests, "surroundings"), judge.steps, OTHER_SURROUNDINGS)
    if other.error is None and first_difference(judge, other) is None:
        result.rows.append(_row(stock(ests, "surroundings"), other, judge))
        return True
    announce("stock DDP, again")
    witnesses = Extras(observation=Observation(treatments=("witnesses",)))
    same = again(judge.steps, witnesses)
    row = _row(stock(ests, "again"), same, judge)
    result.rows.append(row)
    if row.verdict == "different" and row.difference is not None:
        result.diagnosed = row.name
        result.diagnosis = why_it_differs_from_itself(stage, again, row.difference, ests, announce)
        return False
    result.depends_on = what_it_depends_on(again, judge, announce, same.evidence)
    return row.verdict == "same"


def _run_trials(
    stage: Stage, judge: Run, trials: Sequence[Trial], result: Verification, announce: Announce
) -> Path | None:
    """Returns the folder with the states of a run that agreed, for those who start in the middle."""
    checkpoints: Path | None = None
    for trial in trials:
        announce(trial.name)
        start = None if trial.resume_at is None else last_checkpoint(checkpoints, trial.resume_at)
        if trial.resume_at is not None:
            if start is None:
                continue  # the run that was to write the state did not get there; its own row says why
            trial = resume_trial(start[0], trial.schedule.entries[0][1].split)
        keeps = checkpoints is None and trial.kind == "plan"
        extras = Extras(
            resume=None if start is None else start[1],
            checkpoint_every=checkpoint_every(judge.steps) if keeps else None,
        )
        run = stage.run(trial, judge.steps, extras)
        if keeps:
            checkpoints = run.checkpoints
        result.rows.append(_row(trial, run, judge))
    return checkpoints


def verify_twice(stage: Stage, steps: int | None, announce: Announce) -> Verification:
    """Two plain runs of a script that knows nothing of EasyScale, and a third in other surroundings."""

    def again(most: int, extras: Extras) -> Run:
        return stage.run_plain("second run", most, extras)

    result = Verification()
    first = stage.run_plain("first run", steps)
    result.rows.append(_plain_row("first run", first, None))
    if first.error is not None:
        return result
    announce("second run")
    witnesses = Extras(observation=Observation(treatments=("witnesses",)))
    second = stage.run_plain("second run", steps, witnesses)
    row = _plain_row("second run", second, first)
    result.rows.append(row)
    if row.verdict == "different" and row.difference is not None:
        result.diagnosed = row.name
        result.diagnosis = why_it_differs_from_itself(stage, again, row.difference, 1, announce, plain=True)
        return result
    if row.verdict == "same" and first.steps == 0:
        return _without_steps(stage, result, announce)
    announce("other surroundings")
    other = stage.run_plain("third run, other surroundings", steps, OTHER_SURROUNDINGS)
    if other.error is not None or first_difference(first, other, plain=True) is not None:
        result.depends_on = what_it_depends_on(again, first, announce, second.evidence, plain=True)
    else:
        result.rows.append(_plain_row("third run, other surroundings", other, first))
    return result


def _without_steps(stage: Stage, result: Verification, announce: Announce) -> Verification:
    """No optimizer stepped: the operators of the whole script are compared."""
    announce("no optimizer step was seen: every operator of the whole script is compared")
    folders = []
    for _ in range(2):
        folders.append(stage.new_folder("trace"))
        stage.run_plain("second run", None, Extras(observation=Observation(trace_to=str(folders[-1]), first=0, last=0)))
    finding, parted = first_finding(folders[0], folders[1], range(1), 1)
    if finding is not None:
        difference = Difference(step=0, seen={})
        last = result.rows.pop()
        result.rows.append(
            Row(name=last.name, kind=last.kind, plans="", run=last.run, verdict="different", difference=difference)
        )
        result.diagnosed = last.name
        result.diagnosis = Diagnosis(
            difference=difference, finding=finding, ests=tuple(parted), began_at=0, causes=()
        )  # fmt: skip
    return result


def negative_controls(stage: Stage, ests: int, steps: int, announce: Announce) -> tuple[list[Row], list[Control]]:
    """Plant three differences, one at a time, in a plan that agrees with stock DDP."""
    judge = _with_steps(stage.run(stock(ests), min(2, steps)))
    step, est = judge.steps - 1, ests - 1
    rows = [_row(stock(ests), judge, None)]
    trial = plan_trial(Plan.even(ests, min(2, ests)).split)
    kinds: tuple[PlantKind, ...] = ("operator", "random", "batch")
    controls: list[Control] = []
    if judge.error is not None:
        return rows, controls
    announce(trial.name)
    clean = stage.run(trial, step + 1)
    rows.append(_row(trial, clean, judge))
    for kind in kinds:
        announce(f"planted: {kind}")
        plant = Plant(kind=kind, step=step, est=est)
        run = stage.run(trial, step + 1, Extras(observation=Observation(plant=plant)))
        difference = None if run.error is not None else first_difference(judge, run)
        finding = None
        if kind == "operator" and difference is not None:
            finding = _planted_operator(stage, trial, plant, ests)
        controls.append(Control(plant=plant, difference=difference, finding=finding))
    return rows, controls


def _planted_operator(stage: Stage, trial: Trial, plant: Plant, ests: int) -> Finding | None:
    ours, theirs = stage.new_folder("trace"), stage.new_folder("trace")
    for folder, planted, runs in ((ours, None, stock(ests)), (theirs, plant, trial)):
        observation = Observation(trace_to=str(folder), first=plant.step, last=plant.step, plant=planted)
        stage.run(runs, plant.step + 1, Extras(observation=observation))
    return first_finding(ours, theirs, range(plant.step, plant.step + 1), ests)[0]


def _row(trial: Trial, run: Run, judge: Run | None) -> Row:
    plans = " → ".join(str(plan) for _, plan in trial.schedule.entries)
    return _judged(trial.name, trial.kind, plans, run, judge, trial.resume_at or 0)


def _plain_row(name: str, run: Run, judge: Run | None) -> Row:
    return _judged(name, "plain", "", run, judge, 0)


def _judged(name: str, kind: str, plans: str, run: Run, judge: Run | None, begin: int) -> Row:
    difference = None
    verdict: Verdict = "reference"
    if run.error is not None:
        verdict = "failed"
    elif judge is not None:
        difference = first_difference(judge, run, begin, plain=kind == "plain")
        verdict = "same" if difference is None else "different"
    return Row(name=name, kind=kind, plans=plans, run=run, verdict=verdict, difference=difference)
