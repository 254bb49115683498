"""Speeds of jobs by number of devices of one type, remembered from decision to decision."""

from __future__ import annotations

from collections.abc import Iterable

from easyscale.planner.speed import Speed
from easyscale.scheduler.state import Job


class Curve:
    """The rates of a job on 0, 1, .. devices of one type. `peak`: the fewest that are fastest."""

    __slots__ = ("_counts", "_known", "peak", "rates")

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.peak = max(range(len(rates)), key=rates.__getitem__)
        # the counts that are faster than all smaller ones: no other is worth its devices
        self._counts: list[int] = []
        best = 0.0
        for count, rate in enumerate(rates):
            if rate > best * (1.0 + 1e-9):
                best = rate
                self._counts.append(count)
        self._known: dict[tuple[int, int, int, int], list[int]] = {}

    def counts(self, held: int, least: int, most: int, same: int) -> list[int]:
        """Numbers of devices beyond `held` that are worth a look, at least `least` and at most `most`, and `same`."""
        top = self.peak if self.peak > same else same
        if least > top:  # it cannot have fewer, though they would be as fast
            top = least
        if most > top:
            most = top
        found = self._known.get((held, least, most, same))
        if found is None:
            low = max(held + 1, least)
            wanted = {low, same, *self._counts}
            found = self._known[held, least, most, same] = sorted(count for count in wanted if low <= count <= most)
        return found


class Curves:
    """Made once a speed and type. Jobs that share a speed share its curves."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Speed, dict[tuple[str, int], Curve]]] = {}  # by the identity of the speed

    def curve(self, job: Job, kind: str) -> Curve:
        known = self._known.get(id(job.speed))
        if known is None:
            known = self._known[id(job.speed)] = (job.speed, {})
        found = known[1].get((kind, job.needs.most))
        if found is None:
            rates = [0.0, *(job.speed.rate({kind: count}) for count in range(1, job.needs.most + 1))]
            found = known[1][kind, job.needs.most] = Curve(rates)
        return found

    def of(self, job: Job, kind: str) -> list[float]:
        """`[n]` is the job's rate on n devices of that type; [0] is 0."""
        return self.curve(job, kind).rates

    def forget_all_but(self, jobs: Iterable[Job], count: int) -> None:
        """Speeds of jobs that have left; done when there are many of them, so that it costs little each time."""
        if len(self._known) > 2 * count + 256:
            alive = {id(job.speed) for job in jobs}
            self._known = {name: known for name, known in self._known.items() if name in alive}
