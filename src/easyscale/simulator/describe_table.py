"""The study of a trace for a terminal, in lines of at most 80 characters."""

from __future__ import annotations

from collections.abc import Sequence

from easyscale.simulator.describe import Spread, Study
from easyscale.simulator.generator_spec import HOUR

Rows = list[Sequence[str]]


def table(study: Study) -> str:
    lines = [f"{study.name}: {study.jobs:,} jobs in {_time(study.hours * HOUR)}, {study.jobs_per_hour:,.1f} an hour"]
    if study.origin:
        lines.append(f"  source: {study.origin}")
    lines += [f"  left out: {count:,} rows: {why}"[:80] for why, count in study.left_out]
    lines.append(
        f"  {study.device_hours:,.0f} device-hours; devices wanted: {study.offered:,.0f} in the mean, "
        f"{study.offered_peak:,.0f} in the busiest hour"
    )
    if study.tenants > 1:
        lines.append(f"  {study.tenants} tenants")
    if study.utilization is not None:
        lines.append(f"  utilization of the given cluster: {study.utilization:.1%}")
    rows: Rows = [("devices", "jobs", "share", "dev-hours", "run: median", "mean", "p90", "p99")]
    rows += [
        (of.devices, f"{of.jobs:,}", f"{of.share:.1%}", f"{of.device_hours_share:.1%}", *_three(of.run))
        for of in study.classes
    ]
    lines += ["", "Sizes and run times", *_grid(rows)]
    if study.queueing:
        rows = [("devices", "waited > 1 min", "queued: median", "mean", "p90", "p99")]
        rows += [(of.devices, _share(of.waited), *_three(of.queued)) for of in study.classes if of.queued]
        lines += ["", f"Queueing ({study.queueing})", *_grid(rows)]
    if study.causes is not None and study.locality is not None:
        causes, locality = study.causes, study.locality
        rows = [("cause", "of the waiting", "of jobs that waited > 1 min")]
        rows.append(("fair share", f"{causes.fair_share:.1%}", f"{causes.jobs_fair_share:.1%}"))
        rows.append(("fragmentation", f"{causes.fragmentation:.1%}", f"{causes.jobs_fragmentation:.1%}"))
        lines += ["", "Causes (gangs, first come first served, with locality)", *_grid(rows)]
        lines.append(f"  {locality.spread:.1%} of jobs with several devices ran on more machines than they need;")
        lines.append(f"  that cost {locality.lost:.2%} of the device-hours.")
    if study.endings:
        rows = [("ended as", "jobs", "share", "dev-hours", "median run")]
        rows += [
            (of.status, f"{of.jobs:,}", f"{of.share:.1%}", f"{of.device_hours_share:.1%}", _time(of.median_seconds))
            for of in study.endings
        ]
        lines += ["", "Endings", *_grid(rows)]
        failed = [f"{of.devices}: {of.failed:.1%}" for of in study.classes if of.failed is not None]
        lines += [f"  failed, by devices: {', '.join(failed)}"] if failed else []
    if study.attempts is not None:
        lines.append(f"  attempts of a job: {study.attempts:.2f} in the mean")
    return "\n".join(lines)


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    first, rest = widths[0], widths[1:]
    return [
        "  " + "  ".join((row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], rest, strict=True))))
        for row in rows
    ]


def _three(of: Spread | None) -> tuple[str, ...]:
    return ("",) * 4 if of is None or not of.jobs else tuple(map(_time, (of.median, of.mean, of.p90, of.p99)))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"
