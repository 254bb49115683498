"""What holds in every simulation, whatever the jobs, the devices and the chance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.cluster import total
from easyscale.scheduler.events import Allocated, DevicesAdded, DevicesLost, JobFinished, JobProgressed, JobSubmitted
from easyscale.scheduler.loop import Scheduler
from easyscale.scheduler.policies import make
from easyscale.simulator.clusters import Coming
from easyscale.simulator.engine import Decision, simulate
from easyscale.simulator.options import Failures, Options, Stragglers
from simulated import Eager, cluster, job, workload

POLICIES = ("eager", "fifo", "backfill", "srtf", "easyscale-heter", "easyscale")


def policy(name):
    return Eager() if name == "eager" else make(name)


@st.composite
def workloads(draw):
    jobs = []
    for n in range(draw(st.integers(1, 8))):
        ests = draw(st.integers(1, 4))
        jobs.append(
            job(
                f"j{n}",
                draw(st.sampled_from([0.0, 0.0, 5.0, 60.0, 3600.0])) + draw(st.floats(0, 50)),
                ests=ests,
                work=draw(st.floats(1, 20_000)),
                level=draw(st.sampled_from(["D1", "D2"])),
            )
        )
    return workload(*jobs)


def worlds():
    return st.builds(
        Options,
        switch_seconds=st.sampled_from([0.0, 1.0, 20.0]),
        warm_up=st.sampled_from([0.0, 15.0]),
        restart_seconds=st.sampled_from([None, None, 30.0]),
        interval=st.sampled_from([None, None, 60.0]),
        locality=st.booleans(),
        failures=st.sampled_from([None, Failures(per_device_day=2.0, repair_seconds=900.0)]),
        stragglers=st.sampled_from([None, None, Stragglers(per_device_day=20.0)]),
        seed=st.integers(0, 3),
    )


def spec():
    return cluster("v100:4,t4:4").with_comings(
        [Coming(time=100.0, kind="t4", change=-2), Coming(time=400.0, kind="t4", change=2)]
    )


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None)
@given(jobs=workloads(), options=worlds())
def test_work_is_conserved_and_progress_never_goes_back_unless_it_was_lost(name, jobs, options):
    log = []
    result = simulate(jobs, spec(), policy(name), options, log=log)
    done, times = {}, []
    lost = dict.fromkeys((arrival.name for arrival in jobs.arrivals), 0.0)
    for event in log:
        times.append(event.time)
        if isinstance(event, JobProgressed):
            before = done.get(event.job, 0.0)
            lost[event.job] += max(0.0, before - event.done)
            done[event.job] = event.done
    assert times == sorted(times)
    assert all(time >= 0 and math.isfinite(time) for time in times)
    for index, arrival in enumerate(jobs.arrivals):
        assert done.get(arrival.name, 0.0) <= arrival.work
        assert lost[arrival.name] <= result.jobs.lost[index] + 1e-9
    assert (result.jobs.started >= result.jobs.submitted).all()
    assert (result.jobs.finished > result.jobs.started).all()
    assert (result.jobs.paused >= -1e-6).all()


@settings(max_examples=30, deadline=None)
@given(jobs=workloads(), switch=st.sampled_from([0.0, 1.0, 20.0]))
def test_each_job_did_exactly_its_work(jobs, switch):
    """The integral of speed over what each job held, less its pauses, told by the log alone."""
    log = []
    spec = cluster("v100:4,t4:4")
    result = simulate(jobs, spec, make("easyscale"), Options(switch_seconds=switch), log=log)
    speeds = {arrival.name: arrival.speed for arrival in jobs.arrivals}
    held, work = {}, dict.fromkeys(speeds, 0.0)

    def until(name, now):
        devices, since = held.get(name, ({}, 0.0))
        work[name] += speeds[name].rate(devices) * max(0.0, now - since) if devices else 0.0

    for event in log:
        if isinstance(event, Allocated):
            until(event.job, event.time)
            held[event.job] = (event.devices, event.time + switch)
        elif isinstance(event, JobFinished):
            until(event.job, event.time)
    for index, arrival in enumerate(jobs.arrivals):
        assert work[arrival.name] == pytest.approx(arrival.work, rel=1e-6)
        assert result.jobs.lost[index] == 0


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None)
@given(jobs=workloads(), options=worlds())
def test_no_device_is_used_twice(name, jobs, options):
    log = []
    simulate(jobs, spec(), policy(name), options, log=log)
    held, there = {}, {"v100": 4, "t4": 4}
    for event in log:
        if isinstance(event, Allocated):
            held[event.job] = dict(event.devices)
        elif isinstance(event, JobFinished):
            held.pop(event.job, None)
        elif isinstance(event, DevicesAdded):
            there = {kind: there[kind] + event.devices.get(kind, 0) for kind in there}
        elif isinstance(event, DevicesLost):
            for owner, gone in event.held.items():
                held[owner] = {kind: n - gone.get(kind, 0) for kind, n in held[owner].items()}
            there = {kind: there[kind] - event.devices.get(kind, 0) for kind in there}
        for kind, count in there.items():
            used = [devices.get(kind, 0) for devices in held.values()]
            assert min(used, default=0) >= 0
            assert sum(used) <= count


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None)
@given(jobs=workloads(), options=worlds())
def test_the_same_events_give_the_same_decisions_live_and_simulated(name, jobs, options):
    """A live service has a scheduler and a clock. Given the simulated events at their times, it decides alike."""
    log = []
    simulate(jobs, spec(), policy(name), options, log=log)
    live = Scheduler(spec().state(), policy(name))
    if options.interval is not None:
        live.policy.interval = options.interval
    for entry in log:
        if isinstance(entry, Decision):
            due = live.next_decision(entry.time)
            assert due is not None
            assert due <= entry.time
            assert tuple(live.decide(entry.time)) == entry.changes
        else:
            live.take(entry)


@pytest.mark.parametrize("name", POLICIES)
def test_a_seed_decides_everything(name):
    jobs = workload(*(job(f"j{n}", n * 7.0, work=500.0 * (n % 5 + 1)) for n in range(20)))
    options = Options(
        seed=3, failures=Failures(per_device_day=20.0), stragglers=Stragglers(per_device_day=20.0), locality=True
    )
    one, two = (simulate(jobs, spec(), policy(name), options) for _ in range(2))
    assert one.jobs.finished.tolist() == two.jobs.finished.tolist()
    assert one.curve == two.curve


def test_seed_0_is_the_trace_as_it_is_and_others_move_arrivals_by_at_most_the_jitter():
    jobs = workload(*(job(f"j{n}", n * 100.0, ests=1) for n in range(10)))
    for seed in range(4):
        log = []
        simulate(jobs, cluster("v100:20"), Eager(), Options(seed=seed, jitter=30.0), log=log)
        moved = {event.job: event.time - 100.0 * int(event.job[1:]) for event in log if isinstance(event, JobSubmitted)}
        assert max(map(abs, moved.values())) <= 30.0
        assert (set(moved.values()) == {0.0}) == (seed == 0)


def test_memory_is_that_of_active_jobs():
    jobs = workload(*(job(f"j{n:04}", n * 100.0, ests=1) for n in range(2000)))
    result = simulate(jobs, cluster("v100:4"), Eager(), Options())
    assert result.most_active <= 2
    assert len(result.timeline) <= Options().timeline_jobs
    assert total({"v100": len(result.curve.used["v100"])}) <= 720
