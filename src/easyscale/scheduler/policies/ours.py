"""`easyscale`: shares by worth, with live switches. Objective: average JCT, with a floor of fairness and no starvation.

Ours. What a switch costs is the only reason not to change: the bits are the same on any devices. So at each event all
may shrink, grow or move, each switch is charged what it was measured to cost, and the next devices go to whoever makes
most of them (`scheduler.shares`). Related: SRPT; heSRPT (Berg et al., 2020) for concave speed-ups; Optimus and AFS,
which weigh remaining time otherwise; Sia's restart factor. The floor is finish-time fairness of Themis (NSDI'20): rho
is the time from submission to the expected end over the time that the job would take alone, times the contention of its
stay. Who is beyond `floor` gets the fewest devices that it runs on, out of at most a part `lane` of the cluster: always
the oldest of them, then the worst. Since rho of a job that waits grows without bound, each is the oldest one day: none
starves. Priority goes before fairness.

It scales because it looks at few: jobs with news, the `look` jobs that would gain most and those that would lose least,
by the last look at all. That is every time with up to `small` jobs, more and more seldom with more of them, and never
while nobody wants more than it has and they are many.
"""

from __future__ import annotations

from itertools import islice

from easyscale.core.cluster import total
from easyscale.scheduler.fairness import Contention
from easyscale.scheduler.policy import Delta
from easyscale.scheduler.shares import Claim, Shares, Terms
from easyscale.scheduler.standing import Standings
from easyscale.scheduler.state import Cluster, Job

PATIENCE = 3600.0  # s; so long at most nobody looks while a job wants more


class EasyScale:
    name = "easyscale"

    def __init__(
        self, *, interval: float = 0.0, power: float = 0.5, payback: float = 1.0, floor: float = 4.0,
        lane: float = 0.25, look: int = 8, small: int = 64,
    ) -> None:  # fmt: skip
        self.interval = interval
        self._terms = Terms(power=power, payback=payback)
        self._floor, self._lane, self._look, self._small = floor, lane, look, small
        self._standings = Standings()
        self._contention = Contention()
        self._since_all = 0
        self._last = 0.0
        # as of the last look at all:
        self._hungry: list[str] = []  # who would gain from more, most first
        self._holders: list[str] = []  # who would lose least by less, first
        self._overdue: dict[str, None] = {}  # who is beyond the floor
        self._idle: dict[str, int] = {}  # what nobody could use
        self._capacity: dict[str, int] = {}
        # since then:
        self._news: dict[str, None] = {}  # who came and would gain from more

    def next_look(self, cluster: Cluster) -> float | None:
        return self._last + PATIENCE if self._hungry or self._news else None

    def decide(self, cluster: Cluster) -> Delta:
        self._contention.pass_to(cluster)
        self._standings.begin(cluster)
        self._last = cluster.now
        self._since_all += 1
        jobs = self._few(cluster)
        if jobs is None:
            return self._all(cluster)
        if not jobs:
            return Delta({})
        shares = Shares(cluster, jobs, self._standings, self._terms)
        if self._overdue:
            shares.first(self._overdue)
        changes = shares.run()
        self._news |= {claim.job.id: None for claim in shares.claims if shares.wants(claim) > 0.0}
        if (self._hungry or self._news) and any(n > self._idle.get(k, 0) for k, n in shares.left.items()):
            return self._all(cluster)  # there is more to give than those few could take
        return Delta(changes)

    def _few(self, cluster: Cluster) -> list[Job] | None:
        """The jobs to look at; None: all."""
        crowded = self._hungry or self._news
        due = self._since_all > (len(cluster.jobs) / self._small) ** 2 or len(self._news) > 4 * self._look
        if due and (crowded or len(cluster.jobs) <= self._small):
            return None
        if len(cluster.priorities) > 1 or cluster.capacity != self._capacity or cluster.over():
            return None
        names = dict.fromkeys(cluster.touched)
        if crowded or not cluster.free():
            for some in (self._news, self._hungry, self._holders):
                names |= dict.fromkeys(islice((name for name in some if name in cluster.jobs), self._look))
        return [cluster.jobs[name] for name in names]

    def _all(self, cluster: Cluster) -> Delta:
        self._standings.forget_all_but(cluster)
        self._contention.forget_all_but(cluster.jobs)
        shares = Shares(cluster, list(cluster.jobs.values()), self._standings, self._terms)
        self._overdue = self._find_overdue(cluster, shares.claims)
        if self._overdue:
            shares.first(self._overdue)
        changes = shares.run()
        wants = [(worth, claim.job.id) for claim in shares.claims if (worth := shares.wants(claim)) > 0.0]
        holds = [
            (worth, claim.job.id)
            for claim in shares.claims
            if (worth := shares.holds(claim)) > 0.0 and claim.job.id not in self._overdue
        ]
        self._hungry = [name for _, name in sorted(wants, key=lambda pair: -pair[0])]
        self._holders = [name for _, name in sorted(holds, key=lambda pair: pair[0])]
        self._idle = {kind: count for kind, count in shares.left.items() if count > 0}
        self._capacity = dict(cluster.capacity)
        self._news = {}
        self._since_all = 0
        return Delta(changes)

    def _find_overdue(self, cluster: Cluster, claims: list[Claim]) -> dict[str, None]:
        """Whoever is beyond the floor, as far as the lane goes: always the oldest, so that each has its turn."""
        highest = max(cluster.priorities, default=0)  # priority goes before fairness
        rhos = [
            (self._contention.rho(claim.job, claim.left, claim.standing.alone), claim.job)
            for claim in claims
            if claim.standing.best > 0.0 and claim.job.needs.priority == highest
        ]
        beyond = [pair for pair in rhos if pair[0] > self._floor]
        beyond = beyond[:1] + sorted(beyond[1:], key=lambda pair: -pair[0])
        lane, found = self._lane * total(cluster.capacity), dict[str, None]()
        for _, job in beyond:
            if job.needs.least <= lane or not found:
                lane -= job.needs.least
                found[job.id] = None
        return found
