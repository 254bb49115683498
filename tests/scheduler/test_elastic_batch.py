"""Twice the jobs by elastic batches: the claim of Saxena et al. (MASCOTS'20), in a saturated cluster."""

from __future__ import annotations

import numpy as np
import pytest

from easyscale.core.cluster import Needs
from easyscale.planner.model import EstSpeed
from easyscale.planner.reduction import Reduction
from easyscale.scheduler.policies import make
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.engine import simulate
from easyscale.simulator.options import Options
from easyscale.simulator.workload import Arrival, Workload

SLOW_LINKS = Reduction(base=0.002, per_worker=0.0001, bytes=4e8, seconds_per_byte=4e-10, across_nodes=1.0)
WINDOW = 3600.0


def jobs(batch: tuple[float, float] | None, loss: float) -> Workload:
    """Eight ESTs that compute for 50 ms each and then send 400 MB: a job comes each minute, more than can be served."""
    speed = EstSpeed(8, {"v100": 0.05}, SLOW_LINKS, batch_loss=loss)
    needs = Needs(ests=8, min_workers=4, batch=batch)
    work = 600.0 * speed.rate({"v100": 8})  # ten minutes on all that it can use
    arrivals = tuple(
        Arrival(name=f"job-{n}", time=60.0 * n, needs=needs, speed=speed, work=work, requested=8, kind="v100")
        for n in range(60)
    )
    return Workload(name="saturated", arrivals=arrivals)


def finished(batch: tuple[float, float] | None = (1.0, 8.0), loss: float = 0.1, **options: bool) -> tuple[int, float]:
    """Jobs that are done at the end of the window, and the average JCT of all."""
    spec = ClusterSpec.parse("v100:16")
    result = simulate(jobs(batch, loss), spec, make("elastic-batch", **options), Options(switch_seconds=1.0))
    ends = result.jobs.finished
    return int(np.sum(ends <= WINDOW)), float(np.mean(ends - result.jobs.submitted))


def test_twice_the_jobs_are_done_in_a_window_when_batches_may_grow() -> None:
    elastic, fixed = finished(), finished(scale=False)
    assert elastic[0] >= 2 * fixed[0]
    assert elastic[1] < fixed[1] / 2


def test_jobs_that_do_not_allow_it_keep_their_batch() -> None:
    assert finished(batch=None) == finished(scale=False)


def test_the_gain_goes_away_where_larger_batches_are_worth_nothing() -> None:
    elastic, fixed = finished(loss=1.0), finished(loss=1.0, scale=False)
    assert elastic[0] == fixed[0]
    assert elastic[1] == pytest.approx(fixed[1], rel=0.05)
