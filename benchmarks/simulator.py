"""How fast the simulator is: many jobs on many devices under one policy, and the engine alone.

    python benchmarks/simulator.py [--jobs 100000] [--devices 10000] [--policy easyscale] [--cases even,mixed,crowded]

Jobs come from the generator: 1 to 64 devices each, one in twenty a gang, more by day than by night. `even` is a cluster
of one type, `mixed` one of three; both are offered 0.95 of what they can do in the mean, and a third more than that at
noon. `crowded` is offered 1.1 in the mean and over 1.5 at noon. Load counts what devices can do, not their number.
`none` is a policy that looks at nothing but new jobs and free devices: what is left is the engine and the scheduler's
loop. Seconds of wall and of processor time are told apart, because a shared machine makes the first what it wants, and
the second longer than it need be. Writes benchmarks/results/simulator.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from easyscale.core.cluster import Devices
from easyscale.scheduler.policies import make
from easyscale.scheduler.policy import Delta, Policy
from easyscale.scheduler.state import Cluster
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.engine import simulate
from easyscale.simulator.fits import rate_alone
from easyscale.simulator.generate import GeneratorSpec, generate
from easyscale.simulator.metrics import figures
from easyscale.simulator.options import Options
from easyscale.simulator.workload import Workload

RESULTS = Path(__file__).parent / "results" / "simulator.json"
LONGEST = 86400.0  # a longer job would be alone at the end, and idle devices are simulated for nothing
SIZES = ((1, 0.6), (2, 0.12), (4, 0.12), (8, 0.1), (16, 0.04), (32, 0.015), (64, 0.005))
GANGS = 20  # one job in so many is not elastic


@dataclass(frozen=True, kw_only=True)
class Case:
    shares: tuple[tuple[str, float], ...]  # of the devices, by type
    load: float  # devices asked for / there, mean over a day
    peak: float  # more at noon than in the mean, and less at midnight, by this part of it


CASES = {
    "even": Case(shares=(("v100", 1.0),), load=0.95, peak=0.35),
    "mixed": Case(shares=(("v100", 0.5), ("p100", 0.25), ("t4", 0.25)), load=0.95, peak=0.35),
    "crowded": Case(shares=(("v100", 0.5), ("p100", 0.25), ("t4", 0.25)), load=1.1, peak=0.4),
}


class Nothing:
    """First come, first served, from a queue of its own: each decision looks at the head of the line only."""

    name = "none"
    interval = 0.0

    def __init__(self) -> None:
        self._line: deque[str] = deque()
        self._seen: set[str] = set()

    def decide(self, cluster: Cluster) -> Delta:
        news = []
        for name in reversed(cluster.jobs):
            if name in self._seen:
                break
            news.append(name)
        self._seen.update(news)
        self._line.extend(reversed(news))
        free, changed = dict(cluster.free()), dict[str, Devices]()
        while self._line:
            job = cluster.jobs[self._line[0]]
            count = max(job.needs.least, min(job.needs.most, job.requested or 1))
            kind = next((kind for kind, left in free.items() if left >= count and job.speed.rate({kind: count})), None)
            if kind is None:
                break
            free[kind] -= count
            changed[self._line.popleft()] = {kind: count}
        return Delta(changed)


def workload(jobs: int, counts: dict[str, int], case: Case) -> Workload:
    """So many jobs that ask for a share of what the devices can do."""
    day = tuple(1.0 + case.peak * math.sin(2 * math.pi * (hour - 6) / 24) for hour in range(24))
    spec = GeneratorSpec(day=day, sizes=SIZES)
    sample = generate(spec, 4000, seed=1, longest=LONGEST).arrivals
    asked = sum(job.requested * job.work / rate_alone(job, counts) for job in sample) / len(sample)
    kind, one = next(iter(counts)), sample[0].speed
    able = sum(count * one.rate({other: 1}) / one.rate({kind: 1}) for other, count in counts.items())
    spec = replace(spec, jobs_per_hour=case.load * able * 3600 / asked)
    made = generate(spec, jobs, seed=0, longest=LONGEST)
    return replace(made, arrivals=tuple(
        replace(job, needs=replace(job.needs, gang=job.requested)) if place % GANGS == 7 else job
        for place, job in enumerate(made.arrivals)
    ))  # fmt: skip


def measure(name: str, jobs: int, devices: int, of: str) -> dict[str, Any]:
    case = CASES[of]
    counts = {kind: max(1, int(devices * share)) for kind, share in case.shares}
    spec = ClusterSpec.parse(",".join(f"{kind}:{count}" for kind, count in counts.items()))
    trace = workload(jobs, counts, case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    policy: Policy = Nothing() if name == "none" else make(name)
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulate(trace, spec, policy, Options())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = figures(result)
    row = {
        "policy": name, "case": of, "jobs": jobs, "devices": sum(counts.values()), "load": case.load,
        "wall_s": wall, "cpu_s": cpu,
        "us_a_job": cpu / jobs * 1e6, "decisions": result.decisions, "most_active": result.most_active,
        "utilization": found.utilization, "jct_s": found.jct, "switches_a_job": found.switches,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_added_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "python": platform.python_version(), "machine": platform.machine(),
    }  # fmt: skip
    print(
        f"{name:12} {of:8} {jobs:7} jobs {row['devices']:6} devices  {wall:7.1f} s wall {cpu:7.1f} s cpu "
        f"{row['us_a_job']:7.0f} us a job  active <= {result.most_active}  util. {found.utilization:.0%}  "
        f"+{row['memory_added_mib']:.0f} MiB",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--policy", default="none,easyscale")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--small", action="store_true", help="a tenth of the jobs and devices")
    arguments = parser.parse_args()
    part = 10 if arguments.small else 1
    rows = [
        measure(name, arguments.jobs // part, arguments.devices // part, case)
        for case in arguments.cases.split(",")
        for name in arguments.policy.split(",")
    ]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
