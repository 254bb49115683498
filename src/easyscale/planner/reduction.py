"""What a global step costs beside the local steps: the reduction, as a function of workers, machines and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reduction:
    """Seconds of a global step that are no local step.

    One worker sends nothing and pays `alone` (the optimizer, folding). More pay `base` once, `per_worker` for each
    further worker, and for bytes: a worker sends 2(p-1)/p of `bytes`, as a ring does. Between machines a byte costs
    `across_nodes` times as much. `known` are typical seconds that were measured, by workers and whether they are in
    several machines: there they count, and between them the law may not leave the range that they span.
    """

    base: float = 0.0
    per_worker: float = 0.0
    bytes: float = 0.0  # of the gradients
    seconds_per_byte: float = 0.0  # within a machine
    across_nodes: float = 1.0
    per_node: int = 8
    alone: float = 0.0
    known: tuple[tuple[int, bool, float], ...] = ()

    def __post_init__(self) -> None:
        assert self.across_nodes >= 1.0, "a byte between machines is not cheaper than one within"
        assert self.per_node >= 1

    def __call__(self, workers: int, nodes: int | None = None) -> float:
        """`nodes` None: as few machines as can hold so many workers of one type."""
        if workers <= 1:
            return self.alone
        spread = workers > self.per_node if nodes is None else nodes > 1
        found = self._law(workers, spread)
        if not self.known:
            return found
        near = self._between(self._law(workers, False), workers, False)
        return max(near, self._between(found, workers, True)) if spread else near

    @property
    def knows_machines(self) -> bool:
        """Whether it matters how many machines there are."""
        return self.across_nodes > 1.0 or bool(self.known)

    def _law(self, workers: int, across: bool) -> float:
        sent = 2.0 * (workers - 1) / workers * self.bytes * self.seconds_per_byte
        return self.alone + self.base + self.per_worker * (workers - 1) + sent * (self.across_nodes if across else 1.0)

    def _between(self, seconds: float, workers: int, across: bool) -> float:
        low, high = 0.0, float("inf")
        for count, apart, measured in self.known:
            if apart is not across:
                continue
            if count == workers:
                return measured
            low, high = (max(low, measured), high) if count < workers else (low, min(high, measured))
        return max(low, min(seconds, high))

    def nodes_for(self, workers: int) -> int:
        """The fewest machines that hold so many workers of one type."""
        return -(-workers // self.per_node)
