"""Pause of a switch and recovery after SIGKILL with full-size models, several workers on one GPU over Gloo.

    python benchmarks/gpu/elastic.py                                         # about two minutes on an H200
    python benchmarks/gpu/elastic.py --device cpu --small --models resnet50  # a try without a GPU; nothing is saved

One job a model: 2 workers, then 4, then 2 again, then one of them is killed in the middle of a step. Stock DDP with 4
processes on the same GPU runs undisturbed before it: sha256 and every loss must be equal, else nothing is saved.
Workers are forked, and this process must not touch the GPU: see zoo_parity.py.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# ruff: noqa: E402  the lines above come first
import torch
from benchmarks.zoo import MODELS, Size
from benchmarks.zoo.stock import train as by_hand
from benchmarks.zoo.train import train
from parts.workload import device_name, save

import cluster
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job, Outcome
from elasticity import Fault, ForkedLauncher

RANKS = 4
# Global steps: of the whole job, of the first and the second switch, of the kill. A switch comes later if the new
# workers, which have to load CUDA, are not ready by then.
STEPS = {"resnet50": (70, 15, 40, 60), "bert": (48, 8, 28, 40)}
COPIES = {"resnet50": 2, "bert": 3}  # parameters and what the optimizer keeps of each
VICTIM = 1


def disturbed(name: str, size: Size, device: str, folder: Path) -> tuple[Outcome, str]:
    steps, grow, shrink, kill = STEPS[name]
    plans = Schedule(((0, Plan((2, 2))), (grow, Plan((1, 1, 1, 1))), (shrink, Plan((2, 2)))))
    template = WorkerSpec(ests=RANKS, device=device, timeout=120.0)

    def die() -> None:
        (folder / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    fault = Fault(worker=VICTIM, step=kill, place="easyscale.runtime.reduce:Reducer._fill", action=die)
    launcher = ForkedLauncher(lambda: train(MODELS[name], size, steps), [fault])
    shown = io.StringIO()
    outcome = run_elastic(
        Job(target=Target("train"), schedule=plans, template=template),
        launcher,
        Screen(shown, shown, color=False),
        Outputs(metrics_dir=folder / "metrics"),
        JobFolder.create("elastic", ("benchmark",), RANKS),
        Limits(),
    )
    return outcome, shown.getvalue()


def measure(name: str, size: Size, device: str) -> list[dict[str, Any]]:
    steps = STEPS[name][0]
    stock = cluster.run_stock(partial(by_hand, MODELS[name], size, steps, device), RANKS)
    with tempfile.TemporaryDirectory() as path:
        os.environ["XDG_RUNTIME_DIR"] = path
        outcome, shown = disturbed(name, size, device, Path(path))
        events = [line for line in shown.splitlines() if " instead of " in line or " lost" in line]
        print(*(f"{name}: {line}" for line in events), sep="\n", flush=True)
        lines = [json.loads(line) for line in (Path(path) / "metrics" / "metrics.jsonl").read_text().splitlines()]
        killed = float((Path(path) / "killed").read_text())
    losses = {str(step): row for step, row in outcome.state.losses.items()}
    if outcome.state.fingerprint != stock["fingerprint"] or losses != stock["losses"]:
        wrong = [step for step, row in stock["losses"].items() if losses.get(step) != row]
        sys.exit(f"{name}: the bits differ from stock DDP, first at step {wrong[:1]}\n{outcome.error}\n{shown[-3000:]}")
    rows = rows_of(name, [(line["time"], line["plan"]) for line in lines], killed)
    state = stock["parameters"] * 4 * COPIES[name] / 1e6
    more = {"state_mb": state, "fingerprint": stock["fingerprint"], "steps": steps, "torch": torch.__version__}
    return [{**row, **more} for row in rows]


def rows_of(name: str, times: list[tuple[float, str]], killed: float) -> list[dict[str, Any]]:
    step: dict[str, float] = {}
    for plan in dict.fromkeys(plan for _, plan in times):
        step[plan] = statistics.median(b[0] - a[0] for a, b in itertools.pairwise(times) if a[1] == b[1] == plan)
    rows = []
    for a, b in itertools.pairwise(times):
        if a[1] == b[1]:
            continue
        row = {"model": name, "what": f"{a[1]} to {b[1]}", "step_s": step[b[1]], "seconds": b[0] - a[0]}
        if b[1] == str(RANKS):
            adopted = RANKS // 2 * step[b[1]] / RANKS
            row |= {"what": "SIGKILL", "seconds": b[0] - killed, "adopted_s": adopted}
        rows.append(row)
        print(f"{name}: {row['what']}: {row['seconds']:.3f} s; a step takes {row['step_s']:.3f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet50,bert")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models.split(","):
        rows += measure(name, "small" if arguments.small else "full", arguments.device)
    if not arguments.small:
        save("elastic", [{**row, "device": device_name()} for row in rows], ("model", "what"))


if __name__ == "__main__":
    main()
