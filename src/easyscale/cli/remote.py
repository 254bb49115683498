"""The service in commands: which one, which of its jobs, and the flags that say so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service import connection

if TYPE_CHECKING:
    from easyscale.service.client import ServiceClient
    from easyscale.service.connection import Connection
    from easyscale.service.models import JobRow

# A list of local jobs must not wait long for a service that is away; completion still less.
SIDE_SECONDS = 1.0
COMPLETE_SECONDS = 0.5

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The service. Default: EASYSCALE_SERVER, or the one of `login`."),
]
Local = Annotated[bool, typer.Option("--local", help="Only jobs of `easyscale run` on this machine.")]
Service = Annotated[bool, typer.Option("--service", help="Only jobs of the service of `login` or `up`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Where:
    """Which jobs a command about both kinds means. Nothing said: local ones first."""

    server: str | None = None
    service: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        if self.local and (self.service or self.server):
            raise UsageError(
                "--local stands beside --service or --server.", "they say the opposite.", "keep one of them."
            )

    @property
    def remote(self) -> bool:
        return self.service or self.server is not None


def client_for(found: Connection, *, answer_seconds: float | None = None, retries: int | None = None) -> ServiceClient:
    """A client; where its libraries are not installed, what to install."""
    try:
        from easyscale.service.client import ServiceClient
        from easyscale.service.wire import ANSWER_SECONDS, RETRIES
    except ImportError as problem:
        missing(problem)
    return ServiceClient.of(
        found,
        answer_seconds=ANSWER_SECONDS if answer_seconds is None else answer_seconds,
        retries=RETRIES if retries is None else retries,
    )


def missing(problem: ImportError) -> NoReturn:
    raise UsageError(
        "Commands about a service cannot run here.",
        f"the package {problem.name} is not installed.",
        "pip install 'easyscale-torch[cluster]'.",
    ) from None


def the_service(server: str | None) -> ServiceClient:
    return client_for(connection.needed(server))


def beside(where: Where) -> ServiceClient | None:
    """The service whose jobs are shown under the local ones; None: none is known. Asked once, for a moment."""
    if where.remote:
        return the_service(where.server)
    found = None if where.local else connection.configured()
    return None if found is None else client_for(found, answer_seconds=SIDE_SECONDS, retries=0)


def told_lost(problem: EasyScaleError) -> None:
    print(f"{problem.what} Trying again.", file=sys.stderr)


# ---------------------------------------------------------------------------------------- which job


def complete_remote(incomplete: str) -> list[str]:
    """For the shell: ids of the service's jobs that begin so. A service that is slow or away completes nothing."""
    try:
        found = connection.configured()
        if found is None:
            return []
        with client_for(found, answer_seconds=COMPLETE_SECONDS, retries=0) as client:
            rows = client.jobs(text=incomplete or None, limit=100).jobs
    except (EasyScaleError, OSError):
        return []
    return [row.id for row in rows if row.id.startswith(incomplete)]


RemoteJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id, the beginning of it, or its name.", autocompletion=complete_remote,
        show_default=False,
    ),
]  # fmt: skip


def find_row(client: ServiceClient, wanted: str, *, over: bool = True) -> JobRow:
    """The one job that is meant. `over`: those that ended count as well, after those that have not.

    What the user did not spell out is told on stderr.
    """
    from easyscale.service.errors import NotFoundError
    from easyscale.service.models import ENDED

    try:
        return client.job(wanted)
    except NotFoundError:
        pass
    rows = client.jobs(text=wanted, limit=100).jobs
    matches = [row for row in rows if row.id.startswith(wanted) or row.name == wanted]
    living = [row for row in matches if row.state not in ENDED]
    for found in (living, matches if over else []):
        if len(found) == 1:
            print(f"job: {found[0].id}", file=sys.stderr)
            return found[0]
    raise _not_one(client.connection.url, wanted, living or matches, over=over)


def _not_one(url: str, wanted: str, matches: list[JobRow], *, over: bool) -> EasyScaleError:
    from easyscale.service.errors import ConflictError, NotFoundError

    if len(matches) > 1:
        ids = ", ".join(row.id for row in matches[:8]) + (f" and {len(matches) - 8} more" if len(matches) > 8 else "")
        return UsageError(
            f"{wanted!r} is the beginning or the name of {len(matches)} jobs.", f"it could be any of {ids}.",
            "write more of the id.",
        )  # fmt: skip
    if matches and not over:
        return ConflictError(
            f"The job {matches[0].id} has ended.", f"it is {matches[0].state}.",
            f"`easyscale logs {matches[0].id}` shows what it printed; `easyscale submit` starts it anew.",
        )  # fmt: skip
    return NotFoundError(
        f"There is no job {wanted!r}.",
        f"no job of the service at {url} has that name, or an id that begins so.",
        "`easyscale queue --all` lists the jobs.",
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A job of the service. Who gets it closes the client."""

    client: ServiceClient
    id: str


def found_there(wanted: str | None, where: Where, *, over: bool = True) -> Found | None:
    """The service's job that is meant; None: look for a local one. A local job counts before the service's."""
    if where.local or (not where.remote and (wanted is None or _is_local(wanted))):
        return None
    if not where.remote and connection.configured() is None:
        return None
    if wanted is None:
        raise UsageError("No job is named.", "a service has many.", "name it; `easyscale queue --all` lists them.")
    client = the_service(where.server)
    try:
        row = find_row(client, wanted, over=over)
    except BaseException:
        client.close()
        raise
    return Found(client, row.id)


def _is_local(wanted: str) -> bool:
    from easyscale.master.registry import list_jobs

    return any(folder.id.startswith(wanted) for folder in list_jobs())
