"""`sia`: the best configuration for each job, by an integer program. Objective: goodput of all, with fairness.

Source: Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP'23. A configuration
is a number of devices of one type: powers of two within a machine, whole machines beyond. Each job's speeds are divided
by its least one, raised to the power `fairness` (negative: the program then minimises), and multiplied by a restart
factor where the configuration is not the present one: (age - restarts x cost) / (age + cost). A job without devices
pays `penalty`. HiGHS solves it each round. A job begins with its least and at most doubles a round, as published. The
batch is fixed here, so goodput is speed. Ties and gaps: jobs that wait while their least is idle are started after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from easyscale.core.cluster import total
from easyscale.scheduler.curves import Curves
from easyscale.scheduler.ledger import Ledger, by_priority, kinds_for
from easyscale.scheduler.policies.optimus import start_least
from easyscale.scheduler.policies.quiet import quiet
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


@dataclass(frozen=True, slots=True)
class _Choice:
    job: Job
    kind: str
    count: int
    cost: float  # to be minimised


class Sia:
    name = "sia"

    def __init__(
        self, *, interval: float = 60.0, fairness: float = -0.5, penalty: float = 1.1, gap: float = 1e-3
    ) -> None:
        self.interval = interval
        self._fairness, self._penalty, self._gap = fairness, penalty, gap
        self._curves = Curves()

    def decide(self, cluster: Cluster) -> Wanted:
        self._curves.forget_all_but(cluster.jobs.values(), len(cluster.jobs))
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            choices = [choice for job in jobs for choice in self._choices(ledger, job)]
            for choice in self._solve(ledger, choices):
                if ledger.fits(choice.job, {choice.kind: choice.count}):
                    ledger.give(choice.job, {choice.kind: choice.count})
            start_least(ledger, [job for job in jobs if not ledger.given(job)])
        return ledger.wanted

    def _choices(self, ledger: Ledger, job: Job) -> list[_Choice]:
        cluster = ledger.cluster
        held = total(job.devices)
        most = min(job.most, 2 * held) if held >= job.needs.least else job.needs.least
        found = [
            (kind, count, rate)
            for kind in kinds_for(cluster, job)
            for count in _sizes(job.needs.least, min(most, cluster.capacity.get(kind, 0)), cluster.kinds[kind].per_node)
            if (rate := self._curves.of(job, kind)[count]) > 0.0
        ]
        if not found:
            return []
        least = min(rate for _, _, rate in found)
        factor = _restart_factor(cluster, job)
        scale = 1.0 if self._fairness > 0 else -1.0
        choices = []
        for kind, count, rate in found:
            value = rate / least * (1.0 if not held or job.devices == {kind: count} else factor)
            worth = scale * float(max(value, 1e-3) ** self._fairness)
            choices.append(_Choice(job, kind, count, -worth - self._penalty))
        return choices

    def _solve(self, ledger: Ledger, choices: list[_Choice]) -> list[_Choice]:
        """One choice a job at most, devices and quotas kept."""
        if not choices:
            return []
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows: dict[tuple[str, str], int] = {}
        limits: list[float] = []
        entries: list[tuple[int, int, float]] = []

        def enter(row: tuple[str, str], limit: float, column: int, value: float) -> None:
            if row not in rows:
                rows[row] = len(limits)
                limits.append(limit)
            entries.append((rows[row], column, value))

        for column, choice in enumerate(choices):
            tenant = choice.job.needs.tenant
            enter(("job", choice.job.id), 1.0, column, 1.0)
            enter(("kind", choice.kind), float(ledger.left.get(choice.kind, 0)), column, choice.count)
            if tenant in ledger.quota:
                enter(("tenant", tenant), float(ledger.quota[tenant]), column, choice.count)
        at, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (at, columns)), shape=(len(limits), len(choices)))
        with quiet():
            found = milp(
                np.array([choice.cost for choice in choices]),
                constraints=LinearConstraint(matrix, ub=np.array(limits)),
                integrality=np.ones(len(choices)),
                bounds=Bounds(0, 1),
                options={"mip_rel_gap": self._gap},
            )
        assert found.x is not None, found.message
        return [choice for choice, taken in zip(choices, found.x, strict=True) if taken > 0.5]


def _sizes(least: int, most: int, per_node: int) -> list[int]:
    """The least; powers of two within a machine; whole machines."""
    sizes = {least, *(1 << power for power in range(per_node.bit_length())), *range(per_node, most + 1, per_node)}
    return sorted(size for size in sizes if least <= size <= most)


def _restart_factor(cluster: Cluster, job: Job) -> float:
    age, cost = max(cluster.now - job.submitted, 1e-9), job.switch_seconds
    return max(0.0, (age - job.switches * cost) / (age + cost))
