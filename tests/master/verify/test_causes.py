"""From what was seen to a cause: likely ones are marked as such, shown ones come from experiments alone."""

from __future__ import annotations

from typing import Any

import pytest

from easyscale.master.verify.causes import ADVICE, likely_cause, own_cause, shown_cause
from easyscale.master.verify.compare import Difference
from easyscale.master.verify.diagnosis import PUT_IN, TAKEN_AWAY
from easyscale.master.verify.findings import Finding


def difference(*keys: str) -> Difference:
    return Difference(step=1, seen={key: [0] for key in keys})


def finding(kind: Any, line: str = "train.py:9") -> Finding:
    return Finding(kind=kind, step=1, est=0, tensor="t", operator="aten.mul", line=line)


CASES: list[tuple[Difference, Finding | None, bool, str, str]] = [
    (difference("threads", "batch"), finding("value"), True, "plan", "threads"),
    (difference("settings"), finding("operator"), True, "plan", "settings"),
    (difference("loss"), finding("buffers"), True, "plan", "buffers"),
    (difference("loss"), finding("value"), True, "plan", "shared state"),
    (difference("loss"), finding("value"), True, "resume", "unregistered state"),
    (difference("loss"), finding("input"), True, "schedule", "unregistered state"),
    (difference("parameters"), finding("reduction"), False, "plan", "ours"),
    (difference("parameters"), None, False, "resume", "ours"),
    (difference("loss"), None, True, "plan", "shared state"),
]


@pytest.mark.parametrize(("seen", "found", "widest_agrees", "kind", "key"), CASES)
def test_the_likely_cause_of_a_plan_that_differs(
    seen: Difference, found: Finding | None, widest_agrees: bool, kind: str, key: str
) -> None:
    cause = likely_cause(seen, found, widest_agrees=widest_agrees, kind=kind)
    assert cause.advice == ADVICE[key]
    assert not cause.shown


def test_the_line_is_told_where_it_is_known() -> None:
    cause = likely_cause(difference("loss"), finding("value"), widest_agrees=True, kind="plan")
    assert cause.places == ("train.py:9",)
    cause = likely_cause(difference("loss"), finding("batch", line=""), widest_agrees=True, kind="plan")
    assert cause.places == ()


def test_an_operator_that_differs_from_itself_is_named() -> None:
    cause = own_cause(finding("operator"))
    assert cause is not None
    assert "aten.mul" in cause.name
    assert own_cause(finding("value")) is None
    assert own_cause(None) is None


def test_a_shown_cause_has_few_places() -> None:
    cause = shown_cause("clock", "the clock", [f"a.py:{i}" for i in range(9)])
    assert cause.shown
    assert len(cause.places) == 5


def test_every_experiment_has_its_advice() -> None:
    assert {experiment.key for experiment in (*TAKEN_AWAY, *PUT_IN)} <= ADVICE.keys()
