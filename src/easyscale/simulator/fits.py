"""Can the jobs of a workload run on a cluster at all? Asked before a simulation, so that nobody waits for nothing."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Literal

from easyscale.core.cluster import Devices, total
from easyscale.core.errors import UsageError
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.workload import Arrival, Workload

Misfits = Literal["refuse", "drop", "shrink"]


def check_fits(workload: Workload, cluster: ClusterSpec) -> None:
    """Refuses an empty workload, a type that no job knows, and a job that can never run."""
    if not workload.arrivals:
        raise UsageError(
            f"{workload.name} has no jobs.", "there is nothing to simulate.", "name a trace with at least one job."
        )
    most = cluster.most()
    missing = [kind for kind in most if not any(_knows(arrival, kind) for arrival in workload.arrivals)]
    if missing:
        asked = sorted({kind for job in workload.arrivals for kind in (job.kind, *(job.needs.types or ())) if kind})
        near = get_close_matches(missing[0], asked, n=1) or asked
        raise UsageError(
            f"no job of {workload.name} can run on {missing[0]!r}.",
            "its profiles have no figures for that type of device, so nobody knows how fast a job is there.",
            f"did you mean {' or '.join(near[:4])}?" if near else "name types that the profiles know.",
        )
    for arrival in workload.arrivals:
        why = why_not(arrival, cluster, most)
        if why is not None:
            raise UsageError(
                f"{arrival.name} (line {arrival.line} of {workload.name}) can never run on this cluster.",
                why,
                "use a larger cluster, correct the line, or leave such jobs out with --misfits drop "
                "(--misfits shrink cuts what they ask for).",
            )


def _knows(arrival: Arrival, kind: str) -> bool:
    return any(arrival.speed.rate({kind: n}) > 0 for n in {arrival.needs.least, arrival.needs.most})


def why_not(arrival: Arrival, cluster: ClusterSpec, most: Devices) -> str | None:
    """Why a job can never run; None: it can."""
    needs = arrival.needs
    usable = {
        kind: count
        for kind, count in most.items()
        if count > 0 and needs.allows(kind) and cluster.kinds[kind].memory_gb >= needs.memory_gb
    }
    if not usable:
        wants = f"{', '.join(needs.types or ('any type',))} with {needs.memory_gb:g} GB"
        return f"it needs {wants}; the cluster has {', '.join(most)}."
    enough = total(usable) if needs.level == "D2" else max(usable.values())
    if enough < needs.least:
        of = "in all" if needs.level == "D2" else "of one type"
        return f"it needs {needs.least} devices {of}; the cluster has {enough} that it may use."
    if needs.level == "D2" or any(
        n >= needs.least and arrival.speed.rate({kind: needs.least}) > 0 for kind, n in usable.items()
    ):
        return None
    return f"its profile has no speed for {needs.least} of {', '.join(usable)}."


def fitting(workload: Workload, cluster: ClusterSpec, misfits: Misfits) -> tuple[Workload, int]:
    """The workload with those that can never run left out, or with their wishes cut; and how many that were."""
    if misfits == "refuse":
        return workload, 0
    most, kept, changed = cluster.most(), [], 0
    for arrival in workload.arrivals:
        fitted = arrival if misfits == "drop" else _cut(arrival, most)
        fits = why_not(fitted, cluster, most) is None and _asks_too_much(fitted, most) is False
        changed += fitted is not arrival or not fits
        if fits:
            kept.append(fitted)
    return replace(workload, arrivals=tuple(kept)), changed


def _room(arrival: Arrival, most: Devices) -> int:
    """The most devices of one type that it may use."""
    return max((count for kind, count in most.items() if arrival.needs.allows(kind)), default=0)


def _asks_too_much(arrival: Arrival, most: Devices) -> bool:
    return arrival.requested > _room(arrival, most)


def _cut(arrival: Arrival, most: Devices) -> Arrival:
    room, needs = _room(arrival, most), arrival.needs
    if not room or (arrival.requested <= room and needs.least <= room):
        return arrival
    needs = replace(
        needs, min_workers=min(needs.min_workers, room), gang=None if needs.gang is None else min(needs.gang, room)
    )
    return replace(arrival, needs=needs, requested=min(arrival.requested, room))


def rate_alone(arrival: Arrival, most: Devices) -> float:
    """Its speed on what its user asked for: that many of the type asked for, or of the fastest that it may use."""
    needs = arrival.needs
    kinds = [arrival.kind] if arrival.kind in most else [kind for kind in most if needs.allows(kind)]
    wanted = max(needs.least, min(needs.most, arrival.requested))
    found = max((arrival.speed.rate({kind: min(wanted, most[kind])}) for kind in kinds), default=0.0)
    return found or max((arrival.speed.rate({kind: 1}) for kind in most), default=0.0) or float("nan")
