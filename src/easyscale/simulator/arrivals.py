"""When the jobs of a workload come under a seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from easyscale.simulator.options import Options
from easyscale.simulator.workload import Workload


def arrange(workload: Workload, options: Options) -> Iterator[tuple[float, int]]:
    """(time, index) in order of time. Seed 0 is the trace as it is; others move each arrival a little.

    A fixed trace is one sample. Moving each arrival by up to one mean gap keeps its load, sizes and daily rhythm, and
    shows how much of a difference between two policies is luck.
    """
    arrivals = workload.arrivals
    if options.seed == 0 or not arrivals:
        return ((arrival.time, index) for index, arrival in enumerate(arrivals))
    times = np.array([arrival.time for arrival in arrivals])
    gap = (times[-1] - times[0]) / max(1, len(times) - 1)
    most = gap if options.jitter is None else options.jitter
    chance = np.random.default_rng([options.seed, 1])
    moved = np.maximum(times[0], times + chance.uniform(-most, most, len(times)))
    order = np.argsort(moved, kind="stable")
    return zip(moved[order].tolist(), order.tolist(), strict=True)
