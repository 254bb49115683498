"""A mind whose devices are others' choice: each runs an EST, and only ESTs move."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.cluster import Needs
from easyscale.planner.facts import Device, GiveBack, Granted, Resplit, Stepped, Switched, Terms
from easyscale.planner.holding import Holding
from easyscale.planner.mind import Mind
from easyscale.planner.profile import Profile


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4), st.integers(0, 5))
def test_the_split_is_the_best_of_those_that_use_every_device(seconds: list[float], more: int) -> None:
    ests, profile = len(seconds) + more, Profile()
    devices = tuple(Device(str(place), f"type {place}") for place in range(len(seconds)))
    for device, each in zip(devices, seconds, strict=True):
        profile.take_local(device.id, device.kind, each, 10)
    best = Holding(devices, profile, {}, fixed=True).best(ests, devices)
    assert sum(best.split.values()) == ests
    assert min(best.split.values()) >= 1
    every = (split for split in product(range(1, ests + 1), repeat=len(seconds)) if sum(split) == ests)
    slowest = min(max(count * each for count, each in zip(split, seconds, strict=True)) for split in every)
    assert max(best.split[d.id] * each for d, each in zip(devices, seconds, strict=True)) == pytest.approx(slowest)


def test_a_straggler_keeps_one_est_where_a_free_mind_would_send_it_away() -> None:
    for fixed in (False, True):
        mind = Mind(Needs(ests=4), terms=Terms(fixed=fixed))
        mind.take(Granted((Device("a", "cpu"), Device("b", "cpu"))), 0.0)
        mind.take(Switched({"a": 2, "b": 2}), 0.0)
        decided = [
            decision
            for step in range(30)
            for decision in mind.take(Stepped({"a": 0.2, "b": 20.0}, 20.1), float(step))
            if isinstance(decision, Resplit | GiveBack)
        ]
        assert isinstance(decided[0], Resplit)
        assert decided[0].split == ({"a": 3, "b": 1} if fixed else {"a": 4})
        assert len(decided) == (1 if fixed else 2)
