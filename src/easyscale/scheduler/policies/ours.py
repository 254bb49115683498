"""`easyscale`: shares by worth, with live switches. Objective: average JCT, with a floor of fairness and no starvation.

Ours. What a switch costs is the only reason not to change: the bits are the same on any devices. So at each event all
may shrink, grow or move, each switch is charged what it was measured to cost, and the next devices go to whoever makes
most of them (`scheduler.shares`). Related: SRPT; heSRPT (Berg et al., 2020) for concave speed-ups; Optimus and AFS,
which weigh remaining time otherwise; Sia's restart factor. The floor is finish-time fairness of Themis (NSDI'20): rho
is the time from submission to the expected end over the time that the job would take alone, times the contention of its
stay. Who is beyond `floor` gets the fewest devices that it runs on, out of at most a part `lane` of the cluster: always
the oldest of them, then the worst. Since rho of a job that waits grows without bound, each is the oldest one day: none
starves. Priority goes before fairness.

It scales because it looks at few: jobs with news; those that would gain most from what is free; and, where a job with
news wants more than that, those that would lose least. Who they are is kept from decision to decision. With up to
`small` jobs it looks at all each time; with more of them, and a crowd, once in many decisions.
"""

from __future__ import annotations

from collections.abc import Iterable

from easyscale.core.cluster import Devices, total
from easyscale.scheduler.fairness import Contention
from easyscale.scheduler.policy import Delta
from easyscale.scheduler.shares import Claim, Shares, Terms
from easyscale.scheduler.standby import Ranking
from easyscale.scheduler.standing import Standings
from easyscale.scheduler.state import Cluster, Job

PATIENCE = 3600.0  # s; so long at most nobody looks while a job wants more
ROUNDS = 3  # looks at more jobs while devices are left that somebody could use


class EasyScale:
    name = "easyscale"

    def __init__(
        self, *, interval: float = 0.0, power: float = 0.5, payback: float = 2.0, floor: float = 4.0,
        lane: float = 0.25, look: int = 8, small: int = 64,
    ) -> None:  # fmt: skip
        self.interval = interval
        self._terms = Terms(power=power, payback=payback)
        self._floor, self._lane, self._look, self._small = floor, lane, look, small
        self._standings = Standings()
        self._contention = Contention()
        self._hungry = Ranking()  # who would gain from more, most first
        self._holders = Ranking()  # who would lose least by less, first
        self._since_all = 0
        self._last = 0.0
        self._idle: Devices = {}  # what nobody could use after the last decision
        # as of the last look at all:
        self._overdue: dict[str, int] = {}  # who is beyond the floor, and whose turn is first
        self._horizon: float | None = None
        self._capacity: dict[str, int] = {}

    def next_look(self, cluster: Cluster) -> float | None:
        return self._last + PATIENCE if self._hungry.anyone(cluster.jobs) else None

    def decide(self, cluster: Cluster) -> Delta:
        self._contention.pass_to(cluster)
        self._standings.begin(cluster)
        self._last = cluster.now
        self._since_all += 1
        if self._must_see_all(cluster):
            return self._all(cluster)
        names, free = dict(cluster.touched), cluster.free()
        self._add_holders(cluster, names, free)
        for turn in range(ROUNDS):
            some = len(names)
            self._add_hungry(cluster, names, free, self._look << 2 * turn)
            if len(names) == some and (turn or not names):
                break
            shares = self._shares(cluster, (cluster.jobs[name] for name in names))
            changes = shares.run()
            free = {kind: count for kind, count in shares.left.items() if count > 0}
        if not names:
            return Delta({})
        self._idle = free
        self._rank(shares.claims, shares)
        return Delta(changes)

    # ------------------------------------------------------------------------------------ a look at few

    def _must_see_all(self, cluster: Cluster) -> bool:
        if len(cluster.priorities) > 1 or cluster.capacity != self._capacity or cluster.over() or cluster.over_quota():
            return True
        jobs = len(cluster.jobs)
        if jobs <= self._small:
            return True
        return self._since_all > min(2 * (jobs / self._small) ** 3, jobs) and self._hungry.anyone(cluster.jobs)

    def _add_holders(self, cluster: Cluster, names: dict[str, None], free: Devices) -> None:
        """For those with news: who would have to give, if there is not enough for them."""
        wanted: dict[str, int] = {}
        for name in names:
            job = cluster.jobs[name]
            more = job.most - total(job.devices)
            for kind in self._standings.of(cluster, job).curves if more > 0 else ():
                wanted[kind] = wanted.get(kind, 0) + more
        for kind, count in wanted.items():
            more = min(count, cluster.capacity.get(kind, 0)) - free.get(kind, 0)
            if more > 0:
                for place, name in enumerate(self._holders.some(kind, cluster.jobs), 1):
                    names[name] = None
                    more -= cluster.jobs[name].devices.get(kind, 0)
                    if more <= 0 or place >= self._look:
                        break

    def _add_hungry(self, cluster: Cluster, names: dict[str, None], free: Devices, look: int) -> None:
        """Who would use what is free, if that is more than what nobody could use last time."""
        for kind, count in free.items():
            if count <= self._idle.get(kind, 0):
                continue
            left = count
            for place, name in enumerate(self._hungry.some(kind, cluster.jobs), 1):
                job = cluster.jobs[name]
                left -= job.most - total(job.devices)
                names[name] = None
                if left <= 0 or place >= look:
                    break

    # ------------------------------------------------------------------------------------ a look at all

    def _all(self, cluster: Cluster) -> Delta:
        self._standings.forget_some(cluster)
        self._contention.forget_all_but(cluster.jobs)
        self._horizon = None
        shares = self._shares(cluster, cluster.jobs.values())
        changes = shares.run()
        self._horizon = shares.horizon
        self._idle = {kind: count for kind, count in shares.left.items() if count > 0}
        self._hungry.put_all((claim.job.id, shares.wants(claim)) for claim in shares.claims)
        self._holders.put_all((claim.job.id, self._loses(claim, shares)) for claim in shares.claims)
        self._capacity = dict(cluster.capacity)
        self._since_all = 0
        return Delta(changes)

    def _shares(self, cluster: Cluster, jobs: Iterable[Job]) -> Shares:
        shares = Shares(cluster, list(jobs), self._standings, self._terms, self._horizon)
        if self._horizon is None:
            self._overdue = self._find_overdue(cluster, shares.claims)
        if self._overdue:
            shares.first(self._overdue)
        return shares

    def _rank(self, claims: Iterable[Claim], shares: Shares) -> None:
        for claim in claims:
            self._hungry.put(claim.job.id, shares.wants(claim))
            self._holders.put(claim.job.id, self._loses(claim, shares))

    def _loses(self, claim: Claim, shares: Shares) -> dict[str, float]:
        if claim.job.id in self._overdue:
            return {}
        return dict.fromkeys(claim.given, shares.holds(claim))

    def _find_overdue(self, cluster: Cluster, claims: list[Claim]) -> dict[str, int]:
        """Whoever is beyond the floor, as far as the lane goes: always the oldest, so that each has its turn."""
        highest = max(cluster.priorities, default=0)  # priority goes before fairness
        rhos = [
            (self._contention.rho(claim.job, claim.left, claim.standing.alone), claim.job)
            for claim in claims
            if claim.standing.best > 0.0 and claim.job.needs.priority == highest
        ]
        beyond = [pair for pair in rhos if pair[0] > self._floor]
        beyond = beyond[:1] + sorted(beyond[1:], key=lambda pair: -pair[0])
        lane, found = self._lane * total(cluster.capacity), dict[str, int]()
        for _, job in beyond:
            if job.needs.least <= lane or not found:
                lane -= job.needs.least
                found[job.id] = len(found)
        return found
