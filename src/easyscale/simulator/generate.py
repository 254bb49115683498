"""Workloads that were never recorded: arrivals, sizes and durations drawn from what a few figures say.

The figures can be given by hand or fitted to a trace. The same spec and seed give the same jobs.

Arrivals: a Poisson process whose rate follows the hour of the day and the day of the week; a share of its points are
bursts, in which one user submits several jobs at once. Sizes: drawn from a table. Durations: for small and large jobs
apart, a mixture of log-normal distributions, which is how the run times of the published traces look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from easyscale.simulator.generator_spec import CLASSES, FLAT_DAY, FLAT_WEEK, HOUR, GeneratorSpec, LogNormal, refuse
from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.workload import Arrival, Workload

__all__ = ["GeneratorSpec", "LogNormal", "fit", "generate", "seconds_of"]

DAY = 24 * HOUR
WEEK = 7 * DAY
BURST_SECONDS = 30.0  # jobs that follow one another this closely were submitted together


def generate(
    spec: GeneratorSpec,
    jobs: int,
    *,
    seed: int = 0,
    load: float = 1.0,
    longest: float = math.inf,
    assumptions: Assumptions | None = None,
) -> Workload:
    """So many jobs. `load`: a factor on their rate of arrival. `longest`: durations are cut there."""
    refuse(jobs < 1, f"{jobs} jobs", "a workload has at least one job")
    refuse(load <= 0, f"a load of {load:g}", "jobs arrive at a positive rate")
    random, maker = np.random.default_rng(seed), Maker(assumptions or Assumptions())
    times = _arrivals(spec, jobs, load, random)
    values = np.array([size for size, _ in spec.sizes])
    sizes = random.choice(values, size=jobs, p=_shares([share for _, share in spec.sizes]))
    seconds = np.clip(_durations(spec, sizes, random), 1.0, longest)
    tenants = _tenants(spec, jobs, random)
    make = maker.make
    arrivals = tuple(
        make(name=f"job-{place}", time=time, devices=devices, seconds=length, line=0, tenant=tenant)
        for place, (time, devices, length, tenant) in enumerate(
            zip(times.tolist(), sizes.tolist(), seconds.tolist(), tenants, strict=True)
        )
    )
    origin = f"generated, as {spec.fitted_to}" if spec.fitted_to else "generated"
    return Workload(name=f"generated-{seed}", arrivals=arrivals, origin=origin)


def _arrivals(spec: GeneratorSpec, jobs: int, load: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Ascending. Points of a Poisson process of rate 1, bent by the load of each hour."""
    extra = np.where(random.random(jobs) < spec.burst_share, random.geometric(1 / spec.burst_jobs, jobs), 1)
    points = int(np.searchsorted(np.cumsum(extra), jobs)) + 1
    extra = extra[:points]
    extra[-1] -= int(extra.sum()) - jobs
    hours = np.array([day * hour for day in spec.week for hour in spec.day])
    per_job = 1 + spec.burst_share * (spec.burst_jobs - 1)
    rates = hours / hours.mean() * (spec.jobs_per_hour * load / per_job / HOUR)
    reached = np.concatenate([[0.0], np.cumsum(rates * HOUR)])  # points that a week has brought by each hour
    at = np.cumsum(random.exponential(size=points))
    weeks, within = np.divmod(at, reached[-1])
    times = weeks * WEEK + np.interp(within, reached, np.arange(len(reached)) * HOUR)
    spread = random.uniform(0.0, BURST_SECONDS / spec.burst_jobs, jobs)
    spread[np.cumsum(extra) - extra] = 0.0
    return np.sort(np.repeat(times, extra) + spread)


def _durations(spec: GeneratorSpec, sizes: NDArray[np.int_], random: np.random.Generator) -> NDArray[np.float64]:
    normal, chosen = random.standard_normal(len(sizes)), random.random(len(sizes))
    found = np.empty(len(sizes))
    of = np.searchsorted(CLASSES, sizes)
    for place, mixture in enumerate(spec.durations):
        here = of == place
        parts = np.searchsorted(np.cumsum(_shares([part.weight for part in mixture]))[:-1], chosen[here], side="right")
        median = np.log([part.median for part in mixture])[parts]
        found[here] = np.exp(median + np.array([part.sigma for part in mixture])[parts] * normal[here])
    return found


def _tenants(spec: GeneratorSpec, jobs: int, random: np.random.Generator) -> list[str]:
    if not spec.tenants:
        return [""] * jobs
    chosen = random.choice(len(spec.tenants), size=jobs, p=_shares([share for _, share in spec.tenants]))
    return [spec.tenants[place][0] for place in chosen]


# ------------------------------------------------------------------------------------------ fitted to a trace


def fit(workload: Workload, *, parts: int = 3) -> GeneratorSpec:
    """The spec under which such jobs would come. `parts`: log-normal distributions in a mixture."""
    of = workload.arrivals
    refuse(len(of) < 2, f"{workload.name} has {len(of)} job", "figures are fitted to two jobs or more")
    times = np.array([arrival.time for arrival in of])
    span = float(times[-1] - times[0])
    refuse(span <= 0, f"all jobs of {workload.name} come at once", "arrivals are fitted to jobs that come over time")
    sizes = np.array([arrival.requested for arrival in of])
    lengths = np.log([max(1.0, seconds_of(arrival)) for arrival in of])
    share, jobs = _bursts(times)
    values, counts = np.unique(sizes, return_counts=True)
    tenants, by_tenant = np.unique([arrival.needs.tenant for arrival in of], return_counts=True)
    classes = np.searchsorted(CLASSES, sizes)
    return GeneratorSpec(
        jobs_per_hour=len(of) / span * HOUR,
        day=_cycle(times, HOUR, 24) if span >= 2 * DAY else FLAT_DAY,
        week=_cycle(times, DAY, 7) if span >= 2 * WEEK else FLAT_WEEK,
        burst_share=share,
        burst_jobs=jobs,
        sizes=tuple((int(size), int(count) / len(of)) for size, count in zip(values, counts, strict=True)),
        durations=tuple(
            _mixture(lengths[classes == place] if np.any(classes == place) else lengths, parts)
            for place in range(len(CLASSES) + 1)
        ),
        tenants=tuple((str(name), int(count) / len(of)) for name, count in zip(tenants, by_tenant, strict=True))
        if len(tenants) > 1
        else (),
        fitted_to=workload.origin or workload.name,
    )


def seconds_of(arrival: Arrival) -> float:
    """How long it takes on what its user asked for; as recorded, where it was."""
    if arrival.past is not None and arrival.past.seconds is not None:
        return arrival.past.seconds
    rate = arrival.speed.rate({arrival.kind: arrival.requested})
    return arrival.work / rate if rate else math.nan


def _bursts(times: NDArray[np.float64]) -> tuple[float, float]:
    """Share of submissions that are bursts, and the jobs of one: by how much closer jobs are than chance has it."""
    near = min(BURST_SECONDS, 0.2 * float(times[-1] - times[0]) / len(times))  # busy clusters: nearer, or all is one
    together = np.diff(times) < near
    starts = np.flatnonzero(np.concatenate([[True], ~together]))
    jobs = np.diff(np.concatenate([starts, [len(times)]]))
    seen = rate = len(starts) / float(times[-1] - times[0])
    for _ in range(5):  # what chance puts together is not seen as a start
        chance = -math.expm1(-near * rate)
        rate = seen / (1.0 - chance)
    burst = jobs >= 2
    share = max(0.0, float(np.mean(burst)) - chance)
    return (share, max(1.0, float(np.mean(jobs[burst])))) if share > 0 else (0.0, 1.0)


def _cycle(times: NDArray[np.float64], unit: float, length: int) -> tuple[float, ...]:
    """Jobs by hour of the day, or by day of the week, against the mean. Only whole cycles count."""
    whole = times[times < times[0] + (times[-1] - times[0]) // (unit * length) * unit * length]
    counts = np.bincount((whole // unit).astype(int) % length, minlength=length)
    return tuple(round(float(count), 4) for count in counts / counts.mean())


def _mixture(logs: NDArray[np.float64], parts: int, rounds: int = 60) -> tuple[LogNormal, ...]:
    """Expectation maximisation, started at the quantiles so that it always ends at the same figures."""
    parts = max(1, min(parts, len(logs) // 10))
    means = np.quantile(logs, (np.arange(parts) + 0.5) / parts)
    sigmas = np.full(parts, max(float(np.std(logs)) / parts, 0.05))
    weights = np.full(parts, 1.0 / parts)
    for _ in range(rounds):
        # the factor that all have in common is left out
        distance = (logs[:, None] - means) / sigmas
        likely = weights / sigmas * np.exp(-0.5 * (distance**2 - np.min(distance**2, axis=1, keepdims=True)))
        belongs = likely / likely.sum(axis=1, keepdims=True)
        held = np.maximum(belongs.sum(axis=0), 1e-9)
        weights, means = held / len(logs), (belongs * logs[:, None]).sum(axis=0) / held
        sigmas = np.maximum(np.sqrt((belongs * (logs[:, None] - means) ** 2).sum(axis=0) / held), 0.05)
    return tuple(
        LogNormal(weight=round(float(weight), 6), median=round(math.exp(mean), 3), sigma=round(float(sigma), 4))
        for weight, mean, sigma in sorted(zip(weights, means, sigmas, strict=True), key=lambda part: float(part[1]))
    )


def _shares(values: Sequence[float]) -> NDArray[np.float64]:
    found = np.array(values, dtype=float)
    return np.asarray(found / found.sum())
