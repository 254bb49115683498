"""What follows from a verdict: the level that is advised, and the devices that a job may hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from easyscale.core.cluster import DeviceKind, Needs, Slot
from easyscale.core.errors import PlanError
from easyscale.core.verdict import Verdict
from easyscale.master.placing import refuse_mix
from easyscale.planner.advice import advise, held_to, may_mix, weigh
from easyscale.planner.mind import Mind

MIXES = Verdict(mixes=True, slowdown=1.2, device="cpu")
STAYS = Verdict(mixes=False, missing=("linalg_inv_ex",))
CLUSTER = {"v100": 4, "t4": 8}
KINDS = {"v100": DeviceKind(name="v100"), "t4": DeviceKind(name="t4")}


# ---------------------------------------------------------------------------------------- advice


def test_d2_is_advised_up_to_the_limit_and_no_further() -> None:
    assert advise(MIXES, limit=1.5).level == "D2"
    above = advise(MIXES, limit=1.1)
    assert (above.level, above.words) == ("D1", "one device type")
    assert "1.20x" in above.reason
    assert "more than 1.1x" in above.reason


def test_a_price_that_nobody_measured_is_said_not_to_be_measured() -> None:
    advice = advise(Verdict(mixes=True))
    assert advice.level == "D2"
    assert "was not measured" in advice.reason


def test_operators_without_a_d2_form_mean_one_device_type_and_are_named() -> None:
    advice = advise(STAYS)
    assert (advice.level, advice.words) == ("D1", "one device type")
    assert "linalg_inv_ex" in advice.reason
    many = advise(Verdict(mixes=False, missing=tuple("abcdef")))
    assert many.reason.endswith("a, b, c, d and 2 more")


def test_no_level_is_advised_where_torch_has_no_deterministic_kernel() -> None:
    advice = advise(Verdict(mixes=False, missing=("inv", "put"), nondeterministic=("put",)))
    assert (advice.level, advice.words) == (None, "replace an operator")
    assert "every level refuses: put" in advice.reason


# ---------------------------------------------------------------------------------------- weighed on a cluster


def test_all_devices_at_d2_are_better_than_one_type_while_d2_is_cheap() -> None:
    weighed = weigh(12, CLUSTER, MIXES)
    assert weighed.gain > 1.0
    assert advise(MIXES, weighed).level == "D2"


def test_one_type_is_better_once_d2_is_dear() -> None:
    dear = replace(MIXES, slowdown=4.0)
    weighed = weigh(12, CLUSTER, dear)
    assert weighed.gain < 1.0
    advice = advise(dear, weighed)
    assert advice.level == "D1"
    assert weighed.kind in advice.reason


def test_the_best_single_type_is_the_one_with_the_most_work_done_not_the_fastest_device() -> None:
    assert weigh(8, CLUSTER, MIXES).kind == "t4:8"  # an EST on each, at 1.66 of a V100's time, which would run two
    assert weigh(8, {"v100": 4, "t4": 4}, MIXES).kind == "v100:4"
    seconds = {"v100": 0.1, "t4": 10.0}  # of this very script
    assert weigh(8, CLUSTER, MIXES, seconds).kind == "v100:4"


def test_a_script_that_does_not_mix_gains_nothing_from_more_types() -> None:
    assert weigh(12, CLUSTER, STAYS).gain == 0.0
    assert advise(STAYS, weigh(12, CLUSTER, STAYS)).level == "D1"


def test_the_limit_is_for_those_who_named_no_cluster() -> None:
    assert advise(MIXES, weigh(12, CLUSTER, MIXES), limit=1.01).level == "D2"


# ---------------------------------------------------------------------------------------- what a job may hold


def test_a_d2_job_whose_script_does_not_mix_is_held_to_one_type() -> None:
    wish = Needs(ests=4, level="D2")
    assert held_to(wish, STAYS) == Needs(ests=4, level="D1")
    assert held_to(wish, MIXES) == held_to(wish, None) == wish
    assert held_to(Needs(ests=4), STAYS) == Needs(ests=4)


def proposed_kinds(verdict: Verdict | None) -> set[frozenset[str]]:
    """The mixes of types that a job on V100s asks for when T4s and V100s are free."""
    mind = Mind(Needs(ests=12, level="D2"), KINDS, verdict=verdict)
    alone = mind.speed.rate({"v100": 4})
    return {
        frozenset(devices) for devices in ({"v100": 4}, {"v100": 4, "t4": 8}) if mind.speed.rate(devices) > 0.9 * alone
    }


def test_the_mind_sees_no_speed_in_a_mix_that_the_verdict_forbids() -> None:
    mixed = frozenset({"v100", "t4"})
    assert mixed in proposed_kinds(MIXES)
    assert mixed in proposed_kinds(None)
    assert mixed not in proposed_kinds(STAYS)


def test_the_mind_counts_the_price_of_d2_on_types_of_which_it_has_promises_only() -> None:
    def seconds(verdict: Verdict | None, level: str) -> float:
        mind = Mind(Needs(ests=4, level="D2" if level == "D2" else "D1"), KINDS, verdict=verdict)
        mind.profile.declared["v100"] = 0.1
        return mind.profile.of_type("v100").seconds

    assert seconds(MIXES, "D2") == pytest.approx(0.12)
    assert seconds(MIXES, "D1") == seconds(None, "D2") == pytest.approx(0.1)


@pytest.mark.parametrize("level", ["D0", "D1"])
def test_below_d2_devices_of_two_types_at_once_are_refused(level: str) -> None:
    def slots(*kinds: str) -> list[Slot]:
        return [Slot(id=str(i), kind=kind) for i, kind in enumerate(kinds)]

    below = "D0" if level == "D0" else "D1"
    with pytest.raises(PlanError, match=rf"2 types at once \(v100, t4\)[\s\S]*level {level}[\s\S]*--determinism D2"):
        refuse_mix(below, slots("v100", "t4", "v100"))
    refuse_mix(below, slots("v100", "v100"))
    refuse_mix("D2", slots("v100", "t4"))
    refuse_mix(below, [])


def test_a_mix_is_two_types_of_which_there_are_devices() -> None:
    assert not may_mix("D1", {"v100": 1, "t4": 1})
    assert may_mix("D1", {"v100": 2, "t4": 0})
    assert may_mix("D2", ("v100", "t4"))
