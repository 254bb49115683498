"""Jobs in virtual time: when they end, what changes cost, and what happens to devices."""

from __future__ import annotations

import pytest

from easyscale.core.errors import UsageError
from easyscale.scheduler.policies import make
from easyscale.scheduler.rules import RuleBroken
from easyscale.simulator.clusters import Coming
from easyscale.simulator.engine import simulate
from easyscale.simulator.fits import fitting
from easyscale.simulator.options import Failures, Options, Stragglers
from easyscale.simulator.serving import Service, diurnal
from simulated import Eager, Scripted, cluster, job, workload

FREE = Options(switch_seconds=0.0)


def ends(result):
    return result.jobs.finished.tolist()


def test_a_job_ends_when_its_work_is_done():
    result = simulate(workload(job("a", 10.0)), cluster(), Eager(), FREE)
    assert ends(result) == [10.0 + 100 * 0.25]
    assert result.jobs.started.tolist() == [10.0]
    assert result.jobs.device_seconds.tolist() == [4 * 25.0]


def test_a_job_that_waits_starts_when_the_first_ends():
    result = simulate(workload(job("a"), job("b", 1.0)), cluster(), Eager(), FREE)
    assert ends(result) == [25.0, 50.0]


def test_a_start_costs_what_a_change_costs_unless_told_otherwise():
    one = workload(job("a"))
    assert ends(simulate(one, cluster(), Eager(), Options(switch_seconds=3.0))) == [28.0]
    assert ends(simulate(one, cluster(), Eager(), Options(switch_seconds=3.0, start_seconds=0.0))) == [25.0]


def grow(**options):
    script = [(0.0, {"a": {"v100": 2}}), (10.0, {"a": {"v100": 4}})]
    return simulate(workload(job("a")), cluster(), Scripted(script), Options(start_seconds=0.0, **options))


def test_a_switch_pauses_the_job_once():
    result = grow(switch_seconds=2.0)  # 20 steps of 0.5 s, then 80 of 0.25 s
    assert ends(result) == [10.0 + 2.0 + 80 * 0.25]
    assert result.jobs.switches.tolist() == [1]
    assert result.jobs.paused.tolist() == [2.0]


def test_newcomers_warm_up_while_the_old_plan_trains():
    result = grow(switch_seconds=2.0, warm_up=6.0)  # 12 more steps while they warm up
    assert ends(result) == [10.0 + 6.0 + 2.0 + 68 * 0.25]
    assert result.jobs.paused.tolist() == [2.0]


def test_a_restart_trains_nothing_meanwhile():
    result = grow(restart_seconds=30.0, warm_up=6.0)
    assert ends(result) == [10.0 + 30.0 + 80 * 0.25]


def test_a_job_that_ends_during_a_warm_up_never_switches():
    assert ends(grow(switch_seconds=2.0, warm_up=500.0)) == [50.0]


def test_a_pause_that_is_cut_short_is_not_paid_in_full():
    script = [(0.0, {"a": {"v100": 2}}), (10.0, {"a": {"v100": 4}}), (11.0, {"a": {"v100": 2}})]
    options = Options(start_seconds=0.0, switch_seconds=5.0)
    result = simulate(workload(job("a")), cluster(), Scripted(script), options)
    assert ends(result) == [16.0 + 80 * 0.5]
    assert result.jobs.paused.tolist() == [6.0]


def test_two_that_swap_types_pay_one_switch_each():
    script = [(0.0, {"a": {"v100": 2}, "b": {"t4": 2}}), (10.0, {"a": {"t4": 2}, "b": {"v100": 2}})]
    jobs = workload(job("a", ests=2), job("b", ests=2))
    options = Options(start_seconds=0.0, any_type=True)
    result = simulate(jobs, cluster("v100:2,t4:2"), Scripted(script), options)
    assert result.jobs.switches.tolist() == [1, 1]
    assert ends(result) == [10.0 + 1.0 + 60 * 0.5, 10.0 + 1.0 + 80 * 0.25]


def test_a_d1_job_stays_on_the_type_that_it_began_on():
    script = [(0.0, {"a": {"v100": 2}}), (10.0, {"a": {"t4": 2}})]
    with pytest.raises(RuleBroken, match="may not run on t4"):
        simulate(workload(job("a", ests=2)), cluster("v100:2,t4:2"), Scripted(script), FREE)


def test_events_of_one_moment_are_told_before_one_decision():
    result = simulate(workload(*(job(f"j{n}", 5.0, ests=1) for n in range(4))), cluster(), Eager(), FREE)
    assert result.decisions == 1
    assert result.jobs.started.tolist() == [5.0] * 4


def test_decisions_keep_to_the_interval():
    log = []
    jobs = workload(job("a"), job("b", 1.0))
    result = simulate(jobs, cluster(), Eager(), Options(switch_seconds=0.0, interval=60.0), log=log)
    assert result.jobs.started.tolist() == [0.0, 60.0]


def test_usage_is_the_integral_of_what_is_held():
    result = simulate(workload(job("a", 10.0, max_workers=2)), cluster(), Eager(), FREE)
    assert result.used_seconds == {"v100": 2 * 50.0}
    assert result.capacity_seconds == {"v100": 4 * 50.0}
    assert sum(result.curve.used["v100"]) * result.curve.width >= 100.0


# ------------------------------------------------------------------------------------------ devices


def test_devices_that_come_later_are_used():
    spec = cluster("v100:1").with_comings([Coming(time=40.0, kind="v100", change=3)])
    jobs = workload(job("a", min_workers=2))
    assert ends(simulate(jobs, spec, Eager(), FREE)) == [40.0 + 25.0]


def test_a_loss_with_survivors_loses_no_step():
    spec = cluster("v100:4").with_comings([Coming(time=10.0, kind="v100", change=-2)])
    result = simulate(workload(job("a")), spec, Eager(), Options(start_seconds=0.0, switch_seconds=1.0))
    assert result.jobs.lost.tolist() == [0.0]
    assert ends(result) == [10.0 + 1.0 + 60 * 0.5]


def test_a_loss_without_survivors_goes_back_to_a_checkpoint():
    comings = [Coming(time=10.0, kind="v100", change=-4), Coming(time=20.0, kind="v100", change=4)]
    options = Options(switch_seconds=0.0, checkpoint_seconds=5.0)
    result = simulate(workload(job("a")), cluster("v100:4").with_comings(comings), Eager(), options)
    lost = result.jobs.lost[0]
    assert 0.0 < lost <= 5.0 / 0.25
    assert ends(result) == pytest.approx([20.0 + (60 + lost) * 0.25])


@pytest.mark.parametrize("name", ["fifo", "easyscale"])
def test_failures_are_the_same_for_a_seed_and_others_for_another(name):
    jobs = workload(*(job(f"j{n}", n * 50.0, work=20_000.0) for n in range(6)))

    def run(seed):
        options = Options(failures=Failures(per_device_day=20.0, repair_seconds=600.0), seed=seed, jitter=0.0)
        return simulate(jobs, cluster("v100:8"), make(name), options)

    assert ends(run(1)) == ends(run(1))
    assert ends(run(1)) != ends(run(2))
    assert run(1).failures > 0


def test_a_straggler_is_measured_and_relieved_of_ests():
    jobs = workload(job("a", ests=16, work=40_000.0))
    slow = Stragglers(per_device_day=4.0, slowdown=4.0, seconds=1800.0)
    result = simulate(jobs, cluster("v100:8"), Eager(), Options(stragglers=slow))
    plain = simulate(jobs, cluster("v100:8"), Eager(), Options())
    assert result.stragglers > 0
    assert result.resplits > 0
    assert plain.jobs.finished[0] < result.jobs.finished[0]
    stuck = simulate(jobs, cluster("v100:8"), Eager(), Options(stragglers=slow, report_seconds=1e9))  # nobody looks
    assert result.jobs.finished[0] < stuck.jobs.finished[0]


def test_the_scheduler_may_know_only_what_masters_measure():
    jobs = workload(*(job(f"j{n}", n * 50.0, work=2_000.0, level="D2") for n in range(5)))
    result = simulate(jobs, cluster("v100:4,t4:4"), make("easyscale"), Options(measured=True))
    assert all(end > 0 for end in ends(result))


def test_a_job_spread_over_machines_is_slower_where_machines_are_told_apart():
    from dataclasses import replace

    from easyscale.planner.model import EstSpeed, Reduction
    from easyscale.simulator.clusters import ClusterSpec

    link = Reduction(base=0.01, bytes=1e9, seconds_per_byte=1e-10, across_nodes=10.0, per_node=4)
    jobs = [job("a", ests=2), job("b", ests=2), job("c", 1.0, ests=3)]
    jobs = [replace(one, speed=EstSpeed(one.needs.ests, {"v100": 0.25}, link)) for one in jobs]
    spec = ClusterSpec.parse("v100:8", per_node=4)
    near = simulate(workload(*jobs), spec, Eager(), FREE)
    far = simulate(workload(*jobs), ClusterSpec.parse("v100:8", per_node=1), Eager(), Options(
        switch_seconds=0.0, locality=True
    ))  # fmt: skip
    assert all(a < b for a, b in zip(ends(near), ends(far), strict=True))


# ------------------------------------------------------------------------------------------ a service


def serving(limit: float = 5.0, switch: float = 1.0):
    demand = {"v100": ((0.0, 0), (20.0, 2))}
    service = Service(owned={"v100": 4}, demand=demand, headroom=1, limit=limit)
    spec = cluster("t4:1").with_service(service)
    jobs = workload(job("a", level="D1", types=("v100",)))
    return simulate(jobs, spec, make("easyscale"), Options(switch_seconds=switch, start_seconds=0.0))


def test_lent_devices_are_given_back_in_time():
    result = serving()
    assert result.lending is not None
    assert result.lending.calls == 1
    assert result.lending.violations == 0
    assert result.lending.slowest == 1.0
    assert result.lending.lent_seconds > 0


def test_a_switch_that_takes_longer_than_the_limit_is_a_violation():
    result = serving(limit=5.0, switch=6.0)
    assert result.lending is not None
    assert result.lending.violations == 1


def test_a_day_of_demand_stays_within_what_is_owned():
    curve = diurnal({"v100": 10})["v100"]
    assert all(0 <= count <= 10 for _, count in curve)
    assert max(count for _, count in curve) > min(count for _, count in curve)


# ------------------------------------------------------------------------------------------ what cannot be


def test_a_job_that_can_never_fit_is_refused_with_name_line_and_cure():
    jobs = workload(job("small"), job("huge", ests=64, gang=64))
    with pytest.raises(UsageError, match="huge") as refused:
        simulate(jobs, cluster(), Eager(), FREE)
    assert "line 7" in refused.value.what
    assert "64" in refused.value.why
    assert "larger cluster" in refused.value.now


def test_jobs_that_cannot_fit_are_left_out_or_cut_on_request():
    jobs = workload(job("small"), job("huge", ests=64, gang=64))
    dropped, count = fitting(jobs, cluster(), "drop")
    assert [arrival.name for arrival in dropped.arrivals] == ["small"]
    assert count == 1
    cut, count = fitting(jobs, cluster(), "shrink")
    assert cut.arrivals[1].needs.gang == 4
    assert count == 1


def test_an_unknown_type_is_refused():
    with pytest.raises(UsageError, match="v1000"):
        simulate(workload(job("a", types=("v100",))), cluster("v1000:4"), Eager(), FREE)


def test_an_empty_workload_is_refused():
    with pytest.raises(UsageError, match="no jobs"):
        simulate(workload(), cluster(), Eager(), FREE)


def test_jobs_that_a_policy_never_serves_are_named():
    with pytest.raises(UsageError, match="wait for ever"):
        simulate(workload(job("a")), cluster(), Scripted([]), FREE)


@pytest.mark.parametrize("wrong", [{"switch_seconds": -1.0}, {"interval": float("nan")}, {"warm_up": float("inf")}])
def test_prices_that_cannot_be_are_refused(wrong):
    with pytest.raises(UsageError):
        Options(**wrong)
