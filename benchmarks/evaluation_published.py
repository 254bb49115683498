"""Our simulator against published ones, on their workloads and under their assumptions: a part of docs/evaluation.md.

    python benchmarks/evaluation_published.py --traces ../shared/traces

Writes results/published.json. The settings are named in `PUBLISHED`; tests/simulator/test_published.py runs the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

# ruff: noqa: E402  the line above comes first
from easyscale.scheduler.ledger import Ledger
from easyscale.scheduler.policies import make
from easyscale.scheduler.policies.fifo import start
from easyscale.scheduler.policy import Policy, Wanted
from easyscale.scheduler.state import Cluster
from easyscale.simulator.engine import simulate
from easyscale.simulator.fleet import Pairs, Setup, prepare
from easyscale.simulator.metrics import Figures, figures
from easyscale.simulator.options import Options

RESULTS = Path(__file__).parent / "results" / "published.json"


class OneAtATime:
    """What the EasyScale artifact calls YARN-CS: while a job runs, no other one starts. Nobody should use it."""

    name = "one-at-a-time"
    interval = 60.0

    def decide(self, cluster: Cluster) -> Wanted:
        ledger = Ledger(cluster)
        job = next((job for job in cluster.jobs.values() if job.devices), None)
        if job is not None:
            ledger.give(job, job.devices)
        else:
            start(ledger, next(iter(cluster.jobs.values())))
        return ledger.wanted


@dataclass(frozen=True, kw_only=True)
class Check:
    """`published`: average JCT and makespan in s, where there are such figures."""

    setup: Setup
    policy: str
    options: Options
    settings: Pairs = ()
    published: tuple[float, float | None] | None = None


# Pollux's artifact: a decision a minute, 30 s for each restart, machines of 4.
POLLUX = Setup(trace="pollux-workloads/workload-6.csv", cluster="t4:64", per_node=4)
POLLUX_OPTIONS = Options(restart_seconds=30.0, interval=60.0, locality=True)
# EasyScale's artifact: a decision a minute, 20 s for the first start and nothing for any later change.
EASYSCALE = Setup(
    trace="easyscale/workload_test.csv", cluster="v100:32,p100:16,t4:16",
    reading=(("times", "hetero"), ("fixed_share", 1.0), ("duplicates", "last")),
)  # fmt: skip
EASYSCALE_OPTIONS = Options(switch_seconds=0.0, start_seconds=20.0, interval=60.0)
BUGS: Pairs = (("published_bugs", True),)
# The same put right: all 68 rows, no mistakes in the estimates, each change charged, nobody waits for the minute.
CHARGED = Options(switch_seconds=20.0)


def profile(times: str, fixed_share: float) -> Setup:
    return replace(EASYSCALE, reading=(("times", times), ("fixed_share", fixed_share)))


def corrected(name: str, setup: Setup) -> dict[str, Check]:
    policies = ("easyscale", "easyscale-heter", "easyscale-homo", "sia", "srtf", "backfill", "fifo")
    found = {f"{name}/{policy}": Check(setup=setup, policy=policy, options=CHARGED) for policy in policies}
    found[f"{name}/easyscale-heter, first anywhere"] = Check(
        setup=setup, policy="easyscale-heter", options=CHARGED, settings=(("first_anywhere", True),)
    )
    return found


PUBLISHED: dict[str, Check] = {
    "pollux-6/tiresias": Check(
        setup=POLLUX, policy="tiresias", options=POLLUX_OPTIONS, published=(3469.69, None)
    ),
    "pollux-6/optimus": Check(setup=POLLUX, policy="optimus", options=POLLUX_OPTIONS, published=(5301.875, None)),
    "es/one-at-a-time": Check(
        setup=EASYSCALE, policy="one-at-a-time", options=EASYSCALE_OPTIONS, published=(8904.9685, 16560.0)
    ),
    "es/easyscale-homo": Check(
        setup=EASYSCALE, policy="easyscale-homo", options=EASYSCALE_OPTIONS, settings=BUGS,
        published=(1070.5008, 6720.0),
    ),
    "es/easyscale-heter": Check(
        setup=EASYSCALE, policy="easyscale-heter", options=EASYSCALE_OPTIONS, settings=BUGS,
        published=(676.7497, 6000.0),
    ),
    **{f"es/{name}": Check(setup=EASYSCALE, policy=name, options=EASYSCALE_OPTIONS)
       for name in ("fifo", "backfill", "srtf")},
    **corrected("hetero-1", profile("hetero", 1.0)),
    **corrected("hetero-0.5", profile("hetero", 0.5)),
    **corrected("level-0.5", profile("level", 0.5)),
}  # fmt: skip


def found(traces: Path, check: Check) -> Figures:
    workload, spec, _ = prepare(replace(check.setup, trace=str(traces / check.setup.trace)))
    one = check.policy == OneAtATime.name
    policy: Policy = OneAtATime() if one else make(check.policy, **dict(check.settings))
    return figures(simulate(workload, spec, policy, check.options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, check in PUBLISHED.items():
        figure = found(args.traces, check)
        rows[name] = {
            "jct": figure.jct, "makespan": figure.makespan, "jobs": figure.jobs, "published": check.published,
        }  # fmt: skip
        print(f"{name}: JCT {figure.jct:,.0f} s, makespan {figure.makespan:,.0f} s", check.published or "", flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
