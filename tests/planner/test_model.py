"""The speed of a job by type and number of devices, and the published figures of a plan."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.planner.assignment import assign_types
from easyscale.planner.model import EstSpeed, Reduction, figures, published_waste
from easyscale.scheduler.state import BatchSpeed

SECONDS = {"v100": 0.25, "p100": 0.4, "t4": 0.6}
REDUCTION = Reduction(base=0.01, per_worker=0.002, bytes=1e8, seconds_per_byte=1e-10, across_nodes=5.0, per_node=4)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.sampled_from([None, REDUCTION]), st.sampled_from([None, 1, 3]))
def test_one_type_is_as_fast_by_the_curve_as_by_the_assignment(
    ests: int, count: int, reduction: Reduction | None, nodes: int | None
) -> None:
    speed = EstSpeed(ests, SECONDS, reduction)
    expected = 1.0 / assign_types(ests, {"p100": count}, SECONDS, reduction, nodes=nodes).seconds
    assert speed.rate({"p100": count}, nodes) == expected
    assert speed.rates("p100", count, nodes)[-1] == expected


@settings(deadline=None)
@given(st.integers(1, 30), st.sampled_from([None, REDUCTION]))
def test_more_devices_of_a_type_never_make_a_job_slower(ests: int, reduction: Reduction | None) -> None:
    rates = EstSpeed(ests, SECONDS, reduction).rates("t4", 40)
    assert len(rates) == 40
    assert np.all(np.diff(rates) >= 0)


def test_the_speed_on_equal_devices_is_the_longest_queue_of_ests_and_the_reduction() -> None:
    speed = EstSpeed(8, SECONDS, REDUCTION)
    assert speed.rate({"v100": 3}) == 1.0 / (3 * 0.25 + REDUCTION(3))


def test_a_d2_job_mixes_types_and_a_d1_job_does_not() -> None:
    mix = {"v100": 1, "t4": 1}
    assert EstSpeed(3, SECONDS, level="D2").rate(mix) == 1.0 / 0.6
    assert EstSpeed(3, SECONDS, level="D1").rate(mix) == 0.0
    assert EstSpeed(3, SECONDS, level="D1").rate({"v100": 1, "t4": 0}) == 1.0 / (3 * 0.25)


def test_the_order_of_types_and_empty_types_change_nothing() -> None:
    speed = EstSpeed(9, SECONDS, REDUCTION, "D2")
    assert speed.rate({"v100": 2, "t4": 1}) == speed.rate({"t4": 1, "p100": 0, "v100": 2})


def test_unknown_types_and_no_devices_run_nothing() -> None:
    speed = EstSpeed(3, SECONDS, level="D2")
    assert speed.rate({"h100": 1}) == 0.0
    assert speed.rate({"h100": 1, "v100": 1}) == 0.0
    assert speed.rate({}) == speed.rate({"v100": 0}) == 0.0
    assert list(speed.rates("h100", 3)) == [0.0, 0.0, 0.0]
    assert len(speed.rates("v100", 0)) == 0
    assert speed.assignment({"h100": 1}) is None


def test_machines_make_the_reduction_dearer() -> None:
    speed = EstSpeed(4, SECONDS, REDUCTION)
    assert speed.rate({"v100": 4}, 2) < speed.rate({"v100": 4}, 1) == speed.rate({"v100": 4})


def test_a_speed_can_be_sent_to_another_process() -> None:
    speed = EstSpeed(9, SECONDS, REDUCTION, "D2")
    again = pickle.loads(pickle.dumps(speed))
    assert again.rate({"v100": 2, "t4": 1}) == speed.rate({"v100": 2, "t4": 1})


@settings(deadline=None)
@given(st.integers(1, 20), st.fixed_dictionaries({"v100": st.integers(1, 4), "t4": st.integers(0, 4)}))
def test_throughput_and_waste_add_up_to_the_capacity(ests: int, devices: dict[str, int]) -> None:
    found = figures(ests, devices, SECONDS)
    assert found.waste + found.throughput == pytest.approx(found.capacity)
    assert 0.0 < found.utilization <= 1.0
    assert found.speedup <= sum(devices.values()) + 1e-9


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_the_printed_formula_says_what_is_left_of_the_capacity(n: int, m: int, a: int, b: int, empty: int) -> None:
    devices, loads = {"v100": n, "t4": m}, {"v100": a, "t4": b}
    speeds = {"v100": 4.0, "t4": 1.5}
    ests = max(1, n * a + m * b - empty)
    capacity = n * 4.0 + m * 1.5
    throughput = ests / max(a / 4.0, b / 1.5)
    assert published_waste(ests, devices, speeds, loads) == pytest.approx(capacity - throughput)


def test_our_waste_is_never_above_that_of_a_plan_with_equal_loads_within_a_type() -> None:
    devices, speeds = {"v100": 2, "t4": 2}, {kind: 1.0 / s for kind, s in SECONDS.items()}
    ours = figures(7, devices, SECONDS).waste
    plans = [{"v100": a, "t4": b} for a in range(8) for b in range(8) if 2 * a + 2 * b >= 7]
    assert all(ours <= published_waste(7, devices, speeds, plan) + 1e-9 for plan in plans)


def test_the_reduction_of_one_worker_is_what_a_step_always_costs() -> None:
    assert Reduction(base=1.0, per_worker=1.0, alone=0.5)(1) == 0.5
    assert Reduction(base=1.0, per_worker=1.0, alone=0.5)(3) == 3.5


def test_a_larger_batch_needs_fewer_reductions_and_is_worth_less_a_sample() -> None:
    free, dear = EstSpeed(4, SECONDS, REDUCTION), EstSpeed(4, SECONDS, REDUCTION, batch_loss=0.5)
    devices = {"v100": 4}
    assert isinstance(free, BatchSpeed)
    assert free.rate_at(devices, 1.0) == free.rate(devices)
    assert free.rate_at(devices, 4.0) == pytest.approx(4.0 / (4 * 0.25 + REDUCTION(4)))
    assert dear.rate_at(devices, 4.0) == pytest.approx(2.0 / (4 * 0.25 + REDUCTION(4)))
    assert dear.rate_at(devices, 0.5) == pytest.approx(0.5 / (0.5 * 0.25 + REDUCTION(4)))  # and not more than that


@given(st.floats(1.0, 16.0), st.integers(1, 8))
def test_without_reductions_a_larger_batch_is_no_faster(batch: float, count: int) -> None:
    speed = EstSpeed(8, SECONDS)
    assert speed.rate_at({"t4": count}, batch) == pytest.approx(speed.rate({"t4": count}))
