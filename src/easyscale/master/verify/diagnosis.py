"""After a difference: runs the step again from the last equal state with every operator written down, then looks for
the cause by taking known ones away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.observe import Observation, Treatment
from easyscale.master.verify.causes import Cause, likely_cause, own_cause, shown_cause
from easyscale.master.verify.compare import Difference, first_difference
from easyscale.master.verify.findings import Finding, first_finding
from easyscale.master.verify.stage import Announce, Extras, Run, Stage
from easyscale.master.verify.trials import Trial, stock, widest


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`began_at`: the global step from which the traced re-run started. `ests`: all that part in that step.

    `unsaved`: from the saved state the step did not differ, from the start it did.
    """

    difference: Difference
    finding: Finding | None
    ests: tuple[int, ...]
    began_at: int
    causes: tuple[Cause, ...]
    unsaved: bool = False


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A known cause, and how to take it away from a run or put it in."""

    key: str
    name: str
    treatments: tuple[Treatment, ...] = ()
    environment: Mapping[str, str] | None = None
    evidence: str | None = None  # who asks for it, as the witnesses call it


TAKEN_AWAY = (
    Experiment(key="unseeded", name="a generator without a seed", treatments=("seeded-generators",),
               evidence="a generator without a seed"),
    Experiment(key="clock", name="the clock", treatments=("counting-clock",), evidence="the clock"),
    Experiment(key="hash order", name="the order of a set", environment={"PYTHONHASHSEED": "0"}),
    Experiment(key="threads", name="the number of threads",
               environment={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
)  # fmt: skip
PUT_IN = (
    Experiment(key="hash order", name="the order of a set", environment={"PYTHONHASHSEED": "1"}),
    Experiment(key="folder order", name="the order of a folder", treatments=("reversed-folders",),
               evidence="the order of a folder"),
    Experiment(key="clock", name="the clock", treatments=("shifted-clock",), evidence="the clock"),
)  # fmt: skip
OTHER_SURROUNDINGS = Extras(
    observation=Observation(treatments=("reversed-folders", "shifted-clock")), environment={"PYTHONHASHSEED": "1"}
)


# One way to run the script again, for so many steps: stock DDP, or as a plain process.
Runner = Callable[[int, Extras], Run]


def why_it_differs_from_itself(
    stage: Stage, runner: Runner, difference: Difference, ests: int, announce: Announce, *, plain: bool = False
) -> Diagnosis:
    """Two runs of one kind gave different bits: which known cause, taken away from both, makes them agree?"""
    steps = difference.step + 1
    announce("the script differs from itself: two runs with every operator written down")
    window = range(max(0, difference.step - 2), steps)
    left, ours = _traced(stage, lambda extras: runner(steps, extras), window)
    right, theirs = _traced(stage, lambda extras: runner(steps, extras), window)
    finding, parted = first_finding(ours, theirs, window, ests)
    evidence = {**left.evidence, **right.evidence}
    # Under the launcher the hash seed and the number of threads are ours, and fixed.
    suspects = [e for e in TAKEN_AWAY if e.evidence is not None or plain]
    suspects = [e for e in suspects if e.evidence in (None, *evidence) or e.key == "unseeded"]

    def agree_without(taken: Sequence[Experiment]) -> bool:
        announce("two runs without " + ", ".join(experiment.name for experiment in taken))
        first, second = (runner(steps, _together(taken)) for _ in range(2))
        return first.error is None and first_difference(first, second, plain=plain) is None

    guilty = [experiment for experiment in suspects if agree_without([experiment])]
    if not guilty and len(suspects) > 1 and agree_without(suspects):
        guilty = [experiment for experiment in suspects if experiment.evidence in evidence] or suspects
    causes = [shown_cause(e.key, e.name, evidence.get(e.evidence or "", [])) for e in guilty]
    own = own_cause(finding)
    if own is not None and not causes:
        causes.append(own)
    return Diagnosis(difference=difference, finding=finding, ests=tuple(parted), began_at=0, causes=tuple(causes))


def _together(experiments: Sequence[Experiment]) -> Extras:
    treatments = tuple(name for experiment in experiments for name in experiment.treatments)
    environment = {name: value for experiment in experiments for name, value in (experiment.environment or {}).items()}
    return Extras(observation=Observation(treatments=treatments), environment=environment)


def what_it_depends_on(
    runner: Runner, reference: Run, announce: Announce, evidence: dict[str, list[str]], *, plain: bool = False
) -> list[Cause]:
    """The same bits here, but other bits in other surroundings: which of them?"""
    causes = []
    for experiment in PUT_IN:
        announce(f"with another {experiment.name.removeprefix('the ')}")
        other = runner(reference.steps, _together([experiment]))
        if other.error is not None or first_difference(reference, other, plain=plain) is not None:
            causes.append(shown_cause(experiment.key, experiment.name, evidence.get(experiment.evidence or "", [])))
    return causes or [shown_cause("surroundings", "its surroundings, or on chance", [])]


def why_a_plan_differs(
    stage: Stage, trial: Trial, difference: Difference, ests: int, announce: Announce,
    *, widest_agrees: bool, checkpoints: Path | None,
) -> Diagnosis:  # fmt: skip
    """A plan differs from stock DDP, which agrees with itself. Starts from the last equal state where there is one."""
    step = difference.step
    finding: Finding | None = None
    parted: list[int] = []
    began = 0
    start = last_checkpoint(checkpoints, step) if trial.kind == "plan" and widest_agrees else None
    if start is not None:
        began = start[0]
        announce(f"step {step} again from the state after step {began}, every operator written down")
        finding, parted = _located(stage, widest(ests), trial, step, ests, start[1])
    if finding is None:
        began = 0 if trial.resume_at is None else trial.resume_at
        announce(f"step {step} again, every operator written down")
        resume = _checkpoint(checkpoints, trial.resume_at)
        finding, parted = _located(stage, stock(ests), trial, step, ests, None, resume)
    cause = likely_cause(difference, finding, widest_agrees=widest_agrees, kind=trial.kind)
    return Diagnosis(
        difference=difference, finding=finding, ests=tuple(parted), began_at=began, causes=(cause,),
        unsaved=start is not None and began == 0 and start[0] > 0,
    )  # fmt: skip


def last_checkpoint(folder: Path | None, steps: int) -> tuple[int, Path] | None:
    """The newest one of at most so many completed global steps."""
    found = [] if folder is None else [(int(p.name.removeprefix("step-")), p) for p in folder.glob("step-*")]
    return max(((at, path) for at, path in found if at <= steps), default=None)


def _checkpoint(folder: Path | None, at: int | None) -> Path | None:
    found = None if at is None else last_checkpoint(folder, at)
    return None if found is None else found[1]


def _located(
    stage: Stage, reference: Trial, other: Trial, step: int, ests: int, resume: Path | None,
    resume_other: Path | None = None,
) -> tuple[Finding | None, list[int]]:  # fmt: skip
    window = range(step, step + 1)
    _, ours = _traced(stage, lambda extras: stage.run(reference, step + 1, extras), window, resume)
    _, theirs = _traced(stage, lambda extras: stage.run(other, step + 1, extras), window, resume_other or resume)
    return first_finding(ours, theirs, window, ests)


def _traced(
    stage: Stage, run: Callable[[Extras], Run], window: range, resume: Path | None = None
) -> tuple[Run, Path]:
    """A run that writes every operator of these steps into a folder of its own."""
    folder = stage.new_folder("trace")
    observation = Observation(
        trace_to=str(folder), first=window.start, last=window.stop - 1, treatments=("witnesses",)
    )
    return run(Extras(observation=observation, resume=resume)), folder
