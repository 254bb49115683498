"""Speeds from measured tables: as measured where it was measured, sensible in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.errors import UsageError
from easyscale.simulator.profiles import Profile, pollux_profile
from easyscale.simulator.readers import read
from easyscale.simulator.tables import CountSpeed, FixedBatchSpeed, FixedEstSpeed, PlacementTable, shape_of

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
PROFILES = TRACES / "profiles" / "pollux"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces, which are not here")


@given(st.integers(1, 64), st.none() | st.integers(1, 20), st.integers(1, 8))
def test_a_shape_holds_all_devices_and_leaves_no_machine_empty(devices: int, nodes: int | None, per_node: int) -> None:
    shape = shape_of(devices, nodes, per_node)
    assert sum(shape) == devices
    assert all(1 <= count <= per_node for count in shape)
    least = -(-devices // per_node)
    assert len(shape) == (least if nodes is None else min(max(nodes, least), devices))


def small_table() -> PlacementTable:
    """One machine: 1 + batch seconds; two: one second of waiting more."""
    exact = {
        (1,): np.array([[10.0, 11.0, 0.0], [20.0, 21.0, 0.0]]),
        (2,): np.array([[10.0, 11.5, 0.5], [20.0, 21.5, 0.5]]),
        (1, 2): np.array([[10.0, 12.0, 1.0], [20.0, 22.0, 1.0]]),
    }
    coarse = np.array(
        [(n, g, b, 1 + b + n, n) for n in (1, 2, 4, 8) for g in (n, 4 * n) for b in (10, 20)], dtype=float
    )
    return PlacementTable(exact, coarse)


def test_a_measured_shape_is_interpolated_between_batches_and_its_rotations_are_one() -> None:
    table = small_table()
    assert table.times((1,), 15) == (16.0, 0.0)
    assert table.times((2, 1), 10) == table.times((1, 2), 10) == (12.0, 1.0)
    assert table.times((1,), 99) == (21.0, 0.0)


def test_other_shapes_are_interpolated_between_machines_devices_and_batches() -> None:
    step, sync = small_table().times((2, 2, 2), 15)  # 3 machines lie between 2 and 4
    assert step == pytest.approx(1 + 15 + 3)
    assert sync == pytest.approx(3)
    far, _ = small_table().times((8,) * 40, 20)
    assert far > 0


def small_profile() -> Profile:
    """Two epochs of 100; gradients of pure signal at batch 10: larger batches do not help."""
    return Profile(
        name="small",
        table=small_table(),
        batches=np.array([10.0, 40.0]),
        progress=np.array([100.0, 200.0]),
        signal=np.ones((2, 2)),
        noise=np.array([[0.0, 0.0], [3.0, 3.0]]),
        least_local_batch=10,
        most_local_batch=20,
    )


def test_the_steps_of_a_job_follow_from_the_noise_of_its_gradients() -> None:
    assert small_profile().steps(10) == pytest.approx(200.0)
    gain = (3 + 1) / (3 / 4 + 1)
    assert small_profile().steps(40) == pytest.approx(200.0 / gain)


def test_a_batch_that_is_too_large_for_a_device_is_accumulated_without_synchronization() -> None:
    speed = FixedBatchSpeed(small_profile(), 40, per_node=2)
    assert speed.cut(1) == (20, 1)
    assert speed.rate({"t4": 1}) == pytest.approx(1 / (21 + 21))
    assert speed.rate({"t4": 2}) == pytest.approx(1 / 21.5)
    assert speed.rate({"v100": 1}) == speed.rate({"t4": 1, "v100": 1}) == speed.rate({}) == 0.0


def test_rounded_batches_are_charged_in_steps_of_the_exact_one() -> None:
    profile = small_profile()
    speed = FixedBatchSpeed(profile, 40, per_node=2)
    local, extra = speed.cut(3)
    assert local * 3 * (extra + 1) <= 40  # never above the largest batch
    seen = profile.steps(local * 3)
    step, _ = profile.table.times((2, 1), local)
    assert speed.rate({"t4": 3}) == pytest.approx(profile.steps(40) / seen / step)


def test_ests_with_their_own_mini_batch_take_turns() -> None:
    speed = FixedEstSpeed(small_profile(), 40, most=4, per_node=2)
    assert speed.rate({"t4": 1}) == pytest.approx(1 / (4 * 11))
    assert speed.rate({"t4": 2}) == pytest.approx(1 / (11 + 11.5))
    assert speed.rate({"t4": 9}) == speed.rate({"t4": 4})


def test_steps_by_number_of_devices_are_linear_in_between_and_flat_beyond() -> None:
    speed = CountSpeed({"a100": [(2, 4.0), (4, 6.0)]}, {"a100": [(2, 1.0), (4, 2.0)]}, per_node=4)
    assert [speed.rate({"a100": n}) for n in (1, 2, 3, 4)] == [2.0, 4.0, 5.0, 6.0]
    assert speed.rate({"a100": 9}) == 2.0  # more than one machine holds
    assert speed.rate({"a100": 4}, 2) == 2.0
    assert speed.rate({"t4": 1}) == speed.rate({"a100": 1, "t4": 1}) == 0.0


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no profile"):
        pollux_profile(tmp_path)


@real
@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_published_profiles_answer_for_every_number_of_devices_and_machines(name: str) -> None:
    profile = pollux_profile(PROFILES / name)
    batch = profile.most_batch
    for count in (1, 3, 4, 7, 13, 16, 33, 64):
        for ests in (FixedBatchSpeed(profile, batch), FixedEstSpeed(profile, batch, most=64)):
            for nodes in (None, count, min(16, count)):
                rate = ests.rate({"t4": count}, nodes)
                assert np.isfinite(rate)
                assert rate > 0
    # its steps at a measured batch are near those that were counted there
    counted = np.loadtxt(PROFILES / name / f"validation-{batch}.csv", delimiter=",", skiprows=1)[-1, 1]
    assert 0.5 < profile.steps(batch) / counted < 2.0


@real
def test_pollux_jobs_can_use_what_their_batch_feeds_or_what_their_user_asked_for() -> None:
    path = TRACES / "pollux-workloads" / "workload-6.csv"
    for job in read(path).arrivals:
        assert job.needs.most == 1 if job.application == "ncf" else job.needs.most >= job.requested
        assert job.needs.types == ("t4",)
    for job in read(path, ests="requested").arrivals:
        assert job.needs.ests == job.requested


@real
def test_a_pollux_job_outside_of_its_profile_is_refused(tmp_path: Path) -> None:
    head = "name,time,application,num_replicas,batch_size\n"
    for row, said in (("x,1,gpt,1,32", "no profile of 'gpt'"), ("x,1,bert,1,9999", "from 12 to 384")):
        path = tmp_path / "w.csv"
        path.write_text(f"{head}{row}\n")
        with pytest.raises(UsageError, match="line 2") as error:
            read(path, profiles=PROFILES)
        assert said in str(error.value)
    with pytest.raises(UsageError, match="--read profiles"):
        read(path)
