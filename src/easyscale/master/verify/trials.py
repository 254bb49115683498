"""Which runs prove the promise for a job of N ESTs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Engine

# stock: the judge. surroundings: the judge again, with another hash seed, clock and order of folders.
# again: the judge again, as it was. plan, schedule, resume: EasyScale.
Kind = Literal["stock", "again", "surroundings", "plan", "schedule", "resume"]
ALL_WORKER_COUNTS_UP_TO = 8
MOST_CHECKPOINTS = 8  # of the run whose states others start from: one a step for short verifications


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run. `resume_at`: it starts from the checkpoint of another run after so many global steps."""

    name: str
    kind: Kind
    schedule: Schedule
    engine: Engine = "est"
    resume_at: int | None = None


def fixed(split: tuple[int, ...]) -> Schedule:
    return Schedule(((0, Plan(split)),))


def stock(ests: int, kind: Kind = "stock") -> Trial:
    names = {"stock": "stock DDP", "again": "stock DDP, again", "surroundings": "stock DDP, other surroundings"}
    return Trial(name=names[kind], kind=kind, schedule=fixed((1,) * ests), engine="ddp")


def plan_trial(split: tuple[int, ...]) -> Trial:
    plan = Plan(split)
    return Trial(name=f"{plan.workers} worker{'s' if plan.workers > 1 else ''} ({plan})", kind="plan",
                 schedule=fixed(split))  # fmt: skip


def schedule_trial(schedule: Schedule) -> Trial:
    steps = ", ".join(f"{step}: {plan}" for step, plan in schedule.entries)
    return Trial(name=f"changing, by step {steps}", kind="schedule", schedule=schedule)


def resume_trial(at: int, split: tuple[int, ...]) -> Trial:
    return Trial(
        name=f"stopped after {at}, resumed on {Plan(split)}", kind="resume", schedule=fixed(split), resume_at=at
    )


def widest(ests: int) -> Trial:
    """One EST on each worker: nothing is shared between ESTs. Its checkpoints serve all others."""
    return plan_trial((1,) * ests)


def default_trials(ests: int, steps: int) -> list[Trial]:
    """All worker counts, uneven splits, a schedule that changes twice, a stop and resume. The widest comes first."""
    trials = [widest(ests)]
    trials += [plan_trial(Plan.even(ests, workers).split) for workers in worker_counts(ests) if workers < ests]
    trials += [plan_trial(split) for split in uneven_splits(ests)]
    if ests > 1 and steps > 1:
        trials.append(schedule_trial(changing(ests, steps)))
    if steps > 1:
        every = checkpoint_every(steps)
        trials.append(resume_trial(max(1, steps // 2 // every) * every, (uneven_splits(ests) or [(ests,)])[-1]))
    return trials


def checkpoint_every(steps: int) -> int:
    return max(1, -(-steps // MOST_CHECKPOINTS))


def worker_counts(ests: int) -> list[int]:
    if ests <= ALL_WORKER_COUNTS_UP_TO:
        return list(range(1, ests + 1))
    return sorted({1, 2, 3, 4, 5, 8, ests // 2, ests - 1, ests})


def uneven_splits(ests: int) -> list[tuple[int, ...]]:
    """One with the most at the front, one with the most at the back."""
    if ests < 3:
        return []
    even = {Plan.even(ests, workers).split for workers in range(1, ests + 1)}
    wanted: list[tuple[int, ...]] = [(ests - 1, 1), (1, ests - 1) if ests == 3 else (1, 1, ests - 2)]
    return [split for split in wanted if split not in even]


def changing(ests: int, steps: int) -> Schedule:
    last = (uneven_splits(ests) or [(ests,)])[0]
    first, second = max(1, steps // 3), max(2, 2 * steps // 3)
    entries = [(0, Plan((1,) * ests)), (first, Plan((ests,)))]
    if first < second < steps and last != (ests,):
        entries.append((second, Plan(last)))
    return Schedule(tuple(entries))
