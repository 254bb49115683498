"""`easyscale ps` and `easyscale top`: the jobs of this user on this machine."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from easyscale.cli.finding import client_of
from easyscale.cli.remote import Local, Server, Service, Where
from easyscale.core.errors import EasyScaleError

if TYPE_CHECKING:
    from rich.table import Table

    from easyscale.core.requests import JobStatus
    from easyscale.master.registry import EntryState, JobFolder, JobRecord, JobResult

# A list with one job that does not answer must not take long.
ANSWER_SECONDS = 2.0
HEADINGS = ("JOB", "STATE", "ESTS", "PLAN", "STEP", "SAMPLES/S", "LOSS", "AGE", "LAST EVENT")
_NOT_IN_TOP = {"ESTS", "AGE"}  # on a narrow terminal the last event needs the room
_RIGHT = {"ESTS", "STEP", "SAMPLES/S", "LOSS", "AGE"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """All that can be known of a job from outside: its folder, and its master if that answers."""

    folder: JobFolder
    state: EntryState
    record: JobRecord | None
    result: JobResult | None
    status: JobStatus | None

    @property
    def word(self) -> str:
        """The state for people."""
        if self.result is not None:
            code = self.result.exit_code
            if code == 0:
                return "done"
            return f"ended ({_signal(code)})" if code > 128 else f"failed ({code})"
        if self.state == "masterless":
            return f"no master ({len(self.folder.live_workers())} alive)"
        if self.state == "dead":
            return "dead"
        return self.status.state if self.status is not None else "no answer"

    def cells(self, now: float) -> tuple[str, ...]:
        status, record, result = self.status, self.record, self.result
        steps = status.step if status else result.steps if result else None
        event = status.last_event.text if status and status.last_event else ""
        if result is not None and result.error:
            event = result.error
        return (
            self.folder.id,
            self.word,
            str(record.ests) if record else "?",
            plan_of(status),
            "" if steps is None else str(steps),
            f"{status.samples_per_second:,.0f}" if status and status.samples_per_second is not None else "",
            f"{status.loss:.4f}" if status and status.loss is not None else "",
            age(now - record.started) if record else "?",
            event.splitlines()[0] if event else "",
        )

    def plain(self) -> dict[str, Any]:
        """For --json; the token stays in its file."""
        from easyscale.core.requests import to_plain

        master, record = self.folder.master(), self.record
        return {
            "job": self.folder.id,
            "name": record.name if record else None,
            "entry": self.state,
            "state": self.word,
            "ests": record.ests if record else None,
            "started": record.started if record else None,
            "command": list(record.command) if record else None,
            "cwd": record.cwd if record else None,
            "folder": str(self.folder.path),
            "master_pid": master.pid if master else None,
            "status": to_plain(self.status) if self.status else None,
            "result": asdict(self.result) if self.result else None,
        }


def ps(
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that ended and were shown before.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Then forget the jobs that ended or died.")] = False,
    keep: Annotated[
        float | None, typer.Option(min=0, help="Seconds for which jobs that ended and were shown stay. Default: a day.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """List the jobs of this user on this machine. Jobs that ended or died are shown once, then with --all.

    Where a service is known (`easyscale up`, `easyscale login`), its jobs follow, if it answers within a second.
    """
    from easyscale.cli.verbs import show_service_jobs

    where = Where(server, service, local)
    if not where.remote:
        _ps_local(every=every, clean=clean, keep=keep, json_output=json_output)
    show_service_jobs(where, every=every, json_output=json_output)


def _ps_local(*, every: bool, clean: bool, keep: float | None, json_output: bool) -> None:
    from easyscale.master import registry

    registry.tidy(registry.Keep() if keep is None else registry.Keep(seconds=keep))
    folders = registry.list_jobs()
    entries = [entry for entry in look(folders) if every or clean or _is_news(entry)]
    if json_output:
        print(json.dumps([entry.plain() for entry in entries]))
    elif entries:
        now = time.time()
        print("\n".join(columns([HEADINGS, *(entry.cells(now) for entry in entries)])))
    else:
        hidden = f" ({len(folders)} ended; --all shows them)" if folders else ""
        print(f"No job runs{hidden}.", file=sys.stderr)
    for entry in entries:
        if entry.state in ("ended", "dead"):
            entry.folder.mark_shown()
    if clean:
        removed = registry.clean()
        print(f"removed: {', '.join(removed) or 'nothing'}", file=sys.stderr)


def top(
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and leave.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON once and leave.")] = False,
    local: Local = False,
    service: Service = False,
    server: Server = None,
) -> None:
    """Watch the jobs that run, as a table that is drawn anew every second. Ctrl-C leaves."""
    from rich.console import Console, Group
    from rich.live import Live

    from easyscale.cli.verbs import service_table, show_service_jobs
    from easyscale.master.registry import list_jobs

    where = Where(server, service, local)

    def living() -> list[Entry]:
        return [entry for entry in look(list_jobs()) if entry.state in ("running", "masterless")]

    def table() -> Group:
        theirs = service_table(where)
        return Group(*([] if where.remote else [_table(living())]), *([] if theirs is None else [theirs]))

    if json_output and where.remote:
        show_service_jobs(where, every=False, json_output=True)
        return
    if json_output:
        print(json.dumps([entry.plain() for entry in living()]))
        return
    console = Console()
    if once or not console.is_terminal:
        console.print(table())
        return
    with Live(table(), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                live.update(table(), refresh=True)
        except KeyboardInterrupt:
            return


def look(folders: Iterable[JobFolder]) -> list[Entry]:
    """All entries, in their order; the masters are asked side by side."""
    from concurrent.futures import ThreadPoolExecutor

    folders = list(folders)
    if not folders:
        return []
    with ThreadPoolExecutor(max_workers=min(16, len(folders))) as pool:
        return list(pool.map(_look_at, folders))


def _look_at(folder: JobFolder) -> Entry:
    state, status = folder.state(), None
    if state == "running":
        try:
            status = client_of(folder, ANSWER_SECONDS).status()
        except EasyScaleError:
            state = folder.state()  # it may have ended between the two looks
    return Entry(folder=folder, state=state, record=folder.record(), result=folder.result(), status=status)


def _is_news(entry: Entry) -> bool:
    return entry.state in ("running", "masterless") or not entry.folder.was_shown


def _table(entries: Sequence[Entry]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = f"{len(entries)} job{'s' * (len(entries) != 1)} · {time.strftime('%H:%M:%S')}"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, expand=True)
    shown = [place for place, heading in enumerate(HEADINGS) if heading not in _NOT_IN_TOP]
    for place in shown:
        heading = HEADINGS[place]
        ratio = 1 if heading == "LAST EVENT" else None  # it gets what is left, cut off where that is little
        table.add_column(heading.lower(), no_wrap=True, justify="right" if heading in _RIGHT else "left", ratio=ratio)
    now = time.time()
    for entry in entries:
        cells = entry.cells(now)
        table.add_row(*(Text(cells[place]) for place in shown))  # Text: an event may hold [brackets]
    return table


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Plain columns, two blanks apart. The last is not filled up."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
            for heading, cell, width in zip(rows[0], row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def plan_of(status: JobStatus | None) -> str:
    """`2+2`, or `2+2 -> 1+1+1+1` while another one is on its way."""
    if status is None:
        return ""
    plan = "+".join(map(str, status.split))
    wanted = "+".join(map(str, status.wanted or ()))
    return f"{plan} -> {wanted}".strip() if wanted else plan


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _signal(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return str(code)
