"""The performance model: robust to outliers, fitted to the reduction, honest about what it does not know."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.planner.fitting import EXPECTED, Observed, fit, non_negative
from easyscale.planner.priors import against_v100, expected, known_name
from easyscale.planner.profile import ENOUGH, Profile
from easyscale.planner.reduction import Reduction
from easyscale.planner.samples import Estimate, Samples


def fed(profile: Profile, device: str, kind: str, seconds: float, steps: int = 10) -> None:
    for _ in range(steps):
        profile.take_local(device, kind, seconds)


@settings(deadline=None)
@given(st.lists(st.floats(0.9, 1.1), min_size=9, max_size=9), st.lists(st.floats(5.0, 1e3), max_size=7))
def test_outliers_do_not_move_what_is_typical(usual: list[float], outliers: list[float]) -> None:
    samples = Samples()
    for value in [*usual[:4], *outliers, *usual[4:]]:
        samples.add(value)
    found = samples.estimate()
    assert found is not None
    assert 0.9 <= found.seconds <= 1.1


def test_more_steps_and_less_noise_make_it_surer() -> None:
    def sure(values: list[float]) -> float:
        samples = Samples()
        for value in values:
            samples.add(value)
        found = samples.estimate()
        assert found is not None
        return found.sure

    assert sure([1.0]) < sure([1.0] * 5) < sure([1.0] * 16) < 1.0
    assert sure([0.8, 0.9, 1.0, 1.1, 1.2] * 3) < sure([0.98, 0.99, 1.0, 1.01, 1.02] * 3)


def test_a_type_is_as_fast_as_its_middle_device_and_a_straggler_is_slow_alone() -> None:
    profile = Profile()
    for device, seconds in (("a", 0.1), ("b", 0.1), ("c", 0.9)):
        fed(profile, device, "v100", seconds)
    assert profile.of_type("v100").seconds == 0.1
    assert profile.of_device("c", "v100").seconds == 0.9
    assert profile.of_device("new", "v100").seconds == 0.1


def test_of_two_devices_the_slower_one_is_the_straggler() -> None:
    profile = Profile()
    fed(profile, "a", "v100", 0.1)
    fed(profile, "b", "v100", 0.4)
    assert profile.of_type("v100").seconds == 0.1


def test_one_device_that_is_left_does_not_speak_for_its_type_alone() -> None:
    profile = Profile()
    for device in "abc":
        fed(profile, device, "v100", 0.1)
        profile.forget(device)
    fed(profile, "d", "v100", 0.9)
    assert profile.of_type("v100").seconds == 0.1
    assert profile.of_device("d", "v100").seconds == 0.9


def test_few_steps_do_not_count_yet() -> None:
    profile = Profile(declared={"v100": 0.5})
    fed(profile, "a", "v100", 0.1, ENOUGH - 1)
    assert profile.of_type("v100").seconds == 0.5
    fed(profile, "a", "v100", 0.1, 1)
    assert profile.of_type("v100").seconds == 0.1


def test_a_type_is_remembered_after_its_devices_left() -> None:
    profile = Profile()
    fed(profile, "a", "t4", 0.3)
    profile.forget("a")
    profile.forget("a")
    assert profile.of_type("t4").seconds == 0.3
    assert profile.of_type("t4").steps == 10


def test_a_type_that_was_not_measured_is_expected_by_known_ratios_and_less_surely() -> None:
    profile = Profile(level="D1")
    before = profile.of_type("p100")
    fed(profile, "a", "v100", 0.2)
    guess = profile.of_type("p100")
    assert guess.seconds == pytest.approx(0.2 * 1.49)
    assert before.sure < guess.sure < profile.of_type("v100").sure
    assert guess.steps == 0


def test_the_surest_known_type_speaks_for_the_others() -> None:
    known = {"t4": Estimate(0.3, 1.01, 100), "p100": Estimate(0.3, 3.0, 5)}
    assert expected("v100", "D1", known).seconds == pytest.approx(0.3 / 1.66)


def test_names_of_devices_are_recognised_as_drivers_write_them() -> None:
    assert known_name("Tesla V100-SXM2-16GB") == "v100"
    assert known_name("NVIDIA H200") == "h200"
    assert known_name("Abacus 3000") == "abacus 3000"
    assert against_v100("NVIDIA H200", "D1")[0] < 1.0
    assert against_v100("Abacus 3000", "D1")[1] > against_v100("h100", "D1")[1] > against_v100("t4", "D2")[1]


# ------------------------------------------------------------------ the reduction


TRUE = Reduction(base=5e-3, per_worker=1e-3, bytes=1e8, seconds_per_byte=3e-10, across_nodes=4.0)


def seen(*counts: int, truth: Reduction = TRUE) -> list[Observed]:
    return [Observed(workers, workers > 8, truth(workers)) for workers in counts]


def test_without_measurements_the_reduction_is_what_is_expected() -> None:
    assert fit([], 1e8)(4) == Reduction(
        base=EXPECTED.base, per_worker=EXPECTED.per_worker, bytes=1e8, seconds_per_byte=EXPECTED.seconds_per_byte
    )(4)


def test_one_number_of_workers_scales_the_expected_shape() -> None:
    found = fit(seen(4), 1e8)
    assert found(4) == pytest.approx(TRUE(4), rel=1e-3)
    scale = TRUE(4) / fit([], 1e8)(4)
    assert found(8) == pytest.approx(scale * fit([], 1e8)(8), rel=0.05)


def test_several_numbers_of_workers_tell_the_terms_apart() -> None:
    found = fit(seen(2, 3, 4, 6, 8, 16, 32), 1e8)
    for workers in (2, 5, 8, 12, 64):
        assert found(workers) == pytest.approx(TRUE(workers), rel=0.1)


def test_what_was_measured_counts_even_where_no_law_fits_it() -> None:
    found = fit([Observed(2, False, 0.01), Observed(4, False, 1.0)], 1e8)
    assert (found(2), found(4)) == (0.01, 1.0)
    assert 0.01 <= found(3) <= 1.0 <= found(5)


def test_one_worker_tells_what_a_step_always_costs() -> None:
    truth = Reduction(alone=0.01, base=0.02)
    found = fit(seen(1, 2, 4, truth=truth), 0.0)
    assert found(1) == 0.01
    assert found(4) == pytest.approx(0.03, rel=0.05)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.booleans(), st.floats(0.0, 10.0)), max_size=6), st.floats(0.0, 1e9))
def test_whatever_was_measured_the_reduction_is_never_negative(
    entries: list[tuple[int, bool, float]], size: float
) -> None:
    found = fit([Observed(*entry) for entry in entries], size)
    assert all(np.isfinite(found(workers)) and found(workers) >= 0.0 for workers in (1, 2, 3, 8, 9, 64))
    assert found(4, 2) >= found(4, 1)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_the_fit_is_the_best_without_negative_parts(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, wanted = random.normal(size=(6, 3)), random.normal(size=6)
    found = non_negative(rows, wanted)
    slope = rows.T @ (rows @ found - wanted)  # Kuhn-Tucker: no part that is free, and no zero, can be improved
    assert np.all(found >= 0)
    assert np.all(slope >= -1e-9)
    assert np.all(np.abs(slope[found > 0]) < 1e-9)


def test_it_says_how_far_from_measurements_a_reduction_is() -> None:
    profile = Profile()
    assert profile.reduction_sure(4) == 0.25
    profile.take_reduction(4, 1, 0.01)
    assert profile.reduction_sure(4) == 1.0
    assert profile.reduction_sure(8) == profile.reduction_sure(2) == 0.5
    assert profile.reduction_sure(1) == 1.0


def test_the_profile_goes_through_json() -> None:
    profile = Profile(size=1e6, declared={"t4": 0.5})
    fed(profile, "a", "v100", 0.1)
    fed(profile, "b", "v100", 0.1)
    profile.forget("b")
    profile.take_reduction(2, 1, 0.01)
    profile.take_reduction(12, 2, 0.05)
    profile.take_switch(0.7)
    again = Profile()
    again.load(json.loads(json.dumps(profile.state())))
    assert again.state() == profile.state()
    assert again.reduction() == profile.reduction()
    assert again.of_type("p100") == profile.of_type("p100")
    assert again.switch_seconds() == 0.7
