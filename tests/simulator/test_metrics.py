"""Figures of a simulation and their spread."""

from __future__ import annotations

import pytest

from easyscale.simulator.compare import Outcome, duration, rows
from easyscale.simulator.engine import simulate
from easyscale.simulator.metrics import figures, finish_time_fairness, over_seeds, spread
from easyscale.simulator.options import Options
from simulated import Eager, cluster, job, workload

FREE = Options(switch_seconds=0.0)


def run(*jobs, text="v100:4"):
    return simulate(workload(*jobs), cluster(text), Eager(), FREE)


def test_figures_are_those_of_the_times():
    found = figures(run(job("a"), job("b", 1.0)))  # 0 to 25, 1 to 50
    assert found.jct == (25 + 49) / 2
    assert found.jct_median == 37.0
    assert found.makespan == 50.0
    assert found.queueing == 12.0
    assert found.utilization == 1.0
    assert found.switches == 0


def test_utilization_is_told_by_type():
    found = figures(run(job("a"), text="v100:4,t4:4"))
    assert found.by_type == {"v100": 1.0, "t4": 0.0}
    assert found.utilization == 0.5


def test_a_job_alone_is_treated_fairly():
    assert finish_time_fairness(run(job("a"))).tolist() == [1.0]


def test_two_that_ask_for_all_and_run_one_after_the_other_wait_for_their_share():
    rho = finish_time_fairness(run(job("a"), job("b")))
    assert rho.tolist() == pytest.approx([25 / (25 * 2), 50 / (25 * 1.5)])  # asked for twice, and once in the end


def test_the_fairness_of_a_median_job_is_told_beside_the_mean():
    found = figures(run(job("a"), job("b"), job("c", 1000.0)))  # the last one is alone
    assert found.fairness_median == 1.0
    assert found.fairness == pytest.approx((0.5 + 50 / (25 * 1.5) + 1.0) / 3)


def test_a_spread_is_an_interval_of_the_mean():
    found = spread([10.0, 12.0, 14.0])
    assert (found.mean, found.least, found.most) == (12.0, 10.0, 14.0)
    assert found.half == pytest.approx(4.303 * 2 / 3**0.5)
    assert spread([5.0]).half == 0.0


def test_figures_over_seeds_have_a_mean_each():
    one = figures(run(job("a")))
    found = over_seeds([one, one])
    assert found["jct"].mean == 25.0
    assert found["by_type.v100"].mean == 1.0
    assert "gained" not in found  # nobody lends


def test_policies_are_listed_with_the_best_jct_first():
    slow, fast = Outcome("slow"), Outcome("fast")
    slow.add(0, run(job("a"), job("b")))
    fast.add(0, run(job("a")))
    assert [row[0] for row in rows([slow, fast])] == ["fast", "slow"]


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "0.5 s"), (611, "611 s"), (5340, "5,340 s"), (36000, "10.00 h")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text
