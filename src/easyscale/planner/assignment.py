"""Which device runs how many ESTs: the split with the shortest global step, exactly.

The step takes max over devices of (ESTs x seconds of one local step) plus the reduction among those that are used. For
a number k of used devices the k fastest are as good as any other k, because a faster device can take a slower one's
load. For those k the best bottleneck is one of the finitely many times (a ESTs on a device of type i): raise the loads
in the order of these times, from just under what fractions of ESTs would allow, until all ESTs have a place. Times are
compared as the floats that the answer is made of, so there is no tolerance and the answer is the optimum of a search
through all splits. Numbers k whose lower bound is above the best answer so far are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace

from easyscale.core.cluster import Devices
from easyscale.planner.reduction import Reduction

BELOW = 1.0 - 1e-9  # a bound is taken this much lower: rounding in the bound may never hide an answer

Row = tuple[float, ...]  # seconds of 0, 1, .. N ESTs on one device; then infinity
Group = tuple[Row, int]  # devices of one speed and their number


@dataclass(frozen=True, slots=True)
class Assignment:
    """`split[d]` ESTs on device d (0: it stays unused) and the seconds of a global step."""

    split: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TypeAssignment:
    """The same by type: `loads` has the ESTs of each used device, `unused` what it is better to leave idle."""

    seconds: float  # of a global step: bottleneck and communication
    bottleneck: float
    communication: float
    used: Mapping[str, int]
    unused: Mapping[str, int]
    loads: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """How many of the fastest devices, and how long their local steps and their reduction take."""

    workers: int
    bottleneck: float
    communication: float

    @property
    def seconds(self) -> float:
        return self.bottleneck + self.communication


def assign(ests: int, speeds: Sequence[float], reduction: Callable[[int], float] | None = None) -> Assignment:
    """The best split of ESTs over devices that do `speeds[d]` mini-batches a second.

    Of equally fast splits, one with the fewest devices. A device with speed 0 is never used.
    """
    assert ests >= 1
    order = sorted((d for d, speed in enumerate(speeds) if speed > 0), key=lambda d: -speeds[d])
    if not order:
        return Assignment((0,) * len(speeds), float("inf"))
    counts: dict[float, int] = {}
    for d in order:
        counts[speeds[d]] = counts.get(speeds[d], 0) + 1
    groups = [(row_of_speed(ests, speed), count) for speed, count in counts.items()]
    most = min(ests, len(order))
    costs = None if reduction is None else [reduction(workers) for workers in range(1, most + 1)]
    choice = choose(ests, groups, costs)
    split = [0] * len(speeds)
    loads = (load for group in spread(ests, groups, choice) for load in group)
    for d, load in zip(order, loads, strict=False):
        split[d] = load
    return Assignment(tuple(split), choice.seconds)


def assign_types(
    ests: int,
    devices: Devices,
    batch_seconds: Mapping[str, float],
    reduction: Callable[[int], float] | None = None,
    *,
    nodes: int | None = None,
) -> TypeAssignment:
    """The best use of devices given by type. Each type must be in `batch_seconds`, the seconds of one local step.

    A `Reduction` is asked with the machines that the used devices need, or with `nodes` where that is known.
    """
    kinds, groups, choice = solve(ests, devices, batch_seconds, reduction, nodes)
    loads = dict(zip(kinds, spread(ests, groups, choice), strict=False))
    used = {kind: len(of) for kind, of in loads.items() if of}
    return TypeAssignment(
        seconds=choice.seconds,
        bottleneck=choice.bottleneck,
        communication=choice.communication,
        used=used,
        unused={kind: left for kind, count in devices.items() if (left := count - used.get(kind, 0))},
        loads={kind: of for kind, of in loads.items() if of},
    )


def solve(
    ests: int,
    devices: Devices,
    batch_seconds: Mapping[str, float],
    reduction: Callable[[int], float] | None,
    nodes: int | None,
) -> tuple[list[str], list[Group], Choice]:
    """The types that may be used, the fastest first, their devices, and how many of those.

    Where bytes are dearer between machines, the cost depends on more than the number of workers: a few devices of a
    slower type in one machine may beat the fastest ones in two. Only one type alone fits one machine, so it is enough
    to try each.
    """
    kinds = sorted((kind for kind, count in devices.items() if count), key=lambda kind: (batch_seconds[kind], kind))
    assert kinds, "a job on no devices has no step time"
    groups = [(row_of_seconds(ests, batch_seconds[kind]), devices[kind]) for kind in kinds]
    most = min(ests, sum(count for _, count in groups))
    costs = None if reduction is None else communication([count for _, count in groups], most, reduction, nodes)
    best = kinds, groups, choose(ests, groups, costs)
    if isinstance(reduction, Reduction) and reduction.knows_machines and nodes is None:
        for kind, (row, count) in zip(kinds[1:], groups[1:], strict=True):
            near = min(count, ests, reduction.per_node)
            if row[1] * ests / near * BELOW < best[2].seconds:
                alone = choose(ests, [(row, near)], [reduction(workers, 1) for workers in range(1, near + 1)])
                if alone.seconds < best[2].seconds:
                    best = [kind], [(row, near)], alone
    return best


def communication(
    counts: Sequence[int], most: int, reduction: Callable[[int], float], nodes: int | None
) -> list[float]:
    """The cost of the reduction for the first 1..most devices. Types never share a machine."""
    if not isinstance(reduction, Reduction):
        return [reduction(workers) for workers in range(1, most + 1)]
    if nodes is not None:
        return [reduction(workers, min(nodes, workers)) for workers in range(1, most + 1)]
    costs: list[float] = []
    before = 0
    for count in counts:
        for extra in range(1, min(count, most - len(costs)) + 1):
            costs.append(reduction(len(costs) + 1, before + reduction.nodes_for(extra)))
        before += reduction.nodes_for(count)
    return costs


@lru_cache(maxsize=1024)
def row_of_seconds(ests: int, seconds: float) -> Row:
    assert seconds > 0
    return (*(a * seconds for a in range(ests + 1)), float("inf"))


@lru_cache(maxsize=1024)
def row_of_speed(ests: int, speed: float) -> Row:
    return (*(a / speed for a in range(ests + 1)), float("inf"))


# ------------------------------------------------------------------------------------------ the search


def choose(ests: int, groups: Sequence[Group], costs: Sequence[float] | None) -> Choice:
    """The best number of devices, of groups that are sorted by speed; of equally good ones, the smallest."""
    if costs is None:
        return without_communication(ests, groups)
    best: tuple[float, int, float] | None = None
    hurdles: list[tuple[int, float]] = []  # what so many devices need, fewer need as well
    for bound, workers in sorted(bounds(ests, groups, costs)):
        cost = costs[workers - 1]
        if best is not None:
            if bound * BELOW > best[0]:
                break
            if any(workers < more and time + cost > best[0] for more, time in hurdles):
                continue
        of = first(groups, workers)
        time = bottleneck(ests, of)
        if time > of[-1][0][1]:  # else it may only be the price of using all of them
            hurdles.append((workers, time))
        entry = (time + cost, workers, time)
        if best is None or entry < best:
            best = entry
    assert best is not None
    return Choice(best[1], best[2], costs[best[1] - 1])


def first(groups: Sequence[Group], workers: int) -> list[Group]:
    """So many devices, the fastest ones."""
    found: list[Group] = []
    for row, count in groups:
        if workers <= 0:
            break
        found.append((row, min(count, workers)))
        workers -= count
    return found


def without_communication(ests: int, groups: Sequence[Group]) -> Choice:
    """More devices never hurt: the bottleneck of all, then as few devices as reach it."""
    of = first(groups, ests)
    time = bottleneck(ests, of, all_used=False)
    workers, left = 0, ests
    for row, count in of:
        held = capacity(row, time, ests)
        needed = min(count, -(-left // held)) if held else 0
        workers, left = workers + needed, left - needed * held
        if left <= 0:
            break
    return Choice(workers, time, 0.0)


def bounds(ests: int, groups: Sequence[Group], costs: Sequence[float]) -> list[tuple[float, int]]:
    """For each number of devices: no split can be faster than this; and the number."""
    found: list[tuple[float, int]] = []
    rate = 0.0
    for row, count in first(groups, len(costs)):
        one = row[1]
        for extra in range(1, count + 1):
            found.append((max(ests / (rate + extra / one), one) + costs[len(found)], len(found) + 1))
        rate += count / one
    return found


def bottleneck(ests: int, groups: Sequence[Group], *, all_used: bool = True) -> float:
    """The shortest time in which these devices can run all ESTs; `all_used`: each runs one or more."""
    time = ests / sum(count / row[1] for row, count in groups) * BELOW
    loads = [min(int(time / row[1]), ests) for row, _ in groups]
    reached = 0.0
    if all_used:
        loads = [max(load, 1) for load in loads]
        reached = groups[-1][0][1]  # the slowest is the last
    placed = sum(load * count for load, (_, count) in zip(loads, groups, strict=True))
    if placed >= ests:
        return reached
    heap = [(row[load + 1], i) for i, (load, (row, _)) in enumerate(zip(loads, groups, strict=True))]
    heapify(heap)
    while True:
        time, i = heap[0]
        row, count = groups[i]
        loads[i] += 1
        placed += count
        if placed >= ests:
            return max(time, reached)
        heapreplace(heap, (row[loads[i] + 1], i))


def capacity(row: Row, time: float, ests: int) -> int:
    """How many ESTs such a device runs in `time`, by the floats of its row."""
    load = min(int(time / row[1]), ests)
    while row[load] > time:
        load -= 1
    while row[load + 1] <= time:
        load += 1
    return load


def spread(ests: int, groups: Sequence[Group], choice: Choice) -> list[tuple[int, ...]]:
    """ESTs of each used device, group by group. What is too much is taken from the devices that end last."""
    heap: list[tuple[float, int, int, int]] = []  # (-time, group, load, devices)
    left, surplus = choice.workers, -ests
    for i, (row, count) in enumerate(groups):
        taken = min(count, left)
        if not taken:
            break
        load = capacity(row, choice.bottleneck, ests)
        heap.append((-row[load], i, load, taken))
        left, surplus = left - taken, surplus + load * taken
    loads: list[list[int]] = [[] for _ in heap]
    heapify(heap)
    while heap:
        _, i, load, count = heap[0]
        less = min(surplus, count) if load > 1 else 0
        loads[i] += [load] * (count - less)
        surplus -= less
        if less:
            heapreplace(heap, (-groups[i][0][load - 1], i, load - 1, less))
        else:
            heappop(heap)
    assert surplus == 0, "each used device keeps an EST"
    return [tuple(sorted(of, reverse=True)) for of in loads]
