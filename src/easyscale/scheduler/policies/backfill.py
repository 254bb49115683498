"""`backfill`: first come, first served, but short jobs may pass. Objective: no device idles for order alone.

Source: EASY backfilling (Lifka, JSSPP'95; Mu'alem and Feitelson, TPDS'01). The first in line that does not fit gets a
reservation: the earliest time at which enough devices of its type will be free, by the expected ends of the running
jobs. Those behind it start if they end before that, or on devices that it will not need. Jobs get what their users
asked for and keep it. A job whose work is unknown is taken to end never.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from easyscale.core.cluster import Devices
from easyscale.scheduler.ledger import Ledger, asked_kinds, by_priority
from easyscale.scheduler.policies.fifo import keep_running
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


@dataclass(slots=True)
class _Reservation:
    kind: str
    start: float
    spare: int  # devices of that type that will be free then and that it does not need


class Backfill:
    name = "backfill"

    def __init__(self, *, interval: float = 0.0) -> None:
        self.interval = interval

    def decide(self, cluster: Cluster) -> Wanted:
        ledger = Ledger(cluster)
        reserved: _Reservation | None = None
        for jobs in by_priority(cluster.jobs.values()):
            for job in keep_running(ledger, jobs):
                kinds = asked_kinds(cluster, job, job.asked)
                if reserved is None:
                    devices = ledger.gang(job, job.asked, kinds)
                else:
                    devices = ledger.gang(job, job.asked, [k for k in kinds if _passes(cluster, job, k, reserved)])
                if devices is not None:
                    _start(cluster, ledger, job, devices, reserved)
                elif reserved is None and ledger.could_ever(job, job.asked):
                    reserved = _reserve(cluster, ledger, job, kinds)
        return ledger.wanted


def _seconds(job: Job, devices: Devices, now: float) -> float:
    left, rate = job.remaining(now), job.speed.rate(devices)
    return inf if left is None or rate <= 0.0 else left / rate + job.switch_seconds


def _passes(cluster: Cluster, job: Job, kind: str, reserved: _Reservation) -> bool:
    if kind != reserved.kind or job.asked <= reserved.spare:
        return True
    return cluster.now + _seconds(job, {kind: job.asked}, cluster.now) <= reserved.start


def _start(cluster: Cluster, ledger: Ledger, job: Job, devices: Devices, reserved: _Reservation | None) -> None:
    ledger.give(job, devices)
    if reserved is None or reserved.kind not in devices:
        return
    if cluster.now + _seconds(job, devices, cluster.now) > reserved.start:
        reserved.spare -= devices[reserved.kind]


def _reserve(cluster: Cluster, ledger: Ledger, job: Job, kinds: list[str]) -> _Reservation:
    """On the type where it can start first."""
    best: _Reservation | None = None
    for kind in kinds:
        ends = sorted(
            (cluster.now + _seconds(cluster.jobs[name], devices, cluster.now), devices[kind])
            for name, devices in ledger.wanted.items()
            if kind in devices
        )
        free, start = ledger.left.get(kind, 0), cluster.now
        for end, count in ends:
            if free >= job.asked:
                break
            free, start = free + count, end
        if free < job.asked:
            start = inf
        if best is None or start < best.start:
            best = _Reservation(kind, start, max(0, free - job.asked))
    assert best is not None, "a job without a type to run on cannot be first in line"
    return best
