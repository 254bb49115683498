"""The pause of a switch from 2 to 4 workers and back, beside stop and resume, and beside a restart under torchrun.

    python benchmarks/elastic/switch.py [--small]

The pause is the time from the last global step on the old plan to the first on the new one: it holds one whole step
and, where workers join, the state on its way to them. All three kinds take turns; the median of their rounds counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from jobs import EasyScaleJob, Times, TorchrunJob, own_registry
from link import gigabytes_a_second
from parts.workload import device_name, save

CHANGES = ((2, 4), (4, 2))
STEPS = 8  # on each plan before it changes, so that it is in its rhythm


def live(model: str, folder: Path) -> Times:
    job = EasyScaleJob(model, 2, folder)
    job.train(STEPS, workers=2)
    for _, workers in CHANGES:
        job.client.scale(workers=workers)
        job.train(STEPS, workers=workers)
    job.stop()
    return job.times()


def by_resume(model: str, folder: Path) -> Times:
    checkpoints = ("--checkpoint-dir", str(folder / "checkpoints"))
    job = EasyScaleJob(model, 2, folder, *checkpoints)
    job.train(STEPS, workers=2)
    for _, workers in CHANGES:
        job.stop()
        job = EasyScaleJob(model, workers, folder, *checkpoints, "--resume", "latest")
        job.train(STEPS, workers=workers)
    job.stop()
    return job.times()


def by_torchrun(model: str, folder: Path) -> Times:
    job = TorchrunJob(model, 2, folder)
    job.train(STEPS)
    for _, workers in CHANGES:
        job.stop()
        job = TorchrunJob(model, workers, folder)
        job.train(STEPS)
    job.stop()
    return job.times()


KINDS = {"live": live, "stop and resume": by_resume, "torchrun restart": by_torchrun}


def pauses(times: Times) -> list[tuple[float, float]]:
    """At each change: the pause, and the median step on the plan after it."""
    plans = [plan for _, _, plan in times]
    changes = [i for i in range(1, len(plans)) if plans[i] != plans[i - 1]]
    found = []
    for begins, ends in zip(changes, [*changes[1:], len(times)], strict=True):
        steps = [times[i][1] - times[i - 1][1] for i in range(begins + 1, ends)]
        found.append((times[begins][1] - times[begins - 1][1], statistics.median(steps)))
    return found


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    seen: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in KINDS}
    state = 0
    for _ in range(rounds):
        for kind, run in KINDS.items():
            with own_registry() as folder:
                seen[kind].append(pauses(run(model, folder)))
                if (folder / "bytes").exists():
                    state = int((folder / "bytes").read_text())
    rows = []
    for number, (before, after) in enumerate(CHANGES):
        joining = max(after - before, 0)
        transfer = state / 1e9 / gigabytes_a_second(joining) if joining else 0.0
        for kind, runs in seen.items():
            found = [run[number] for run in runs]
            pause, step = (statistics.median(values) for values in zip(*found, strict=True))
            rows.append({
                "model": model, "change": f"{before} to {after}", "kind": kind, "pause_s": pause, "step_s": step,
                "transfer_s": transfer, "least_s": min(p for p, _ in found), "most_s": max(p for p, _ in found),
                "state_mb": state / 1e6, "rounds": rounds, "device": device_name(), "torch": torch.__version__,
            })  # fmt: skip
            print(
                f"{model:8} {before} to {after}  {kind:17} pause {pause:7.3f} s ({rows[-1]['least_s']:.3f} to "
                f"{rows[-1]['most_s']:.3f})  step {step:6.3f} s  state {state / 1e6:.0f} MB at link speed "
                f"{transfer:.3f} s",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="one round, the small model alone; nothing is saved")
    parser.add_argument("--models", default="mlp-256,1gb")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.small:
        measure("mlp-256", 1)
        return
    for model in arguments.models.split(","):
        save("switch", measure(model, arguments.rounds), ("model", "change", "kind"))


if __name__ == "__main__":
    main()
