"""Plans: which worker runs which ESTs.

A plan cuts the virtual ranks 0..N-1 into contiguous ranges, one a worker, none empty. A schedule
names the plan from a global step on. Both are plain facts; parsing refuses what does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from easyscale.core.errors import PlanError


@dataclass(frozen=True)
class Plan:
    """How many ESTs each worker runs, in virtual-rank order: (2, 1, 1) is [0, 1], [2], [3]."""

    split: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.split or min(self.split) < 1:
            raise PlanError(
                f"The split {','.join(map(str, self.split)) or '(empty)'} leaves a worker without an EST.",
                "each worker of a plan runs at least one EST.",
                "use positive numbers that add up to the number of ESTs, such as --split 2,1,1.",
            )

    @classmethod
    def even(cls, ests: int, workers: int) -> Plan:
        """Spread the ESTs as evenly as can be; the first workers take the remainder."""
        if ests < 1 or workers < 1:
            raise PlanError(
                f"A job of {ests} ESTs on {workers} workers cannot run.",
                "both numbers are at least 1.",
                "pass --ests and --workers of 1 or more.",
            )
        if workers > ests:
            raise PlanError(
                f"{workers} workers were asked for, but the job has only {ests} ESTs.",
                "a worker runs at least one EST, and an EST is never cut in two.",
                f"use --workers {ests} or fewer, or give the job more ESTs (that is another job, with other bits).",
            )
        low, extra = divmod(ests, workers)
        return cls(tuple(low + (w < extra) for w in range(workers)))

    @property
    def ests(self) -> int:
        return sum(self.split)

    @property
    def workers(self) -> int:
        return len(self.split)

    def range_of(self, worker: int) -> range:
        start = sum(self.split[:worker])
        return range(start, start + self.split[worker])

    def ranges(self) -> list[range]:
        return [self.range_of(w) for w in range(self.workers)]

    def worker_of(self, est: int) -> int:
        for worker, ests in enumerate(self.ranges()):
            if est in ests:
                return worker
        raise IndexError(est)

    def __str__(self) -> str:
        return "+".join(map(str, self.split))


def parse_split(text: str, ests: int, workers: int | None = None) -> Plan:
    """`2,1,1` -> Plan((2, 1, 1)), refused unless it adds up to the number of ESTs."""
    try:
        split = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PlanError(
            f"--split {text!r} is not a list of numbers.",
            "a split says how many ESTs each worker runs.",
            "write it like --split 2,1,1.",
        ) from None
    plan = Plan(split)
    if plan.ests != ests:
        raise PlanError(
            f"--split {text} gives {plan.ests} ESTs, but the job has {ests}.",
            "every EST runs on exactly one worker.",
            f"change the numbers so that they add up to {ests}.",
        )
    if workers is not None and plan.workers != workers:
        raise PlanError(
            f"--split {text} names {plan.workers} workers, but --workers says {workers}.",
            "the two flags contradict each other.",
            "leave one of them out, or make them agree.",
        )
    return plan


@dataclass(frozen=True)
class Schedule:
    """Plans by the global step from which they hold; the first step is 0."""

    entries: tuple[tuple[int, Plan], ...]

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.entries]
        if not steps or steps[0] != 0 or any(a >= b for a, b in pairwise(steps)):
            raise PlanError(
                f"The schedule's steps are {steps}.",
                "a schedule starts at step 0 and its steps grow.",
                "write it like --schedule 0:4,10:2,20:1.",
            )

    def at(self, step: int) -> tuple[Plan, int | None]:
        """The plan in force at a global step, and the step at which the next one begins."""
        current = self.entries[0][1]
        for begins, plan in self.entries:
            if begins > step:
                return current, begins
            current = plan
        return current, None


def parse_schedule(text: str, ests: int) -> Schedule:
    """`0:4,10:2` -> plans by step. `20:2+1+1` names an uneven split."""
    entries = []
    for part in text.split(","):
        step, colon, wanted = part.partition(":")
        try:
            at = int(step)
            split = tuple(int(n) for n in wanted.split("+"))
        except ValueError:
            colon = ""
        if not colon:
            raise PlanError(
                f"--schedule has an entry {part!r} that is not STEP:WORKERS.",
                "each entry names a global step and the workers from that step on.",
                "write it like --schedule 0:4,10:2,20:2+1+1.",
            )
        plan = Plan.even(ests, split[0]) if len(split) == 1 else parse_split(",".join(map(str, split)), ests)
        entries.append((at, plan))
    return Schedule(tuple(entries))
