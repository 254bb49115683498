"""`easyscale scan`: the operators of a script by module, their level, and what D2 would cost on this device."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from easyscale.cli.checks import check_script, check_settings
from easyscale.core.cluster import Devices, parse_devices
from easyscale.core.errors import UsageError
from easyscale.core.spec import ESTS_VARIABLE, Target, WorkerSpec

if TYPE_CHECKING:
    from rich.console import Console

    from easyscale.master.scan import Operator, Scan
    from easyscale.planner.advice import Advice, Weighed

_OTHER_COLUMNS = 44  # characters of the table beside modules and operators
_LEAST_ROOM = 16
SHOWN = 0.01  # of the time: D2 operators with less are summed up, unless all are asked for


def scan(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, or a module's name with -m.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.")] = None,
    *,
    ests: Annotated[
        int | None, typer.Option(min=1, help="Logical workers (ESTs). Default: as es.init(ests=...) says, else 1.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Global steps that are timed as a whole.")] = 3,
    limit: Annotated[float, typer.Option(help="D2 is advised up to this many times the time of a D1 step.")] = 1.5,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="TYPE:COUNT,...", help="Weigh D2 on these devices instead, such as v100:4,t4:8."),
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="Every operator of every module.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print all of it as JSON instead of tables.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write the verdict (JSON) to this file.")] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA where there is one.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the worker.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds without an answer after which the worker is lost.")] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Say which operators of a script are safe at which level, and what D2 costs here.

    Runs a few steps on one worker. Exit code 0: D2 is advised. 1: one device type is. 2: the script could not be run.
    All that follows SCRIPT is passed to it.
    """
    from easyscale.master.report import check_report_path, write_report
    from easyscale.master.scan import Scanning
    from easyscale.master.verdicts import keep_verdict
    from easyscale.planner.advice import advise, weigh

    devices = None if cluster is None else parse_devices(cluster)
    if not (isfinite(limit) and limit > 0):
        raise UsageError(
            f"--limit {limit:g} is not a factor.", "it is how many times as long a step may take.", "pass 1.5, or so."
        )
    if write is not None:
        check_report_path(write, "--write")
    if not module:
        check_script(script)
    wanted = ests or ests_of(script, module=module)
    template = WorkerSpec(ests=wanted, device=device, threads=threads, timeout=timeout, job="scan")
    check_settings(template)
    target = Target(script, tuple(args or ()), module)
    calm = quiet or json_output
    say = _Announcer(quiet=calm)
    try:
        found = Scanning(target, template, os.environ, say, steps=steps, quiet=calm).run()
    except KeyboardInterrupt:
        print("scan: stopped; no verdict was kept", file=sys.stderr, flush=True)
        raise
    keep_verdict(target, found.verdict)
    weighed = None if devices is None else weigh(wanted, devices, found.verdict)
    advice = advise(found.verdict, weighed, limit)
    if write is not None:
        write_report(write, found.verdict.plain())
    if json_output:
        print(json.dumps(_plain(target, found, advice, weighed, devices), allow_nan=False))
    else:
        _show(target, found, advice, all_rows=all_rows)
    raise typer.Exit(0 if advice.level == "D2" else 1)


def ests_of(script: str, *, module: bool = False) -> int:
    """As many as the script itself says, in plain sight; it refuses to run with another number."""
    given = os.environ.get(ESTS_VARIABLE, "")
    usual = int(given) if given.isdigit() and int(given) > 0 else 1
    if module:
        return usual
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return usual  # python says what is wrong with it, better than we could
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for word in node.keywords if name == "init" else ():
            if word.arg == "ests" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, int):
                return max(1, word.value.value)
    return usual


class _Announcer:
    """What comes next, on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        if not self._quiet:
            print(f"scan: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- what programs see


def _plain(
    target: Target, found: Scan, advice: Advice, weighed: Weighed | None, devices: Devices | None
) -> dict[str, Any]:
    return {
        "script": {"name": target.name, "args": list(target.args), "module": target.module},
        "ests": found.ests,
        "machine": found.machine,
        "kernels": found.kernels,
        "verdict": found.verdict.plain(),
        "advice": {"level": advice.level, "words": advice.words, "reason": advice.reason},
        "cluster": None if weighed is None else {"devices": dict(devices or {}), **asdict(weighed)},
        "seconds": {"D1": found.d1_seconds, "D2": found.d2_seconds},
        "families": [{**asdict(family), "ratio": family.ratio} for family in found.families],
        "operators": [asdict(one) for one in found.operators],
        "notes": list(found.notes),
    }


# ---------------------------------------------------------------------------------------- what people see


def _show(target: Target, found: Scan, advice: Advice, *, all_rows: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    _show_operators(console, target, found, all_rows=all_rows)
    if found.verdict.mixes:
        _show_families(console, found)
    _show_missing(console, found)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    if found.d1_seconds is not None:
        at_d2 = f", {_time(found.d2_seconds)} at D2" if found.d2_seconds is not None else ""
        factor = _ratio(found.d2_seconds, found.d1_seconds)
        console.print(f"Whole step: {_time(found.d1_seconds)} at D1{at_d2}{factor and f': {factor}'}.", markup=False)
    colour = "green" if advice.level == "D2" else "yellow"
    text = Text(f"Advice: {advice.words}.", style=f"bold {colour}")
    console.print(Text.assemble(text, f" {advice.reason[:1].upper()}{advice.reason[1:]}."))


def _show_operators(console: Console, target: Target, found: Scan, *, all_rows: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = grouped(found.operators, whole=all_rows)
    shown = [row for row in rows if all_rows or row.level != "D2" or row.share >= SHOWN]
    title = f"{Path(target.name).name}: one global step of {found.ests} EST{'s' * (found.ests != 1)}"
    table = Table(title=Text(f"{title} on {found.verdict.device}"), title_justify="left")
    measured = found.verdict.mixes  # at D2 too
    for heading in ("module", "operator", "level", "calls", "share", *(["D2/D1"] if measured else [])):
        right = heading in ("calls", "share", "D2/D1")
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=right)
    before = None
    module_room, operator_room = _rooms(console.width, shown)
    for row in shown:
        if before is not None and row.module != before:
            table.add_section()
        colour = {"D2": "green", "D1": "yellow", "D0": "bold red"}[row.level]
        name = Text("" if row.module == before else folded(row.module, module_room, "."))
        table.add_row(
            name, Text(folded(row.operator, operator_room, "_")), Text(row.level, style=colour), str(row.calls),
            f"{100 * row.share:.1f} %", *([_ratio(row.d2_seconds, row.seconds)] if measured else []),
        )  # fmt: skip
        before = row.module
    left = [row for row in rows if row not in shown]
    if left:
        share = 100 * sum(row.share for row in left)
        table.add_section()
        more = Text(f"{len(left)} more (--all)")
        table.add_row(Text("others"), more, Text("D2", style="green"), "", f"{share:.1f} %")
    console.print(table)


def _show_families(console: Console, found: Scan) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("What D2 costs on this device"), title_justify="left")
    for heading in ("operators", "share", "D1", "D2", "D2/D1"):
        table.add_column(heading, justify="left" if heading == "operators" else "right", no_wrap=heading != "operators")
    for family in found.families:
        d2 = "" if not family.d2_seconds else _time(family.d2_seconds)
        table.add_row(
            Text(family.name), f"{100 * family.share:.1f} %", _time(family.seconds), d2,
            _ratio(family.d2_seconds, family.seconds),
        )  # fmt: skip
    console.print(table)


def _show_missing(console: Console, found: Scan) -> None:
    short = [one for one in found.operators if one.level != "D2"]
    sentences = (
        f"{one.level}: {one.operator} in {_label(one)}{f', {one.line}' if one.line else ''}: {one.why.rstrip('.')}."
        for one in short
    )
    for sentence in dict.fromkeys(sentences):  # forward and backward say the same
        console.print(sentence, markup=False, soft_wrap=True)
    seen = {one.operator for one in found.operators}
    for name in found.verdict.missing:
        if name not in seen:
            console.print(f"refused: {name.rstrip('.')}.", markup=False, soft_wrap=True)


def grouped(operators: tuple[Operator, ...], *, whole: bool = False) -> list[Operator]:
    """By module, those with most time first. Unless `whole`, modules that differ in numbers alone are one
    (`layers.0.norm` and `layers.1.norm`: `layers.*.norm`; `0` and `2`: `* (Conv2d)`, if both are), and so are overloads
    of an operator."""
    from easyscale.master.scan import EXTENSIONS

    found: dict[tuple[str, str, str], Operator] = {}
    for one in operators:
        if not whole:
            pattern = re.sub(r"(?:(?<=\.)|^)\d+(?=\.|$)", "*", one.module)
            bare = one.operator if one.family == EXTENSIONS else one.operator.partition(".")[0]
            one = replace(one, module=pattern, operator=bare)
        one = replace(one, module=_label(one))
        key = (one.module, one.operator, one.level)
        if key in found:
            known = found[key]
            both = known.d2_seconds is not None and one.d2_seconds is not None
            one = replace(
                known, calls=known.calls + one.calls, seconds=known.seconds + one.seconds,
                share=known.share + one.share,
                d2_seconds=(known.d2_seconds or 0.0) + (one.d2_seconds or 0.0) if both else None,
            )  # fmt: skip
        found[key] = one
    modules: dict[str, float] = {}
    for one in found.values():
        modules[one.module] = modules.get(one.module, 0.0) + one.seconds
    return sorted(found.values(), key=lambda one: (-modules[one.module], one.module, -one.seconds, one.operator))


def _rooms(width: int, rows: list[Operator]) -> tuple[int, int]:
    """Characters for modules and for operators in a table of this width."""
    free = width - _OTHER_COLUMNS
    longest = max((len(row.operator) for row in rows), default=0)
    modules = max(_LEAST_ROOM, free - min(longest, free // 2))
    named = max((len(row.module) for row in rows), default=0)
    return modules, max(_LEAST_ROOM, free - min(named, modules))


def folded(name: str, room: int, mark: str) -> str:
    """In lines of at most `room` characters, cut behind marks where there is one."""
    lines, rest = [], name
    while len(rest) > room:
        cut = rest.rfind(mark, 1, room) + 1 or room
        lines.append(rest[:cut])
        rest = rest[cut:]
    return "\n".join([*lines, rest])


def _label(one: Operator) -> str:
    """A module whose own name is a number says nothing: with its class it does."""
    last = one.module.rpartition(".")[2]
    return f"{one.module} ({one.kind})" if one.kind and (last == "*" or last.isdigit()) else one.module


def _ratio(d2: float | None, d1: float) -> str:
    return f"{d2 / d1:.2f}x" if d2 and d1 else ""


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} us"
