"""Whole jobs for the benchmarks: workers of EasyScale under its launcher, and processes of stock DDP beside them."""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from easyscale.backends.local import LocalLauncher, Target
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import WorkerSpec
from easyscale.master.launch import Outputs, run_job
from easyscale.master.progress import Screen
from easyscale.master.supervisor import Job

TRAIN = str(Path(__file__).parent / "train.py")


def est_job(model: str, split: tuple[int, ...], steps: int, staging: str = "auto") -> dict[str, Any]:
    """One job of EasyScale: sum(split) ESTs on len(split) workers."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            target=Target(TRAIN, (model, str(steps), folder)),
            schedule=Schedule(((0, Plan(split)),)),
            template=WorkerSpec(ests=sum(split), job="benchmark"),
        )
        environment = {**os.environ, "SPLIT": ",".join(map(str, split)), "STAGING": staging}
        said = io.StringIO()
        report = Path(folder) / "report.json"
        outcome = run_job(
            job, LocalLauncher(environment), Screen(said, said, quiet=True, color=False), Outputs(report=report)
        )
        if outcome.exit_code:
            sys.exit(f"the job {model} on {split} failed:\n{said.getvalue()[-3000:]}")
        report_says = json.loads(report.read_text())
        return {**collected(Path(folder), len(split)), "bytes_sent": report_says["bytes_sent"],
                "steps": report_says["steps"]}  # fmt: skip


def stock_job(model: str, ranks: int, steps: int) -> dict[str, Any]:
    """The same training by `ranks` processes of stock DDP over Gloo, all on one device."""
    with tempfile.TemporaryDirectory() as folder:
        before = loopback_bytes()
        settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        processes = [
            subprocess.Popen(
                [sys.executable, TRAIN, model, str(steps), folder],
                env={**os.environ, **settings, "STOCK_RANK": str(rank), "STOCK_RANKS": str(ranks)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"stock DDP with {ranks} ranks failed:\n{''.join(errors)[-3000:]}")
        return {**collected(Path(folder), ranks), "loopback_bytes": loopback_bytes() - before}


def collected(folder: Path, processes: int) -> dict[str, Any]:
    """The time is that of the slowest process; host memory and processor time are those of all."""
    found = [json.loads((folder / f"{i}.json").read_text()) for i in range(processes)]
    return {
        "step_ms": max(statistics.median(one["windows_ms"]) for one in found),
        "cpu_ms": sum(statistics.median(one["cpu_ms"]) for one in found),
        "host_mib": sum(one["host_mib"] for one in found),
        "device_mib": max(one["device_mib"] for one in found),
        "peak_mib": sum(one["peak_mib"] for one in found),
    }


def loopback_bytes() -> int:
    """All that crossed the loopback interface so far; on a machine with other users this counts them too."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    return 0


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}
