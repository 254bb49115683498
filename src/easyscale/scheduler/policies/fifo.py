"""`fifo`: first come, first served, strict gang. Objective: none but order; the plainest queue there is.

Source: the default of YARN's capacity scheduler and of most batch systems, as described for Philly (Jeon et al.,
ATC'19, arXiv 1901.05758). A job gets what its user asked for, all at once, and keeps it to its end; while the first in
line does not fit, nobody behind it starts. Only a higher priority, or a device that is lost, takes devices away.
"""

from __future__ import annotations

from easyscale.scheduler.ledger import Ledger, asked_kinds, by_priority
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


class Fifo:
    name = "fifo"

    def __init__(self, *, interval: float = 0.0) -> None:
        self.interval = interval

    def decide(self, cluster: Cluster) -> Wanted:
        ledger, blocked = Ledger(cluster), False
        for jobs in by_priority(cluster.jobs.values()):
            waiting = keep_running(ledger, jobs)
            for job in waiting:
                blocked = blocked or not start(ledger, job)
        return ledger.wanted


def keep_running(ledger: Ledger, jobs: list[Job]) -> list[Job]:
    """Those that run as they asked go on; returned are the others, in the order of submission."""
    waiting = []
    for job in jobs:
        if is_whole(job) and ledger.fits(job, job.devices):
            ledger.give(job, job.devices)
        else:
            waiting.append(job)
    return waiting


def is_whole(job: Job) -> bool:
    """Does it hold what it asked for? Not so after a loss."""
    return bool(job.devices) and len(job.devices) == 1 and sum(job.devices.values()) == job.asked


def start(ledger: Ledger, job: Job) -> bool:
    """False: it stands in line and nobody may pass. Who could not run in the empty cluster stands in nobody's way."""
    devices = ledger.gang(job, job.asked, asked_kinds(ledger.cluster, job, job.asked))
    if devices is not None:
        ledger.give(job, devices)
    return devices is not None or not ledger.could_ever(job, job.asked)
