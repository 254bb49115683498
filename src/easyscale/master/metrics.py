"""All logged metrics of a job in one folder: `metrics.jsonl` and TensorBoard event files.

A job that starts at step 0 moves an older `metrics.jsonl` aside; one that resumes at step s keeps its
lines before s and writes on, so each step has one line.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TextIO

from easyscale.core.errors import UsageError
from easyscale.master.report import strict
from easyscale.master.state import StepRecord
from easyscale.master.tensorboard import ScalarWriter

FLUSH_SECONDS = 2.0  # a reader sees a step at most this much later; a flush each step would cost more than it tells


def prepare_metrics_folder(folder: Path) -> None:
    """Refuse before the training, not at its first step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(
            f"The metrics folder {folder} cannot be made.",
            f"{problem.strerror or problem}.",
            "name a folder that can be made, such as --metrics-dir metrics.",
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"The metrics folder {folder} cannot be written to.",
            "this user may not make files there.",
            "change its permissions, or name another folder.",
        )


class MetricsLog:
    """Give it each `StepRecord` once, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: TextIO | None = None
        self._board: ScalarWriter | None = None
        self._flushed = float("-inf")

    def step(self, record: StepRecord) -> None:
        if self._lines is None or self._board is None:
            self._lines = _open_lines(self._folder / "metrics.jsonl", record.step)
            self._board = ScalarWriter(self._folder, record.time, record.step)
        self._lines.write(line_of(record))
        self._board.scalars(record.time, record.step, scalars_of(record))
        if record.time - self._flushed > FLUSH_SECONDS:
            self._lines.flush()
            self._board.flush()
            self._flushed = record.time

    def close(self) -> None:
        if self._lines is not None and self._board is not None:
            self._lines.close()
            self._board.close()


def last_logged_step(folder: Path) -> int:
    """The last step that an earlier master of the same run has written; -1: none."""
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    except OSError:
        return -1
    steps = [_step_of(line) for line in lines]
    return max((int(step) for step in steps if step != float("inf")), default=-1)


def line_of(record: StepRecord) -> str:
    return json.dumps(
        strict(
            {
                "step": record.step,
                "epoch": record.epoch,
                "time": record.time,
                "plan": str(record.plan),
                "metrics": record.metrics,
            }
        ),
        allow_nan=False,
    ) + "\n"  # fmt: skip


def scalars_of(record: StepRecord) -> list[tuple[str, float]]:
    """`loss/mean`, `loss/est0`, ...: one group of charts a metric."""
    scalars = []
    for name, values in record.metrics.items():
        mean = record.mean(name)
        if mean is not None:
            scalars.append((f"{name}/mean", mean))
        scalars += [(f"{name}/est{est}", value) for est, value in enumerate(values) if value is not None]
    return scalars


def _open_lines(path: Path, first_step: int) -> TextIO:
    if path.exists():
        if first_step == 0:
            free = (path.with_name(f"metrics-{n}.jsonl") for n in itertools.count(1))
            path.rename(next(name for name in free if not name.exists()))
        else:
            kept = [line for line in path.read_text().splitlines(True) if _step_of(line) < first_step]
            shorter = path.with_name(f".{path.name}.part")
            shorter.write_text("".join(kept))
            shorter.replace(path)
    return path.open("a")


def _step_of(line: str) -> float:
    """A line that was cut off by a crash belongs to a step that is written again."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
