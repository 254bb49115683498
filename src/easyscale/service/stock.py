"""Which devices there are: what is known compared with what the fleet finds, and what jobs could use beside that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from easyscale.core.cluster import total
from easyscale.scheduler.state import Cluster
from easyscale.service.devices import Found
from easyscale.service.ports import Fleet
from easyscale.service.records import News
from easyscale.service.state import State

logger = logging.getLogger(__name__)
LOOK_SECONDS = 3.0
Note = Callable[..., News]


def compare(state: State, devices: Sequence[Found], note: Note, why: str) -> list[News]:
    """New ones, ones that are gone, ones that are there again; not what someone said by hand."""
    known, here = state.devices, {found.slot.id: found for found in devices}
    news = [
        note(
            "device-added", id=name, kind=found.slot.kind, node=found.slot.node, memory_gb=found.memory_gb,
            uuid=found.slot.uuid,
        )
        for name, found in here.items()
        if name not in known
    ]  # fmt: skip
    for name, device in known.items():
        if name not in here and device.standing != "lost":
            news.append(note("device-lost", id=name, why=why))
        elif name in here and device.standing == "lost" and not device.by_hand:
            news.append(note("device-found", id=name, why="it is there again"))
    return news


def hunger(cluster: Cluster) -> dict[str, int]:
    """Devices by type that jobs could use and that nobody has: of the fastest type that each may use."""
    more: dict[str, int] = {}
    for job in cluster.jobs.values():
        missing = job.most - total(job.devices)
        rates = {kind: job.speed.rate({kind: 1}) for kind in cluster.kinds if job.needs.allows(kind)}
        if missing > 0 and rates and max(rates.values()) > 0.0:
            best = next(iter(job.devices)) if job.devices else max(rates, key=lambda kind: rates[kind])
            more[best] = more.get(best, 0) + missing
    free = cluster.free()
    return {kind: left for kind, count in more.items() if (left := count - free.get(kind, 0)) > 0}


@dataclass
class Stock:
    """`look` in each round: never waits. The devices that are there, if the fleet has just said so."""

    fleet: Fleet
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "stock"))
    _found: Future[list[Found] | None] | None = None
    _next: float = 0.0
    _told: tuple[dict[str, int], dict[str, int]] | None = None

    def look(self, cluster: Cluster) -> list[Found] | None:
        now = time.monotonic()
        if self._found is None:
            if now >= self._next:
                self._found = self._pool.submit(self._ask, dict(cluster.held), hunger(cluster))
            return None
        if not self._found.done():
            return None
        future, self._found, self._next = self._found, None, now + LOOK_SECONDS
        try:
            found = future.result()
        except Exception as problem:  # whatever a cluster out of reach says
            logger.warning("the devices could not be listed: %s", problem)
            return None
        if found is None:
            self._next = float("inf")  # they do not come and go
        return found

    def _ask(self, held: dict[str, int], more: dict[str, int]) -> list[Found] | None:
        if (held, more) != self._told:
            self.fleet.want(held, more)
            self._told = held, more
        return self.fleet.stock()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
