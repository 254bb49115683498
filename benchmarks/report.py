"""Writes docs/benchmarks.md from the JSON in results/: no figure there is typed in by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"

INTRODUCTION = """# Benchmarks

Written by `benchmarks/report.py` from `benchmarks/results/*.json`; run `make bench` to measure again. Ratios are taken
side by side in one process; absolute times belong to the device that is named.
"""


def write_page() -> None:
    parts = [INTRODUCTION]
    for path in sorted((HERE / "results").glob("step_cost-*.json")):
        parts.append(step_cost(json.loads(path.read_text())))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(parts))


def step_cost(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    lines = [
        f"## k ESTs against the bare loop: {first['device']}, torch {first['torch']}",
        "",
        "One worker runs k ESTs; the bare loop runs forward and backward of the same k mini-batches and one",
        "optimizer step, without ESTs and sums. Bar: 0.98 of its throughput. `switch` is the host's time to change",
        "random states.",
        "",
        "| model | k | rows on | bare, ms a step | ESTs, ms a step | throughput | switch, us | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f} MiB"
        lines.append(
            f"| {row['model']} | {row['k']} | {row['staging']} | {row['bare_ms']:.2f} | {row['est_ms']:.2f} "
            f"| {row['ratio']:.3f} | {row['switch_us']:.0f} | {memory} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_page()
