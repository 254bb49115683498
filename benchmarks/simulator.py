"""How fast the simulator is: many jobs on many devices under one policy, and the engine alone.

    python benchmarks/simulator.py [--jobs 100000] [--devices 10000] [--policy easyscale] [--load 0.8] [--small]

Jobs come from the generator. `none` is a policy that looks at nothing but new jobs and free devices: what is left is
the engine and the scheduler's loop. Seconds of wall and of processor time are told apart, because a shared machine
makes the first what it wants. Writes benchmarks/results/simulator.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections import deque
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
SHARES = (("v100", 0.5), ("p100", 0.25), ("t4", 0.25))


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


def workload(jobs: int, counts: dict[str, int], load: float) -> Workload:
    """So many jobs that ask for a share `load` of the devices."""
    sample = generate(GeneratorSpec(), 2000, seed=1, longest=LONGEST)
    seconds = [arrival.requested * arrival.work / rate_alone(arrival, counts) for arrival in sample.arrivals]
    per_hour = load * sum(counts.values()) * 3600 / (sum(seconds) / len(seconds))
    return generate(GeneratorSpec(jobs_per_hour=per_hour), jobs, seed=0, longest=LONGEST)


def measure(name: str, jobs: int, devices: int, load: float) -> dict[str, Any]:
    counts = {kind: max(1, int(devices * share)) for kind, share in SHARES}
    spec = ClusterSpec.parse(",".join(f"{kind}:{count}" for kind, count in counts.items()))
    trace = workload(jobs, counts, load)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    policy: Policy = Nothing() if name == "none" else make(name)
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulate(trace, spec, policy, Options())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = figures(result)
    row = {
        "policy": name, "jobs": jobs, "devices": sum(counts.values()), "load": load, "wall_s": wall, "cpu_s": cpu,
        "us_a_job": cpu / jobs * 1e6, "decisions": result.decisions, "most_active": result.most_active,
        "utilization": found.utilization, "jct_s": found.jct, "switches_a_job": found.switches,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_added_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "python": platform.python_version(), "machine": platform.machine(),
    }  # fmt: skip
    print(
        f"{name:16} {jobs:7} jobs {row['devices']:6} devices  {wall:7.1f} s wall {cpu:7.1f} s cpu "
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
    parser.add_argument("--load", type=float, default=0.8, help="devices asked for / there, mean")
    parser.add_argument("--small", action="store_true", help="a tenth of the jobs and devices")
    arguments = parser.parse_args()
    part = 10 if arguments.small else 1
    rows = [
        measure(name, arguments.jobs // part, arguments.devices // part, arguments.load)
        for name in arguments.policy.split(",")
    ]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
