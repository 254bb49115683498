"""Small workloads and policies for tests of the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from easyscale.core.cluster import Needs
from easyscale.planner.model import EstSpeed
from easyscale.scheduler.policy import Delta
from easyscale.scheduler.state import Cluster
from easyscale.simulator.clusters import ClusterSpec
from easyscale.simulator.workload import Arrival, Workload

STEP = {"v100": 0.25, "t4": 0.5}  # seconds of a local step


def job(
    name: str, time: float = 0.0, *, ests: int = 4, work: float = 100.0, requested: int | None = None, **needs: object
) -> Arrival:
    wanted = Needs(ests=ests, **needs)  # type: ignore[arg-type]
    speed = EstSpeed(ests, STEP, None, wanted.level)
    return Arrival(name=name, time=time, needs=wanted, speed=speed, work=work, requested=requested or ests, line=7)


def workload(*jobs: Arrival) -> Workload:
    return Workload(name="small.csv", arrivals=tuple(sorted(jobs, key=lambda arrival: arrival.time)))


def cluster(text: str = "v100:4") -> ClusterSpec:
    return ClusterSpec.parse(text)


class Eager:
    """Everyone in the order of submission gets as much of one type as is free and useful; nobody gives anything up."""

    name = "eager"

    def __init__(self, interval: float = 0.0) -> None:
        self.interval = interval

    def decide(self, state: Cluster) -> Delta:
        free, changed = dict(state.free()), dict[str, dict[str, int]]()
        for name, waiting in state.jobs.items():
            if waiting.devices:
                continue
            for kind, left in free.items():
                count = min(left, waiting.needs.most)
                if count >= waiting.needs.least and waiting.needs.allows(kind):
                    changed[name] = {kind: count}
                    free[kind] -= count
                    break
        return Delta(changed)


class Scripted:
    """Says at each decision what it was told to say: [(time, {job: devices})]."""

    name = "scripted"
    interval = 0.0

    def __init__(self, script: Sequence[tuple[float, dict[str, dict[str, int]]]]) -> None:
        self.script = list(script)

    def next_look(self, state: Cluster) -> float | None:
        return self.script[0][0] if self.script else None

    def decide(self, state: Cluster) -> Delta:
        wanted: dict[str, dict[str, int]] = {}
        while self.script and self.script[0][0] <= state.now:
            wanted.update(self.script.pop(0)[1])
        return Delta({name: devices for name, devices in wanted.items() if name in state.jobs})
