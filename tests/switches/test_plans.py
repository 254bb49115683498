"""From one plan to the next while the job trains, by wishes of its own script and by a schedule: the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.plan import parse_schedule
from easyscale.master.launch import Outputs
from switches.stage import PICTURES, Play, Scene, judge, order_in_hand, play, stock, wished
from workloads import Case

ESTS = 4
Split = tuple[int, ...]

# Name: the plan at the start, wishes by the step in which they are made, the plans that follow, who leaves.
WAYS: dict[str, tuple[Split, dict[int, dict[str, Any]], list[tuple[int, Split]], set[int]]] = {
    "grow 1, 2, 4": ((4,), {0: {"workers": 2}, 4: {"workers": 4}}, [(2, (2, 2)), (6, (1, 1, 1, 1))], set()),
    "shrink 4, 2, 1": ((1, 1, 1, 1), {0: {"workers": 2}, 4: {"workers": 1}}, [(2, (2, 2)), (6, (4,))], {1, 2, 3}),
    "uneven": ((2, 2), {0: {"split": (3, 1)}, 4: {"split": (1, 3)}}, [(2, (3, 1)), (6, (1, 3))], set()),
    "off worker 0": ((2, 1, 1), {1: {"leave": 0}}, [(3, (2, 2))], {0}),
    "off the middle": ((1, 2, 1), {1: {"leave": 1}}, [(3, (2, 2))], {1}),
    "off 0, then off 1": ((1, 1, 2), {0: {"leave": 0}, 4: {"leave": 1}}, [(2, (2, 2)), (6, (4,))], {0, 1}),
    "to 1 and back": (
        (1, 1, 1, 1), {0: {"workers": 1}, 4: {"workers": 4}}, [(2, (4,)), (6, (1, 1, 1, 1))], {1, 2, 3}
    ),
    "come and go": (
        (3, 1), {0: {"split": (1, 2, 1)}, 4: {"split": (2, 2)}}, [(2, (1, 2, 1)), (6, (2, 2))], {2}
    ),
}  # fmt: skip


def follows(played: Play, began: Split, then: list[tuple[int, Split]], leavers: set[int]) -> None:
    assert played.plans == [(0, began), *then]
    assert set(played.codes.values()) == {0}
    assert len(played.run.happened("worker-left")) == len(leavers)
    for number in leavers:
        assert any(text.startswith(f"worker {number} ") for text in played.run.happened("worker-left"))
    # The first sentence tells of the start; the others of what each change cost.
    assert all("; pause " in text for text in played.run.happened("plan")[1:])
    assert [step for step, _ in played.run.state.switches] == [step for step, _ in then]


@pytest.mark.parametrize("way", WAYS)
def test_wishes_are_followed_and_the_bits_stay(way: str) -> None:
    began, wishes, then, leavers = WAYS[way]
    played = play(PICTURES, began, {step: wished(**scale) for step, scale in wishes.items()})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    follows(played, began, then, leavers)


@pytest.mark.parametrize("text", ["0:1,2:2,4:4,6:1", "0:4,2:1+3,4:3+1,6:2", "0:3,2:1,5:2+1+1"])
def test_a_schedule_is_kept_to_the_step(text: str) -> None:
    """The order for the next plan is there before its step, as in a job whose steps take longer than a message."""
    schedule = parse_schedule(text, ESTS)
    ordered = Scene(act=lambda: None, until=order_in_hand)
    played = play(PICTURES, schedule, {step: ordered for step, _ in schedule.entries[:-1]})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.run.state.plans == list(schedule.entries)
    assert [step for step, _ in played.run.state.switches] == [step for step, _ in schedule.entries[1:]]
    assert set(played.codes.values()) == {0}


def test_eight_ests_move_across_uneven_plans() -> None:
    case = Case(epochs=3)
    wishes = {0: {"split": (5, 1, 2)}, 3: {"leave": 1}}
    played = play(case, (2, 6), {step: wished(**scale) for step, scale in wishes.items()})
    judge(played, stock("mlp, 3 epochs", case, 8), losses=0)
    follows(played, (2, 6), [(2, (5, 1, 2)), (4, (4, 4))], {1})  # an epoch has two steps


def test_the_report_holds_plans_and_pauses(tmp_path: Path) -> None:
    scenes: dict[int, Scene] = {1: wished(workers=3)}
    played = play(PICTURES, (2, 2), scenes, outputs=Outputs(report=tmp_path / "report.json"))
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["plans"] == [{"step": 0, "split": [2, 2]}, {"step": 3, "split": [2, 1, 1]}]
    (pause,) = report["timings"]["switches"]
    assert pause["step"] == 3
    assert pause["seconds"] >= 0
    assert report["lost_steps"] == 0
