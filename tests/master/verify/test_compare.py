"""Two runs part at the first step at which anything that both noted down differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from easyscale.master.verify.compare import ORDER, WORDS, Difference, first_difference
from easyscale.master.verify.stage import Run

STEPS, ESTS = 4, 3
KEYS = [key for key in ORDER if key != "loss"]


def run() -> Run:
    return Run(
        name="a run", steps=STEPS, fingerprints={step: f"sha {step}" for step in range(STEPS)},
        losses={step: [1.5, None, float("nan")] for step in range(STEPS)},
        witnesses={s: {e: {key: f"{key} {s} {e}" for key in KEYS} for e in range(ESTS)} for s in range(STEPS)},
    )  # fmt: skip


def changed(*changes: tuple[int, int, str]) -> Run:
    other = run()
    for step, est, key in changes:
        other.witnesses[step][est][key] = "?"
    return other


def test_equal_runs_have_no_difference() -> None:
    assert first_difference(run(), run()) is None


@pytest.mark.parametrize("key", KEYS)
def test_each_thing_that_is_noted_down_counts(key: str) -> None:
    difference = first_difference(run(), changed((2, 1, key)))
    assert difference == Difference(step=2, seen={key: [1]})
    assert WORDS[key] in difference.text
    assert "step 2" in difference.text


def test_the_first_step_wins_and_causes_come_before_what_they_cause() -> None:
    other = changed((3, 0, "batch"), (1, 0, "parameters"), (1, 2, "batch"), (1, 1, "batch"))
    difference = first_difference(run(), other)
    assert difference is not None
    assert (difference.step, list(difference.seen.items())) == (1, [("batch", [1, 2]), ("parameters", [0])])
    assert difference.text == "step 1: the mini-batch of EST 1, 2"


def test_losses_are_compared_to_the_bit_and_nan_is_nan() -> None:
    other = run()
    other.losses[1] = [1.5000000000000002, None, float("nan")]
    assert first_difference(run(), other) == Difference(step=1, seen={"loss": [0]})
    other.losses[1] = [1.5, 0.0, float("inf")]
    assert first_difference(run(), other) == Difference(step=1, seen={"loss": [1, 2]})


def test_minus_zero_is_not_zero() -> None:
    zero, minus = replace(run(), losses={0: [0.0]}), replace(run(), losses={0: [-0.0]})
    assert first_difference(zero, minus) == Difference(step=0, seen={"loss": [0]})


def test_a_fingerprint_alone_is_enough() -> None:
    """Buffers are in no witness, but in the model."""
    other = run()
    other.fingerprints[3] = "?"
    difference = first_difference(run(), other)
    assert difference == Difference(step=3, seen={"model": []})
    assert difference.text == "step 3: the model"


def test_a_run_that_ends_earlier_differs_there() -> None:
    assert first_difference(run(), replace(run(), steps=2)) == Difference(step=2, seen={"end": []})
    assert first_difference(replace(run(), steps=2), run()) == Difference(step=2, seen={"end": []})
    shorter = replace(changed((0, 0, "batch")), steps=2)
    assert first_difference(run(), shorter) == Difference(step=0, seen={"batch": [0]})


def test_what_lies_before_the_start_of_a_resumed_run_is_not_compared() -> None:
    resumed: Any = run()
    for step in range(2):
        del resumed.witnesses[step], resumed.fingerprints[step], resumed.losses[step]
    assert first_difference(run(), resumed, begin=2) is None
    resumed.witnesses[2][0]["optimizer"] = "?"
    assert first_difference(run(), resumed, begin=2) == Difference(step=2, seen={"optimizer": [0]})


def test_a_plain_script_may_leave_random_states_as_the_system_made_them() -> None:
    other = changed((0, 0, "random.python"), (1, 0, "random.numpy"))
    assert first_difference(run(), other, plain=True) is None
    assert first_difference(run(), other) is not None


def test_many_ests_are_told_in_short() -> None:
    text = Difference(step=0, seen={"batch": list(range(16))}).text
    assert text == "step 0: the mini-batch of EST 0, 1, … 15"
    assert Difference(step=0, seen={}).text == "step 0: the operators"
