"""Rules that no decision may break, whoever made it. `check` is run on each decision by the tests and by the loop."""

from __future__ import annotations

from collections.abc import Mapping

from easyscale.core.cluster import Devices, show, total
from easyscale.core.errors import EasyScaleError
from easyscale.scheduler.ledger import asked_kinds
from easyscale.scheduler.state import Cluster, Job


class RuleBroken(EasyScaleError):
    """A policy decided what must not be: a bug in the policy, never a user's doing. `rule` names which."""

    def __init__(self, rule: str, what: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}")


def check(cluster: Cluster, wanted: Mapping[str, Devices]) -> None:
    """Raises `RuleBroken` unless this decision, carried out in full, keeps every rule."""
    for name, devices in wanted.items():
        if name not in cluster.jobs:
            raise RuleBroken("known jobs", f"{name} is not in the cluster")
        check_job(cluster, cluster.jobs[name], devices)
    given, by_tenant = dict[str, int](), dict[str, int]()
    for name, devices in wanted.items():
        tenant = cluster.jobs[name].needs.tenant
        by_tenant[tenant] = by_tenant.get(tenant, 0) + total(devices)
        for kind, count in devices.items():
            given[kind] = given.get(kind, 0) + count
    _compare(cluster, given, by_tenant)
    _check_priorities(cluster, wanted)


def check_job(cluster: Cluster, job: Job, devices: Devices) -> None:
    """The rules that concern one job alone."""
    needs, count = job.needs, total(devices)
    if min(devices.values(), default=0) < 0:
        raise RuleBroken("whole devices", f"{job.id} would hold {show(devices)}")
    if count == 0:
        return
    if needs.gang is not None and count != needs.gang:
        raise RuleBroken("gang", f"{job.id} runs on {needs.gang} devices or none, not on {count}")
    if count > needs.most:
        raise RuleBroken("maximum", f"{job.id} can use {needs.most} devices, not {count}")
    if count < needs.least:
        raise RuleBroken("minimum", f"{job.id} needs {needs.least} devices, not {count}")
    kinds = [kind for kind, n in devices.items() if n]
    if needs.level != "D2" and len(kinds) > 1:
        raise RuleBroken("one type", f"{job.id} is {needs.level} and would hold {show(devices)}")
    for kind in kinds:
        if not needs.allows(kind):
            raise RuleBroken("allowed types", f"{job.id} may not run on {kind}")
        if kind in cluster.kinds and cluster.kinds[kind].memory_gb < needs.memory_gb:
            raise RuleBroken("memory", f"{job.id} needs {needs.memory_gb} GB, {kind} has less")


def check_delta(cluster: Cluster, changed: Mapping[str, Devices]) -> None:
    """The same where few of many jobs change, in time proportional to these; the others were checked when they did."""
    if len(cluster.priorities) > 1:
        kept = {name: job.devices for name, job in cluster.jobs.items() if job.devices}
        check(cluster, {**kept, **changed})
        return
    given, by_tenant = dict(cluster.held), dict(cluster.by_tenant) if cluster.quotas else {}
    for name, devices in changed.items():
        if name not in cluster.jobs:
            raise RuleBroken("known jobs", f"{name} is not in the cluster")
        job = cluster.jobs[name]
        check_job(cluster, job, devices)
        for kind, count in job.devices.items():
            given[kind] -= count
        for kind, count in devices.items():
            given[kind] = given.get(kind, 0) + count
        if cluster.quotas:
            more = total(devices) - total(job.devices)
            by_tenant[job.needs.tenant] = by_tenant.get(job.needs.tenant, 0) + more
    _compare(cluster, given, by_tenant)


def _compare(cluster: Cluster, given: Devices, by_tenant: Mapping[str, int]) -> None:
    for kind, count in given.items():
        if count > cluster.capacity.get(kind, 0):
            raise RuleBroken("no device twice", f"{count} {kind} given, {cluster.capacity.get(kind, 0)} there")
    for tenant, quota in cluster.quotas.items():
        if by_tenant.get(tenant, 0) > quota:
            raise RuleBroken("quota", f"{tenant or 'the nameless tenant'} may hold {quota}, not {by_tenant[tenant]}")


def _check_priorities(cluster: Cluster, wanted: Mapping[str, Devices]) -> None:
    """Of each priority, the job that has waited longest does not wait for what jobs of lower priority hold.

    What it waits for is what its user asked for, of one type. Only the first in line: a policy may let others wait
    behind it. It does not count while a job of still higher priority waits, for which devices may be kept.
    """
    if len(cluster.priorities) < 2:
        return
    waiting = [job for job in cluster.jobs.values() if not total(wanted.get(job.id, {}))]
    if not waiting:
        return
    highest = max(job.needs.priority for job in waiting)
    job = next(job for job in waiting if job.needs.priority == highest)
    reach, lower = dict(cluster.capacity), dict[str, int]()
    quota = cluster.quotas.get(job.needs.tenant, 1 << 60)
    for name, devices in wanted.items():
        other = cluster.jobs[name].needs
        quota -= total(devices) if other.tenant == job.needs.tenant else 0
        for kind, count in devices.items():
            if other.priority < highest:
                lower[kind] = lower.get(kind, 0) + count
            else:
                reach[kind] -= count
    count = job.asked
    for kind in asked_kinds(cluster, job, job.asked):
        enough = count <= quota and lower.get(kind, 0) and reach.get(kind, 0) >= count
        if enough and job.speed.rate({kind: count}) > 0.0:
            raise RuleBroken("priority", f"{job.id} waits for {count} {kind} that jobs of lower priority hold")
