"""What it costs, step by step, that workers may come and go: heartbeats, contexts on all workers, parameters kept.

    python benchmarks/elastic/steady.py [--small]

The same job under a master and on a fixed plan, with parts of it left out, in turns. Ratios are taken within a round;
the median of the rounds counts. An account of the training thread's own time says where the cost is; it is much
steadier than the difference of two jobs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from parts.jobs import collected
from parts.workload import chosen, device_name, save

from easyscale.backends.local import LocalLauncher
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs, run_job
from easyscale.master.master import run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job

PART = str(Path(__file__).parent / "part.py")
SPLITS = ((2, 2), (1, 1, 1, 1))
# name: (under a master, what is left out)
KINDS = {
    "plain": (False, "replication"),  # the runtime without all this: what the others are measured against
    "fixed plan": (False, ""),
    "elastic": (True, ""),
    "elastic, contexts stay": (True, "replication"),
    "elastic, nothing kept": (True, "undo"),
}


def run(model: str, split: tuple[int, ...], steps: int, kind: str) -> dict[str, Any]:
    elastic, without = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        job = Job(
            target=Target(PART, (model, str(steps), folder)),
            schedule=Schedule(((0, Plan(split)),)),
            template=WorkerSpec(ests=sum(split), job="benchmark"),
        )
        launcher = LocalLauncher({**os.environ, "SPLIT": ",".join(map(str, split)), "WITHOUT": without})
        said = io.StringIO()
        screen = Screen(said, said, quiet=True, color=False)
        began = time.process_time()
        if elastic:
            registered = JobFolder.create("benchmark", ("benchmark",), sum(split))
            outcome = run_elastic(job, launcher, screen, Outputs(), registered)
        else:
            outcome = run_job(job, launcher, screen, Outputs())
        if outcome.exit_code:
            sys.exit(f"{kind}, {model} on {split} failed:\n{said.getvalue()[-3000:]}")
        master = (time.process_time() - began) / outcome.state.steps * 1e3
        accounts = [json.loads(path.read_text()) for path in Path(folder).glob("account-*.json")]
        places = {name for account in accounts for name in account}
        return {
            **collected(Path(folder), len(split)),
            "master_ms": master,
            "account": {
                name: [statistics.fmean(account.get(name, [0.0, 0.0])[i] for account in accounts) for i in (0, 1)]
                for name in sorted(places)
            },
        }


def measure(model: str, split: tuple[int, ...], steps: int, rounds: int) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in [*KINDS][:: 1 if number % 2 == 0 else -1]:
            runs[kind].append(run(model, split, steps, kind))
    rows = []
    for kind, found in runs.items():
        ratios = [
            (ours["cpu_ms"] / plain["cpu_ms"], ours["step_ms"] / plain["step_ms"])
            for ours, plain in zip(found, runs["plain"], strict=True)
        ]
        cpu, wall = (statistics.median(both) for both in zip(*ratios, strict=True))
        account = {
            name: [statistics.median(one["account"].get(name, [0.0, 0.0])[i] for one in found) for i in (0, 1)]
            for name in found[0]["account"]
        }
        rows.append({
            "model": model, "split": "+".join(map(str, split)), "kind": kind, "order": [*KINDS].index(kind),
            "cpu_ms": statistics.median(one["cpu_ms"] for one in found),
            "step_ms": statistics.median(one["step_ms"] for one in found),
            "cpu_ratio": cpu, "wall_ratio": wall, "spread": [min(r for r, _ in ratios), max(r for r, _ in ratios)],
            "account_us": account, "master_ms": statistics.median(one["master_ms"] for one in found),
            "rounds": rounds, "device": device_name(), "torch": torch.__version__,
        })  # fmt: skip
        parts = "  ".join(f"{name} {cpu_us:.0f}" for name, (cpu_us, _) in account.items())
        print(
            f"{model:8} {rows[-1]['split']:8} {kind:23} {rows[-1]['step_ms']:8.2f} ms, processor "
            f"{rows[-1]['cpu_ms']:8.2f} ms: {cpu:.3f} ({rows[-1]['spread'][0]:.3f} to {rows[-1]['spread'][1]:.3f}), "
            f"clock {wall:.3f}  us a step and worker: {parts}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="two workers, one round; nothing is saved")
    parser.add_argument("--only", help="rows to measure, such as convnet,encoder:2+2")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.small:
        measure("mlp-256", (2, 2), 5, 1)
        return
    plan = [(model, "+".join(map(str, split)), split) for model in ("convnet", "encoder") for split in SPLITS]
    for model, _, split in chosen(plan, arguments.only):
        save("steady", measure(model, split, 12, arguments.rounds), ("model", "split", "order"))


if __name__ == "__main__":
    main()
