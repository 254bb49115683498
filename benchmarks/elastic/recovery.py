"""From the SIGKILL of a worker to the next completed global step, with 4 ESTs on 2 workers.

    python benchmarks/elastic/recovery.py [--small]

The survivor runs the local steps of the two ESTs that it adopts; what is left without them is the cost of the loss. The
victims are in turn the worker of the last ESTs and that of the first. After each loss a new worker joins again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from jobs import ESTS, EasyScaleJob, Times, own_registry
from parts.workload import device_name, save

STEPS = 8
ALONE = str(ESTS)  # the plan of the survivor


def run(model: str, losses: int) -> tuple[Times, list[tuple[str, float]]]:
    """When steps were done, and for each loss who was killed and when."""
    with own_registry() as folder:
        job = EasyScaleJob(model, 2, folder)
        killed = []
        for number in range(losses):
            status = job.train(STEPS, workers=2)
            victim = status.seats[-1 if number % 2 == 0 else 0]
            assert victim.pid is not None
            killed.append(("last" if number % 2 == 0 else "first", time.time()))
            os.kill(victim.pid, signal.SIGKILL)
            job.train(STEPS, workers=1)
            job.client.scale(workers=2)
        job.train(STEPS, workers=2)
        job.stop()
        assert job.report()["lost_steps"] == 0
        return job.times(), killed


def measure(model: str, losses: int) -> list[dict[str, Any]]:
    times, killed = run(model, losses)
    alone = [b[1] - a[1] for a, b in itertools.pairwise(times) if a[2] == b[2] == ALONE]
    local = statistics.median(alone) / ESTS
    together = [b[1] - a[1] for a, b in itertools.pairwise(times) if a[2] == b[2] != ALONE]
    rows = []
    for who in ("last", "first"):
        whole = [next(t for _, t, plan in times if t > when and plan == ALONE) - when for w, when in killed if w == who]
        extra = [seconds - ESTS // 2 * local for seconds in whole]
        if not whole:
            continue
        rows.append({
            "model": model, "victim": who, "seconds": statistics.median(whole), "local_s": local,
            "extra_s": statistics.median(extra), "most_extra_s": max(extra), "losses": len(whole),
            "step_s": statistics.median(together), "device": device_name(), "torch": torch.__version__,
        })  # fmt: skip
        print(
            f"{model:8} worker of the {who:5} ESTs: next global step {rows[-1]['seconds']:.3f} s after the SIGKILL, "
            f"without the 2 adopted local steps ({local:.3f} s each) {rows[-1]['extra_s']:.3f} s, at most "
            f"{rows[-1]['most_extra_s']:.3f} s of {len(whole)}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="one loss of each kind, nothing is saved")
    parser.add_argument("--models", default="mlp-256,convnet,1gb")
    parser.add_argument("--losses", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.small:
        measure("mlp-256", 2)
        return
    for model in arguments.models.split(","):
        save("recovery", measure(model, arguments.losses if model != "1gb" else 4), ("model", "victim"))


if __name__ == "__main__":
    main()
