"""A mind whose devices are others' choice: each runs an EST, and only ESTs move."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.cluster import Needs
from easyscale.planner.facts import Device, GiveBack, Granted, Propose, Resplit, Stepped, Switched, Terms
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


def grown(mind: Mind, local: float, seconds: float) -> list[object]:
    """One device, then a second one; the local steps of each, and the global step, then take so long."""
    mind.take(Granted((Device("a", "cpu"),)), 0.0)
    mind.take(Switched({"a": 4}), 0.0)
    for step in range(20):
        mind.take(Stepped({"a": 0.4}, 0.4), float(step))
    mind.take(Granted((Device("a", "cpu"), Device("b", "cpu"))), 20.0)
    mind.take(Switched({"a": 2, "b": 2}), 20.0)
    heard: list[object] = []
    for step in range(80):
        decided = mind.take(Stepped({"a": local, "b": local}, seconds), 21.0 + step)
        if mind.pending is not None:
            mind.take(Switched({"a": 2, "b": 2}), 21.0 + step)  # nobody moves
        heard += decided
    return heard


@pytest.mark.parametrize("local", [0.2, 0.39])  # the reduction is dear, or the two share one processor
def test_a_growth_that_disappoints_sets_the_limit_and_moves_nothing(local: float) -> None:
    mind = Mind(Needs(ests=4), terms=Terms(fixed=True, judged=True))
    decided = grown(mind, local, 0.39)  # 0.2 was predicted
    assert mind.limit == 1
    assert not [decision for decision in decided if isinstance(decision, GiveBack)]
    assert local == 0.39 or not any(isinstance(decision, Resplit) for decision in decided)
    assert [decision.limit for decision in decided if isinstance(decision, Propose)][-1] == 1
    assert mind.speed.rate({"cpu": 2}) <= 1 / 0.38
    assert mind.split == {"a": 2, "b": 2}
    mind.take(Stepped({"a": local, "b": local}, 0.39), 101.0 + mind.terms.remember)
    assert mind.limit is None, "it may be tried again"


def test_a_growth_that_keeps_its_word_sets_none_and_without_the_setting_nobody_judges() -> None:
    mind = Mind(Needs(ests=4), terms=Terms(fixed=True, judged=True))
    grown(mind, 0.2, 0.21)
    assert mind.limit is None
    mind = Mind(Needs(ests=4), terms=Terms(fixed=True))
    grown(mind, 0.2, 0.39)
    assert mind.limit is None
