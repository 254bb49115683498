"""A day of a service that lends its idle devices, by the rules that live and simulated clusters share."""

from __future__ import annotations

import pytest

from easyscale.core.cluster import Needs
from easyscale.planner.model import EstSpeed
from easyscale.scheduler.policies import POLICIES, make
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.engine import simulate
from easyscale.simulator.options import Options
from easyscale.simulator.result import Lending
from easyscale.simulator.serving import DAY, Service, diurnal
from easyscale.simulator.workload import Arrival, Workload


def day(policy: str = "easyscale", **options: float) -> Lending:
    """Sixteen devices of a service, two of our own, and jobs enough for all of them."""
    speed = EstSpeed(8, {"v100": 0.25})
    jobs = tuple(
        Arrival(
            name=f"job-{n}", time=600.0 * n, needs=Needs(ests=8), speed=speed, work=20_000.0, requested=2, kind="v100"
        )
        for n in range(40)
    )  # fmt: skip
    service = Service(owned={"v100": 16}, demand=diurnal({"v100": 16}), headroom=1)
    spec = ClusterSpec.parse("v100:2").with_service(service)
    result = simulate(Workload(name="day", arrivals=jobs), spec, make(policy), Options(**options))
    assert result.lending is not None
    return result.lending


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("sia", "gavel")])
def test_every_policy_gives_lent_devices_back_in_time_and_fills_them_meanwhile(policy: str) -> None:
    lent = day(policy, switch_seconds=1.0)
    assert lent.calls > 10
    assert lent.violations == 0
    assert lent.slowest <= 1.0
    assert 0.0 < lent.lent_seconds <= lent.owned_seconds - lent.demand_seconds


def test_idle_devices_of_a_service_are_used() -> None:
    lent = day(switch_seconds=1.0)
    before, after = lent.demand_seconds / lent.owned_seconds, lent.lent_seconds / lent.owned_seconds
    assert before == pytest.approx(0.6, abs=0.05)
    assert before + after > 0.9  # all but the head-room, and the seconds of switches


def test_a_switch_slower_than_the_limit_breaks_every_call_that_met_a_job() -> None:
    lent = day(switch_seconds=6.0)
    assert 0 < lent.violations <= lent.calls
    assert lent.slowest == 6.0
    assert lent.owned_seconds >= 16 * 0.5 * DAY
