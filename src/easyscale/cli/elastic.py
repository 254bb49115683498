"""Starts the master of an elastic job, here or in a process of its own, or takes a job over."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from easyscale.cli.checks import parse_workers
from easyscale.cli.finding import find_job
from easyscale.cli.front import COMMAND, Front, arguments, detach, role_of, run_as
from easyscale.cli.ray import RayWish, launcher_of, own_address
from easyscale.core.cluster import Slot, slots_of_plain
from easyscale.core.errors import PlanError, UsageError
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Engine

if TYPE_CHECKING:
    from easyscale.master.launch import Outputs
    from easyscale.master.limits import Limits
    from easyscale.master.progress import Screen
    from easyscale.master.registry import JobFolder
    from easyscale.master.supervisor import Job, Outcome


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The flags of `run` that only a job with ESTs has."""

    name: str
    workers: str | None = None
    listen: str = LOOPBACK
    heartbeat: float = 5.0
    start_limit: float = 120.0
    grace: float = 30.0
    orphan: float = 60.0
    max_restarts: int = 0
    restart_master: bool = False
    detach: bool = False
    internal: str | None = None
    rebalance: bool = False
    log_limit: float | None = None  # megabytes
    process_limit: int | None = None
    ray: RayWish | None = None  # None: workers on this machine

    def limits(self, ests: int) -> Limits:
        from easyscale.master.limits import Limits

        return Limits(
            heartbeat=self.heartbeat, start=self.start_limit, grace=self.grace, orphan=self.orphan,
            max_restarts=self.max_restarts, rebalance=self.rebalance,
            log_bytes=None if self.log_limit is None else int(self.log_limit * 1e6), processes=self.process_limit,
            listen=own_address() if self.ray is not None and self.listen == LOOPBACK else self.listen,
            meeting="file" if self.ray is None else "master",
            workers=parse_workers(self.workers, ests) if self.workers and ":" in self.workers else None,
        )  # fmt: skip


def check_elastic(flags: Elastic, engine: Engine) -> None:
    for flag in ("heartbeat", "start-limit", "grace", "orphan"):
        seconds = getattr(flags, flag.replace("-", "_"))
        if not 0 < seconds < float("inf"):
            raise UsageError(
                f"--{flag} {seconds:g} is not a time.", "it is a number of seconds above 0.", "pass one, such as 30."
            )
    if flags.log_limit is not None and not 0.01 <= flags.log_limit < float("inf"):
        raise UsageError(
            f"--log-limit {flags.log_limit:g} is not the size of a log.",
            "it is a number of megabytes, at least 0.01.",
            "pass one, such as 100.",
        )
    if engine == "ddp":
        for flag, given in (
            ("detach", flags.detach), ("restart-master", flags.restart_master), ("max-restarts", flags.max_restarts),
            ("log-limit", flags.log_limit), ("process-limit", flags.process_limit),
        ):  # fmt: skip
            if given:
                raise UsageError(
                    f"--{flag} does not go with --engine ddp.",
                    "the reference is stock DistributedDataParallel under a plain launcher, without a master.",
                    f"leave --{flag} out, or use --engine est.",
                )


def run_elastic(job: Job, screen: Screen, outputs: Outputs, flags: Elastic) -> int:
    """Returns the job's exit code, or 0 once a detached job runs."""
    from easyscale.master.registry import JobFolder

    role, known = role_of(flags.internal)
    ests, argv = job.template.ests, arguments(sys.argv)
    settings = None if flags.ray is None else flags.ray.settings()
    folder = (
        JobFolder.open(known) if role else JobFolder.create(flags.name, ("easyscale", *sys.argv[1:]), ests, settings)
    )  # fmt: skip
    if flags.detach and role is None:
        return detach(folder, run_as("front" if flags.restart_master else "master", folder, argv))
    if flags.restart_master and role != "master":
        return Front(folder, run_as("master", folder, argv), (*COMMAND, "attach", folder.id)).run()
    from easyscale.master.master import run_elastic as run_master

    def run() -> Outcome:
        limits, launcher = flags.limits(ests), launcher_of(folder, flags.ray)
        slots, kinds = devices_of(folder)
        return run_master(
            on_devices(job, slots), launcher, screen, outputs, folder, limits, slots=slots, kinds=kinds
        )  # fmt: skip

    return to_the_end(folder, run, given=role is not None).exit_code


def devices_of(folder: JobFolder) -> tuple[tuple[Slot, ...] | None, tuple[str, ...]]:
    """What whoever made the folder wrote down: the devices that the job begins on, and the types that it may get."""
    record = folder.record()
    settings = record.settings if record is not None else {}
    if settings.get("slots") is None:
        return None, ()
    try:
        slots, kinds = slots_of_plain(settings["slots"]), tuple(map(str, settings.get("kinds", ())))
    except (ValueError, TypeError) as problem:
        raise UsageError(
            f"The devices of the job {folder.id} cannot be read.",
            f"{problem}.",
            "whoever made its folder wrote them to job.json; make it anew.",
        ) from None
    return slots, kinds


def on_devices(job: Job, slots: tuple[Slot, ...] | None) -> Job:
    """The first plan has one worker on each device."""
    if slots is None:
        return job
    if len(job.schedule.entries) > 1:
        raise PlanError(
            "A job with named devices has no schedule.",
            "whoever gives it devices says when their number changes.",
            "leave --schedule out.",
        )
    if job.schedule.entries[0][1].workers == len(slots):
        return job
    return replace(job, schedule=Schedule(((0, Plan.even(job.template.ests, len(slots))),)))


def attach_to(wanted: str | None, screen: Screen) -> int:
    """Returns the job's exit code. Without workers it is up to --max-restarts whether the job begins again."""
    folder = find_job(wanted, over=True)
    why = {
        "running": "it has one: only a job whose master died can be taken over.",
        "ended": "it has ended.",
    }.get(folder.state())
    if why is None and not folder.journal.exists():
        why = "its master died before it began."
    if why is not None:
        now = f"`easyscale logs {folder.id}` shows what its workers printed."
        raise UsageError(f"The job {folder.id} needs no master.", why, now)
    from easyscale.master.master import attach

    return to_the_end(folder, lambda: attach(folder, launcher_of(folder), screen), given=True).exit_code


def to_the_end(folder: JobFolder, run: Callable[[], Outcome], *, given: bool = False) -> Outcome:
    """What is left of the job says how it ended; a job that was refused before it had a master leaves nothing, unless
    somebody else made its folder and wants to read there why."""
    from easyscale.master.registry import JobResult, TakenError

    try:
        outcome = run()
    except TakenError:
        raise
    except BaseException as problem:
        former = folder.master()
        if former is None and not given:
            folder.remove()
        elif former is None or former.pid == os.getpid():
            folder.write_result(JobResult(exit_code=2, error=str(problem) or type(problem).__name__))
        raise
    if folder.result() is None:
        state = outcome.state
        folder.write_result(
            JobResult(
                exit_code=outcome.exit_code, steps=state.steps, fingerprint=state.fingerprint, error=outcome.error
            )
        )
    return outcome
