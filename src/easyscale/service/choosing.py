"""Which devices, by name: the scheduler speaks of numbers by type, a worker sits on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from easyscale.core.cluster import Devices
from easyscale.service.state import Device


def choose(devices: Mapping[str, Device], job: str, wanted: Devices) -> tuple[str, ...]:
    """So many of each type for this job; see `Seating`."""
    return Seating(devices.values()).give(job, wanted)


class Seating:
    """Who would hold what after some changes, one after the other: a copy, sorted once for all of them."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._held: dict[str, list[Device]] = {}  # by job
        self._free: dict[str, dict[str, list[Device]]] = {}  # by type and machine, none of them empty
        for device in devices:
            if device.job is not None:
                self._held.setdefault(device.job, []).append(device)
            else:
                self._let_go(device)

    def give(self, job: str, wanted: Devices) -> tuple[str, ...]:
        """So many of each type for this job: those that it holds first, then few machines, own devices before lent.

        Of its own it gives up those first that are wanted back or gone, then those on machines where it has the fewest.
        """
        before = self._held.pop(job, [])
        chosen: list[Device] = []
        for kind, count in wanted.items():
            mine = [device for device in before if device.kind == kind and device.standing == "in"]
            nodes = Counter(device.slot.node for device in mine)
            mine.sort(key=lambda d: (d.lent, -nodes[d.slot.node], d.slot.node, _natural(d.slot.id)))
            kept = mine[:count]
            chosen += kept
            chosen += self._gather(kind, Counter(device.slot.node for device in kept), count - len(kept))
        names = tuple(device.slot.id for device in chosen)
        for device in before:
            if device.slot.id not in names:
                self._let_go(device)
        if chosen:
            self._held[job] = chosen
        return names

    def sits_on_wanted(self, job: str) -> bool:
        return any(device.standing != "in" for device in self._held.get(job, ()))

    def moved(self, job: str) -> tuple[str, ...] | None:
        """As many of each type as it holds, without those that are wanted back; None: there are not enough others."""
        wanted = Counter(device.kind for device in self._held[job])
        for kind, count in wanted.items():
            mine = sum(device.kind == kind and device.standing == "in" for device in self._held[job])
            if mine + sum(map(len, self._free.get(kind, {}).values())) < count:
                return None
        return self.give(job, wanted)

    def _let_go(self, device: Device) -> None:
        if device.standing == "in":
            self._free.setdefault(device.kind, {}).setdefault(device.slot.node, []).append(device)

    def _gather(self, kind: str, near: Counter[str], count: int) -> list[Device]:
        """From machines where it is already, then from the one with the fewest that are enough, else with the most."""
        found: list[Device] = []
        nodes = self._free.get(kind, {})
        while len(found) < count and nodes:
            left = count - len(found)
            node = min(
                nodes,
                key=lambda node: (
                    -near[node],
                    len(nodes[node]) < left,
                    len(nodes[node]) if len(nodes[node]) >= left else -len(nodes[node]),
                    node,
                ),
            )
            room = sorted(nodes[node], key=lambda d: (d.lent, _natural(d.slot.id)))
            found += room[:left]
            if room[left:]:
                nodes[node] = room[left:]
            else:
                del nodes[node]
        assert len(found) >= count, "the scheduler gives out what is free"
        return found


def _natural(name: str) -> tuple[int, str]:
    return len(name), name
