"""`easyscale replay`: some steps of a job once more, from a checkpoint, on this machine; are they the same bits?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from easyscale.core.errors import UsageError
from easyscale.core.spec import Target

if TYPE_CHECKING:
    from easyscale.master.replay import Original, Point, Replay

USUAL_STEPS = 10  # at most, where nobody asked for a number


def replay(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a folder of them (its oldest one).")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SCRIPT ARGS...]", help="What to run. Default: what the checkpoint says."),
    ] = None,
    *,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Global steps. Default: as far as there is a fingerprint, at most 10.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="On what to replay.")] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Processes that run the ESTs.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of each worker. They decide no bits at level D2.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="A report of the original run (run --report), to compare with.")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds without an answer after which a peer is lost.")] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run steps of a job again from a checkpoint, on the CPU, and compare their fingerprints.

    The checkpoint may come from any device type if its job was at level D2. Exit code 0: the same bits. 1: a step
    differs. 2: there is nothing to compare with, or the steps could not be run. The job's own folders are not written
    to.
    """
    from easyscale.master.replay import Surroundings, open_original, place_of, points_of, refuse_other_device
    from easyscale.master.replay import replay as run_again

    if timeout <= 0:
        raise UsageError(
            f"--timeout {timeout:g} is not a time.", "a peer needs some seconds to answer.", "pass a number above 0."
        )
    original = open_original(checkpoint)
    refuse_other_device(original, device)
    ests = original.record["ests"]
    if workers > ests:
        raise UsageError(
            f"--workers {workers} are more than the job has ESTs ({ests}).",
            "each worker runs one or more.",
            f"pass 1 to {ests}.",
        )
    given = Target(command[0], tuple(command[1:]), module) if command else None
    target, folder, said = place_of(original, given)
    points, notes = points_of(original, report)
    wanted = steps or min(USUAL_STEPS, max(points, default=original.step + 1) - original.step)
    if not any(original.step < step <= original.step + wanted for step in points):
        raise UsageError(
            _nothing(original, points, wanted), "no later checkpoint, journal or report knows one of these steps.",
            "give a report of the run (--report FILE), more --steps, or an earlier checkpoint; run jobs with "
            "--fingerprint-every 1 and --checkpoint-every to have more to compare with.",
        )  # fmt: skip
    calm = quiet or json_output
    if not calm:
        where = f"step {original.step}, level {original.level}, from {original.device}"
        print(f"replay: {original.path.name}: {where}; {wanted} steps on {device}", file=sys.stderr, flush=True)
    for sentence in () if json_output else said:  # now: it may be why the script fails
        print(f"note: {sentence}", file=sys.stderr, flush=True)
    around = Surroundings(device=device, threads=threads, workers=workers, timeout=timeout, quiet=calm)
    try:
        result = run_again(original, points, wanted, target, folder, around)
    except KeyboardInterrupt:
        print("replay: stopped; nothing was compared", file=sys.stderr, flush=True)
        raise
    if json_output:
        print(json.dumps(_plain(result, target, device, (*said, *notes, *result.notes))))
    else:
        _show(result, device, (*notes, *result.notes))
    raise typer.Exit({True: 0, False: 1, None: 2}[result.same])


def _nothing(original: Original, points: dict[int, Point], wanted: int) -> str:
    first, last = original.step + 1, original.step + wanted
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    later = f" The next known one is of step {min(points)}." if points else ""
    return f"There is no fingerprint of {steps} to compare with.{later}"


def _plain(result: Replay, target: Target, device: str, notes: tuple[str, ...]) -> dict[str, Any]:
    original = result.original
    return {
        "checkpoint": str(original.path),
        "step": original.step,
        "level": original.level,
        "ests": original.record["ests"],
        "script": {"name": target.name, "args": list(target.args), "module": target.module},
        "original": {"device": original.device, "torch": original.record.get("torch")},
        "device": device,
        "seconds": result.seconds,
        "same": result.same,
        "compared": result.compared,
        "first_difference": result.first_difference,
        "steps": [
            {
                "step": row.step, "original": None if row.original is None else row.original.sha,
                "source": None if row.original is None else row.original.source, "replayed": row.replayed,
                "same": row.same,
            }
            for row in result.rows
        ],
        "notes": list(notes),
    }  # fmt: skip


def _show(result: Replay, device: str, notes: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    original = result.original
    table = Table(title=Text(f"{original.path.name}, written on {original.device}"), title_justify="left")
    for heading in ("step", "original", "replayed", "same", "known from"):
        table.add_column(heading, justify="right" if heading == "step" else "left", overflow="fold")
    for row in result.rows:
        if row.original is not None:
            word = Text("yes", style="green") if row.same else Text("NO", style="bold red")
            table.add_row(
                str(row.step), row.original.sha[:16], row.replayed[:16], word, Text(row.original.source)
            )  # fmt: skip
    if result.compared:
        console.print(table)
    for note in notes:
        console.print(f"note: {note}", markup=False)
    between = len(result.rows) - result.compared
    if between:
        console.print(f"{between} more steps were replayed; no fingerprint of them is known.", markup=False)
    if result.same:
        console.print(f"[green]Same bits[/] in {result.compared} steps on {device} as on {original.device}.")
    elif result.same is None:
        console.print("[yellow]Nothing was compared.[/]")
    else:
        steps = _differing(result)
        console.print(f"[bold red]Differs[/] {steps}.")
        console.print(f"  now: {_advice(result)}", markup=False)


def _differing(result: Replay) -> str:
    different = [row.step for row in result.rows if row.same is False]
    first = result.first_difference
    if len(different) == sum(row.same is not None for row in result.rows if row.step >= (first or 0)):
        return f"from step {first} on"
    return f"in {'step' if len(different) == 1 else 'steps'} {', '.join(map(str, different))}"


def _advice(result: Replay) -> str:
    first = result.first_difference or 0
    if any(row.same for row in result.rows if row.step > first):
        return (
            "later steps agree, so the model was the same: what is known of this step is wrong, or another run's. "
            "Compare with another source (--report FILE)."
        )
    if any(row.same for row in result.rows):
        return f"steps before it agree: look at what step {first} alone does, and at its data on this machine."
    return "see that script, arguments and data are the original's; `easyscale verify SCRIPT` finds causes in a script."
