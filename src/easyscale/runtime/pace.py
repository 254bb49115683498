"""How long a worker's own local steps take in a round, for the master's planner: no call here waits for the device.

It counts from the beginning of the round, the reading of data included, to the end of the last local step's backward.
Up to there a worker waits for nobody: sums with its peers run beside the backward, and are first waited for after it.
What the loop body does after the last backward is done once for all ESTs (the optimizer, clipping), or once for each,
and the two cannot be told apart there. So for the last local step it is taken to be as long as after the other
backwards of this worker, where the first kind does nothing; of a worker with one EST, as it was when it had more.
Sums, exchange and optimizer are about the same on all workers, and are the reduction of the planner.

On a CPU these are readings of the clock. On a GPU the host runs ahead, and the first wait for a peer is also the first
for the device, so the host cannot tell the two apart. There events are put into the stream, and the device notes the
time at each: work of the device, and its idling while the host is the slower one, but no wait for a peer. They are
read when the device has passed the last one, some steps later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

Mark = Any  # seconds of a clock, or an event of a GPU


@dataclass(slots=True)
class Tail:
    """What a local step takes after its backward, as far as this worker knows."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """The local steps of a round. `tails`: from the backward to the end of each but the last."""

    began: Mark
    ended: Mark
    tails: list[tuple[Mark, Mark]] = field(default_factory=list)
    tail: Tail = field(default_factory=Tail)

    def is_over(self) -> bool:
        return isinstance(self.ended, float) or bool(self.ended.query())

    def seconds(self) -> float:
        """Waits where it is not over."""
        if not isinstance(self.ended, float):
            self.ended.synchronize()
        if self.tails:
            self.tail.seconds = fmean(_between(*marks) for marks in self.tails)
        return _between(self.began, self.ended) + self.tail.seconds


class Pace:
    """Told of each round's beginning, of the end of each backward and of each turn."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._gpu, self._tail = device, device.type == "cuda", Tail()
        self._began: Mark = None
        self._backward: Mark = None
        self._turns: list[tuple[Mark, Mark]] = []

    def begin(self) -> None:
        self._began, self._backward, self._turns = self._mark(), None, []

    def backward_ended(self) -> None:
        self._backward = self._mark()

    def turn_ended(self) -> None:
        if self._backward is not None:
            self._turns.append((self._backward, self._mark()))
            self._backward = None

    def take(self) -> Span | None:
        """None: no backward of this round was seen, so nobody can tell."""
        turns, self._turns = self._turns, []
        return Span(self._began, turns[-1][0], turns[:-1], self._tail) if turns else None

    def _mark(self) -> Mark:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(first: Mark, second: Mark) -> float:
    return float(second - first if isinstance(first, float) else first.elapsed_time(second) / 1000.0)
