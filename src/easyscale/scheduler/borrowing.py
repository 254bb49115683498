"""Quotas with borrowing: what each tenant may hold now, so that no policy needs to know of lending.

A tenant that wants less than its quota leaves the rest to others; what is left of the cluster after everyone's
entitled wants is shared among those who want more and may borrow, in proportion to their quotas. When a lender wants
its own again, its entitled wants grow, the borrowers' limits fall, and the next decision takes the devices back: by a
switch, which costs a training job seconds and no accuracy.
"""

from __future__ import annotations

import heapq

from easyscale.core.cluster import total
from easyscale.scheduler.state import Cluster


def lend_idle(cluster: Cluster) -> dict[str, int]:
    """The most devices of each tenant that has a quota."""
    wants: dict[str, int] = {}
    for job in cluster.jobs.values():
        tenant = job.needs.tenant
        wants[tenant] = wants.get(tenant, 0) + job.most
    limits = {tenant: quota for tenant, (quota, _) in cluster.entitled.items()}
    spoken_for = sum(min(want, limits.get(tenant, want)) for tenant, want in wants.items())
    idle = total(cluster.capacity) - spoken_for
    line = [
        (1.0 / (1 + quota), tenant, wants[tenant] - quota)
        for tenant, (quota, borrow) in cluster.entitled.items()
        if borrow and wants.get(tenant, 0) > quota
    ]  # by what one device more would be against its quota
    heapq.heapify(line)
    while idle > 0 and line:
        _, tenant, more = heapq.heappop(line)
        limits[tenant] += 1
        idle -= 1
        if more > 1:
            quota = cluster.entitled[tenant][0]
            heapq.heappush(line, ((limits[tenant] - quota + 1) / (1 + quota), tenant, more - 1))
    return limits
