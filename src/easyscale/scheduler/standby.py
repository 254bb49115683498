"""Who would gain most by a device more, and who would lose least by one less, by type, kept from decision to decision.

Each is a heap whose entries are as old as the last decision about their job. An entry that a later one has overtaken,
or whose job has left, is dropped when it comes up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush


class Ranking:
    """Jobs in the order of a number, the smallest first, for each type of devices."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[float, str]]] = {}
        self._now: dict[str, dict[str, float]] = {}  # what holds of each job

    def put_all(self, ranks: Iterable[tuple[str, dict[str, float]]]) -> None:
        """These, and nobody else."""
        self._now = {name: by_kind for name, by_kind in ranks if by_kind}
        self._heaps = {}
        for name, by_kind in self._now.items():
            for kind, rank in by_kind.items():
                self._heaps.setdefault(kind, []).append((rank, name))
        for heap in self._heaps.values():
            heapify(heap)

    def put(self, name: str, by_kind: dict[str, float]) -> None:
        before = self._now.get(name)
        if by_kind == before or (not by_kind and before is None):
            return
        if by_kind:
            self._now[name] = by_kind
        else:
            del self._now[name]
        for kind, rank in by_kind.items():
            heappush(self._heaps.setdefault(kind, []), (rank, name))

    def first(self, kind: str, there: Container[str]) -> str | None:
        """The first one of a type, of those who are still there."""
        heap, now = self._heaps.get(kind), self._now
        while heap:
            rank, name = heap[0]
            if name in now and now[name].get(kind) == rank:
                if name in there:
                    return name
                del now[name]
            heappop(heap)
        return None

    def some(self, kind: str, there: Mapping[str, object]) -> Iterator[str]:
        """One after the other. They stay in the ranking."""
        taken: dict[str, float] = {}
        try:
            while (name := self.first(kind, there)) is not None:
                rank, _ = heappop(self._heaps[kind])
                if name not in taken:
                    taken[name] = rank
                    yield name
        finally:
            for name, rank in taken.items():
                heappush(self._heaps[kind], (rank, name))

    def anyone(self, there: Container[str]) -> bool:
        return any(self.first(kind, there) is not None for kind in self._heaps)
