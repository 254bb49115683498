"""The claims of the sources as commands, and what they give: a part of docs/evaluation.md.

    python benchmarks/evaluation_claims.py --traces ../shared/traces [--only sidecar,serving]

Each command is a line of a shell as a user would type it, with $TRACES for the folder of the traces and, where a claim
is shown on several workloads, $N for their number. Writes results/claims.json: command, policy, workload, figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
sys.path[:0] = [str(SOURCE)]

# ruff: noqa: E402  the line above comes first
from easyscale.scheduler.state import BatchSpeed
from easyscale.simulator.readers import read

RESULTS = Path(__file__).parent / "results" / "claims.json"
ES = "easyscale simulate --trace $TRACES/easyscale/workload_test.csv --cluster v100:32,p100:16,t4:16"
SMALL = (
    "easyscale simulate --trace $TRACES/pollux-workloads/workload-$N.csv --limit-jobs 40 --cluster t4:16 --nodes-of 4"
    " --misfits shrink"
)
LENT = (
    "easyscale simulate --trace $TRACES/pollux-workloads/workload-$N.csv --cluster t4:16 --serving t4:64 --nodes-of 4"
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """`name` is what the page calls the way in which devices change; without one it only prepares."""

    name: str
    text: str
    workloads: tuple[int, ...] = (0,)


ALL = tuple(range(1, 9))
LOSSES = (0, 1, 2, 5)  # tenths: what larger batches lose, x in b^-x
CLAIMS: dict[str, tuple[Command, ...]] = {
    "baselines": (
        Command(
            name="live",
            text=f"{ES} --policy easyscale,srtf,easyscale-heter,backfill,fifo --switch-cost 1 --seeds 8",
        ),
    ),
    "sidecar": (
        Command(
            name="live, 1 s",
            text=f"{SMALL} --policy sidecar,easyscale,backfill,fifo --switch-cost 1",
            workloads=ALL,
        ),
        Command(
            name="restart, 30 s",
            text=f"{SMALL} --policy sidecar,easyscale --restart-cost 30 --start-cost 1",
            workloads=ALL,
        ),
        Command(
            name="restart, 60 s",
            text=f"{SMALL} --policy sidecar,easyscale --restart-cost 60 --start-cost 1",
            workloads=ALL,
        ),
        Command(
            name="restart, 250 s",
            text=f"{SMALL} --policy sidecar,easyscale --restart-cost 250 --start-cost 1",
            workloads=ALL,
        ),
    ),
    "batch": (
        Command(
            name="",
            text="awk -v x=0.$N 'BEGIN { print \"name,submit,devices,min,steps,seconds,gradients_mb,link_gb_s,batch,"
            'batch_loss"; for (n = 0; n < 60; n++) print "j" n "," 60*n ",8,4,1800,0.05,400,2.5,1:8," x }\' > jobs.csv',
            workloads=LOSSES,
        ),
        Command(
            name="batch and devices",
            text="easyscale simulate --trace jobs.csv --cluster v100:16 --policy elastic-batch",
            workloads=LOSSES,
        ),
        Command(
            name="devices alone",
            text="easyscale simulate --trace jobs.csv --cluster v100:16 --policy elastic-batch"
            " --set elastic-batch.scale=false",
            workloads=LOSSES,
        ),
    ),
    "serving": (
        Command(name="live, 1 s", text=f"{LENT} --policy easyscale --switch-cost 1", workloads=ALL),
        Command(name="live, 20 s", text=f"{LENT} --policy easyscale --switch-cost 20", workloads=ALL),
    ),
}


def carried_out(claim: tuple[Command, ...], traces: Path, folder: Path) -> list[dict[str, Any]]:
    """The commands for each workload in turn."""
    rows = []
    for number in dict.fromkeys(number for command in claim for number in command.workloads):
        for command in claim:
            if not command.name:
                shell(command.text, traces, number, folder)
                continue
            shell(f"{command.text} --json result.json --quiet --processes 1", traces, number, folder)
            for policy, of in json.loads((folder / "result.json").read_text())["policies"].items():
                figures = {**of["figures"], "per_hour": per_hour(of["figures"])}
                rows.append({"how": command.name, "policy": policy, "workload": number, **figures})
    return rows


def shell(line: str, traces: Path, number: int, folder: Path) -> None:
    """Its table is not wanted here. `easyscale` is this one."""
    known = {**os.environ, "TRACES": str(traces.resolve()), "N": str(number), "PYTHONPATH": str(SOURCE)}
    line = line.replace("easyscale ", f"{sys.executable} -m easyscale ", 1)
    subprocess.run(line, shell=True, check=True, cwd=folder, env=known, stdout=subprocess.DEVNULL)


def per_hour(figures: dict[str, Any]) -> dict[str, float]:
    """Jobs an hour until the last one ended."""
    return {"mean": figures["jobs"]["mean"] / figures["makespan"]["mean"] * 3600, "half": 0.0}


def can_scale_batches(folder: Path) -> bool:
    trace = folder / "trial.csv"
    trace.write_text("name,submit,devices,duration,batch\na,0,2,100,1:4\n")
    return isinstance(read(trace).arrivals[0].speed, BatchSpeed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", help="claims, by name")
    args = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in args.only.split(",") if args.only else CLAIMS:
        with TemporaryDirectory() as folder:
            if name == "batch" and not can_scale_batches(Path(folder)):
                print("batch: there is no speed of a job with a scaled batch; left out")
                continue
            rows = carried_out(CLAIMS[name], args.traces, Path(folder))
        known[name] = {"commands": [command.text for command in CLAIMS[name]], "rows": rows}
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
