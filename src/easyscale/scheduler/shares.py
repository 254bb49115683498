"""Shares by worth: the next devices to the job that makes most of them. The heart of the policy `easyscale`.

A job's rate is worth its weight: a falling power of the time that it still needs at its best speed. Devices go out in
the steps that gain most weighted rate per device, so for concave speeds the sum of weighted rates is as large as can
be. With power 1 that is the sum of 1/(time left): the shortest jobs get all that they can use, as SRPT would have it.
With smaller powers longer jobs get devices that the short ones would hardly notice, which shortens the queue behind
them.

A pause is part of that: a job that starts, or changes, stands still first, so what it would get is worth the rate over
pause and rest together. What it holds needs no pause. So the dearer a switch, the more jobs stay as they are, and the
fewer devices a short job is given that would stand still with it. A pause counts `payback` times, because in a crowd no
share lasts: the next change asks for another pause. For the same reason a change is not expected to last longer than
the median job here still needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf

from easyscale.core.cluster import Devices, plus, total
from easyscale.scheduler.ledger import Ledger
from easyscale.scheduler.standing import Standing, Standings
from easyscale.scheduler.state import Cluster, Job

SOON = 1e-3  # s; nobody's time left is taken to be less, so that weights stay finite
PRIOR = 60.0  # s at best speed that a job of unknown work is first expected to need; later as much as it has had
STAY = 0.05  # a job leaves its type for one that is better by more than that
MIXES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # devices of a further type that are tried at once

Step = tuple[float, str, int, float]  # worth of a device, type, how many, what it is worth to hold after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    power: float
    payback: float  # a pause counts so many times


@dataclass(slots=True)
class Claim:
    """A job in a decision: what does not change during it, and what it has been given so far."""

    job: Job
    standing: Standing
    least: int
    most: int
    left: float  # global steps, known or expected
    weight: float
    pause: float  # of a change, or of a start
    rest: float  # of the pause that it is in
    given: dict[str, int]
    count: int = 0  # of these
    worth: float = 0.0  # of holding these


class Shares:
    """One decision about some jobs. What it gives away is in `left` and `changes` when it has run."""

    def __init__(
        self, cluster: Cluster, jobs: Sequence[Job], standings: Standings, terms: Terms, horizon: float | None = None
    ) -> None:
        """`horizon`: seconds that a change is expected to last; None: by these jobs."""
        self.cluster, self.terms = cluster, terms
        ledger = Ledger(cluster, jobs)
        self.left, self.quota = ledger.left, ledger.quota
        self.claims = [self._claim(job, standings.of(cluster, job)) for job in jobs]
        self.horizon = self._median() if horizon is None else horizon
        self._haste = 1.0 / self.horizon

    def _claim(self, job: Job, standing: Standing) -> Claim:
        best, now = standing.best, self.cluster.now
        if best <= 0.0:
            return Claim(job, standing, 1, 0, 0.0, 0.0, 0.0, 0.0, {})
        rest, done = 0.0, job.done
        if job.devices:
            if job.resumes > now:
                rest = job.resumes - now
            elif (seconds := now - max(job.told, job.resumes)) > 0.0:
                done += job.rate() * seconds
        left = max(done, PRIOR * best) if job.work is None else job.work - done
        time = left / best
        if time < SOON:
            time = SOON
        pause = self.terms.payback * job.switch_seconds
        weight = time**-self.terms.power / best
        return Claim(job, standing, job.needs.least, job.most, time * best, weight, pause, rest, {})

    def _median(self) -> float:
        times = sorted(claim.left / claim.standing.best for claim in self.claims if claim.most)
        return times[len(times) // 2] if times else inf

    def _rate(self, claim: Claim, devices: Devices) -> float:
        if len(devices) == 1:
            for kind, count in devices.items():
                if (curve := claim.standing.curves.get(kind)) is not None and count < len(curve.rates):
                    return curve.rates[count]
        return claim.job.speed.rate(devices)

    def _worth(self, claim: Claim, devices: Devices, rate: float) -> float:
        """Of holding these: the rate on them over its pause, if it needs one, and the rest of its time."""
        held = claim.job.devices
        if devices == held:
            return rate / (1.0 + claim.rest * rate / claim.left)
        share = rate / claim.left  # of its work in a second
        if held and share < self._haste:
            share = self._haste
        return rate / (1.0 + claim.pause * share)

    def first(self, places: Mapping[str, int]) -> None:
        """These get the fewest devices that they run on, before all others, in the order of their places."""
        chosen = [claim for claim in self.claims if claim.job.id in places]
        for claim in sorted(chosen, key=lambda claim: places[claim.job.id]):
            found = [
                (kind in claim.job.devices, curve.rates[claim.least], kind)
                for kind, curve in claim.standing.curves.items()
                if self._room(claim, kind) >= claim.least and curve.rates[claim.least] > 0.0
            ]
            if found:
                _, rate, kind = max(found)
                self._give(claim, kind, claim.least, self._worth(claim, {kind: claim.least}, rate))

    def run(self) -> dict[str, Devices]:
        """Who changes, and to what."""
        claims, heap = self.claims, []
        for turn, claim in enumerate(claims):
            if (step := self._step(claim)) is not None:
                heap.append((-claim.job.needs.priority, -step[0], turn, step))
        heapify(heap)
        free = sum(count for count in self.left.values() if count > 0)
        while heap and free > 0:  # the claim with the best step takes it, and says its next one
            lower, _, turn, (_, kind, count, worth) = heap[0]
            claim = claims[turn]
            if self._room(claim, kind) >= count:
                self._give(claim, kind, count, worth)
                free -= count
                if free <= 0:
                    break
            if (step := self._step(claim)) is not None:
                heapreplace(heap, (lower, -step[0], turn, step))
            else:
                heappop(heap)
        return {claim.job.id: claim.given for claim in claims if self._changes(claim)}

    # ------------------------------------------------------------------------------------ steps

    def _room(self, claim: Claim, kind: str) -> int:
        """Devices of a type that it could get, as far as its maximum, the cluster and its tenant's quota go."""
        room, left = claim.most - claim.count, self.left.get(kind, 0)
        if left < room:
            room = left
        return min(room, self.quota.get(claim.job.needs.tenant, room)) if self.quota else room

    def _give(self, claim: Claim, kind: str, count: int, worth: float) -> None:
        """So many more. `worth`: of all that it then holds."""
        self.left[kind] -= count
        claim.given[kind] = claim.given.get(kind, 0) + count
        claim.count += count
        claim.worth = worth
        if self.quota and claim.job.needs.tenant in self.quota:
            self.quota[claim.job.needs.tenant] -= count

    def _step(self, claim: Claim) -> Step | None:
        """Its best next step with the devices that are left."""
        if claim.count >= claim.most:
            return None
        curves, given = claim.standing.curves, claim.given
        if not given and len(curves) > 1:
            steps = [step for kind in curves if (step := self._along(claim, kind)) is not None]
            return max(steps) if steps else None
        if len(given) <= 1:
            for kind in given or curves:
                step = self._along(claim, kind)
                if step is not None or not claim.standing.mixes:
                    return step
        return self._mix(claim) if claim.standing.mixes else None

    def _along(self, claim: Claim, kind: str) -> Step | None:
        """A start on a type, or more of the one type that it has."""
        room = self._room(claim, kind)
        if room <= 0:
            return None
        if claim.most == 1:
            return self._only(claim, kind)
        curve, given, held = claim.standing.curves[kind], claim.count, claim.job.devices
        rates, left, rest = curve.rates, claim.left, claim.rest
        same = held.get(kind, 0) if len(held) == 1 else 0
        pause, haste, base = claim.pause, self._haste if held else 0.0, claim.worth
        best, at, after, floor = 0.0, 0, 0.0, 1e-9 * rates[curve.peak]
        for count in curve.counts(given, claim.least, given + room, same):
            rate = rates[count]
            if count == same:
                worth = rate / (1.0 + rest * rate / left)
            else:
                share = rate / left
                worth = rate / (1.0 + pause * (share if share > haste else haste))
            gain = (worth - base) / (count - given)
            if gain > floor and gain >= best * (1.0 - 1e-9):
                best, at, after = gain, count, worth
        if not at:
            return None
        return best * claim.weight * (1.0 + STAY if same and not given else 1.0), kind, at - given, after

    def _only(self, claim: Claim, kind: str) -> Step | None:
        """The start of a job that can use one device, as most do."""
        worth = self._worth(claim, {kind: 1}, claim.standing.curves[kind].rates[1])
        stay = 1.0 + STAY if kind in claim.job.devices else 1.0
        return worth * claim.weight * stay, kind, 1, worth

    def _mix(self, claim: Claim) -> Step | None:
        """More of any type when its own has run out: a job at level D2 may hold several."""
        job, given, now = claim.job, claim.given, claim.worth
        best: Step | None = None
        for kind in claim.standing.curves:
            room, held = self._room(claim, kind), job.devices.get(kind, 0) - given.get(kind, 0)
            for count in {*(n for n in MIXES if n <= room), room, min(room, held)}:
                if count <= 0:
                    continue
                devices = plus(given, {kind: count})
                worth = self._worth(claim, devices, job.speed.rate(devices))
                if worth - now <= 1e-9 * now:
                    continue
                step = (worth - now) / count * claim.weight, kind, count, worth
                if best is None or step > best:
                    best = step
        return best

    # ------------------------------------------------------------------------------------ what comes out

    def wants(self, claim: Claim) -> dict[str, float]:
        """What a device more is worth to it, about, by the types of which it can use more; negative: most first."""
        if claim.count >= claim.most:
            return {}
        given, now, found = claim.given, claim.worth, dict[str, float]()
        for kind, curve in claim.standing.curves.items():
            peak = min(curve.peak, claim.most)
            if peak > claim.count and (not given or kind in given or claim.standing.mixes):
                gain = self._worth(claim, {kind: peak}, curve.rates[peak]) - now
                if gain > 1e-9 * now:
                    found[kind] = -gain / (peak - claim.count) * claim.weight
        return found

    def holds(self, claim: Claim) -> float:
        """What a device less would cost it, about; 0.0: it has none."""
        return claim.worth / claim.count * claim.weight if claim.count else 0.0

    def _changes(self, claim: Claim) -> bool:
        """Not if it would change for its own good, and that does not pay, and it can stay as it is."""
        job, new = claim.job, claim.given
        if new == job.devices:
            return False
        if not new or not job.devices or (before := job.rate()) <= 0.0:
            return True
        return claim.worth > self._worth(claim, job.devices, before) or not self._keep(claim)

    def _keep(self, claim: Claim) -> bool:
        job, new = claim.job, claim.given
        held = total(job.devices)
        more = held - claim.count
        if not claim.least <= held <= claim.most or more > self.quota.get(job.needs.tenant, more):
            return False
        if any(self.left.get(kind, 0) + new.get(kind, 0) < count for kind, count in job.devices.items()):
            return False
        for kind in list(new):
            self._give(claim, kind, -new[kind], 0.0)
        for kind, count in job.devices.items():
            self._give(claim, kind, count, 0.0)
        claim.worth = self._worth(claim, new, self._rate(claim, new))
        return True
