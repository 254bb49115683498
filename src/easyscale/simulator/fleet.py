"""Many simulations at once: policies times seeds, each in a process of the pool, or one after the other here.

What goes to a process are names and numbers: it reads the trace itself, once.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from easyscale.core.cluster import parse_devices
from easyscale.scheduler.policies import make
from easyscale.simulator.clusters import ClusterSpec, Coming
from easyscale.simulator.engine import simulate
from easyscale.simulator.fits import Misfits, check_fits, fitting
from easyscale.simulator.options import Options
from easyscale.simulator.readers import read
from easyscale.simulator.result import Result
from easyscale.simulator.serving import DAY, Service, diurnal
from easyscale.simulator.sheets import read_comings, read_demand
from easyscale.simulator.workload import Workload

Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A workload and a cluster by name, as a process can make them for itself."""

    trace: str
    cluster: str
    format: str | None = None
    reading: Pairs = ()  # options of the reader
    limit_jobs: int | None = None
    misfits: Misfits = "refuse"
    per_node: int = 8
    comings: str | None = None  # a file
    serving: str | None = None  # devices of a service, like `cluster`
    demand: str = "diurnal"  # or a file
    headroom: int = 1
    give_back: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One simulation of a fleet. `label` is the policy as the user wrote it."""

    label: str
    policy: str
    settings: Pairs
    options: Options


Progress = Callable[[str, int, int], None]  # label, seed, jobs finished


@lru_cache(maxsize=2)
def prepare(setup: Setup) -> tuple[Workload, ClusterSpec, int]:
    """The workload, the cluster, and how many jobs were left out or cut because they cannot fit."""
    spec = ClusterSpec.parse(setup.cluster, per_node=setup.per_node)
    if setup.serving is not None:
        owned = parse_devices(setup.serving)
        curve, period = (diurnal(owned), DAY) if setup.demand == "diurnal" else read_demand(Path(setup.demand), owned)
        service = Service(owned=owned, demand=curve, headroom=setup.headroom, limit=setup.give_back, period=period)
        spec = spec.with_service(service, setup.per_node)
    if setup.comings is not None:
        rows = read_comings(Path(setup.comings), spec.kinds)
        spec = spec.with_comings(Coming(time=time, kind=kind, change=change) for time, kind, change in rows)
    workload = read(setup.trace, format=setup.format, **dict(setup.reading))
    if setup.limit_jobs is not None:
        workload = replace(workload, arrivals=workload.arrivals[: setup.limit_jobs])
    workload, misfits = fitting(workload, spec, setup.misfits)
    check_fits(workload, spec)
    return workload, spec, misfits


def run(setup: Setup, task: Task, report: Progress) -> Result:
    workload, spec, _ = prepare(setup)
    seed = task.options.seed
    result = simulate(
        workload, spec, make(task.policy, **dict(task.settings)), task.options,
        report=lambda finished, now: report(task.label, seed, finished),
    )  # fmt: skip
    result.policy = task.label
    report(task.label, seed, len(workload.arrivals))
    return result


def run_all(setup: Setup, tasks: Sequence[Task], processes: int, report: Progress) -> Iterator[tuple[Task, Result]]:
    """Each result as it comes; in the order of the tasks with one process."""
    if processes <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, run(setup, task, report)
        return
    context = get_context("spawn")
    messages: Any = context.Queue()
    pool = ProcessPoolExecutor(
        min(processes, len(tasks)), mp_context=context, initializer=_listen, initargs=(messages,)
    )
    try:
        waiting: dict[Future[Result], Task] = {pool.submit(_run_apart, setup, task): task for task in tasks}
        while waiting:
            done, _ = wait_for(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
            _pass_on(messages, report)
            for future in done:
                yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_messages: Any = None  # of this process, to the one that shows progress


def _listen(messages: Any) -> None:
    global _messages
    _messages = messages


def _run_apart(setup: Setup, task: Task) -> Result:
    return run(setup, task, lambda *what: _messages.put(what))


def _pass_on(messages: Any, report: Progress) -> None:
    while True:
        try:
            report(*messages.get_nowait())
        except queue.Empty:
            return
