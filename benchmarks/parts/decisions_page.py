"""The planner's and the simulator's parts of docs/benchmarks.md, from the JSON of their scripts."""

from __future__ import annotations

from typing import Any

from parts.tables import table

SIMULATOR = """Jobs from the generator under a policy (`benchmarks/simulator.py`): one type at 0.95 of what it can do
(even), three types (mixed), three types at 1.1 (crowded). `none` looks at new jobs and free devices only:
the engine alone. Bar: 60 s for 100,000 jobs on 10,000 devices under `easyscale`. Memory follows the active jobs."""
PLANNER = """Processor time of one plan, each job solved for the first time (`benchmarks/planner.py`). Bar: 1 ms for
64 ESTs on 64 devices of 4 types."""


def simulator(rows: Any) -> str:
    if not rows:
        return ""
    head = ["case", "policy", "jobs", "devices", "wall, s", "processor, s", "us a job", "most active jobs", "added MiB"]
    lines = [
        [
            row["case"], row["policy"], f"{row['jobs']:,}", f"{row['devices']:,}", f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}", f"{row['us_a_job']:.0f}", f"{row['most_active']:,}",
            f"{row['memory_added_mib']:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    return f"## How fast the simulator is: CPU\n\n{SIMULATOR}\n\n{table(head, lines)}"


def planner(rows: Any) -> str:
    if not rows:
        return ""
    lines = [[row["what"], f"{row['median_us']:.0f}", f"{row['slowest_us']:.0f}", row["rounds"]] for row in rows]
    head = ["what", "median, us", "slowest, us", "jobs"]
    return f"## How long the planner thinks: CPU\n\n{PLANNER}\n\n{table(head, lines)}"
