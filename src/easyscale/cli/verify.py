"""`easyscale verify`: proves the promise for a script of the user's own, or finds where it breaks."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from easyscale.cli.checks import check_script, check_settings
from easyscale.core.errors import PlanError, UsageError
from easyscale.core.plan import Plan, parse_schedule, parse_split
from easyscale.core.spec import Target, WorkerSpec

if TYPE_CHECKING:
    from rich.console import Console

    from easyscale.master.verify.diagnosis import Diagnosis
    from easyscale.master.verify.trials import Trial
    from easyscale.master.verify.verification import Control, Row, Verification


def verify(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, or a module's name with -m.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.")] = None,
    *,
    ests: Annotated[int, typer.Option(min=1, help="Logical workers (ESTs) of the job, and ranks of stock DDP.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Global steps that are compared.")] = 8,
    plan: Annotated[
        list[str] | None,
        typer.Option(metavar="PLAN", help="Only these plans: 2, 3+1 or 0:4,5:1. Repeat it. Default: see the guide."),
    ] = None,
    twice: Annotated[
        bool, typer.Option("--twice", help="Compare two plain runs of any script; it need not use EasyScale.")
    ] = False,
    negative_control: Annotated[
        bool, typer.Option("--negative-control", help="Plant differences and show that they are found.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also fail where the bits depend on hash seed, clock or folder order.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the certificate as JSON instead of a table.")
    ] = False,
    certificate: Annotated[Path | None, typer.Option(help="Write the certificate (JSON) to this file.")] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA where there is one.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each worker. On a CPU they decide bits.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds without an answer after which a peer is lost.")] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a script under stock DDP and under many plans, and compare every step.

    Exit code 0: the same bits everywhere. 1: a difference, with the first step, EST, module and operator that differ.
    2: the script could not be run. All that follows SCRIPT is passed to it.
    """
    from easyscale.master.report import check_report_path, write_report
    from easyscale.master.verify.certificate import certificate as make
    from easyscale.master.verify.stage import Stage
    from easyscale.master.verify.verification import negative_controls, verify_twice
    from easyscale.master.verify.verification import verify as verify_plans
    from easyscale.master.workspace import workspace

    _check(twice=twice, negative_control=negative_control, plan=plan, certificate=certificate)
    if certificate is not None:
        check_report_path(certificate, "--certificate")
    if not module:
        check_script(script)
    _trials(plan, ests, steps)  # refused now, not after the first run
    template = WorkerSpec(ests=ests, device=device, threads=threads, timeout=timeout, job="verify")
    check_settings(template)
    say = _Announcer(quiet=quiet or json_output)
    with workspace() as folder:
        target = Target(script, tuple(args or ()), module)
        stage = Stage(target, template, os.environ, folder, quiet=quiet or json_output)
        if twice:
            result = verify_twice(stage, steps, say)
        else:
            with stage.warm():
                if negative_control:
                    rows, controls = negative_controls(stage, ests, steps, say)
                    raise typer.Exit(_show_controls(rows, controls, as_json=json_output))
                result = verify_plans(stage, ests, steps, lambda most: _trials(plan, ests, most), say)
    facts = make(
        result, script=script, args=list(args or ()), mode="twice" if twice else "plans", asked=steps,
        ests=1 if twice else ests, now=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip
    if certificate is not None:
        write_report(certificate, facts)
    if json_output:
        print(json.dumps(facts, allow_nan=False))
    else:
        _show(result, facts, twice=twice)
    raise typer.Exit(_exit_code(result, strict=strict))


def _check(*, twice: bool, negative_control: bool, plan: list[str] | None, certificate: Path | None) -> None:
    if negative_control and (certificate is not None or plan):
        raise UsageError(
            f"--negative-control does not go with {'--plan' if plan else '--certificate'}.",
            "it tests the tool on one plan of its own; the script gets no certificate from it.",
            "run it by itself, with --json for programs, then verify the script.",
        )
    if twice and (negative_control or plan):
        raise UsageError(
            f"--twice does not go with {'--negative-control' if negative_control else '--plan'}.",
            "it compares two plain runs of one process; there are no plans.",
            "leave one of them out.",
        )


def _trials(plans: list[str] | None, ests: int, steps: int) -> list[Trial]:
    from easyscale.master.verify.trials import default_trials

    return [_named_trial(text, ests) for text in plans] if plans else default_trials(ests, steps)


def _named_trial(text: str, ests: int) -> Trial:
    """A plan as the user wrote it; what is wrong with it is told of this flag, not of those of `run`."""
    from easyscale.master.verify.trials import plan_trial, schedule_trial

    try:
        if ":" in text:
            return schedule_trial(parse_schedule(text, ests))
        if text.isdigit():
            return plan_trial(Plan.even(ests, int(text)).split)
        return plan_trial(parse_split(text.replace("+", ","), ests).split)
    except PlanError as problem:
        raise PlanError(
            f"--plan {text} does not fit a job of {ests} ESTs.",
            problem.why,
            f"write a number of workers (1 to {ests}), a split that adds up to {ests}, or a schedule: 0:{ests},5:1.",
        ) from None


def _exit_code(result: Verification, *, strict: bool) -> int:
    if result.verdict == "failed" or result.rows[0].run.error is not None:
        return 2
    return 1 if result.verdict == "different" or (strict and result.depends_on) else 0


class _Announcer:
    """One line a run on a terminal or a log: a verification takes a minute or more."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        if not self._quiet:
            print(f"verify: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- what people see


def _show(result: Verification, facts: dict[str, Any], *, twice: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    judge = result.rows[0].run
    unit = "optimizer steps" if twice else f"global steps of {facts['ests']} ESTs"
    table = Table(title=Text(f"{facts['script']['name']}: {judge.steps} {unit}"), title_justify="left")
    for heading in ("run", "s", "sha256", "same bits"):
        table.add_column(heading, justify="right" if heading == "s" else "left", overflow="fold")
    for row in result.rows:
        table.add_row(row.name, f"{row.run.seconds:.1f}", _last_sha(row), _verdict(row))
    console.print(table)
    for row in result.rows:
        if row.verdict == "failed":
            _show_failure(console, row)
    if result.diagnosis is not None:
        _show_diagnosis(console, result.diagnosis, result.diagnosed, twice=twice)
    for cause in result.depends_on:
        where = escape(f" ({', '.join(cause.places)})") if cause.places else ""
        console.print(f"[yellow]depends on:[/] {cause.name}{where}. Here it is fixed; elsewhere the bits would differ.")
        console.print(f"  now: {cause.advice}", markup=False, soft_wrap=True)
    if result.verdict == "same":
        machine = _machine(facts["machine"])
        console.print(f"[green]Same bits[/] in all {len(result.rows)} runs on {machine}.", soft_wrap=True)
    console.print("Not checked:")
    for limit in facts["not_checked"]:
        console.print(f"  - {limit}", soft_wrap=True)


def _last_sha(row: Row) -> str:
    prints = row.run.fingerprints
    if prints:
        return prints[max(prints)][:12]
    steps = row.run.witnesses
    return steps[max(steps)][0].get("parameters", "")[:12] if steps else ""


def _verdict(row: Row) -> str:
    if row.verdict == "different" and row.difference is not None:
        return f"[bold red]NO[/], from {row.difference.text}"
    return {"reference": "reference", "same": "[green]yes[/]", "failed": "[bold red]failed[/]"}.get(row.verdict, "NO")


def _show_failure(console: Console, row: Row) -> None:
    for line in row.run.output[-15:]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{row.name} failed:\n{row.run.error}", style="red", markup=False, soft_wrap=True)


def _show_diagnosis(console: Console, diagnosis: Diagnosis, name: str, *, twice: bool) -> None:
    from rich.markup import escape

    finding = diagnosis.finding
    console.print(f"\n[bold]Where it begins[/] ({name})")
    if finding is None:
        console.print(f"  {diagnosis.difference.text}")
        console.print("  The step was run again with every operator written down, and then did not differ:")
        console.print("  something decides the bits that lies outside of torch's operators and of the saved state.")
    else:
        console.print(_table_of(_finding_rows(diagnosis, twice=twice)))
        console.print(f"  {finding.text}.", markup=False, soft_wrap=True)
    if diagnosis.unsaved:
        console.print("  From the saved state the step does not differ: what decides it is not in that state.")
    for cause in diagnosis.causes:
        certain = "Cause" if cause.shown else "Likely cause"
        where = f" at {', '.join(cause.places)}" if cause.places else ""
        console.print(f"[bold]{certain}:[/] {escape(cause.name + where)}", soft_wrap=True)
        console.print(f"  now: {cause.advice}", markup=False, soft_wrap=True)
    if not diagnosis.causes:
        console.print("No cause that is known here explains it.")


def _finding_rows(diagnosis: Diagnosis, *, twice: bool) -> list[tuple[str, str]]:
    finding = diagnosis.finding
    assert finding is not None
    others = [est for est in diagnosis.ests if est != finding.est]
    rows = [
        ("optimizer step" if twice else "global step", str(finding.step)),
        ("EST", "" if twice else str(finding.est) + (f" (also {', '.join(map(str, others))})" if others else "")),
        ("tensor", finding.tensor),
        ("module", finding.module),
        ("operator", finding.operator + (f"  [backward: {finding.backward}]" if finding.backward else "")),
        ("line", finding.line),
        ("equal before it", f"{finding.operators_before} operators"),
        ("re-run from", "the start" if diagnosis.began_at == 0 else f"the state after step {diagnosis.began_at}"),
    ]
    return [(name, value) for name, value in rows if value]


def _table_of(rows: list[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _machine(record: dict[str, Any]) -> str:
    if not record:
        return "this machine"
    return f"{record['device']}, {record['capability']}, {record['threads']} thread(s), torch {record['torch']}"


def _show_controls(rows: list[Row], controls: list[Control], *, as_json: bool) -> int:
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    clean = all(row.verdict in ("reference", "same") for row in rows)
    good = clean and bool(controls) and all(control.found for control in controls)
    if as_json:
        facts = [{**asdict(control), "found": control.found} for control in controls]
        print(json.dumps({"found_all": good, "controls": facts, "clean": rows[-1].verdict}, allow_nan=False))
        return 0 if good else 1
    console = Console(highlight=False)
    for row in rows:
        if row.verdict in ("failed", "different"):
            _show_failure(console, row) if row.verdict == "failed" else console.print(f"{row.name}: {_verdict(row)}")
    table = Table(title="Planted differences", title_justify="left")
    for heading in ("planted", "step", "EST", "seen", "found"):
        table.add_column(heading, overflow="fold")
    for control in controls:
        seen = "nothing" if control.difference is None else control.difference.text
        if control.finding is not None:
            seen += f"; {control.finding.text}"
        plant = control.plant
        found = "[green]yes[/]" if control.found else "[bold red]NO[/]"
        table.add_row(_PLANTED[plant.kind], str(plant.step), str(plant.est), seen, found)
    console.print(table)
    return 0 if good else 1


_PLANTED = {
    "operator": "a bit of one operator's output",
    "random": "a random number too many",
    "batch": "a bit of one mini-batch",
}
