"""Speeds go through JSON and answer as before, to the bit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.cluster import key
from easyscale.planner.learned import LearnedSpeed
from easyscale.planner.model import EstSpeed
from easyscale.planner.reduction import Reduction
from easyscale.planner.speed import Speed
from easyscale.planner.wire import speed_of_plain, speed_to_plain

KINDS = ("v100", "p100", "t4")
seconds = st.floats(1e-6, 1e3)
small = st.floats(0.0, 1.0)
reductions = st.none() | st.builds(
    Reduction, base=small, per_worker=small, bytes=st.floats(0, 1e10), seconds_per_byte=st.floats(0, 1e-6),
    across_nodes=st.floats(1.0, 10.0), per_node=st.integers(1, 16), alone=small,
    known=st.lists(st.tuples(st.integers(2, 16), st.booleans(), small), max_size=4).map(tuple),
)  # fmt: skip
models = st.builds(
    EstSpeed, st.integers(1, 16), st.dictionaries(st.sampled_from(KINDS), seconds, min_size=1), reductions,
    st.sampled_from(("D0", "D1", "D2")), st.floats(0.0, 1.0),
)  # fmt: skip
devices = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 5), min_size=1)
speeds = models | st.builds(LearnedSpeed, models, st.dictionaries(devices.map(key), seconds, max_size=3))


@given(speeds, st.lists(devices, max_size=5), st.none() | st.integers(1, 4))
def test_a_speed_answers_the_same_after_a_round_trip(speed: Speed, asked: list[dict[str, int]], nodes: Any) -> None:
    again = speed_of_plain(json.loads(json.dumps(speed_to_plain(speed))))
    assert type(again) is type(speed)
    assert speed_to_plain(again) == speed_to_plain(speed)
    held = [dict(devices) for devices in getattr(speed, "measured", {})]
    for one in [*asked, *held, *({kind: count} for kind in KINDS for count in range(1, 6))]:
        assert again.rate(one, nodes) == speed.rate(one, nodes)


GOOD = speed_to_plain(LearnedSpeed(EstSpeed(4, {"t4": 0.5}, Reduction(base=1.0)), {(("t4", 2),): 3.0}))


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"kind": "unknown"},
        {**GOOD, "measured": [["x"]]},
        {**GOOD, "measured": None},
        {**GOOD, "model": None},
        {**GOOD, "model": GOOD},
        {**GOOD["model"], "ests": 0},
        {**GOOD["model"], "ests": True},
        {**GOOD["model"], "ests": "4"},
        {**GOOD["model"], "level": "D9"},
        {**GOOD["model"], "batch_seconds": {"t4": 0.0}},
        {**GOOD["model"], "batch_seconds": {"t4": "x"}},
        {**GOOD["model"], "reduction": {"known": []} | {"base": -1.0}},
        {**GOOD["model"], "reduction": {"known": [], "unheard": 1.0}},
        {**GOOD["model"], "reduction": {"known": [], "per_node": 0}},
        {**GOOD["model"], "reduction": {"base": 1.0}},
        {name: value for name, value in GOOD["model"].items() if name != "reduction"},
    ],
)
def test_what_is_no_speed_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not describe a speed"):
        speed_of_plain(bad)


def test_a_speed_of_another_sort_has_no_plain_form() -> None:
    class Odd:
        def rate(self, devices: object, nodes: int | None = None) -> float:
            return 1.0

    with pytest.raises(TypeError):
        speed_to_plain(Odd())
