"""Philly (ATC'19, msr-fiddle/philly-traces): the original `cluster_job_log`, in JSON.

And the short CSV form that Philly, ITP (microsoft/elasticflow-traces) and others are passed around in: job_id, cluster,
submit_s, duration_s, num_gpu.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.readers.rows import Bad, BadRow, Columns, Names, csv_rows, open_text, positive
from easyscale.simulator.workload import Arrival, Past, Workload

COLUMNS = ("job_id", "submit_s", "duration_s", "num_gpu")
ORIGIN = "Philly, ATC'19 (msr-fiddle/philly-traces, CC-BY-4.0)"
_NEVER = (None, "", "None")
_KNOWN = {"philly": ORIGIN, "itp": "ITP (microsoft/elasticflow-traces, MIT)"}  # of short forms, by the file's name


def read_csv(
    path: Path,
    *,
    assumptions: Assumptions,
    skip_bad: bool = False,
) -> Workload:
    """The column `cluster` (a virtual cluster of Philly) is the tenant."""
    bad, names, maker = Bad(path, skip=skip_bad), Names(), Maker(assumptions)
    rows = csv_rows(path, bad)
    columns = Columns(next(rows)[1], needed=COLUMNS, bad=bad)
    text, number, whole, unlike, make = columns.text, columns.number, columns.whole, names.unlike, maker.make
    arrivals: list[Arrival] = []
    for line, row in rows:
        try:
            tenant = text(row, "cluster")
            time, devices = number(row, "submit_s", least=0), whole(row, "num_gpu")
            seconds = positive(text(row, "duration_s"), "duration_s")
        except BadRow as problem:
            bad.row(line, problem)
            continue
        name = unlike(text(row, "job_id"))
        arrivals.append(make(name=name, time=time, devices=devices, seconds=seconds, line=line, tenant=tenant))
    arrivals.sort(key=lambda arrival: arrival.time)
    origin = next((cite for name, cite in _KNOWN.items() if path.name.startswith(name)), "")
    return Workload(name=stem(path), arrivals=tuple(arrivals), origin=origin, left_out=bad.counts)


def read_json(path: Path, *, assumptions: Assumptions, skip_bad: bool = False) -> Workload:
    """Times start at the first submission. Jobs that never ran, or still ran when the log ended, are left out."""
    bad, names, maker = Bad(path, skip=skip_bad), Names(), Maker(assumptions)
    with open_text(path) as file:
        try:
            log = json.load(file)
        except ValueError as error:
            bad.file("is not JSON.", f"{error}.", "get the file anew.")
    if not isinstance(log, list):
        bad.file("is no list of jobs.", "cluster_job_log is a list with one entry per job.", "name that file.")
    found: list[tuple[float, int, Mapping[str, Any], tuple[float, int, Past]]] = []
    for place, job in enumerate(log, start=1):
        try:
            submitted = _time(job, "submitted_time")
            ran = _ran(job, submitted)
        except BadRow as problem:
            bad.row(place, problem)
            continue
        except (AttributeError, KeyError, TypeError) as error:
            bad.row(place, BadRow(f"it is no job ({error}).", "an entry has submitted_time, attempts and their detail"))
            continue
        if ran is None:
            bad.left_out("no attempt with a start, an end and devices was recorded")
        else:
            found.append((submitted, place, job, ran))
    found.sort(key=lambda entry: entry[:2])
    first = found[0][0] if found else 0.0
    arrivals = tuple(
        maker.make(
            name=names.unlike(str(job.get("jobid", place))),
            time=submitted - first,
            devices=devices,
            seconds=seconds,
            line=place,
            tenant=str(job.get("vc", "")),
            past=past,
        )
        for submitted, place, job, (seconds, devices, past) in found
    )
    return Workload(name=stem(path), arrivals=arrivals, origin=ORIGIN, left_out=bad.counts)


def _ran(job: Mapping[str, Any], submitted: float) -> tuple[float, int, Past] | None:
    """Seconds in all attempts, devices of the last, and the rest."""
    attempts = [
        attempt
        for attempt in job.get("attempts") or ()
        if attempt.get("start_time") not in _NEVER and attempt.get("end_time") not in _NEVER and attempt.get("detail")
    ]
    if not attempts:
        return None
    times = [(_time(attempt, "start_time"), _time(attempt, "end_time")) for attempt in attempts]
    seconds = sum(end - start for start, end in times)
    if any(end < start for start, end in times):
        raise BadRow("an attempt ends before it starts.", "time goes forward")
    detail = attempts[-1]["detail"]
    devices = sum(len(machine["gpus"]) for machine in detail)
    if devices < 1:
        raise BadRow("an attempt has no gpus.", "a job needs at least one device")
    status = str(job.get("status", ""))
    past = Past(
        seconds=seconds,
        queued=max(0.0, times[0][0] - submitted),
        status=status,
        failed=status == "Failed" if status else None,
        attempts=len(attempts),
        nodes=len(detail),
    )
    return max(seconds, 1.0), devices, past


def _time(entry: Mapping[str, Any], name: str) -> float:
    text = str(entry.get(name))
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadRow(f"{name} is {text!r}.", f"{name} is a time like 2017-10-07 01:11:39") from None


def stem(path: Path) -> str:
    return path.name.split(".")[0]
