"""`easyscale run`: from flags to a job, refused before any process starts if it cannot work."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from easyscale.core.errors import PlanError, UnsupportedError, UsageError
from easyscale.core.plan import Plan, Schedule, parse_schedule, parse_split
from easyscale.core.spec import Engine, Level, Target, WorkerSpec


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, or a module's name with -m.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.")
    ] = None,
    *,
    ests: Annotated[
        int, typer.Option(min=1, help="Logical workers (ESTs). They decide the result: keep the number.")
    ],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that run the ESTs. Default: one per GPU, else one per core, at most ESTs."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="ESTs of each worker, such as 2,1,1.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="STEP:WORKERS,...", help="Workers by global step: 0:4,10:2,20:1, or 20:2+1+1."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="est: ESTs. ddp: the stock reference, one DistributedDataParallel process each.")
    ] = "est",
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA where there is one.")
    ] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each worker. On a CPU they decide bits.")] = 1,
    determinism: Annotated[Level, typer.Option(help="D0: same plan, same bits. D1: any number of workers.")] = "D1",
    timeout: Annotated[float, typer.Option(help="Seconds without an answer after which a peer is lost.")] = 300.0,
    checkpoint_dir: Annotated[Path | None, typer.Option(help="Where checkpoints go.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(min=1, help="Global steps between checkpoints.")] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(min=0, help="Seconds between checkpoints.")] = None,
    checkpoint_keep: Annotated[int, typer.Option(min=1, help="The newest checkpoints that stay.")] = 3,
    resume: Annotated[
        str | None,
        typer.Option(metavar="latest|auto|PATH", help="Go on from a checkpoint; auto starts anew if there is none."),
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="End after so many global steps.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a JSON report of the run.")] = None,
    fingerprint_every: Annotated[
        int | None, typer.Option(min=1, help="Global steps between fingerprints of the model.")
    ] = None,
    metrics_dir: Annotated[Path | None, typer.Option(help="Write metrics.jsonl and TensorBoard files.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the script's own output, and errors.")] = False,
) -> None:
    """Run a training script with N ESTs on any number of workers.

    All that follows SCRIPT is passed to it.
    """
    from easyscale.backends.local import LocalLauncher
    from easyscale.master.launch import Outputs, run_job
    from easyscale.master.progress import Screen
    from easyscale.master.supervisor import Job

    wish = PlanWish(ests=ests, workers=workers, split=split, schedule=schedule, engine=engine, device=device)
    template = WorkerSpec(
        ests=ests, engine=engine, device=device, threads=threads, determinism=determinism, timeout=timeout,
        job=Path(script).stem if not module else script.rpartition(".")[2],
        checkpoint_dir=str(checkpoint_dir.absolute()) if checkpoint_dir else None,
        checkpoint_every=checkpoint_every, checkpoint_seconds=checkpoint_seconds, checkpoint_keep=checkpoint_keep,
        resume=resume if resume in (None, "latest", "auto") else str(Path(resume).absolute()),
        fingerprint_every=fingerprint_every, max_steps=max_steps,
    )  # fmt: skip
    check_settings(template)
    plans = schedule_for(wish, os.environ)
    if not module:
        check_script(script)
    outcome = run_job(
        Job(target=Target(script, tuple(args or ()), module), schedule=plans, template=template),
        LocalLauncher(os.environ),
        Screen(sys.stdout, sys.stderr, quiet=quiet, color="NO_COLOR" not in os.environ),
        Outputs(report=report, metrics_dir=metrics_dir),
    )
    raise typer.Exit(outcome.exit_code)


@dataclass(frozen=True, kw_only=True)
class PlanWish:
    """What was asked for about workers, before it is known whether it fits."""

    ests: int
    workers: int | None = None
    split: str | None = None
    schedule: str | None = None
    engine: Engine = "est"
    device: str = "auto"


def schedule_for(wish: PlanWish, environment: Mapping[str, str]) -> Schedule:
    """The plans of a run; a fixed plan is a schedule of one entry."""
    given = [name for name in ("workers", "split", "schedule") if getattr(wish, name) is not None]
    if wish.engine == "ddp":
        if given:
            raise PlanError(
                f"--{given[0]} does not go with --engine ddp.",
                "stock DistributedDataParallel runs one process per rank from start to end: that is the reference.",
                f"leave --{given[0]} out; --ests {wish.ests} starts {wish.ests} processes.",
            )
        return Schedule(((0, Plan((1,) * wish.ests)),))
    if wish.schedule is not None:
        if len(given) > 1:
            raise PlanError(
                f"--schedule and --{given[0]} were both given.",
                "a schedule names the workers of every step by itself.",
                f"leave --{given[0]} out, or put it into the schedule as --schedule 0:...",
            )
        return parse_schedule(wish.schedule, wish.ests)
    if wish.split is not None:
        return Schedule(((0, parse_split(wish.split, wish.ests, wish.workers)),))
    workers = wish.workers or default_workers(wish, environment)
    return Schedule(((0, Plan.even(wish.ests, workers)),))


def default_workers(wish: PlanWish, environment: Mapping[str, str]) -> int:
    """One worker per GPU; on a CPU one per core. Never more than there are ESTs."""
    from easyscale.backends.local import cores, gpus

    devices = gpus(environment) if wish.device != "cpu" else 0
    return min(wish.ests, devices or cores())


def check_settings(template: WorkerSpec) -> None:
    """Refuse what cannot be kept or makes no sense together."""
    if template.determinism == "D2":
        raise UnsupportedError(
            "--determinism D2 is not in this version.",
            "the same bits across device types need operators of our own, which are not there yet.",
            "use --determinism D1: the same bits on any number of workers of one device type.",
        )
    if template.timeout <= 0:
        raise UsageError(
            f"--timeout {template.timeout:g} is not a time.",
            "a peer needs some seconds to answer.",
            "pass a number above 0, or leave the default of 300 seconds.",
        )
    for flag, value in (("checkpoint-dir", template.checkpoint_dir), ("resume", template.resume)):
        if template.engine == "ddp" and value is not None:
            raise UsageError(
                f"--{flag} does not go with --engine ddp.",
                "the reference is stock DistributedDataParallel, which has no checkpoints of ours.",
                f"leave --{flag} out, or use --engine est.",
            )
    for flag, period in (("every", template.checkpoint_every), ("seconds", template.checkpoint_seconds)):
        if period is not None and template.checkpoint_dir is None:
            raise UsageError(
                f"--checkpoint-{flag} was given without --checkpoint-dir.",
                "there is no place to write the checkpoints to.",
                "add --checkpoint-dir FOLDER.",
            )


def check_script(script: str) -> None:
    if not Path(script).is_file():
        raise UsageError(
            f"There is no script {script}.",
            "it is a folder." if Path(script).is_dir() else f"no such file was found from {Path.cwd()}.",
            "check the path; options of easyscale come before the script, and -m runs a module by name.",
        )
