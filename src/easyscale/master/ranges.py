"""Who runs which ESTs: plans with workers in them. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from easyscale.core.control import Member


def arrange(split: Sequence[int], workers: Sequence[int]) -> tuple[Member, ...]:
    """The members of a plan, in the order of their ESTs."""
    members, first = [], 0
    for worker, count in zip(workers, split, strict=True):
        members.append(Member(worker=worker, first=first, count=count))
        first += count
    return tuple(members)


def stayers(members: Iterable[int], wanted: int | None) -> list[int]:
    """Who stays: the earliest workers, in the order that they have."""
    members = list(members)
    kept = set(sorted(members)[:wanted])
    return [worker for worker in members if worker in kept]


def cover(base: Sequence[Member], living: Collection[int]) -> tuple[Member, ...]:
    """The plan after a loss: the living keep what they have, and neighbours take what has nobody.

    A gap between two of the living is cut so that their loads come out as even as they can; one at an edge goes to the
    one neighbour that it has.
    """
    kept = [member for member in base if member.worker in living]
    if not kept:
        return ()
    total = base[-1].first + base[-1].count
    starts = [0]
    for left, right in pairwise(kept):
        held = left.first + left.count
        gap, load = right.first - held, held - starts[-1]
        given = min(max((right.count + gap - load + 1) // 2, 0), gap)
        starts.append(held + given)
    ends = [*starts[1:], total]
    return tuple(
        Member(worker=member.worker, first=first, count=end - first)
        for member, first, end in zip(kept, starts, ends, strict=True)
    )


def names(ests: range) -> str:
    """`EST 4`, `ESTs 4-5`."""
    return f"EST {ests[0]}" if len(ests) == 1 else f"ESTs {ests[0]}-{ests[-1]}"


def heirs(ests: range, plan: Sequence[Member]) -> list[int]:
    """The workers of a plan that run some of these ESTs."""
    return [member.worker for member in plan if set(ests) & set(member.ests)]
