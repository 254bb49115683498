"""`tiresias`: least attained service in a few queues (2D-LAS). Objective: average JCT without knowing any job's length.

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI'19, discretized 2D-LAS. What
counts is devices times seconds. A job begins in the first queue and falls to the next one when it has attained a
threshold; the first queue goes first, and in a queue whoever entered it first. Jobs get what their users asked for;
they are stopped and resumed at decisions. `promote`: a job that has waited so many times as long as it has run since
its last promotion goes back to the first queue (0: never). The default threshold is that of the Pollux artifact
(OSDI'21).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from easyscale.scheduler.ledger import Ledger, by_priority
from easyscale.scheduler.policies.srtf import run_in_order
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


@dataclass(slots=True)
class _Place:
    queue: int
    turn: int  # in the order of entering queues
    forgiven: float = 0.0  # device-seconds before its last promotion
    since: float = 0.0  # its last promotion


class Tiresias:
    name = "tiresias"

    def __init__(
        self, *, interval: float = 60.0, thresholds: Sequence[float] = (3600.0 * 16,), promote: float = 0.0
    ) -> None:
        self.interval = interval
        self._thresholds = sorted(thresholds)
        self._promote = promote
        self._places: dict[str, _Place] = {}
        self._turn = 0

    def decide(self, cluster: Cluster) -> Wanted:
        self._places = {name: place for name, place in self._places.items() if name in cluster.jobs}
        for job in cluster.jobs.values():
            self._queue(cluster, job)
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            run_in_order(ledger, sorted(jobs, key=self._order))
        return ledger.wanted

    def _order(self, job: Job) -> tuple[int, int]:
        place = self._places[job.id]
        return place.queue, place.turn

    def _queue(self, cluster: Cluster, job: Job) -> None:
        place = self._places.get(job.id)
        if place is None:
            place = self._places[job.id] = _Place(0, self._next_turn(), since=job.submitted)
        attained = job.attained_by(cluster.now) - place.forgiven
        if self._promote and place.queue and not job.devices:
            ran = attained / job.asked
            if cluster.now - place.since - ran >= self._promote * ran:
                place.queue, place.turn = 0, self._next_turn()
                place.forgiven, place.since = place.forgiven + attained, cluster.now
                return
        queue = sum(attained >= threshold for threshold in self._thresholds)
        if queue > place.queue:
            place.queue, place.turn = queue, self._next_turn()

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn
