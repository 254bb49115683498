"""A verdict keeps its facts through JSON, and what does not describe one is not taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from easyscale.core.verdict import Verdict


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(mixes=True),
        Verdict(mixes=True, slowdown=1.25, device="NVIDIA H200"),
        Verdict(mixes=False, missing=("linalg_inv_ex", "put"), nondeterministic=("put",), device="cpu (x86_64)"),
    ],
)
def test_a_verdict_is_the_same_after_json(verdict: Verdict) -> None:
    assert Verdict.of_plain(json.loads(json.dumps(verdict.plain()))) == verdict


def test_fields_of_a_later_version_are_left_out() -> None:
    assert Verdict.of_plain({"mixes": True, "slowdown": 2, "colour": "green"}) == Verdict(mixes=True, slowdown=2)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "no field `mixes`"),
        ([], "no field `mixes`"),
        ({}, "no field `mixes`"),
        ({"mixes": 1}, "no field `mixes`"),
        ({"mixes": True, "slowdown": "fast"}, "slowdown is 'fast'"),
        ({"mixes": True, "slowdown": True}, "slowdown is True"),
        ({"mixes": True, "slowdown": 0.0}, "contradict"),
        ({"mixes": True, "slowdown": float("nan")}, "contradict"),
        ({"mixes": False}, "contradict"),
        ({"mixes": True, "missing": ["mm"]}, "contradict"),
        ({"mixes": False, "missing": "mm"}, "missing is no list"),
        ({"mixes": False, "missing": [1]}, "missing is no list"),
        ({"mixes": False, "missing": ["mm"], "nondeterministic": {}}, "nondeterministic is no list"),
    ],
)
def test_what_is_no_verdict_is_refused_with_the_reason(raw: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Verdict.of_plain(raw)


def test_a_step_that_nobody_measured_counts_as_long_as_at_d1() -> None:
    assert Verdict(mixes=True).factor == 1.0
    assert Verdict(mixes=True, slowdown=1.7).factor == 1.7
