"""Figures and pictures of fake jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from easyscale.service.models import Allocation, DeviceView, JobRow, JobView, PlanView, ProposalView, SeatView, TypeView
from easyscale.service.ports import JobQuery

ORDERS: dict[str, tuple[Callable[[JobView], Any], bool]] = {
    "submitted": (lambda job: (job.submitted, job.id), False),
    "-submitted": (lambda job: (job.submitted, job.id), True),
    "name": (lambda job: (job.name, job.id), False),
    "state": (lambda job: (job.state, job.id), False),
    "priority": (lambda job: (-job.priority, job.submitted), False),
}


def loss(step: int) -> float:
    return 2.3 * math.exp(-step / 400) + 0.05 * math.sin(step / 5) + 0.1


def proposal(devices: int, speedup: float, answer: str) -> ProposalView:
    rate = 2.0 * speedup
    return ProposalView(devices={"v100": devices}, rate=rate, speedup=speedup, per_device=rate / devices, answer=answer)


def speed_at(step: int) -> float:
    return 900 + 90 * math.sin(step / 7)


def fits(job: JobView, query: JobQuery) -> bool:
    return (
        (not query.states or job.state in query.states)
        and query.team in (None, job.team)
        and query.user in (None, job.user)
        and (not query.text or query.text.lower() in f"{job.name} {job.id}".lower())
    )


def row(job: JobView) -> JobRow:
    return JobRow(**job.model_dump(include=set(JobRow.model_fields)))


def of_type(kind: str, devices: Sequence[DeviceView]) -> TypeView:
    count = {state: sum(d.state == state for d in devices) for state in ("held", "free", "lost", "drained", "away")}
    return TypeView(
        kind=kind,
        total=len(devices) - count["lost"] - count["drained"] - count["away"],
        lent=sum(d.lent for d in devices),
        **count,
    )


def history(
    began: float, ended: float | None, devices: list[str], seats: list[SeatView], step: int
) -> dict[str, object]:
    """What a job went through that began on one device and grew."""
    middle = began + 20.0
    first = SeatView(worker=0, device=devices[0], first=0, count=max(1, len(seats)))
    return {
        "allocations": [
            Allocation(since=began, until=middle, devices=devices[:1]),
            Allocation(since=middle, until=ended, devices=devices),
        ],
        "plans": [
            PlanView(time=began, step=0, seats=[first]),
            PlanView(time=middle, step=step // 3, seats=seats or [first]),
        ],
        "grow": [proposal(4, 1.6, "No v100 is free.")],
        "shrink": [proposal(1, 0.5, "")],
        "pauses": [0.21, 0.34],
        "expected_end": began + 4000.0,
    }
