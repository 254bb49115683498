"""What a user can get wrong about a run, refused before any process starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from easyscale.core.errors import PlanError, UnsupportedError, UsageError
from easyscale.core.plan import Plan, Schedule, parse_schedule, parse_split
from easyscale.core.spec import Bounds, Engine, Level, WorkerSpec


@dataclass(frozen=True, kw_only=True)
class PlanWish:
    """What was asked for about workers, before it is known whether it fits."""

    ests: int
    workers: str | None = None  # a number, or LEAST:MOST
    split: str | None = None
    schedule: str | None = None
    engine: Engine = "est"
    device: str = "auto"
    rebalance: bool | None = None


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
        workers = None if wish.workers is None else parse_workers(wish.workers, wish.ests)[1]
        return Schedule(((0, parse_split(wish.split, wish.ests, workers)),))
    workers = default_workers(wish, environment) if wish.workers is None else parse_workers(wish.workers, wish.ests)[1]
    return Schedule(((0, Plan.even(wish.ests, workers)),))


def rebalances(wish: PlanWish, determinism: Level) -> bool:
    """Whether ESTs may move unasked: where only a range of workers was asked for, or by --rebalance."""
    named = next((flag for flag in ("split", "schedule") if getattr(wish, flag) is not None), None)
    if wish.rebalance:
        if named is not None:
            raise PlanError(
                f"--rebalance does not go with --{named}.",
                "ESTs stay where someone asked for them; --rebalance moves them.",
                f"leave --{named} out and give --workers, or leave --rebalance out.",
            )
        if wish.engine == "ddp" or determinism == "D0":
            raise PlanError(
                f"--rebalance does not go with --{'engine ddp' if wish.engine == 'ddp' else 'determinism D0'}.",
                "there, a job keeps its bits only on the plan that it began with.",
                "leave it out.",
            )
    ranged = wish.workers is not None and ":" in wish.workers
    free = ranged and named is None and determinism != "D0" and wish.engine != "ddp"
    return free if wish.rebalance is None else wish.rebalance


def parse_workers(text: str, ests: int) -> tuple[int, int]:
    """`3` -> (3, 3); `1:4` -> (1, 4), where more than there are ESTs means as many as there are."""
    least, colon, most = text.partition(":")
    numbers = (least, most) if colon else (least, least)
    if not all(number.isascii() and number.isdigit() and int(number) > 0 for number in numbers):
        raise PlanError(
            f"--workers {text!r} is not a number of workers.",
            "it is a whole number of 1 or more, or the least and the most with a colon between them.",
            "write it like --workers 4, or --workers 1:4.",
        )
    low, high = int(numbers[0]), int(numbers[1])
    if low > high:
        raise PlanError(
            f"--workers {text} begins with more than it ends with.",
            "the first number is the least, the second the most.",
            f"write --workers {high}:{low}.",
        )
    if low > ests:
        Plan.even(ests, low)  # refuses, and says why
    return low, min(high, ests) if colon else high


def default_workers(wish: PlanWish, environment: Mapping[str, str]) -> int:
    """One worker per GPU; on a CPU one per core. Never more than there are ESTs."""
    from easyscale.backends.local import cores, gpus

    devices = gpus(environment) if wish.device != "cpu" else 0
    return min(wish.ests, devices or cores())


def check_settings(template: WorkerSpec) -> None:
    """Refuse what cannot be kept or makes no sense together."""
    unknown = [kind for kind in template.device.split(",") if kind not in ("auto", "cpu", "cuda")]
    if unknown:
        raise UsageError(
            f"--device {template.device} is not a choice.",
            f"workers run on auto, cpu or cuda, not on {unknown[0]!r}.",
            "name one of them, or at --determinism D2 several with commas, like cuda,cpu.",
        )
    if "," in template.device and template.determinism != "D2":
        raise UnsupportedError(
            f"--device {template.device} does not go with --determinism {template.determinism}.",
            f"level {template.determinism} keeps its bits on one device type.",
            "name one device, or use --determinism D2; `easyscale scan SCRIPT` says if the script can.",
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


def bounds_of(memory_gb: float | None, files: int | None) -> Bounds | None:
    """Limits of the operating system for each worker; None: nobody asked for any."""
    if memory_gb is not None and not 0 < memory_gb < float("inf"):
        raise UsageError(
            f"--memory-limit {memory_gb:g} is not an amount of memory.", "it is in gigabytes.", "pass one, such as 64."
        )
    if memory_gb is None and files is None:
        return None
    return Bounds(memory=None if memory_gb is None else int(memory_gb * 1e9), files=files)


def check_level(template: WorkerSpec, plans: Schedule) -> None:
    """D0 keeps bits on one plan alone."""
    if template.determinism == "D0" and len(plans.entries) > 1:
        raise PlanError(
            "--schedule does not go with --determinism D0.",
            "level D0 keeps its bits only on the plan that the job began with.",
            "use --determinism D1, or one plan from start to end.",
        )


def check_script(script: str) -> None:
    if not Path(script).is_file():
        raise UsageError(
            f"There is no script {script}.",
            "it is a folder." if Path(script).is_dir() else f"no such file was found from {Path.cwd()}.",
            "check the path; options of easyscale come before the script, and -m runs a module by name.",
        )
