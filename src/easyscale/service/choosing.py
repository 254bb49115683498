"""Which devices, by name: the scheduler speaks of numbers by type, a worker sits on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from easyscale.core.cluster import Devices
from easyscale.service.state import Device


def choose(devices: Mapping[str, Device], job: str, wanted: Devices) -> tuple[str, ...]:
    """So many of each type for this job: those that it holds first, then few machines, own devices before lent ones.

    Of its own it gives up those first that are wanted back or gone, then those on machines where it has the fewest.
    """
    chosen: list[str] = []
    for kind, count in wanted.items():
        mine = [d for d in devices.values() if d.kind == kind and d.job == job and d.standing == "in"]
        nodes = Counter(device.slot.node for device in mine)
        mine.sort(key=lambda d: (d.lent, -nodes[d.slot.node], d.slot.node, _natural(d.slot.id)))
        kept = mine[:count]
        free = [d for d in devices.values() if d.kind == kind and d.job is None and d.standing == "in"]
        chosen += [device.slot.id for device in kept]
        chosen += _gather(free, Counter(device.slot.node for device in kept), count - len(kept))
    return tuple(chosen)


def is_there(devices: Mapping[str, Device], job: str, wanted: Devices) -> bool:
    """Whether so many of each type can be chosen for this job."""
    for kind, count in wanted.items():
        mine = sum(d.kind == kind and d.job in (job, None) and d.standing == "in" for d in devices.values())
        if mine < count:
            return False
    return True


def _gather(free: list[Device], near: Counter[str], count: int) -> list[str]:
    """From machines where it is already, then from the machine with the fewest that are enough, else with the most."""
    found: list[str] = []
    by_node: dict[str, list[Device]] = {}
    for device in free:
        by_node.setdefault(device.slot.node, []).append(device)
    while len(found) < count and by_node:
        left = count - len(found)
        node = min(
            by_node,
            key=lambda node: (
                -near[node],
                len(by_node[node]) < left,
                len(by_node[node]) if len(by_node[node]) >= left else -len(by_node[node]),
                node,
            ),
        )
        room = sorted(by_node.pop(node), key=lambda d: (d.lent, _natural(d.slot.id)))
        found += [device.slot.id for device in room[:left]]
    assert len(found) >= count, "the scheduler gives out what is free"
    return found


def _natural(name: str) -> tuple[int, str]:
    return len(name), name
