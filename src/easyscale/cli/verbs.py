"""The service's side of verbs that local jobs have too: ps, top, scale, stop, wait."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from easyscale.cli.remote import Found, Where, beside
from easyscale.cli.tables import clean, several
from easyscale.core.errors import EasyScaleError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from easyscale.service.models import JobPage, JobView

MOST = 50  # jobs of the service in `ps` and `top`; `queue --all` shows more
ACTIVE = ("queued", "starting", "running", "pausing", "paused", "stopping")
_WAIT_POLL = 0.5


# ---------------------------------------------------------------------------------------- ps and top


def service_page(where: Where, *, every: bool = False) -> tuple[str, JobPage | EasyScaleError] | None:
    """The service's address and its jobs, or why not; None: no service is known, or it is not asked for."""
    client = beside(where)
    if client is None:
        return None
    with client:
        try:
            found: JobPage | EasyScaleError = client.jobs(
                states=() if every else ACTIVE, order="-submitted" if every else "submitted", limit=MOST
            )
        except EasyScaleError as problem:
            if where.remote:
                raise
            found = problem
    return client.connection.url, found


def show_service_jobs(where: Where, *, every: bool, json_output: bool) -> None:
    """`ps`: under the local jobs, or alone. As JSON only alone: local entries have other fields."""
    if json_output and not where.remote:
        return
    try:
        found = service_page(where, every=every)
    except EasyScaleError as problem:
        if where.remote:
            raise
        print(f"service: {problem.what} {problem.why} (--local leaves it out)", file=sys.stderr)
        return
    if found is None:
        return
    url, page = found
    if isinstance(page, EasyScaleError):
        print(f"service: {page.what} {page.why} (--local leaves it out)", file=sys.stderr)
        return
    _print_page(url, page, json_output, alone=where.remote)


def _print_page(url: str, page: JobPage, json_output: bool, *, alone: bool) -> None:
    from easyscale.cli.printing import job_lines, print_json

    if json_output:
        print_json(page.jobs)
        return
    if not page.jobs:
        print(f"No job waits or runs at {url}.", file=sys.stderr)
        return
    if not alone:
        print(f"\n{url}")
    print("\n".join(job_lines(page.jobs, time.time())))
    if page.total > len(page.jobs):
        left = several(page.total - len(page.jobs), "job")
        print(f"and {left} more; `easyscale queue --all` lists them.", file=sys.stderr)


def service_table(where: Where) -> Table | str | None:
    """`top`: the service's jobs as a table that is cut at the width; a sentence if it does not answer."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from easyscale.cli.printing import JOBS, RIGHT, job_cells

    found = service_page(where)
    if found is None:
        return None
    url, page = found
    if isinstance(page, EasyScaleError):
        return f"service: {page.what} {page.why}"
    table = Table(title=f"{url} · {several(page.total, 'job')}", box=SIMPLE_HEAD, pad_edge=False, expand=True)
    shown = [place for place, heading in enumerate(JOBS) if heading not in ("TEAM", "AGE")]
    for place in shown:
        right = "right" if JOBS[place] in RIGHT else "left"
        ratio = 1 if JOBS[place] == "WHY" else None
        table.add_column(JOBS[place].lower(), no_wrap=True, justify=right, ratio=ratio)  # type: ignore[arg-type]
    now = time.time()
    for row in page.jobs:
        cells = job_cells(row, now)
        table.add_row(*(Text(clean(cells[place])) for place in shown))
    return table


# ---------------------------------------------------------------------------------------- scale, stop, wait


def scale_there(
    found: Found, *, workers: int | None, least: int | None, most: int | None, wait: bool, timeout: float,
    json_output: bool,
) -> None:  # fmt: skip
    """New limits of a job; within them the scheduler decides. `workers`: at most so many."""
    with found.client:
        job = _scaled(found, workers, least, most, timeout if wait else None)
    if json_output:
        from easyscale.cli.printing import print_json

        print_json(job)
    else:
        devices = several(len(job.held), "device")
        print(f"{job.id} may use {_limits(job)}; it is {job.state} on {devices} now.")


def _scaled(
    found: Found, workers: int | None, least: int | None, most: int | None, wait_seconds: float | None
) -> JobView:
    job = found.client.job(found.id)
    if workers is not None:
        most, least = workers, workers if job.spec.min_workers > workers else None
    if most is not None and most > job.ests:
        raise UsageError(
            f"{found.id} cannot use {most} workers.", f"it has {job.ests} ESTs, and a worker runs one at least.",
            f"ask for {job.ests} at most.",
        )  # fmt: skip
    job = found.client.scale(found.id, min_workers=least, max_workers=most)
    return job if wait_seconds is None else found.client.wait_until(found.id, _within, wait_seconds, _WAIT_POLL)


def _limits(job: JobView) -> str:
    most = min(job.ests, job.spec.max_workers or job.ests)
    return several(most, "worker") if job.spec.min_workers == most else f"{job.spec.min_workers} to {most} workers"


def _within(job: JobView) -> bool:
    most = min(job.ests, job.spec.max_workers or job.ests)
    return job.state not in ("starting", "running") or job.spec.min_workers <= len(job.held) <= most


def stop_there(found: Found, *, now: bool, wait: bool, timeout: float) -> None:
    if now:
        found.client.close()
        raise UsageError(
            f"{found.id} is not killed at once.", "--now is for jobs of `easyscale run`; the service ends its own.",
            f"`easyscale stop {found.id}` or `easyscale cancel {found.id}`.",
        )  # fmt: skip
    with found.client:
        view = found.client.cancel(found.id)
        if wait:
            view = found.client.wait(found.id, timeout, _WAIT_POLL)
    print(f"{view.id} is {view.state}.")


def wait_there(found: Found, timeout: float | None) -> None:
    """Exits with the job's exit code."""
    with found.client:
        view = found.client.wait(found.id, timeout)
    raise typer.Exit(told_end(view))


def told_end(view: JobView) -> int:
    """Says how a job ended, if not well, and returns its exit code."""
    if view.state == "finished":
        return view.exit_code or 0
    print(f"{view.id} is {view.state}.{' ' + clean(view.error) if view.error else ''}", file=sys.stderr)
    return view.exit_code or 1
