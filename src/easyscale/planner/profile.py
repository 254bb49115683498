"""The performance model of one job, fitted live: local steps by type and by device, the reduction, the switch.

What was measured on a device counts for that device (a straggler is slow alone) and, by the median over devices, for
its type. The first steps of a device, and of every device after a switch, are warm-up and are left out by the caller
naming them (`Mind` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from easyscale.core.cluster import Level
from easyscale.planner import fitting
from easyscale.planner.priors import expected
from easyscale.planner.reduction import Reduction
from easyscale.planner.samples import WINDOW, Estimate, Samples

ENOUGH = 5  # steps after which a device's own figures count
# A device is taken for another than its type if it differs by so many of its spreads: five standard errors, because it
# is asked after each step, and because its type's figures have noise as well.
DOUBT = 2.5
USUAL_SWITCH = 1.0  # seconds; until one was measured


@dataclass(slots=True)
class Profile:
    """`take_*` what was measured; ask for the rest. All of it goes through JSON (`state`, `load`)."""

    level: Level = "D1"
    size: float = 0.0  # bytes of the gradients
    expected_reduction: Reduction = fitting.EXPECTED
    declared: dict[str, float] = field(default_factory=dict)  # seconds by type that someone promised; till measured
    slowdown: float = 1.0  # of the job's level against the one of those promises (`Verdict.slowdown`)
    devices: dict[str, tuple[str, Samples]] = field(default_factory=dict)  # those at work: (type, local steps)
    past: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # (median, steps) of those that left
    reductions: dict[tuple[int, bool], Samples] = field(default_factory=dict)
    pauses: Samples = field(default_factory=Samples)
    _fitted: Reduction | None = None

    # ------------------------------------------------------------------ what was measured

    def take_local(self, device: str, kind: str, seconds: float, steps: int = 1) -> None:
        """One local step took so long there, as the average over `steps` global steps."""
        if device not in self.devices:
            self.devices[device] = (kind, Samples())
        self.devices[device][1].add(seconds, steps)

    def take_reduction(self, workers: int, nodes: int, seconds: float, steps: int = 1) -> None:
        self.reductions.setdefault((workers, nodes > 1), Samples()).add(max(seconds, 0.0), steps)
        self._fitted = None

    def take_switch(self, seconds: float) -> None:
        self.pauses.add(seconds)

    def forget(self, device: str) -> None:
        """It left, or nothing was heard of it for long: its figures are its type's from now on."""
        kind, samples = self.devices.pop(device, ("", Samples()))
        if samples.steps >= ENOUGH:
            of = self.past.setdefault(kind, [])
            of.append((median(samples.values), samples.steps))
            del of[:-WINDOW]

    # ------------------------------------------------------------------ what follows from it

    def of_type(self, kind: str) -> Estimate:
        """Seconds of a local step on such a device: measured, declared, or carried over from another type."""
        return self.measured(kind) or self._guess(kind)

    def measured(self, kind: str) -> Estimate | None:
        """By the median device. One device alone may be the odd one: then those that left are asked as well."""
        now = [e for of, s in self.devices.values() if of == kind and s.steps >= ENOUGH and (e := s.estimate())]
        found = [(e.seconds, e.steps) for e in now]
        if len(found) < 2:
            found += self.past.get(kind, [])
        if not found:
            return None
        each = [seconds for seconds, _ in found]
        middle = min(each) if len(each) == 2 else median(each)  # of two, the slower one is the odd one
        steps = sum(count for _, count in found)
        within = fmean(e.spread for e in now) if now else 1.0 + 0.5 / steps
        between = 1.0 + median(abs(seconds - middle) for seconds, _ in found) / middle
        return Estimate(middle, within * between, steps)

    def of_device(self, device: str, kind: str) -> Estimate:
        """Of this very device, where it has run long enough and differs from its type by more than noise would."""
        usual = self.of_type(kind)
        samples = self.devices[device][1] if device in self.devices else None
        own = samples.estimate() if samples is not None and samples.steps >= ENOUGH else None
        if own is None or abs(own.seconds / usual.seconds - 1.0) <= DOUBT * (self._noise(kind, own) - 1.0):
            return usual
        return own

    def _noise(self, kind: str, own: Estimate) -> float:
        """The spread of a device: its own, or the mean of its type where its own is small by chance."""
        spreads = [e.spread for of, s in self.devices.values() if of == kind and (e := s.estimate())]
        return max(own.spread, fmean(spreads))

    def seconds(self, kinds: Iterable[str]) -> dict[str, float]:
        return {kind: self.of_type(kind).seconds for kind in kinds}

    def reduction(self) -> Reduction:
        if self._fitted is None:
            seen = [
                fitting.Observed(workers, across, median(samples.values))
                for (workers, across), samples in self.reductions.items()
            ]
            self._fitted = fitting.fit(seen, self.size, self.expected_reduction)
        return self._fitted

    def reduction_sure(self, workers: int) -> float:
        """1.0 near what was measured; less with each doubling of workers away from it; 0.25 where nothing was."""
        seen = [count for count, _ in self.reductions]
        if workers == 1 or not seen:
            return 0.25 if workers > 1 else 1.0
        return float(max(min(workers, count) / max(workers, count) for count in seen))

    def switch_seconds(self) -> float:
        return median(self.pauses.values) if self.pauses.values else USUAL_SWITCH

    def _guess(self, kind: str) -> Estimate:
        if kind in self.declared:
            return Estimate(self.slowdown * self.declared[kind], 1.5)
        known = {other: Estimate(self.slowdown * seconds, 1.5) for other, seconds in self.declared.items()}
        kinds = {of for of, _ in self.devices.values()} | set(self.past)
        known |= {other: found for other in sorted(kinds) if (found := self.measured(other)) is not None}
        return expected(kind, self.level, known)

    # ------------------------------------------------------------------ to and from JSON

    def state(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "declared": dict(self.declared),
            "devices": {device: [kind, samples.state()] for device, (kind, samples) in self.devices.items()},
            "past": {kind: [list(entry) for entry in of] for kind, of in self.past.items()},
            "reductions": [[*key, samples.state()] for key, samples in self.reductions.items()],
            "pauses": self.pauses.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.size, self.declared = state["size"], dict(state["declared"])
        self.devices = {device: (kind, Samples.of_state(of)) for device, (kind, of) in state["devices"].items()}
        self.past = {kind: [(seconds, steps) for seconds, steps in of] for kind, of in state["past"].items()}
        self.reductions = {(workers, across): Samples.of_state(of) for workers, across, of in state["reductions"]}
        self.pauses = Samples.of_state(state["pauses"])
        self._fitted = None
