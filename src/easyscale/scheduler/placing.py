"""Which machine gives which device. Policies decide numbers by type; this keeps a job on as few machines as it can."""

from __future__ import annotations

from collections.abc import Mapping

from easyscale.core.cluster import DeviceKind, Devices

Places = dict[str, dict[int, int]]  # type -> machine (numbered by type) -> devices


class Placer:
    """Who holds what on which machine. Machines of a type are alike; the last may have fewer devices.

    A job keeps what it holds. It grows where it already is, then on the machine whose free devices suffice with the
    least left over; if none does, on the emptiest first. It shrinks on the machines where it has least.
    """

    def __init__(self, kinds: Mapping[str, DeviceKind], counts: Devices) -> None:
        self._kinds = dict(kinds)
        self._free: dict[str, dict[int, int]] = {}  # type -> machine -> free devices
        self._by_free: dict[str, list[dict[int, None]]] = {}  # type -> free devices -> machines, an ordered set
        self._jobs: dict[str, Places] = {}
        for kind, count in counts.items():
            self.add(kind, count)

    def add(self, kind: str, count: int) -> None:
        """More devices, on machines of their own."""
        per_node = self._kinds.setdefault(kind, DeviceKind(name=kind)).per_node
        free = self._free.setdefault(kind, {})
        sets = self._by_free.setdefault(kind, [{} for _ in range(per_node + 1)])
        machine = max(free, default=-1)
        while count > 0:
            machine += 1
            free[machine] = min(per_node, count)
            sets[free[machine]][machine] = None
            count -= per_node

    def remove(self, kind: str, count: int) -> None:
        """Free devices leave (given back): from the fullest machines first, so that whole ones stay free."""
        left = count
        for size, machines in enumerate(self._by_free.get(kind, [])):
            for machine in list(machines):
                gone = min(size, left)
                left -= gone
                self._set(kind, machine, size - gone)
                if not left:
                    return
        assert not left, f"{count} {kind} leave, {count - left} were free"

    def lose(self, kind: str, machine: int, count: int) -> dict[str, Devices]:
        """Devices of a machine die, free ones first: how many each job lost."""
        gone = min(count, self._free[kind][machine])
        self._set(kind, machine, self._free[kind][machine] - gone)
        count -= gone
        lost: dict[str, Devices] = {}
        for job in [name for name, places in self._jobs.items() if machine in places.get(kind, {})]:
            gone = min(count, self._jobs[job][kind][machine])
            if gone:
                lost[job] = {kind: gone}
                count -= gone
                self._take(job, kind, machine, gone)
        return lost

    def place(self, job: str, devices: Devices) -> Places:
        """The job holds these from now on: where."""
        mine = self._jobs.setdefault(job, {})
        for kind in [*mine, *(kind for kind in devices if kind not in mine)]:
            more = devices.get(kind, 0) - sum(mine.get(kind, {}).values())
            if more < 0:
                self._shrink(job, kind, -more)
            elif more > 0:
                self._grow(job, kind, more)
        found = {kind: dict(machines) for kind, machines in mine.items()}
        if not mine:
            del self._jobs[job]
        return found

    def nodes(self, job: str) -> int:
        """Over how many machines it is spread."""
        return sum(len(machines) for machines in self._jobs.get(job, {}).values())

    def places(self, job: str) -> Places:
        return {kind: dict(machines) for kind, machines in self._jobs.get(job, {}).items()}

    def _shrink(self, job: str, kind: str, count: int) -> None:
        mine = self._jobs[job][kind]
        for machine in sorted(mine, key=lambda machine: (mine[machine], machine)):
            freed = min(count, mine[machine])
            self._take(job, kind, machine, freed)
            self._set(kind, machine, self._free[kind][machine] + freed)
            count -= freed
            if not count:
                return

    def _grow(self, job: str, kind: str, count: int) -> None:
        mine = self._jobs[job].setdefault(kind, {})
        for machine in sorted(mine, key=lambda machine: (-mine[machine], machine)):
            count -= self._give(mine, kind, machine, count)
            if not count:
                return
        while count:
            count -= self._give(mine, kind, self._best(kind, count), count)

    def _best(self, kind: str, count: int) -> int:
        sets = self._by_free[kind]
        enough = range(min(count, len(sets) - 1), len(sets))
        sizes: list[int] = [*enough, *reversed(range(1, enough.start))]
        for size in sizes:
            if sets[size]:
                return next(iter(sets[size]))
        raise AssertionError(f"no free {kind}")

    def _give(self, mine: dict[int, int], kind: str, machine: int, count: int) -> int:
        given = min(count, self._free[kind][machine])
        if given:
            mine[machine] = mine.get(machine, 0) + given
            self._set(kind, machine, self._free[kind][machine] - given)
        return given

    def _take(self, job: str, kind: str, machine: int, count: int) -> None:
        mine = self._jobs[job]
        mine[kind][machine] -= count
        if not mine[kind][machine]:
            del mine[kind][machine]
        if not mine[kind]:
            del mine[kind]

    def _set(self, kind: str, machine: int, free: int) -> None:
        sets = self._by_free[kind]
        sets[self._free[kind][machine]].pop(machine)
        self._free[kind][machine] = free
        sets[free][machine] = None
