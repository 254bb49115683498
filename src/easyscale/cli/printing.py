"""The service's answers for people and for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from easyscale.cli.ps import age
from easyscale.cli.tables import facts, moment, table
from easyscale.core.cluster import show as show_devices

if TYPE_CHECKING:
    from pydantic import BaseModel

    from easyscale.service.models import JobRow, JobView

JOBS = ("JOB", "STATE", "USER", "TEAM", "ESTS", "DEVICES", "STEP", "SAMPLES/S", "LOSS", "AGE", "WHY")
QUEUE = ("JOB", "STATE", "USER", "TEAM", "PRIORITY", "ESTS", "WAITED", "WHY")
RIGHT = {"ESTS", "STEP", "SAMPLES/S", "LOSS", "AGE", "PRIORITY", "WAITED"}


def print_json(value: BaseModel | Sequence[BaseModel]) -> None:
    """The field names are those of the models."""
    from pydantic import BaseModel

    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else [
        one.model_dump(mode="json") for one in value
    ]  # fmt: skip
    print(json.dumps(plain))


def job_lines(rows: Sequence[JobRow], now: float) -> list[str]:
    return table(JOBS, [job_cells(row, now) for row in rows], RIGHT)


def job_cells(row: JobRow, now: float) -> tuple[str, ...]:
    return (
        row.id, row.state, row.user, row.team, str(row.ests), show_devices(row.devices) if row.devices else "",
        steps_of(row), f"{row.samples_per_second:,.0f}" if row.samples_per_second is not None else "",
        f"{row.loss:.4f}" if row.loss is not None else "", age(now - row.submitted), why_of(row),
    )  # fmt: skip


def queue_lines(rows: Sequence[JobRow], now: float) -> list[str]:
    cells = [
        (
            row.id, row.state, row.user, row.team, str(row.priority), str(row.ests),
            age((row.started or row.ended or now) - row.submitted), why_of(row),
        )
        for row in rows
    ]  # fmt: skip
    return table(QUEUE, cells, RIGHT)


def why_of(row: JobRow) -> str:
    return (row.error or row.waits or "").partition("\n")[0]


def steps_of(row: JobRow) -> str:
    if row.steps is not None:
        return f"{row.step}/{row.steps}"
    return str(row.step) if row.step else ""


# ---------------------------------------------------------------------------------------- one job, whole


def describe_lines(job: JobView, now: float | None = None) -> list[str]:
    now = time.time() if now is None else now
    spec = job.spec
    lines = [f"{job.id}  {job.state}"]
    lines += facts([
        ("name", job.name), ("owner", f"{job.user}, team {job.team}"),
        ("why", job.waits), ("error", job.error),
        ("runs", " ".join(["-m " + spec.module if spec.module else spec.script or "", *spec.args])),
        ("in", spec.workdir or f"snapshot {(spec.snapshot or '')[:12]}"), ("python", spec.python),
        ("env", ", ".join(spec.env)),  # names alone: a value may be a secret
        ("ESTs", f"{job.ests}, determinism {spec.determinism}"),
        ("workers", f"{spec.min_workers} to {min(spec.ests, spec.max_workers or spec.ests)}{' at once' * spec.gang}"),
        ("types", ", ".join(spec.types or ())), ("priority", str(job.priority)),
        ("devices", f"{show_devices(job.devices)} ({', '.join(job.held)})" if job.held else None),
        ("step", steps_of(job)), ("loss", None if job.loss is None else f"{job.loss:.6g}"),
        ("samples/s", None if job.samples_per_second is None else f"{job.samples_per_second:,.1f}"),
        ("submitted", _when(job.submitted, now)), ("started", _when(job.started, now)),
        ("ended", _when(job.ended, now)), ("expected end", _until(job.expected_end, now)),
        ("deadline", f"{moment(spec.deadline.timestamp(), now)}{', missed' * job.late}" if spec.deadline else None),
        ("run", f"{job.run}, {spec.retries} retries" if spec.retries else str(job.run or "")),
        ("exit code", None if job.exit_code is None else str(job.exit_code)), ("sha256", job.fingerprint),
        ("checkpoints", job.checkpoint_dir),
        ("pauses", f"{len(job.pauses)}, {max(job.pauses):.2f} s at most" if job.pauses else None),
    ])  # fmt: skip
    return [*lines, *_plans(job, now), *_proposals(job)]


def _when(seconds: float | None, now: float) -> str | None:
    return None if seconds is None else f"{moment(seconds, now)} ({age(now - seconds)} ago)"


def _until(seconds: float | None, now: float) -> str | None:
    return None if seconds is None else f"{moment(seconds, now)} (in {age(max(0.0, seconds - now))})"


def _plans(job: JobView, now: float, most: int = 10) -> list[str]:
    if not job.plans:
        return []
    rows = [
        (
            str(plan.step), moment(plan.time, now), "+".join(str(seat.count) for seat in plan.seats),
            ", ".join(seat.device or f"worker {seat.worker}" for seat in plan.seats),
        )
        for plan in job.plans[-most:]
    ]  # fmt: skip
    left = f" (the last {most} of {len(job.plans)})" if len(job.plans) > most else ""
    return ["", f"Plans{left}:", *(f"  {line}" for line in table(("STEP", "SINCE", "PLAN", "ON"), rows, {"STEP"}))]


def _proposals(job: JobView) -> list[str]:
    rows = [
        (
            word, show_devices(one.devices), f"{one.speedup:.2f}x", f"{one.rate:.3g}", "" if one.sure else "a guess",
            one.answer,
        )
        for word, many in (("grow", job.grow), ("shrink", job.shrink))
        for one in many
    ]  # fmt: skip
    headings = ("WAY", "TO", "SPEED-UP", "STEPS/S", "SURE", "ANSWER")
    lines = table(headings, rows, {"SPEED-UP", "STEPS/S"})
    return ["", "Proposals:", *(f"  {line}" for line in lines)] if rows else []
