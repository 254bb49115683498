"""Runs a row with EasyScale and by hand with stock DDP, and says where they differ."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import easyscale.runtime.session  # noqa: F401  once here, not once in each forked worker
from cluster import run_job, run_stock
from parity.matrix import Split, case, stages
from parity.pairs import Row
from workloads import by_hand, with_easyscale

# Of buffers, and of averages and scores that see them, rank 0's count: they differ between the ranks of stock DDP.
OF_RANK_0 = ("model", "optimizer", "scheduler", "scaler", "average", "rates", "scores")
OF_EVERY_WORKER = ("parameters", "optimizer", "scheduler", "scaler", "rates")
Plant = Callable[[], None]


def stock(row: Row) -> dict[str, Any]:
    """Hand-written DDP with N processes."""
    return run_stock(by_hand(case(row)), int(row["N"]))


def judge(row: Row, plant: Plant | None = None) -> list[str]:
    """What differs from stock; nothing, if the promise holds. `plant` spoils something inside the workers first."""
    expected = stock(row)
    return differences(row, stages(row["plan"], int(row["N"]), len(expected["losses"])), expected, plant)


def differences(
    row: Row, plans: list[tuple[Split, int | None]], expected: dict[str, Any], plant: Plant | None = None
) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        result = _in_stages(row, plans, Path(folder), plant)
        workers = [json.loads(file.read_text()) for file in Path(folder).glob("worker-*.json")]
    losses = [result["losses"][step] for step in sorted(result["losses"], key=int)]
    found = [] if losses == list(expected["losses"].values()) else ["losses"]
    found += [name for name in OF_RANK_0 if result.get(name) != expected.get(name)]
    if len(workers) != len(plans[-1][0]):
        found.append("number of workers that finished")
    for name in OF_EVERY_WORKER:
        if any(worker.get(name) != expected.get(name) for worker in workers):
            found.append(f"{name} of a worker")
    return found


def _in_stages(row: Row, plans: list[tuple[Split, int | None]], folder: Path, plant: Plant | None) -> dict[str, Any]:
    """Each plan up to its step. `stop, resume` goes on from a checkpoint, the others from what they hand over."""

    def train() -> dict[str, Any]:
        if plant:
            plant()
        result = with_easyscale(case(row))()
        (folder / f"worker-{os.getpid()}.json").write_text(json.dumps(result))
        return result

    losses: dict[str, Any] = {}
    result: dict[str, Any] = {}
    resume = None
    for number, (split, until) in enumerate(plans):
        spec: dict[str, Any] = {"resume": resume, "stop_at": until, "handoff": str(folder / f"stage-{number}")}
        resume = spec["handoff"]
        if row["plan"] == "stop, resume":
            spec |= {"checkpoint_dir": str(folder / "checkpoints"), "checkpoint_every": 1}
            resume = "latest"
        result = run_job(train, split, **spec)
        losses |= result["losses"]
    return {**result, "losses": losses}
