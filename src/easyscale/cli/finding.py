"""Which job a command means, and how to speak to it. Shared by the commands about jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.core.errors import EasyScaleError, UsageError

if TYPE_CHECKING:
    from easyscale.client import JobClient
    from easyscale.master.registry import JobFolder


def complete_job(incomplete: str) -> list[str]:
    """For the shell: ids that begin so, of this machine and of the service; an unsafe registry completes nothing."""
    from easyscale.cli.remote import complete_remote
    from easyscale.master.registry import list_jobs

    try:
        here = [folder.id for folder in list_jobs() if folder.id.startswith(incomplete)]
    except (EasyScaleError, OSError):
        here = []
    return here + complete_remote(incomplete)


JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="The job's id or the beginning of it. May be left out while exactly one job runs.",
        autocompletion=complete_job,
        show_default=False,
    ),
]


def find_job(wanted: str | None, *, over: bool = False) -> JobFolder:
    """The one job that is meant. `over`: those that ended or died count as well, after those that run.

    What the user did not spell out is told on stderr.
    """
    from easyscale.master.registry import list_jobs

    everything = {folder: folder.state() for folder in list_jobs()}
    living = [folder for folder, state in everything.items() if state in ("running", "masterless")]
    if wanted is None:
        if len(living) != 1:
            raise _not_one(living)
        _tell(living[0])
        return living[0]
    matches = [folder for folder in everything if folder.id.startswith(wanted)]
    exact = [folder for folder in matches if folder.id == wanted]
    running = [folder for folder in matches if folder in living]
    for found in (exact, running, matches if over else []):
        if len(found) == 1 and (over or found[0] in living):
            if found[0].id != wanted:
                _tell(found[0])
            return found[0]
    raise _not_found(wanted, exact or running or matches, over=over)


def client_of(folder: JobFolder, answer_seconds: float | None = None) -> JobClient:
    """A client that looks up the master's place before each request."""
    from easyscale.backends.lives import is_alive
    from easyscale.client import ANSWER_SECONDS, Address, JobClient

    def find() -> Address | None:
        record, master = folder.record(), folder.master()
        if record is None or master is None or not is_alive(master.pid, master.started):
            return None
        return Address(host=master.host, port=master.port, token=record.token)

    return JobClient(folder.id, find, answer_seconds or ANSWER_SECONDS)


def _tell(folder: JobFolder) -> None:
    print(f"job: {folder.id}", file=sys.stderr)


def _not_one(living: list[JobFolder]) -> UsageError:
    if not living:
        return UsageError(
            "No job runs.",
            "no job of this user has a living master or worker on this machine.",
            "start one with `easyscale run`; `easyscale ps --all` lists those that ended.",
        )
    return UsageError(
        f"{len(living)} jobs run, and none was named.",
        f"it could be any of {_names(living)}.",
        "name the job; the beginning of its id is enough.",
    )


def _not_found(wanted: str, matches: list[JobFolder], *, over: bool) -> UsageError:
    if len(matches) > 1:
        return UsageError(
            f"{wanted!r} is the beginning of {len(matches)} jobs.",
            f"it could be any of {_names(matches)}.",
            "write more of the id.",
        )
    if matches and not over:
        return UsageError(
            f"The job {matches[0].id} does not run.",
            "it ended, or all its processes died.",
            f"`easyscale logs {matches[0].id}` shows what it printed; start it again with `easyscale run`.",
        )
    return UsageError(
        f"There is no job {wanted!r}.",
        "no job of this user on this machine has an id that begins so.",
        "`easyscale ps --all` lists the jobs.",
    )


def _names(folders: list[JobFolder], most: int = 8) -> str:
    ids = [folder.id for folder in folders]
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")
