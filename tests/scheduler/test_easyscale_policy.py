"""What is particular to `easyscale`: pauses in the worth of devices, and few jobs looked at among many."""

from __future__ import annotations

import os

import numpy as np
import pytest

from easyscale.core.cluster import Needs
from easyscale.planner.model import EstSpeed
from easyscale.scheduler.policies import make
from easyscale.scheduler.policies.quiet import quiet
from easyscale.scheduler.standby import Ranking
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.engine import simulate
from easyscale.simulator.options import Options
from easyscale.simulator.result import Result
from easyscale.simulator.workload import Arrival, Workload


def crowd(jobs: int, devices: int, cost: float, policy: str = "easyscale", **options: int) -> Result:
    """Jobs of many lengths that come faster than they can be served for a while."""
    random = np.random.default_rng(3)
    lengths, sizes = random.lognormal(6.0, 1.2, jobs), random.choice([1, 2, 4, 8], jobs)
    times = np.cumsum(random.exponential(float(np.mean(lengths * sizes)) / devices * 0.8, jobs))
    arrivals = []
    for n, (time, length, size) in enumerate(zip(times, lengths, sizes.tolist(), strict=True)):
        speed = EstSpeed(size, {"v100": 0.25})
        work = float(length) * speed.rate({"v100": size})
        arrivals.append(Arrival(
            name=f"job-{n}", time=float(time), needs=Needs(ests=size), speed=speed, work=work, requested=size,
            kind="v100",
        ))  # fmt: skip
    spec = ClusterSpec.parse(f"v100:{devices}")
    return simulate(
        Workload(name="crowd", arrivals=tuple(arrivals)), spec, make(policy, **options), Options(switch_seconds=cost)
    )


def jct(result: Result) -> float:
    return float(np.mean(result.jobs.finished - result.jobs.submitted))


def test_the_dearer_a_switch_the_fewer_there_are() -> None:
    switches = [float(np.sum(crowd(120, 16, cost).jobs.switches)) for cost in (1.0, 60.0, 600.0)]
    assert switches[0] > switches[1] > switches[2]


@pytest.mark.parametrize("cost", [1.0, 60.0, 250.0])
def test_it_is_no_worse_than_an_oracle_without_elasticity_at_any_price(cost: float) -> None:
    assert jct(crowd(120, 16, cost)) <= jct(crowd(120, 16, cost, "srtf"))


def test_a_look_at_few_decides_about_as_well_as_a_look_at_all() -> None:
    few, every = crowd(600, 64, 1.0, small=8), crowd(600, 64, 1.0, small=10_000)
    assert few.most_active > 32
    assert jct(few) == pytest.approx(jct(every), rel=0.03)


def test_a_ranking_drops_what_is_overtaken_and_who_has_left() -> None:
    ranking = Ranking()
    ranking.put_all([("a", {"x": 1.0}), ("b", {"x": 2.0, "y": 0.5}), ("c", {})])
    there = {"a": 0, "b": 0, "c": 0}
    assert list(ranking.some("x", there)) == ["a", "b"]
    ranking.put("a", {"x": 3.0})
    ranking.put("c", {"y": 0.1})
    assert list(ranking.some("x", there)) == ["b", "a"]
    assert ranking.first("y", there) == "c"
    ranking.put("c", {})
    assert ranking.first("y", there) == "b"
    del there["b"]
    assert list(ranking.some("x", there)) == ["a"]
    assert ranking.first("y", there) is None
    ranking.put("a", {})
    assert not ranking.anyone(there)


def test_the_noise_of_the_solver_is_kept_out_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        for line in (b"before", b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();", b"after"):
            os.write(1, line + b"\n")
    os.write(1, b"later\n")
    assert capfd.readouterr().out == "before\nafter\nlater\n"
