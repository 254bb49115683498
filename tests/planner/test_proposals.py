"""Ways to grow and to shrink: the best few, within what the job may hold."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.cluster import DeviceKind, Devices, Level, Needs, plus, total
from easyscale.planner.model import EstSpeed, Reduction
from easyscale.planner.proposals import Asker, grow, shrink

SECONDS = {"v100": 0.25, "p100": 0.4, "t4": 0.6}


def asker(needs: Needs, reduction: Reduction | None = None, **more: object) -> Asker:
    speed = EstSpeed(needs.ests, SECONDS, reduction, needs.level)
    return Asker(needs=needs, speed=speed, batch_seconds=SECONDS, **more)  # type: ignore[arg-type]


def test_each_proposal_says_what_it_brings() -> None:
    best = grow(asker(Needs(ests=4)), {"v100": 1}, {"v100": 3})
    fastest = max(best, key=lambda offer: offer.rate)
    assert fastest.devices == {"v100": 4}
    assert fastest.change == {"v100": 3}
    assert fastest.rate == 4.0
    assert fastest.throughput == 16.0
    assert fastest.speedup == 4.0
    assert fastest.per_device == 1.0
    assert fastest.waste == 0.0
    assert best[0].devices == {"v100": 4}  # of equals per device, the larger one first


def test_devices_that_bring_nothing_are_not_asked_for() -> None:
    assert {total(offer.devices) for offer in grow(asker(Needs(ests=4)), {"v100": 2}, {"v100": 1})} == set()
    assert [offer.devices for offer in grow(asker(Needs(ests=4)), {"v100": 2}, {"v100": 2})] == [{"v100": 4}]


def test_a_d1_job_stays_on_its_type_and_a_d2_job_mixes() -> None:
    free = {"v100": 1, "p100": 4, "t4": 4}
    assert all(set(offer.devices) == {"v100"} for offer in grow(asker(Needs(ests=8)), {"v100": 2}, free, few=9))
    mixed = grow(asker(Needs(ests=8, level="D2")), {"v100": 2}, free, few=9)
    assert any(len(offer.change) > 1 for offer in mixed)


def test_a_d1_job_that_holds_nothing_comes_back_to_the_type_that_it_has_trained_on() -> None:
    free = {"v100": 4, "t4": 4}
    assert {kind for offer in grow(asker(Needs(ests=8)), {}, free, few=9) for kind in offer.devices} == {"v100"}
    bound = grow(asker(Needs(ests=8), bound="t4"), {}, free, few=9)
    assert {kind for offer in bound for kind in offer.devices} == {"t4"}


def test_memory_types_and_limits_are_respected() -> None:
    kinds = {"v100": DeviceKind(name="v100", memory_gb=16), "t4": DeviceKind(name="t4", memory_gb=8)}
    free = {"v100": 4, "t4": 4, "p100": 4}
    needs = Needs(ests=8, level="D2", memory_gb=12, types=("v100", "t4"), max_workers=3)
    offers = grow(asker(needs), {"v100": 1}, free, kinds, few=9)
    assert offers
    assert all(set(offer.devices) == {"v100"} and total(offer.devices) <= 3 for offer in offers)
    assert grow(asker(needs, limit=1), {"v100": 1}, free, kinds) == []
    assert grow(asker(needs), {"v100": 1}, {"h100": 2}) == []


def test_growth_from_nothing_reaches_the_minimum_and_a_gang_is_whole() -> None:
    assert all(total(o.devices) >= 3 for o in grow(asker(Needs(ests=8, min_workers=3)), {}, {"v100": 8}, few=9))
    assert grow(asker(Needs(ests=8, min_workers=3)), {}, {"v100": 2}) == []
    assert [o.devices for o in grow(asker(Needs(ests=8, gang=4)), {}, {"v100": 8})] == [{"v100": 4}]
    assert shrink(asker(Needs(ests=8, gang=4)), {"v100": 4}) == []


def test_shrinking_says_what_is_lost_and_gives_idle_devices_first() -> None:
    offers = shrink(asker(Needs(ests=4)), {"v100": 3})
    assert offers[0].devices == {"v100": 2}  # 4 ESTs are as fast on 2 devices as on 3
    assert offers[0].speedup == 1.0
    assert offers[0].change == {"v100": -1}
    assert offers[1].devices == {"v100": 1}
    assert offers[1].speedup == 0.5
    assert offers[1].per_device == pytest.approx(-0.25)


def test_shrinking_stops_at_the_minimum() -> None:
    assert all(total(o.devices) >= 2 for o in shrink(asker(Needs(ests=4, min_workers=2)), {"v100": 4}, few=9))
    assert shrink(asker(Needs(ests=4, min_workers=2)), {"v100": 2}) == []
    assert shrink(asker(Needs(ests=4)), {}) == []


def test_a_d2_job_gives_its_slowest_devices_back_first() -> None:
    offers = shrink(asker(Needs(ests=8, level="D2")), {"v100": 2, "t4": 2})
    assert offers[0].devices.get("v100", 0) == 2


@settings(deadline=None)
@given(
    st.integers(1, 9), st.sampled_from(["D1", "D2"]), st.sampled_from([None, Reduction(base=0.05, per_worker=0.02)]),
    st.dictionaries(st.sampled_from(sorted(SECONDS)), st.integers(1, 3), min_size=1, max_size=2),
)  # fmt: skip
def test_no_way_to_use_the_free_devices_beats_all_proposals_per_device_of_one_type(
    ests: int, level: Level, reduction: Reduction | None, free: Devices
) -> None:
    who = asker(Needs(ests=ests, level=level), reduction)
    held = {"v100": 1}
    offers = grow(who, held, free, few=3)
    now = who.speed.rate(held)
    ways = [dict(zip(free, given_, strict=True)) for given_ in product(*(range(n + 1) for n in free.values()))]
    single = [way for way in ways if sum(1 for n in way.values() if n) == 1 and total(held) + total(way) <= ests]
    gains = [(who.speed.rate(plus(held, way)) / now - 1) / total(way) for way in single]
    best = max([gain for gain in gains if gain > 0], default=0.0)
    assert max((offer.per_device for offer in offers), default=0.0) >= best - 1e-12
    assert all(offer.rate > now and total(offer.devices) <= ests for offer in offers)
