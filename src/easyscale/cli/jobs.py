"""Commands that change a running job, wait for it or take it over: scale, checkpoint, stop, wait, attach."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.errors import show
from easyscale.cli.finding import JobArgument, client_of, find_job
from easyscale.cli.remote import Local, Server, Service, Where, found_there
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.core.plan import Plan, parse_split

if TYPE_CHECKING:
    from easyscale.client import JobClient
    from easyscale.core.requests import Accepted, JobStatus
    from easyscale.master.registry import JobFolder, JobResult

# Longer than a master waits for new workers (--start-limit, 120 s) and for the step in which they join.
SWITCH_SECONDS = 600.0
POLL_SECONDS = 0.2


def scale(
    job: JobArgument = None,
    *,
    workers: Annotated[int | None, typer.Option(min=1, help="So many workers, with even shares.")] = None,
    split: Annotated[str | None, typer.Option(metavar="N,N,...", help="ESTs of each worker, such as 2,1,1.")] = None,
    leave: Annotated[
        int | None, typer.Option(metavar="WORKER", min=0, help="This worker hands its ESTs over and leaves.")
    ] = None,
    min_workers: Annotated[
        int | None, typer.Option(min=1, help="A job of a service: waits rather than run on fewer.")
    ] = None,
    max_workers: Annotated[int | None, typer.Option(min=1, help="A job of a service: gets no more.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the new plan is in force.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait waits.")] = SWITCH_SECONDS,
    json_output: Annotated[bool, typer.Option("--json", help="Print the job's status as JSON.")] = False,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """Change the plan of a running job. It trains on while new workers start, and the bits stay the same.

    Of a job of a service, change how many workers it may have; the scheduler decides within that.
    """
    there = found_there(job, Where(server, service, local), over=False)
    if there is not None:
        from easyscale.cli.verbs import scale_there

        limits = min_workers is not None or max_workers is not None
        if split is not None or leave is not None or limits == (workers is not None):
            there.client.close()
            raise _not_clear("a job of a service takes either --workers, or --min-workers and --max-workers.")
        scale_there(
            there, workers=workers, least=min_workers, most=max_workers, wait=wait, timeout=timeout,
            json_output=json_output,
        )  # fmt: skip
        return
    if min_workers is not None or max_workers is not None:
        raise _not_clear("--min-workers and --max-workers are for jobs of a service.")
    _scale_local(job, workers, split, leave, wait=wait, timeout=timeout, json_output=json_output)


def _not_clear(why: str) -> UsageError:
    return UsageError("The new plan is not clear.", why, "such as `easyscale scale JOB --workers 3`.")


def _scale_local(
    job: str | None, workers: int | None, split: str | None, leave: int | None, *, wait: bool, timeout: float,
    json_output: bool,
) -> None:  # fmt: skip
    if sum(wish is not None for wish in (workers, split, leave)) != 1:
        raise _not_clear("exactly one of --workers, --split and --leave says what is wanted.")
    folder = find_job(job)
    record = folder.record()
    cut: tuple[int, ...] | None = None
    if record is not None and workers is not None:
        Plan.even(record.ests, workers)
    if record is not None and split is not None:
        cut = parse_split(split, record.ests).split
    client = client_of(folder)
    accepted = client.scale(workers=workers, split=cut, leave=leave)
    if not json_output:
        print(accepted.text)
    status = _wait_for_plan(folder, client, accepted, timeout) if wait else None
    if json_output:
        from easyscale.core.requests import to_plain

        print(json.dumps(to_plain(status or client.status())))
    elif status is not None:
        print(f"{status.job}: {describe(status.plan)}, at step {status.step}")


def _wait_for_plan(folder: JobFolder, client: JobClient, accepted: Accepted, timeout: float) -> JobStatus:
    """Until no wish is open. Exit code 1 if the plan is another one then."""
    from easyscale.client import UnreachableError

    over = ("stopping", "done", "failed")

    def settled(status: JobStatus) -> bool:
        return status.state in over or (status.state == "training" and status.wanted is None)

    try:
        status = client.wait_until(settled, timeout, events=50)
    except UnreachableError:
        if folder.state() in ("running", "masterless"):
            raise
        raise _not_changed(folder, accepted, "the job has ended.") from None
    if status.state in over:
        raise _not_changed(folder, accepted, f"the job is {status.state}.")
    if accepted.split not in (None, status.split):
        cancelled = [event.text for event in status.events if event.what == "switch-cancelled"]
        why = cancelled[-1] if cancelled else "another wish came after this one."
        raise _not_changed(folder, accepted, f"{why} It has {describe(status.plan)}.")
    return status


def _not_changed(folder: JobFolder, accepted: Accepted, why: str) -> typer.Exit:
    wanted = describe(Plan(accepted.split) if accepted.split else None)
    now = f"ask again, or see `easyscale logs {folder.id}`."
    show(EasyScaleError(f"The job {folder.id} did not change to {wanted}.", why, now))
    return typer.Exit(1)


def checkpoint(job: JobArgument = None) -> None:
    """Write a checkpoint of a running job at its next global step."""
    print(client_of(find_job(job)).checkpoint().text)


def stop(
    job: JobArgument = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="Kill the workers at once; no checkpoint.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job has ended.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait waits.")] = SWITCH_SECONDS,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """End a job after its global step, with a checkpoint if it has a folder for them."""
    if (there := found_there(job, Where(server, service, local), over=False)) is not None:
        from easyscale.cli.verbs import stop_there

        stop_there(there, now=now, wait=wait, timeout=timeout)
        return
    folder = find_job(job)
    if now and folder.state() == "masterless":
        print(_kill_workers(folder))
    else:
        print(client_of(folder).stop(now=now).text)
    if wait:
        wait_for_end(folder, timeout)


def _kill_workers(folder: JobFolder) -> str:
    """Without a master nobody else would; they would leave by themselves, later."""
    from easyscale.backends.lives import kill

    workers = folder.live_workers()
    for worker in workers:
        kill(worker.pid, worker.started)
    return f"{folder.id} has no master; {len(workers)} worker{'s' * (len(workers) != 1)} killed."


def wait(
    job: JobArgument = None,
    *,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after so many seconds.")] = None,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """Wait for the end of a job, and exit with its exit code."""
    if (there := found_there(job, Where(server, service, local))) is not None:
        from easyscale.cli.verbs import wait_there

        wait_there(there, timeout)
    folder = find_job(job, over=True)
    result = wait_for_end(folder, timeout)
    if result is None:
        print(f"The job {folder.id} died: its processes are gone and it left no result.", file=sys.stderr)
        raise typer.Exit(1)
    if result.error:
        print(result.error, file=sys.stderr)
    raise typer.Exit(result.exit_code)


def wait_for_end(folder: JobFolder, timeout: float | None) -> JobResult | None:
    """The job's result; None: it died without one. Reads files only, so a master that is started again is no matter."""
    ends = None if timeout is None else time.monotonic() + timeout
    told = False
    while (state := folder.state()) in ("running", "masterless"):
        if state == "masterless" and not told:
            told = True
            print(f"{folder.id} has no master now; `easyscale attach {folder.id}` becomes it.", file=sys.stderr)
        if ends is not None and time.monotonic() >= ends:
            raise EasyScaleError(
                f"The job {folder.id} has not ended in {timeout:g} seconds.",
                "it still runs.",
                f"wait longer, or end it with `easyscale stop {folder.id}`.",
            )
        time.sleep(POLL_SECONDS)
    return folder.result()


def describe(plan: Plan | None) -> str:
    if plan is None:
        return "the plan that was asked for"
    return f"{plan.workers} worker{'s' * (plan.workers != 1)} ({plan})"
