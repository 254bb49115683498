"""`easyscale demo`: the promise, shown in a minute.

Trains the same script with stock DistributedDataParallel on 4 processes and with 4 ESTs on a number of
workers that changes three times, then compares every loss and the final model.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.elastic import to_the_end
from easyscale.core.errors import UsageError
from easyscale.core.plan import Plan, Schedule, parse_schedule
from easyscale.core.spec import Engine, Target, WorkerSpec

if TYPE_CHECKING:
    from easyscale.master.supervisor import Outcome

ESTS = 4
SCRIPT = "easyscale.demo.digits"
CHANGES = "0:4,20:2,40:1,55:3"
STOCK_COLOR, OUR_COLOR = "#9ecae1", "#d62728"


def demo(
    picture: Annotated[Path, typer.Option(help="Where the picture of both runs goes.")] = Path("easyscale-demo.png"),
) -> None:
    """Train a small network twice, stock and elastic, and compare the bits."""
    _check_packages()
    stock = _train("stock DDP", "ddp", Schedule(((0, Plan((1,) * ESTS)),)))
    ours = _train("EasyScale", "est", parse_schedule(CHANGES, ESTS))
    same = _same(stock, ours)
    _print_table(stock, ours, same)
    _draw(stock, ours, picture)
    print(f"Both runs as a picture: {picture}")
    if not same:
        print("The two models differ. This is a bug of ours: please report it.", file=sys.stderr)
    raise typer.Exit(0 if same else 1)


def _check_packages() -> None:
    missing = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The demo needs {' and '.join(missing)}.",
            "it trains on scikit-learn's digits and draws with matplotlib; training itself needs neither.",
            "pip install 'easyscale-torch[demo]'",
        )


def _train(title: str, engine: Engine, schedule: Schedule) -> Outcome:
    from easyscale.backends.local import LocalLauncher
    from easyscale.master.launch import Outputs, run_job
    from easyscale.master.master import run_elastic
    from easyscale.master.progress import Screen
    from easyscale.master.registry import JobFolder
    from easyscale.master.supervisor import Job

    print(f"{title}: {ESTS} {'processes' if engine == 'ddp' else 'ESTs, workers by step ' + CHANGES}", file=sys.stderr)
    job = Job(
        target=Target(SCRIPT, module=True),
        schedule=schedule,
        template=WorkerSpec(ests=ESTS, job="demo", engine=engine, device="cpu"),
    )
    screen = Screen(sys.stdout, sys.stderr, color="NO_COLOR" not in os.environ)
    launcher = LocalLauncher(os.environ)
    if engine == "ddp":
        outcome = run_job(job, launcher, screen, title=title)
    else:
        folder = JobFolder.create("demo", ("easyscale", "demo"), ESTS)
        outcome = to_the_end(folder, lambda: run_elastic(job, launcher, screen, Outputs(), folder, title=title))
    if outcome.exit_code != 0:
        raise typer.Exit(outcome.exit_code)
    return outcome


def _same(stock: Outcome, ours: Outcome) -> bool:
    fingerprint = stock.state.fingerprint
    return fingerprint is not None and fingerprint == ours.state.fingerprint and stock.state.losses == ours.state.losses


def _print_table(stock: Outcome, ours: Outcome, same: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"The same training, {ours.state.steps} global steps of {ESTS} mini-batches")
    for heading in ("run", "workers", "seconds", "final loss", "sha256", "same bits"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("seconds", "final loss") else "left")
    for name, outcome, verdict in (
        ("stock DDP", stock, "reference"),
        ("EasyScale", ours, "[green]yes[/]" if same else "[bold red]NO[/]"),
    ):
        workers = " → ".join(str(plan.workers) for _, plan in outcome.state.plans)
        sha = (outcome.state.fingerprint or "(none)")[:12]
        table.add_row(name, workers, f"{outcome.seconds:.1f}", f"{_curve(outcome)[-1]:.6f}", sha, verdict)
    Console().print(table)


def _curve(outcome: Outcome) -> list[float]:
    """The mean loss over the ESTs, step by step."""
    curve = []
    for _, losses in sorted(outcome.state.losses.items()):
        known = [loss for loss in losses if loss is not None]
        curve.append(sum(known) / len(known) if known else float("nan"))
    return curve or [float("nan")]


def _draw(stock: Outcome, ours: Outcome, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=[3, 1], layout="constrained"
    )
    upper.plot(_curve(stock), color=STOCK_COLOR, linewidth=6, label=f"stock DDP, {ESTS} processes")
    upper.plot(_curve(ours), color=OUR_COLOR, linestyle="--", label=f"EasyScale, {ESTS} ESTs on changing workers")
    upper.set_ylabel("loss, mean over the ESTs")
    upper.set_title(f"sha256 {(stock.state.fingerprint or '')[:12]} and {(ours.state.fingerprint or '')[:12]}")
    upper.legend()
    for outcome, color in ((stock, STOCK_COLOR), (ours, OUR_COLOR)):
        steps = [*(step for step, _ in outcome.state.plans), outcome.state.steps]
        workers = [plan.workers for _, plan in outcome.state.plans]
        lower.step(steps, [*workers, workers[-1]], where="post", color=color, linewidth=6 if outcome is stock else 1.5)
    lower.set_ylim(0, ESTS + 1)
    lower.set_ylabel("workers")
    lower.set_xlabel("global step")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
