"""A part of a workload: some tenants, some hours."""

from __future__ import annotations

from dataclasses import replace

from easyscale.core.errors import UsageError
from easyscale.simulator.workload import Workload


def part_of(workload: Workload, *, tenants: tuple[str, ...], since: float, until: float) -> Workload:
    """Times are seconds of the trace; what is taken starts at `since` anew. No tenants: all."""
    known = {arrival.needs.tenant for arrival in workload.arrivals}
    strange = [tenant for tenant in tenants if tenant not in known]
    if strange:
        raise UsageError(
            f"{workload.name} has no tenant {', '.join(strange)}.",
            f"its tenants are {', '.join(sorted(filter(None, known))) or 'not named'}.",
            "name some of these.",
        )
    taken = [
        arrival
        for arrival in workload.arrivals
        if since <= arrival.time < until and (not tenants or arrival.needs.tenant in tenants)
    ]
    if not taken:
        raise UsageError(
            f"Nothing is left of {workload.name}.",
            f"none of its {len(workload.arrivals):,} jobs is in the part that was asked for.",
            "ask for more of it.",
        )
    if since:
        taken = [replace(arrival, time=arrival.time - since) for arrival in taken]
    return replace(workload, arrivals=tuple(taken))
