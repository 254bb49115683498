"""The study of a trace, and the replay that says why jobs wait."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.cluster import Needs
from easyscale.simulator.describe import busy_devices, describe
from easyscale.simulator.describe_table import table
from easyscale.simulator.queueing import quotas_by_demand, replay
from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.workload import Arrival, Past, Workload

MAKER = Maker(Assumptions())


def job(name: str, time: float, devices: int, seconds: float, tenant: str = "", past: Past | None = None) -> Arrival:
    return MAKER.make(name=name, time=time, devices=devices, seconds=seconds, line=1, tenant=tenant, past=past)


def workload(*jobs: Arrival) -> Workload:
    return Workload(name="small", arrivals=jobs)


def test_a_job_waits_for_devices_of_others() -> None:
    waits = replay(workload(job("a", 0, 8, 100), job("b", 10, 8, 100)), {"v100": 8})
    assert [round(wait.fair_share) for wait in waits if wait] == [0, 90]
    assert [wait.fragmentation for wait in waits if wait] == [0, 0]


def test_a_job_waits_for_free_devices_that_are_scattered_then_takes_them_and_is_slower() -> None:
    # Two machines of 4, each with one device in use: 6 are free, and no machine has 4 of them.
    jobs = workload(
        job("a", 0, 3, 1000), job("b", 0, 3, 1000), job("c", 1, 1, 9000), job("d", 1, 1, 9000), job("e", 2000, 4, 100)
    )
    waits = replay(jobs, {"v100": 8}, per_node=4, patience=50)
    last = waits[-1]
    assert last is not None
    assert (last.fragmentation, last.fair_share, last.spread) == (50.0, 0.0, 1)
    assert last.seconds > 100.0
    study = describe(jobs, cluster={"v100": 8}, replay=lambda _: waits)
    assert study.causes is not None
    assert study.causes.fragmentation == 1.0
    assert study.locality is not None
    assert study.locality.spread > 0
    assert study.locality.lost > 0


def test_a_tenant_waits_at_its_quota_while_another_does_not() -> None:
    jobs = workload(job("a", 0, 4, 100, "x"), job("b", 1, 4, 100, "x"), job("c", 2, 4, 100, "y"))
    waits = replay(jobs, {"v100": 8}, quotas={"x": 4, "y": 4})
    assert [round(wait.queued) for wait in waits if wait] == [0, 99, 0]


def test_quotas_follow_demand_and_hold_the_largest_job() -> None:
    jobs = workload(job("a", 0, 1, 300, "x"), job("b", 0, 4, 25, "y"))
    assert quotas_by_demand(jobs, {"v100": 8}) == {"x": 6, "y": 4}


def test_a_job_that_can_never_run_is_told_apart() -> None:
    waits = replay(workload(job("a", 0, 9, 100), job("b", 0, 1, 100)), {"v100": 8})
    assert waits[0] is None
    assert waits[1] is not None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 8), st.floats(1, 500), st.sampled_from("xy")), min_size=1),
    st.floats(0, 200),
)
def test_a_replay_never_uses_more_devices_than_there_are_and_all_jobs_run(
    rows: list[tuple[float, int, float, str]], patience: float
) -> None:
    jobs = workload(*(job(str(i), *row) for i, row in enumerate(sorted(rows))))
    waits = replay(jobs, {"v100": 8}, per_node=4, patience=patience)
    ran = []
    for arrival, wait in zip(jobs.arrivals, waits, strict=True):
        assert wait is not None
        assert wait.fair_share >= 0
        assert wait.fragmentation >= 0
        start = arrival.time + wait.queued
        ran.append((start, start + wait.seconds, arrival.requested))
    for start, _, _ in ran:
        assert sum(count for a, b, count in ran if a <= start + 1e-6 and b > start + 1e-5) <= 8


@given(st.lists(st.tuples(st.floats(0, 40_000), st.floats(0, 40_000), st.integers(1, 9)), min_size=1, max_size=20))
def test_devices_in_use_are_those_of_a_count_by_hand(rows: list[tuple[float, float, int]]) -> None:
    start, seconds, devices = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    found = busy_devices(start, seconds, devices)
    for place, value in enumerate(found):
        low, high = start.min() + place * 3600, start.min() + (place + 1) * 3600
        overlap = np.maximum(0, np.minimum(start + seconds, high) - np.maximum(start, low))
        assert value == pytest.approx(float(np.sum(overlap * devices)) / 3600, abs=1e-3)


def recorded() -> Workload:
    return workload(
        job("a", 0, 1, 100, past=Past(seconds=100, queued=0, status="Pass", failed=False, attempts=1, nodes=1)),
        job("b", 10, 1, 300, past=Past(seconds=300, queued=120, status="Failed", failed=True, attempts=3, nodes=1)),
        job("c", 7200, 16, 3600, past=Past(seconds=3600, queued=600, status="Pass", failed=False, attempts=1, nodes=2)),
    )


def test_a_study_has_sizes_run_times_queueing_and_failures_of_what_was_recorded() -> None:
    study = describe(recorded())
    small, large = study.classes[0], study.classes[3]
    assert (study.jobs, study.queueing, study.hours) == (3, "recorded", 2.0)
    assert (small.jobs, small.run.median, small.failed) == (2, 200.0, 0.5)
    assert large.device_hours_share == pytest.approx(16 * 3600 / (16 * 3600 + 400))
    assert small.queued is not None
    assert small.queued.mean == 60.0
    assert small.waited == 0.5
    assert [(ending.status, ending.jobs) for ending in study.endings] == [("Pass", 2), ("Failed", 1)]
    assert study.attempts == pytest.approx(5 / 3)
    assert study.causes is None


def test_a_trace_without_queueing_or_failures_says_nothing_about_them() -> None:
    study = describe(workload(job("a", 0, 1, 100), job("b", 50, 2, 100)))
    assert study.queueing == ""
    assert study.endings == ()
    text = table(study)
    assert "Queueing" not in text
    assert "Endings" not in text


def test_the_table_fits_a_terminal() -> None:
    jobs = recorded()
    study = describe(jobs, cluster={"v100": 16}, replay=lambda of: replay(of, {"v100": 16}))
    text = table(study)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    for word in ("Sizes and run times", "Queueing (recorded)", "fragmentation", "Endings", "utilization"):
        assert word in text


def test_a_job_whose_speed_nobody_knows_does_not_spoil_the_rest() -> None:
    class Unknown:
        def rate(self, devices: object, nodes: int | None = None) -> float:
            return 0.0

    strange = Arrival(name="x", time=5, needs=Needs(ests=1), speed=Unknown(), work=1, requested=1, kind="abacus")
    study = describe(workload(job("a", 0, 1, 100), strange))
    assert study.classes[0].run.jobs == 1
    assert study.device_hours == pytest.approx(100 / 3600)


def test_plots_are_written_one_a_question(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from easyscale.simulator.describe_plots import plot

    jobs = recorded()
    paths = plot(jobs, tmp_path / "plots", waits=replay(jobs, {"v100": 16}), form="svg")
    assert {path.stem.removeprefix("small-") for path in paths} == {
        "sizes", "run-times", "load", "arrivals", "queueing", "causes",
    }  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in paths)
