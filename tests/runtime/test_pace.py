"""How long a worker's own local steps take: without its waits for peers, and without waiting for a device."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from easyscale.core.messages import StepDone
from easyscale.core.spec import WorkerSpec
from easyscale.runtime.journal import MOST_PENDING, Journal
from easyscale.runtime.pace import Pace, Span


class FakeEvent:
    """A GPU's event, passed when the test says so."""

    made: list[FakeEvent]

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None
        self.waits = 0
        FakeEvent.made.append(self)

    def record(self, stream: Any) -> None:
        assert stream == "the stream"

    def query(self) -> bool:
        return self.at is not None

    def synchronize(self) -> None:
        self.waits += self.at is None
        self.at = 9.0 if self.at is None else self.at

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.at is not None
        assert other.at is not None
        return 1000 * (other.at - self.at)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeEvent]:
    FakeEvent.made = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    return FakeEvent


def told_by(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[StepDone]:
    told: list[StepDone] = []
    monkeypatch.setattr(journal, "tell", told.append)
    return told


class Clock:
    """Stands for the host's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def round(self, pace: Pace, ests: int, *, before: float, after: float, once: float) -> float:
        """Each local step takes `before` and `after` around the end of its backward; sums and optimizer `once`."""
        pace.begin()
        for est in range(ests):
            self.now += before
            pace.backward_ended()
            self.now += after + (once if est == ests - 1 else 0.0)
            pace.turn_ended()
        span = pace.take()
        assert span is not None
        assert span.is_over()
        return span.seconds()


@pytest.mark.parametrize("ests", [2, 3, 5])
def test_waits_for_peers_and_what_is_done_once_a_step_do_not_count(ests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), Pace(torch.device("cpu"))
    for once in (0.0, 5.0, 50.0):
        assert clock.round(pace, ests, before=1.0, after=0.5, once=once) == pytest.approx(1.5 * ests)


def test_a_local_step_is_as_long_on_a_worker_with_one_est_as_it_was_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would look faster for having fewer, and get them back."""
    clock, pace = Clock(monkeypatch), Pace(torch.device("cpu"))
    assert clock.round(pace, 2, before=1.0, after=2.0, once=7.0) == pytest.approx(6.0)
    assert clock.round(pace, 1, before=1.0, after=2.0, once=7.0) == pytest.approx(3.0)


def test_a_round_without_a_backward_is_not_measured() -> None:
    pace = Pace(torch.device("cpu"))
    pace.begin()
    pace.turn_ended()
    assert pace.take() is None
    assert pace.take() is None


def test_on_a_gpu_nobody_waits_for_the_device(gpu: type[FakeEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    pace, journal = Pace(torch.device("cuda")), Journal(WorkerSpec(ests=1), "warn")
    told = told_by(journal, monkeypatch)
    for step in range(3):
        pace.begin()
        for _est in range(2):
            pace.backward_ended()
            pace.turn_ended()
        journal.step_done(step, 0, 1, [0, 1], pace.take())
    assert told == []  # the host is three steps ahead
    assert [event.waits for event in gpu.made] == [0] * 15
    for place, event in enumerate(gpu.made[:9]):  # into the second step, at the end of its last backward
        event.at = 0.5 * place
    journal.flush()
    assert [(word.step, word.local) for word in told] == [(0, 2.0), (1, 2.0)]  # 1.5 s to the backward, and a tail
    assert [event.waits for event in gpu.made] == [0] * 15


def test_a_host_that_is_far_ahead_waits_as_it_does_for_metrics(
    gpu: type[FakeEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(WorkerSpec(ests=1), "warn")
    told = told_by(journal, monkeypatch)
    for step in range(MOST_PENDING + 1):
        began, ended = FakeEvent(enable_timing=True), FakeEvent(enable_timing=True)
        began.at = 8.0
        journal.step_done(step, 0, 1, [0], Span(began, ended))
    assert [word.local for word in told] == [1.0] * (MOST_PENDING + 1)


def test_a_step_without_a_measurement_says_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(WorkerSpec(ests=1), "warn")
    told = told_by(journal, monkeypatch)
    journal.step_done(0, 0, 1, [0])
    assert [word.local for word in told] == [0.0]
