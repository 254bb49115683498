"""Alibaba's GPU traces: cluster-trace-gpu-v2020 (NSDI'22) and the pods of v2023 (ATC'23)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.readers.philly import stem
from easyscale.simulator.readers.rows import Bad, BadRow, Columns, Line, Names, csv_rows, number, positive
from easyscale.simulator.workload import Arrival, Past, Workload

TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
ORIGIN_2020 = "Alibaba PAI, NSDI'22 (alibaba/clusterdata cluster-trace-gpu-v2020)"
ORIGIN_2023 = "Alibaba, FGD, ATC'23 (alibaba/clusterdata cluster-trace-gpu-v2023)"


@dataclass
class _Job:
    """The tasks of one job that use GPUs, together."""

    line: int
    start: float
    end: float
    devices: float
    kind: str
    status: str


def read_2020(
    path: Path,
    *,
    assumptions: Assumptions,
    skip_bad: bool = False,
    job_table: str | Path | None = None,
    typed: bool = True,
) -> Workload:
    """pai_task_table.csv: one job for all tasks of a name. Shares of a GPU are added up, then rounded to whole devices.

    `job_table`: pai_job_table.csv, which knows when a job was submitted; by default looked for beside the trace.
    `typed`: jobs run on the type that they had only. Tasks without GPUs or without an end are left out.
    """
    bad, maker, names = Bad(path, skip=skip_bad), Maker(assumptions), Names()
    jobs: dict[str, _Job] = {}
    columns, rows = _with_header(path, TASKS, bad)
    for line, row in rows:
        try:
            if not columns.text(row, "plan_gpu") or columns.number(row, "plan_gpu") == 0:
                bad.left_out("a task without GPUs")
                continue
            if not columns.text(row, "end_time") or not columns.text(row, "start_time"):
                bad.left_out("a task that did not start or end")
                continue
            start = columns.number(row, "start_time", least=0)
            end = columns.number(row, "end_time", least=0)
            if end < start:
                raise BadRow(f"end_time is {end:g} and start_time {start:g}.", "a task ends after it starts")
            share = columns.number(row, "plan_gpu", least=0) * columns.whole(row, "inst_num") / 100
        except BadRow as problem:
            bad.row(line, problem)
            continue
        kind, status = columns.text(row, "gpu_type").lower(), columns.text(row, "status")
        job = jobs.setdefault(columns.text(row, "job_name"), _Job(line, start, end, 0.0, kind, status))
        job.start, job.end, job.devices = min(job.start, start), max(job.end, end), job.devices + share
        if status != "Terminated":
            job.status = status
    submitted = _submissions(path, job_table)
    first = min((submitted.get(name, job.start) for name, job in jobs.items()), default=0.0)
    arrivals: list[Arrival] = []
    for name, job in jobs.items():
        asked = min(submitted.get(name, job.start), job.start)
        past = Past(
            seconds=job.end - job.start,
            queued=job.start - asked if name in submitted else None,
            status=job.status,
            failed=job.status == "Failed",
        )
        arrivals.append(
            maker.make(
                name=names.unlike(name),
                time=asked - first,
                devices=max(1, math.ceil(job.devices - 1e-9)),
                seconds=max(1.0, job.end - job.start),
                line=job.line,
                types=(job.kind,) if typed and job.kind else None,
                past=past,
            )
        )
    arrivals.sort(key=lambda arrival: arrival.time)
    return Workload(name=stem(path), arrivals=tuple(arrivals), origin=ORIGIN_2020, left_out=bad.counts)


def read_2023(
    path: Path, *, assumptions: Assumptions, skip_bad: bool = False, shares: bool = True, typed: bool = True
) -> Workload:
    """The list of pods as published, or its short form (submit_s, duration_s). Pods without GPUs are left out.

    `shares`: pods that ask for a part of a GPU count as one device; False: they are left out. `typed`: pods run on the
    types that they name only.
    """
    bad, maker, names = Bad(path, skip=skip_bad), Maker(assumptions), Names()
    rows = csv_rows(path, bad)
    header = next(rows)[1]
    short = "submit_s" in header
    needed = ("num_gpu", "submit_s", "duration_s") if short else ("num_gpu", "creation_time", "deletion_time")
    columns = Columns(header, needed=needed, bad=bad)
    arrivals: list[Arrival] = []
    for line, row in rows:
        try:
            if columns.text(row, "num_gpu") == "0":
                bad.left_out("a pod without GPUs")
                continue
            devices = columns.whole(row, "num_gpu")
            milli = columns.text(row, "gpu_milli")
            if not shares and milli and number(milli, "gpu_milli", least=0) < 1000:
                bad.left_out("a pod with a part of a GPU")
                continue
            queued = None
            if short:
                time = columns.number(row, "submit_s", least=0)
                seconds = positive(columns.text(row, "duration_s"), "duration_s")
            else:
                time = columns.number(row, "creation_time", least=0)
                placed = columns.text(row, "scheduled_time")
                start = number(placed, "scheduled_time", least=0) if placed else time
                queued, seconds = max(0.0, start - time), columns.number(row, "deletion_time", least=0) - start
                if seconds <= 0:
                    raise BadRow("deletion_time is not after its start.", "a pod takes some time")
        except BadRow as problem:
            bad.row(line, problem)
            continue
        wanted = columns.text(row, "gpu_spec").lower()
        types = tuple(wanted.split("|")) if typed and wanted not in ("", "nan") else None
        status = columns.text(row, "pod_phase")
        past = Past(seconds=seconds, queued=queued, status=status, failed=status == "Failed" if status else None)
        arrivals.append(
            maker.make(
                name=names.unlike(columns.text(row, "job_id") or columns.text(row, "name")),
                time=time,
                devices=devices,
                seconds=seconds,
                line=line,
                types=types,
                application=columns.text(row, "qos"),
                past=past,
            )
        )
    arrivals.sort(key=lambda arrival: arrival.time)
    return Workload(name=stem(path), arrivals=tuple(arrivals), origin=ORIGIN_2023, left_out=bad.counts)


def _with_header(path: Path, names: tuple[str, ...], bad: Bad) -> tuple[Columns, Iterator[Line]]:
    """The published tables have their header in a file of its own; some copies have it as their first line."""
    rows = csv_rows(path, bad)
    line, first = next(rows)
    if first[0].strip() == names[0]:
        return Columns(first, needed=names[:1], bad=bad), rows

    def all_of_them() -> Iterator[Line]:
        yield line, first
        yield from rows

    return Columns(names, needed=(), bad=bad), all_of_them()


def _submissions(path: Path, job_table: str | Path | None) -> dict[str, float]:
    """When jobs were submitted, where the table that knows is there."""
    table = path.with_name(path.name.replace("task", "job")) if job_table is None else Path(job_table)
    if job_table is None and (table == path or not table.is_file()):
        return {}
    bad = Bad(table, skip=True)
    columns, rows = _with_header(table, JOBS, bad)
    found = {}
    for line, row in rows:
        try:
            found[columns.text(row, "job_name")] = columns.number(row, "start_time", least=0)
        except BadRow as problem:
            bad.row(line, problem)
    return found
