"""What if another policy ruled: the simulator, from the present queue on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from easyscale.core.cluster import DeviceKind
from easyscale.core.errors import UsageError
from easyscale.scheduler.policies import make
from easyscale.scheduler.state import Job
from easyscale.service.errors import ConflictError
from easyscale.service.models import Comparison, PolicyFigures
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.engine import simulate
from easyscale.simulator.fits import check_fits
from easyscale.simulator.metrics import figures
from easyscale.simulator.options import Options
from easyscale.simulator.workload import Arrival, Workload

MOST_JOBS = 2000  # the first of a longer queue, so that an answer comes while somebody waits for it
GUESS = 600.0  # seconds on the devices that it asks for, of a job that has not said how long it is


def compare(
    jobs: Sequence[tuple[Job, float | None]],
    capacity: Mapping[str, int],
    kinds: Mapping[str, DeviceKind],
    policies: Sequence[str],
) -> Comparison:
    """All jobs come now, with the work that is left; devices stay as they are."""
    if not jobs or not capacity:
        raise ConflictError(
            "There is nothing to compare.", "no job waits or runs, or no device is there.", "submit jobs first."
        )
    spec = ClusterSpec(kinds={kind: kinds[kind] for kind in capacity}, counts=dict(capacity))
    guessed, arrivals, misfits = 0, list[Arrival](), 0
    for job, left in jobs[:MOST_JOBS]:
        arrival, guess = _arrival(job, left, capacity)
        try:
            if arrival is None:
                raise UsageError("It cannot run here.")
            check_fits(Workload(name="now", arrivals=(arrival,)), spec)
        except UsageError:
            misfits += 1
            continue
        arrivals.append(arrival)
        guessed += guess
    if not arrivals:
        raise ConflictError(
            "There is nothing to compare.", "no job that waits fits the devices that are there.", "add devices."
        )
    workload = Workload(name="now", arrivals=tuple(arrivals))
    found = []
    for policy in policies:
        one = figures(simulate(workload, spec, make(policy), Options()))
        found.append(PolicyFigures(
            policy=policy, jct=one.jct, median_jct=one.jct_median, makespan=one.makespan, utilization=one.utilization,
            switches=one.switches,
        ))  # fmt: skip
    return Comparison(jobs=len(arrivals), figures=found, note=_note(guessed, misfits, len(jobs)))


def _arrival(job: Job, left: float | None, capacity: Mapping[str, int]) -> tuple[Arrival | None, bool]:
    mine = {kind: min(job.asked, count) for kind, count in capacity.items() if job.needs.allows(kind)}
    best = max((job.speed.rate({kind: count}) for kind, count in mine.items()), default=0.0)
    if best <= 0.0:
        return None, False
    work = best * GUESS if left is None else max(left, 1.0)
    return Arrival(
        name=job.id, time=0.0, needs=job.needs, speed=job.speed, work=work, requested=job.asked, kind=job.kind
    ), left is None  # fmt: skip


def _note(guessed: int, misfits: int, jobs: int) -> str:
    parts = ["All jobs come at once, with the work that is left; devices stay as they are."]
    if guessed:
        parts.append(f"{guessed} have not said how long they are, and count as {GUESS / 60:.0f} minutes.")
    if misfits:
        parts.append(f"{misfits} do not fit the devices that are there, and are left out.")
    if jobs > MOST_JOBS:
        parts.append(f"Of {jobs} jobs the first {MOST_JOBS} are in it.")
    return " ".join(parts)
