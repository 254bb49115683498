"""Jobs of the service: queue, describe, pause, resume, cancel, events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.remote import Json, RemoteJob, Server, complete_remote, find_row, the_service, told_lost
from easyscale.cli.tables import clean, moment

if TYPE_CHECKING:
    from easyscale.service.client import ServiceClient
    from easyscale.service.models import JobView, RecordView

WAITING = ("queued", "paused")
PAGE = 500  # records of one request


def queue(
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="All jobs, also those that run or ended.")] = False,
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state. Repeat it.")] = None,
    team: Annotated[str | None, typer.Option(help="Only jobs of this team.")] = None,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    text: Annotated[str | None, typer.Option(help="Only jobs with this in their name or id.")] = None,
    order: Annotated[
        str, typer.Option(help="submitted, -submitted (newest first), name, state or priority.")
    ] = "submitted",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 100,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Show the jobs that wait, and why each does."""
    from easyscale.cli.printing import print_json, queue_lines

    with the_service(server) as client:
        states = state or (() if every else WAITING)
        page = client.jobs(states=states, team=team, user=user, text=text, order=order, limit=limit)
    if json_output:
        print_json(page)
    elif page.jobs:
        print("\n".join(queue_lines(page.jobs, time.time())))
        if page.total > len(page.jobs):
            print(f"and {page.total - len(page.jobs):,} more; --limit shows them.", file=sys.stderr)
    else:
        print("No job waits." if not every and not state else "There is no such job.", file=sys.stderr)


def describe(job: RemoteJob, *, server: Server = None, json_output: Json = False) -> None:
    """Show all that is known of a job: what it holds, its plans, what it proposed and what was answered."""
    from easyscale.cli.printing import describe_lines, print_json

    with the_service(server) as client:
        view = client.job(find_row(client, job).id)
    if json_output:
        print_json(view)
    else:
        print("\n".join(describe_lines(view)))


def pause(job: RemoteJob, *, server: Server = None, json_output: Json = False) -> None:
    """Take a job off its devices with its state kept. It waits until `resume`, and goes on with the same bits."""
    with the_service(server) as client:
        _say(client.pause(find_row(client, job, over=False).id), json_output)


def resume(job: RemoteJob, *, server: Server = None, json_output: Json = False) -> None:
    """Put a paused job back into the queue."""
    with the_service(server) as client:
        _say(client.resume(find_row(client, job, over=False).id), json_output)


def cancel(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB...", autocompletion=complete_remote, show_default=False)
    ],
    *,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """End jobs for good, whether they wait or run."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        ids = [find_row(client, job, over=False).id for job in jobs]  # a misspelt one is told before any is ended
        views = [client.cancel(job) for job in ids]
    if json_output:
        print_json(views)
    else:
        for view in views:
            _say(view, False)


def _say(view: JobView, json_output: bool) -> None:
    from easyscale.cli.printing import print_json

    if json_output:
        print_json(view)
    else:
        print(f"{view.id} is {view.state}.{' ' + clean(view.waits) if view.waits else ''}")


def events(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only of this job.", autocompletion=complete_remote)
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen. Ctrl-C leaves.")] = False,
    last: Annotated[int, typer.Option("-n", "--last", min=0, max=1000, help="Begin with the last so many.")] = 20,
    after: Annotated[int | None, typer.Option(min=0, help="Begin after the record with this number instead.")] = None,
    server: Server = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Show what happened, in sentences. With -f it goes on across restarts of the service; with JOB until that ends."""
    from easyscale.service.models import ENDED

    over = {f"job-{word}" for word in ENDED}
    with the_service(server) as client:
        row = None if job is None else find_row(client, job)
        wanted = None if row is None else row.id
        ended = row is not None and row.state in ENDED
        seen: set[str] = set()

        def emit(record: RecordView) -> None:
            _print_record(record, json_output)
            seen.add(record.kind)

        seq = _until_now(client, wanted, last, after, emit)
        if not follow or ended or (wanted is not None and seen & over):
            return
        try:
            for record in client.follow(wanted, after=seq, lost=told_lost):
                _print_record(record, json_output)
                if wanted is not None and record.kind in over:
                    return
        except KeyboardInterrupt:
            return


def _until_now(
    client: ServiceClient, job: str | None, last: int, after: int | None, emit: Callable[[RecordView], None]
) -> int:
    """Shows the records that are there, and returns the number to go on from."""
    if after is None:
        page = client.records(job, limit=max(1, last), newest=True)
        for record in page.records[-last:] if last else []:
            emit(record)
        return page.last
    while True:
        page = client.records(job, after=after, limit=PAGE)
        for record in page.records:
            emit(record)
        # A page may be short or empty before the end: what we may not see is left out.
        on = page.next if page.next is not None else page.records[-1].seq if page.records else after
        if on <= after:
            return after
        after = on


def _print_record(record: RecordView, json_output: bool) -> None:
    if json_output:
        print(record.model_dump_json(), flush=True)
    else:
        print("  ".join(part for part in (moment(record.time), record.job, clean(record.text)) if part), flush=True)
