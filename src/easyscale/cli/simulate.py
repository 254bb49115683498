"""`easyscale simulate`: a trace on a cluster under policies, in virtual time; a table, JSON and a report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from easyscale.simulator.compare import Outcome
    from easyscale.simulator.fleet import Progress, Setup, Task
    from easyscale.simulator.options import Options
    from easyscale.simulator.workload import Workload

WIDE = 96  # columns of a terminal that shows the table in one piece
OURS = {  # what --set changes in the simulation, not in the policy
    "switch_cost": "switch_seconds", "restart_cost": "restart_seconds", "start_cost": "start_seconds",
    "warm_up": "warm_up", "interval": "interval",
}  # fmt: skip


def simulate(
    *,
    trace: Annotated[str, typer.Option(metavar="FILE", help="The jobs. The format is told by the file.")],
    cluster: Annotated[str, typer.Option(metavar="TYPE:COUNT,...", help="The devices, such as v100:32,t4:16.")],
    policy: Annotated[str, typer.Option(metavar="NAME,...", help="Policies to compare.")] = "easyscale,backfill",
    format_: Annotated[str | None, typer.Option("--format", metavar="NAME", help="The format of the trace.")] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the trace's reader. Repeat it.")
    ] = None,
    limit_jobs: Annotated[int | None, typer.Option(min=1, help="Only the first jobs of the trace.")] = None,
    misfits: Annotated[
        Literal["refuse", "drop", "shrink"],
        typer.Option(help="Jobs that can never fit: refuse the run, leave them out, or cut what they ask for."),
    ] = "refuse",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="POLICY.NAME=VALUE", help="An option of one policy. Repeat it."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy. Seed 0 is the trace as it is.")] = 1,
    jitter: Annotated[
        float | None, typer.Option(help="Seconds by which other seeds move arrivals. Default: the mean gap.")
    ] = None,
    switch_cost: Annotated[float, typer.Option(help="Seconds of pause of a job whose devices change.")] = 1.0,
    warm_up: Annotated[float, typer.Option(help="Seconds until a new worker can join; the others train.")] = 0.0,
    start_cost: Annotated[float | None, typer.Option(help="Seconds of a start. Default: as a change.")] = None,
    restart_cost: Annotated[
        float | None, typer.Option(help="Each change ends all processes and starts others; seconds of that.")
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between decisions. Default: the policy's.")] = None,
    nodes_of: Annotated[int, typer.Option(min=1, help="Devices of a machine.")] = 8,
    locality: Annotated[bool, typer.Option("--locality", help="Tell machines apart: spread jobs are slower.")] = False,
    measured: Annotated[
        bool, typer.Option("--measured", help="The scheduler knows of speeds what the jobs' masters have measured.")
    ] = False,
    any_type: Annotated[
        bool, typer.Option("--any-type", help="D1 jobs may move to another type of device, and lose their bits.")
    ] = False,
    failures: Annotated[float, typer.Option(min=0, help="Failures of a device a day.")] = 0.0,
    repair: Annotated[float, typer.Option(min=0, help="Seconds until a failed device is back.")] = 3600.0,
    stragglers: Annotated[float, typer.Option(min=0, help="Times a day that a device turns slow.")] = 0.0,
    slowdown: Annotated[float, typer.Option(min=1, help="How many times slower it is then.")] = 2.0,
    comings: Annotated[
        str | None, typer.Option(metavar="FILE", help="CSV time_s,type,change: devices that come and go.")
    ] = None,
    serving: Annotated[
        str | None, typer.Option(metavar="TYPE:COUNT,...", help="Devices of an online service that lends idle ones.")
    ] = None,
    demand: Annotated[
        str, typer.Option(metavar="FILE", help="CSV time_s,type,devices that the service needs; or: diurnal.")
    ] = "diurnal",
    headroom: Annotated[int, typer.Option(min=0, help="Idle devices of each type that the service keeps.")] = 1,
    give_back: Annotated[float, typer.Option(min=0, help="Seconds within which it gets devices back.")] = 5.0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write result.json and report.html there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Simulations at a time. Default: one a core.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run a trace under one or more policies and compare them.

    The policies are those of the live scheduler: the same code decides. Times are virtual; the same command gives the
    same figures.
    """
    from easyscale.simulator.fleet import Setup, prepare
    from easyscale.simulator.options import Failures, Options, Stragglers

    options = Options(
        switch_seconds=switch_cost, warm_up=warm_up, start_seconds=start_cost, restart_seconds=restart_cost,
        interval=interval, any_type=any_type, locality=locality, measured=measured, jitter=jitter,
        failures=Failures(per_device_day=failures, repair_seconds=repair) if failures else None,
        stragglers=Stragglers(per_device_day=stragglers, slowdown=slowdown) if stragglers else None,
    )  # fmt: skip
    setup = Setup(
        trace=trace, cluster=cluster, format=format_, reading=_pairs(read or [], "--read"), limit_jobs=limit_jobs,
        misfits=misfits, per_node=nodes_of, comings=comings, serving=serving, demand=demand, headroom=headroom,
        give_back=give_back,
    )  # fmt: skip
    files = _files(out, json_file, html_file)
    tasks = _tasks(policy, set_ or [], options, seeds)
    workload, spec, cut = prepare(setup)
    outcomes = _run(setup, tasks, workload, processes or len(os.sched_getaffinity(0)), quiet=quiet)
    about = _about(setup, options, workload, seeds, cut)
    _write(files, outcomes, workload, list(spec.most()), about, setup, options)
    _show(outcomes, about)
    for file in files.values():
        typer.echo(f"written: {file}")


# ---------------------------------------------------------------------------------------- what is asked


def _tasks(policies: str, settings: list[str], options: Options, seeds: int) -> list[Task]:
    from dataclasses import replace

    from easyscale.scheduler.policies import make
    from easyscale.simulator.fleet import Task

    labels = [name.strip() for name in policies.split(",")]
    own: dict[str, dict[str, Any]] = {label: {} for label in labels}
    if len(own) < len(labels):
        raise UsageError(f"--policy {policies} names one twice.", "each is run once.", "name it once.")
    for name, value in _pairs(settings, "--set"):
        label, _, option = name.partition(".")
        if label not in own or not option:
            raise UsageError(
                f"--set {name}={value} is for no policy of this run.",
                f"it is POLICY.NAME=VALUE, and the policies are {', '.join(labels)}.",
                "name the policy as in --policy, then a dot and its option.",
            )
        own[label][option.replace("-", "_")] = value
    tasks = []
    for label in labels:
        ours = {OURS[name]: value for name, value in own[label].items() if name in OURS}
        if wrong := [name for name, value in ours.items() if isinstance(value, str | bool)]:
            raise UsageError(
                f"{label}.{wrong[0]} is no number.", "it is a time in seconds, or none.", "write a number."
            )
        theirs = {name: value for name, value in own[label].items() if name not in OURS}
        make(label, **theirs)  # a misspelt one is refused now
        for seed in range(seeds):
            mine = replace(options, seed=seed, **ours)
            tasks.append(Task(label=label, policy=label, settings=tuple(theirs.items()), options=mine))
    return tasks


def _pairs(texts: list[str], flag: str) -> tuple[tuple[str, Any], ...]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {text} has no value.", "it is NAME=VALUE.", f"write it like {flag} interval=60.")
        # A reader knows the types of its options; of a policy's, what looks like a number is one.
        found.append((name.replace("-", "_"), value) if flag == "--read" else (name, _value(value)))
    return tuple(found)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False}.get(text.lower())
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _files(out: Path | None, json_file: Path | None, html_file: Path | None) -> dict[str, Path]:
    """Where to write; what cannot be written is told before the work."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UsageError(f"--out {out} cannot be made.", str(problem), "name another folder.") from None
        json_file, html_file = json_file or out / "result.json", html_file or out / "report.html"
    files = {name: file for name, file in (("json", json_file), ("html", html_file)) if file is not None}
    for name, file in files.items():
        folder = file.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or file.is_dir():
            raise UsageError(
                f"--{name} {file} cannot be written.", f"{folder} is no folder that can be written to, or it is one.",
                "name a file in a folder that exists.",
            )  # fmt: skip
    return files


# ---------------------------------------------------------------------------------------- the work


def _run(setup: Setup, tasks: list[Task], workload: Workload, processes: int, *, quiet: bool) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from easyscale.simulator.compare import Outcome
    from easyscale.simulator.fleet import run_all

    outcomes = {task.label: Outcome(task.label) for task in tasks}
    text, unit = TextColumn("{task.description}"), TextColumn("jobs")
    columns = (text, BarColumn(), MofNCompleteColumn(), unit, TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bars:
        report = _meter(bars, tasks, len(workload.arrivals))
        for task, result in run_all(setup, tasks, processes, report):
            outcomes[task.label].add(task.options.seed, result)
    return list(outcomes.values())


def _meter(bars: Any, tasks: list[Task], jobs: int) -> Progress:
    """A bar a policy, for all its seeds."""
    per = {label: sum(task.label == label for task in tasks) for label in dict.fromkeys(task.label for task in tasks)}
    lines = {label: bars.add_task(label, total=jobs * count) for label, count in per.items()}
    done: dict[tuple[str, int], int] = {}

    def report(label: str, seed: int, finished: int) -> None:
        done[label, seed] = finished
        bars.update(lines[label], completed=sum(n for (of, _), n in done.items() if of == label))

    return report


# ---------------------------------------------------------------------------------------- what people see


def _about(setup: Setup, options: Options, workload: Workload, seeds: int, cut: int) -> dict[str, str]:
    how = "live" if options.restart_seconds is None else "restart"
    change = f"{how}, {options.change_seconds:g} s"
    misfits = f" ({cut} {'left out' if setup.misfits == 'drop' else 'cut'} because they cannot fit)" if cut else ""
    found = {
        "trace": Path(setup.trace).name,
        "jobs": f"{len(workload.arrivals)}{misfits}",
        "cluster": setup.cluster + (f", lent by a service: up to {setup.serving}" if setup.serving else ""),
        "change of devices": change + (f", warm-up {options.warm_up:g} s" if options.warm_up else ""),
        "seeds": f"{seeds}" + ("; seed 0 is the trace as it is, others move arrivals a little" if seeds > 1 else ""),
    }
    if workload.left_out:
        found["rows left out"] = "; ".join(f"{count}: {why}" for why, count in workload.left_out)
    return found


def _write(
    files: dict[str, Path], outcomes: list[Outcome], workload: Workload, kinds: list[str], about: dict[str, str],
    setup: Setup, options: Options,
) -> None:  # fmt: skip
    from dataclasses import asdict

    from easyscale.simulator.compare import as_json
    from easyscale.simulator.html import page

    if "json" in files:
        whole = {**asdict(setup), "trace": Path(setup.trace).name, "reading": dict(setup.reading)}
        facts = as_json(outcomes, {"setup": whole, "options": asdict(options), "origin": workload.origin})
        files["json"].write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if "html" in files:
        names = [arrival.name for arrival in workload.arrivals[: options.timeline_jobs]]
        files["html"].write_text(page(outcomes, names, kinds, about, workload.origin), encoding="utf-8")


def _show(outcomes: list[Outcome], about: dict[str, str]) -> None:
    from rich.console import Console

    from easyscale.simulator.compare import COLUMNS, rows

    console = Console(highlight=False)
    for name, text in about.items():
        console.print(f"{name}: {text}", style="dim", markup=False, soft_wrap=True)
    found = rows(outcomes)
    if console.width >= WIDE:
        _table(console, COLUMNS, found)
    else:  # in two pieces, so that no column is cut
        _table(console, COLUMNS[:5], [row[:5] for row in found])
        _table(console, COLUMNS[:1] + COLUMNS[5:], [row[:1] + row[5:] for row in found])
    for outcome in outcomes:
        of = outcome.spreads()
        if "gained" in of:
            console.print(
                f"{outcome.label}: utilization of the service's devices +{of['gained'].mean:.1%}, given back too late: "
                f"{of['violations'].most:.0f}", markup=False, soft_wrap=True,
            )  # fmt: skip


def _table(console: Any, columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)
