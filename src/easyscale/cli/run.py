"""`easyscale run`: from flags to a job, refused before any process starts if it cannot work. And `attach`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from easyscale.cli import options
from easyscale.cli.checks import (
    PlanWish,
    bounds_of,
    check_level,
    check_script,
    check_settings,
    rebalances,
    schedule_for,
)
from easyscale.cli.elastic import Elastic, attach_to, check_elastic, run_elastic
from easyscale.cli.finding import JobArgument
from easyscale.cli.ray import wish_of, with_workers
from easyscale.core.spec import Target, WorkerSpec

if TYPE_CHECKING:
    from easyscale.master.progress import Screen


def run(
    script: options.Script,
    args: options.Args = None,
    *,
    ests: options.Ests,
    module: options.Module = False,
    engine: options.EngineName = "est",
    name: options.Name = None,
    workers: options.Workers = None,
    split: options.Split = None,
    schedule: options.ScheduleText = None,
    rebalance: options.Rebalance = None,
    device: options.Device = "auto",
    threads: options.Threads = 1,
    determinism: options.Determinism = "D1",
    backend: options.Backend = "local",
    ray_address: options.RayAddress = None,
    types: options.Types = None,
    ray_labels: options.RayLabels = None,
    ray_wait: options.RayWait = False,
    timeout: options.Timeout = 300.0,
    heartbeat: options.Heartbeat = 5.0,
    start_limit: options.StartLimit = 120.0,
    grace: options.Grace = 30.0,
    orphan: options.Orphan = 60.0,
    max_restarts: options.MaxRestarts = 0,
    restart_master: options.RestartMaster = False,
    log_limit: options.LogLimit = None,
    process_limit: options.ProcessLimit = None,
    memory_limit: options.MemoryLimit = None,
    file_limit: options.FileLimit = None,
    listen: options.Listen = "127.0.0.1",
    detach: options.Detach = False,
    checkpoint_dir: options.CheckpointDir = None,
    checkpoint_every: options.CheckpointEvery = None,
    checkpoint_seconds: options.CheckpointSeconds = None,
    checkpoint_keep: options.CheckpointKeep = 3,
    resume: options.Resume = None,
    max_steps: options.MaxSteps = None,
    report: options.Report = None,
    fingerprint_every: options.FingerprintEvery = None,
    metrics_dir: options.MetricsDir = None,
    quiet: options.Quiet = False,
    internal: options.Internal = None,
) -> None:
    """Run a training script with N ESTs on any number of workers.

    All that follows SCRIPT is passed to it.
    """
    from easyscale.backends.local import LocalLauncher
    from easyscale.master.launch import Outputs, run_job
    from easyscale.master.supervisor import Job

    wish = PlanWish(
        ests=ests, workers=workers, split=split, schedule=schedule, engine=engine, device=device, rebalance=rebalance
    )  # fmt: skip
    elastic = Elastic(
        name=name or (script.rpartition(".")[2] if module else Path(script).stem), workers=workers, listen=listen,
        heartbeat=heartbeat, start_limit=start_limit, grace=grace, orphan=orphan, max_restarts=max_restarts,
        restart_master=restart_master, detach=detach, internal=internal, rebalance=rebalances(wish, determinism),
        log_limit=log_limit, process_limit=process_limit,
    )  # fmt: skip
    template = WorkerSpec(
        ests=ests, engine=engine, device=device, threads=threads, determinism=determinism, timeout=timeout,
        job=elastic.name,
        checkpoint_dir=str(checkpoint_dir.absolute()) if checkpoint_dir else None,
        checkpoint_every=checkpoint_every, checkpoint_seconds=checkpoint_seconds, checkpoint_keep=checkpoint_keep,
        resume=resume if resume in (None, "latest", "auto") else str(Path(resume).absolute()),
        fingerprint_every=fingerprint_every, max_steps=max_steps, bounds=bounds_of(memory_limit, file_limit),
    )  # fmt: skip
    check_settings(template)
    check_elastic(elastic, engine)
    if not module:
        check_script(script)
    ray = wish_of(backend, engine, ray_address, types, ray_labels, wait=ray_wait)
    plans = schedule_for(with_workers(wish, ray), os.environ)
    check_level(template, plans)
    job = Job(target=Target(script, tuple(args or ()), module), schedule=plans, template=template)
    outputs = Outputs(report=report, metrics_dir=metrics_dir)
    if engine == "ddp":
        code = run_job(job, LocalLauncher(os.environ), _screen(quiet=quiet), outputs).exit_code
    else:
        code = run_elastic(job, _screen(quiet=quiet), outputs, replace(elastic, ray=ray))
    raise typer.Exit(code)


def attach(job: JobArgument = None, *, quiet: options.Quiet = False) -> None:
    """Become the master of a job whose master died. Its workers have gone on and find it by themselves."""
    raise typer.Exit(attach_to(job, _screen(quiet=quiet)))


def _screen(*, quiet: bool) -> Screen:
    from easyscale.master.progress import Screen

    return Screen(sys.stdout, sys.stderr, quiet=quiet, color="NO_COLOR" not in os.environ)
