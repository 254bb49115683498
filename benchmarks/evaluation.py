"""Every policy on real traces at several prices of a switch: the figures of docs/evaluation.md.

    python benchmarks/evaluation.py --traces ../shared/traces [--only es,pollux-6] [--policies a,b] [--costs 1,20]
    python benchmarks/evaluation.py --traces ../shared/traces --seeds 8 --only es,pollux-6 --costs 1 --policies a,b
    python benchmarks/evaluation.py --traces ../shared/traces --policies easyscale --again    (our policy has changed)

Simulations that are in results/evaluation.json already are not run again without `--again`; each is saved when it is
done. Traces are no part of the project: where a file is missing, its rows stay as they are and the script says so.
`evaluation_page.py` makes the page of the rows.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

# ruff: noqa: E402  the line above comes first
from easyscale.simulator.fleet import Pairs, Setup, Task, run
from easyscale.simulator.metrics import figures
from easyscale.simulator.options import Options

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
POLICIES = ("easyscale", "srtf", "easyscale-heter", "easyscale-homo", "afs", "sidecar", "optimus", "tiresias", "sia",
            "gavel", "backfill", "fifo")  # fmt: skip
COSTS = (0.0, 1.0, 20.0, 60.0, 250.0)
DEAR = 60.0  # s; from this price of a switch on, the policy was tuned on other places too
# Places with more jobs last for weeks. Policies that solve a program for each decision would take hours there.
LONG = 200
SOLVED = ("sia", "gavel")
# Those that decide by the clock, every minute elsewhere, do so every ten minutes there, where a job takes hours.
CLOCKED, SELDOM = ("easyscale-heter", "easyscale-homo", "sidecar", "optimus", "tiresias"), 600.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """A trace and the cluster that it is run on. `tuned`: our policy's one number was chosen with it in view."""

    file: str
    cluster: str
    jobs: int
    reading: Pairs = ()
    per_node: int = 8
    tuned: bool = False
    origin: str = field(default="")


def virtual(file: str, tenant: str, devices: int, origin: str, *, tuned: bool = False) -> Place:
    return Place(
        file=file, cluster=f"v100:{devices}", jobs=400, reading=(("tenants", tenant),), tuned=tuned, origin=origin
    )


PLACES = {
    "es": Place(
        file="easyscale/workload_test.csv", cluster="v100:32,p100:16,t4:16", jobs=68, tuned=True,
        origin="EasyScale SC'23",
    ),
    **{
        f"pollux-{n}": Place(
            file=f"pollux-workloads/workload-{n}.csv", cluster="t4:64", jobs=160, per_node=4, tuned=n in (1, 3, 6, 8),
            origin="Pollux OSDI'21",
        )
        for n in range(1, 9)
    },
    "philly-ee9e8c": virtual("philly.csv.gz", "ee9e8c", 96, "Philly ATC'19", tuned=True),
    "philly-6c71a0": virtual("philly.csv.gz", "6c71a0", 64, "Philly ATC'19"),
    "philly-0e4a51": virtual("philly.csv.gz", "0e4a51", 64, "Philly ATC'19"),
    "philly-103959": virtual("philly.csv.gz", "103959", 64, "Philly ATC'19"),
    "itp-cluster03": virtual("itp_2021.csv.gz", "cluster03", 64, "ElasticFlow", tuned=True),
    "itp-cluster06": virtual("itp_2021.csv.gz", "cluster06", 64, "ElasticFlow"),
    "itp-cluster07": virtual("itp_2021.csv.gz", "cluster07", 64, "ElasticFlow"),
}  # fmt: skip


def in_view(name: str, cost: float) -> bool:
    """Was something of our policy chosen with this in view? All of Pollux was, for how a dear switch is weighed."""
    return PLACES[name].tuned or (cost >= DEAR and name.startswith("pollux-"))


def read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(key: str, row: dict[str, Any]) -> None:
    """Beside what other processes have added meanwhile. Readers find a whole file."""
    folder = os.open(RESULTS.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        new = RESULTS.with_suffix(".new")
        new.write_text(json.dumps({**read(), key: row}, indent=1, sort_keys=True) + "\n")
        new.replace(RESULTS)
    finally:
        os.close(folder)


def interval(name: str, policy: str) -> float | None:
    """Seconds between two decisions; None: as the policy has it."""
    return SELDOM if policy in CLOCKED and PLACES[name].jobs > LONG else None


def wanted(args: argparse.Namespace) -> Iterator[tuple[str, str, float, int]]:
    names = args.only.split(",") if args.only else list(PLACES)
    costs = [float(cost) for cost in args.costs.split(",")] if args.costs else list(COSTS)
    for cost in costs:
        for name in names:
            for policy in args.policies.split(",") if args.policies else POLICIES:
                if policy not in SOLVED or PLACES[name].jobs < LONG:
                    for seed in range(args.seeds):
                        yield name, policy, cost, seed


def simulated(traces: Path, name: str, policy: str, cost: float, seed: int) -> dict[str, Any]:
    place = PLACES[name]
    setup = Setup(
        trace=str(traces / place.file), cluster=place.cluster, reading=place.reading, limit_jobs=place.jobs,
        misfits="shrink", per_node=place.per_node,
    )  # fmt: skip
    began = time.process_time()
    options = Options(switch_seconds=cost, interval=interval(name, policy), seed=seed)
    task = Task(label=policy, policy=policy, settings=(), options=options)
    found = figures(run(setup, task, lambda *_: None))
    return {
        "place": name, "policy": policy, "cost": cost, "seed": seed, "interval": options.interval,
        "jct": found.jct, "makespan": found.makespan, "median": found.jct_median, "p99": found.jct_p99,
        "utilization": found.utilization, "fair": found.fairness,
        "worst": found.unfairest, "switches": found.switches, "cpu_s": time.process_time() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--policies")
    parser.add_argument("--costs")
    parser.add_argument("--seeds", type=int, default=1, help="seed 0 is the trace as it is; others move arrivals")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    args = parser.parse_args()
    for name, policy, cost, seed in wanted(args):
        key = f"{name}/{policy}/{cost:g}" + (f"/{seed}" if seed else "")
        known = read().get(key)
        if not (args.traces / PLACES[name].file).exists():
            print(f"{key}: no {PLACES[name].file} in {args.traces}")
        elif args.again or known is None or known.get("interval") != interval(name, policy):
            row = simulated(args.traces, name, policy, cost, seed)
            keep(key, row)
            print(f"{key}: JCT {row['jct']:.1f} s, makespan {row['makespan']:.0f} s, {row['cpu_s']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
