"""The report of a job: one JSON file that holds all a program may ask about a finished run.

Written whole or not at all (temporary file, fsync, rename), also when the job failed. Strict JSON:
numbers that JSON has no form for become the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.master.state import JobState


def report_of(state: JobState, seconds: float, error: str | None = None) -> dict[str, Any]:
    """`seconds`: the whole run, as the launcher's clock saw it."""
    report: dict[str, Any] = {
        "fingerprint": state.fingerprint,
        "ests": state.ests,
        "steps": state.steps,
        "losses": {str(step): losses for step, losses in sorted(state.losses.items())},
        "step_fingerprints": {str(step): sha for step, sha in sorted(state.step_fingerprints.items())},
        "events": [asdict(event) for event in state.events],
        "timings": {
            "total": seconds,
            "start": state.start_seconds,
            "switches": [{"step": step, "seconds": pause} for step, pause in state.switches],
            "workers": state.all_timings(),
        },
        "plans": [{"step": step, "split": list(plan.split)} for step, plan in state.plans],
        "bytes_sent": state.bytes_sent,
    }
    if state.places is not None:
        report |= {
            "recoveries": state.recoveries, "lost_steps": state.lost_steps, "dropped": state.dropped,
            "speeds": state.speeds,
        }  # fmt: skip
    if error is not None:
        report["error"] = error
    return report


def check_report_path(path: Path, flag: str = "--report") -> None:
    """Refuse before the training, not after it."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{path} cannot be written to.",
            "it is a folder." if path.is_dir() else f"{path.parent} does not exist or cannot be written to.",
            f"name a file in a folder that exists, such as {flag} report.json.",
        )


def write_report(path: Path, report: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w") as file:
            json.dump(strict(report), file, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            part.unlink()
        raise EasyScaleError(
            f"{path} could not be written.",
            f"{problem.strerror or problem}.",
            "make room or choose another place; the job itself is not affected.",
        ) from None


def strict(value: Any) -> Any:
    """The same value with only what JSON can say."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
