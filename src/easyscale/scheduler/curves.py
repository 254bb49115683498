"""Speeds of jobs by number of devices of one type, remembered from decision to decision."""

from __future__ import annotations

from collections.abc import Iterable

from easyscale.planner.speed import Speed
from easyscale.scheduler.state import Job


class Curve:
    """The rates of a job on 0, 1, .. devices of one type, and the steps up that are worth most per device."""

    __slots__ = ("_steps", "peak", "rates")

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.peak = max(range(len(rates)), key=rates.__getitem__)  # the fewest that are fastest
        self._steps: dict[tuple[int, int, int], tuple[float, int]] = {}

    def step(self, held: int, least: int, most: int) -> tuple[float, int]:
        """From `held` devices to which number, at least `least` and at most `most`: (rate gained a device, number).

        Of equal gains the largest step. (0.0, held): no number in that range is faster.
        """
        most = min(most, self.peak)
        found = self._steps.get((held, least, most))
        if found is None:
            rates, best = self.rates, (0.0, held)
            base, floor = rates[held], 1e-9 * rates[self.peak]
            for count in range(max(held + 1, least), most + 1):
                gain = (rates[count] - base) / (count - held)
                if gain > floor and gain >= best[0] * (1.0 - 1e-9):
                    best = (gain, count)
            found = self._steps[held, least, most] = best
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
