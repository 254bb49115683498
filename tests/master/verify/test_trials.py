"""The runs of a verification are valid for every job, and cover what they are said to cover."""

from __future__ import annotations

import pytest

from easyscale.core.plan import Plan
from easyscale.master.verify.trials import (
    ALL_WORKER_COUNTS_UP_TO,
    MOST_CHECKPOINTS,
    Trial,
    checkpoint_every,
    default_trials,
    plan_trial,
    stock,
    uneven_splits,
    widest,
    worker_counts,
)

STEPS = range(1, 21)


@pytest.mark.parametrize("ests", range(1, 13))
def test_every_trial_fits_its_job(ests: int) -> None:
    for steps in STEPS:
        trials = default_trials(ests, steps)
        for trial in trials:
            _check(trial, ests, steps)
        assert len({trial.name for trial in trials}) == len(trials), "rows are told apart by name"


def _check(trial: Trial, ests: int, steps: int) -> None:
    entries = trial.schedule.entries
    assert entries[0][0] == 0
    assert [step for step, _ in entries] == sorted({step for step, _ in entries})
    assert all(plan.ests == ests for _, plan in entries)
    assert entries[-1][0] < steps, "a change of plan that never comes"
    assert trial.engine == "est"


@pytest.mark.parametrize("ests", range(1, 13))
def test_the_widest_comes_first_and_all_small_worker_counts_follow(ests: int) -> None:
    trials = default_trials(ests, 8)
    assert trials[0] == widest(ests) == plan_trial((1,) * ests)
    counts = {trial.schedule.entries[0][1].workers for trial in trials if trial.kind == "plan"}
    if ests <= ALL_WORKER_COUNTS_UP_TO:
        assert counts == set(range(1, ests + 1))
    else:
        assert {1, 2, ests // 2, ests - 1, ests} <= counts
    assert all(1 <= count <= ests for count in worker_counts(ests))


@pytest.mark.parametrize("ests", range(1, 13))
def test_a_changing_schedule_and_a_resume_are_there_where_they_mean_something(ests: int) -> None:
    for steps in STEPS:
        kinds = [trial.kind for trial in default_trials(ests, steps)]
        assert kinds.count("schedule") == (1 if ests > 1 and steps > 1 else 0)
        assert kinds.count("resume") == (1 if steps > 1 else 0)


@pytest.mark.parametrize("steps", range(2, 60))
def test_a_resume_starts_where_a_checkpoint_lies_and_has_steps_left(steps: int) -> None:
    resume = next(trial for trial in default_trials(4, steps) if trial.kind == "resume")
    assert resume.resume_at is not None
    assert resume.resume_at % checkpoint_every(steps) == 0
    assert 0 < resume.resume_at < steps
    assert steps // checkpoint_every(steps) <= MOST_CHECKPOINTS


@pytest.mark.parametrize("ests", range(1, 13))
def test_uneven_splits_are_uneven(ests: int) -> None:
    splits = uneven_splits(ests)
    assert all(sum(split) == ests and len(set(split)) > 1 for split in splits)
    assert all(split != Plan.even(ests, len(split)).split for split in splits)
    assert (len(splits) > 0) == (ests > 2)


def test_the_judge_is_stock_ddp_with_a_process_for_each_rank() -> None:
    for kind in ("stock", "again", "surroundings"):
        trial = stock(3, kind)
        assert (trial.engine, trial.kind) == ("ddp", kind)
        assert trial.schedule.entries == ((0, Plan((1, 1, 1))),)
