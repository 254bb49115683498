"""A loader process that is killed costs time, and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import re
import signal
import threading
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.data.harness import OwnRandom, Session, Shards, draw, loader_of, stock
from torch.utils.data import DataLoader, Dataset

from easyscale.runtime.data import pool
from easyscale.runtime.data.pooled import MOST_DEATHS
from easyscale.runtime.data.pooled_lane import PooledIterator

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # torch's own half of a hand-over that the death cut off
]
WORLD = 2


class Drawing(Dataset[Any]):
    """Without a lock that all processes share: who is killed with it keeps it for ever."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *draw()], dtype=torch.float64)


class Bulky(Drawing):
    """Batches far larger than a pipe, and not in shared memory: a kill meets its process while it writes."""

    def __getitem__(self, index: int) -> Any:
        return [index, *draw(), os.urandom(0), bytes([index]) * 300_000]


class OnceDeadly(Drawing):
    """Kills its process in the middle of a batch, one time."""

    def __init__(self) -> None:
        self.left = multiprocessing.Value("i", 0)

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.left.get_lock():
            dies, self.left.value = self.left.value > 0 and index >= 10, max(0, self.left.value - (index >= 10))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def kill(session: Session, number: int) -> int:
    """Kill a loader process, and wait until it is gone."""
    process = session.processes()[number]
    process.kill()
    process.join()
    return int(process.pid)


def drawing(**options: Any) -> DataLoader[Any]:
    return loader_of(Drawing(), batch_size=2, shuffle=True, num_workers=2, **options)


def bulky(**options: Any) -> DataLoader[Any]:
    return loader_of(Bulky(), batch_size=1, shuffle=True, num_workers=2, collate_fn=list, **options)


def own_generators(**options: Any) -> DataLoader[Any]:
    return loader_of(OwnRandom(), batch_size=2, num_workers=2, generator=torch.Generator().manual_seed(3), **options)


def streams(**options: Any) -> DataLoader[Any]:
    return loader_of(Shards(WORLD, 21), batch_size=2, num_workers=2, **options)


KINDS = [
    (drawing, {}),
    (drawing, {"persistent_workers": True, "prefetch_factor": 4}),
    (bulky, {"prefetch_factor": 3}),
    (own_generators, {"persistent_workers": True}),
    (streams, {}),
    (streams, {"persistent_workers": True}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(kills=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=4), stop=st.booleans())
def test_all_batches_are_those_of_stock(
    kind: Any, options: dict[str, Any], kills: list[tuple[int, int]], stop: bool
) -> None:
    make = lambda: kind(**options)  # noqa: E731
    broken_off = 2 if stop else None
    session = Session(make, WORLD, [0, 1])
    tick = 0
    killed = []
    for epoch in range(3):
        session.open(epoch)
        going, steps = True, 0
        while going and (steps != broken_off or epoch == 2):
            going = False
            for est in (0, 1):
                killed += [kill(session, number) for when, number in kills if when == tick]
                tick += 1
                going = session.step_of(est) or going
            steps += 1
        session.feed.close()
    session.feed.shutdown()
    expected, states = stock(make, WORLD, 3, stop=broken_off)
    assert session.batches == expected
    assert all(session.rng[est].same_as(states[est]) for est in range(WORLD))
    for told in session.reports:  # those that were ended because they share queues with the dead are not blamed
        assert set(map(int, re.findall(r"pid (\d+)", told))) <= set(killed)


def test_it_is_told_in_one_sentence() -> None:
    session = Session(drawing, WORLD, [0, 1])
    session.open(0)
    pid = kill(session, 1)
    while session.step():
        pass
    session.feed.shutdown()
    assert session.reports == [
        f"loader process 1 (pid {pid}) was killed by signal 9; it was started anew, its batches are made again"
    ]


def test_a_death_in_the_middle_of_a_batch_that_is_waited_for() -> None:
    def make() -> DataLoader[Any]:
        return loader_of(OnceDeadly(), batch_size=2, num_workers=2)

    session = Session(make, WORLD, [0, 1])
    session.loader.dataset.left.value = 2  # type: ignore[attr-defined]
    session.run(range(1))
    session.feed.shutdown()
    assert 1 <= len(session.reports) <= 2
    assert session.batches == stock(make, WORLD, 1)[0]


def test_one_that_dies_between_two_epochs_is_started_anew_in_the_next() -> None:
    make = lambda: drawing(persistent_workers=True)  # noqa: E731
    session = Session(make, WORLD, [0, 1])
    session.run(range(1))
    kill(session, 0)
    session.run(range(1, 3))
    session.feed.shutdown()
    assert len(session.reports) == 1
    assert session.batches == stock(make, WORLD, 3)[0]


def test_deaths_with_batches_in_between_are_not_counted() -> None:
    session = Session(drawing, WORLD, [0, 1])
    session.open(0)
    for _ in range(5):
        kill(session, 0)
        session.step()
    while session.step():
        pass
    session.feed.shutdown()
    assert len(session.reports) >= MOST_DEATHS
    assert session.batches == stock(drawing, WORLD, 1)[0]


def test_the_training_is_not_interrupted_where_it_happens_to_be() -> None:
    """Stock raises from a signal handler, in the middle of anything."""
    expected, _ = stock(drawing, WORLD, 1)  # also installs stock's handler
    session = Session(drawing, WORLD, [0])
    session.open(0)
    kill(session, 0)
    assert sum(range(100_000)) == 4_999_950_000  # signal handlers run between two instructions
    while session.step():
        pass
    session.feed.shutdown()
    assert session.batches[0] == expected[0]


def test_an_est_can_leave_and_come_while_the_processes_are_dead() -> None:
    session, other = Session(drawing, WORLD, [0]), Session(drawing, WORLD, [1])
    for one in (session, other):
        one.open(0)
        one.step()
    kill(session, 0)
    cursor, rng = other.feed.cursor(1), other.rng[1]
    session.join(1, cursor, rng, other.batches[1])
    kill(session, 1)
    session.step()
    kill(session, 1)
    session.leave(1)
    other.leave(1)
    other.join(1, cursor, rng, [other.batches[1][0][:1]])
    for one in (session, other):
        while one.step():
            pass
        one.feed.shutdown()
    expected, _ = stock(drawing, WORLD, 1)
    assert session.batches[0] == expected[0]
    assert other.batches[1] == expected[1]


def test_an_error_of_the_data_set_stays_an_error_after_a_death() -> None:
    class Faulty(OnceDeadly):
        def __getitem__(self, index: int) -> torch.Tensor:
            super().__getitem__(index)
            raise KeyError("no such picture")

    session = Session(lambda: loader_of(Faulty(), batch_size=24, num_workers=1), 1, [0])
    session.loader.dataset.left.value = 1  # type: ignore[attr-defined]
    session.open(0)
    with pytest.raises(KeyError, match="no such picture"):
        session.step()
    session.feed.shutdown()
    assert session.reports == []  # the first sample failed already

    session = Session(lambda: loader_of(Faulty(), batch_size=1, sampler=[10, 11], num_workers=1), 1, [0])
    session.loader.dataset.left.value = 1  # type: ignore[attr-defined]
    session.open(0)
    for _ in range(2):
        with pytest.raises(KeyError, match="no such picture"):
            session.step()
    session.feed.shutdown()
    assert len(session.reports) == 1


def relay(outbox: Any, results: Any, device_id: int, done: threading.Event, device: str) -> None:
    """The pinning thread of stock, without a device to pin for."""
    while not done.is_set():
        with contextlib.suppress(queue.Empty):
            results.put(outbox.get(timeout=1))


def test_a_death_is_found_behind_the_pinning_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_pin_memory_loop", relay)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(PooledIterator, "pin_device", "cuda")
    make = lambda: bulky(persistent_workers=True)  # noqa: E731
    expected, _ = stock(make, WORLD, 2)
    session = Session(make, WORLD, [0, 1])
    session.open(0)
    session.step()
    for number in (0, 1):
        kill(session, number)
        session.step()
    while session.step():
        pass
    session.feed.close()
    session.run(range(1, 2))
    thread: Any = session.feed._source.pool._processes.pin_thread  # type: ignore[union-attr]
    session.feed.shutdown()
    assert not thread.is_alive()
    assert session.batches == expected
    assert session.reports


@pytest.mark.gpu
def test_pinned_batches_survive_a_death() -> None:
    make = lambda: drawing(pin_memory=True, persistent_workers=True)  # noqa: E731
    expected, _ = stock(drawing, WORLD, 1)
    session = Session(make, WORLD, [0, 1])
    session.open(0)
    session.step()
    kill(session, 0)
    assert session.turn(0, lambda: session.feed.next(0)).is_pinned()
    while session.step():
        pass
    session.feed.shutdown()
    assert session.batches[1] == expected[1]
    assert session.batches[0][0] == expected[0][0][:1] + expected[0][0][2:]


def test_without_the_place_of_each_stream_the_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded_only(self: PooledIterator) -> None:
        for worker in range(len(self.streams)):
            self._owner.put(worker, self._begin_of(None))

    monkeypatch.setattr(PooledIterator, "take_up", seeded_only)
    session = Session(drawing, WORLD, [0, 1])
    session.open(0)
    session.step()
    session.step()
    kill(session, 0)
    while session.step():
        pass
    session.feed.shutdown()
    expected, _ = stock(drawing, WORLD, 1)
    assert session.batches[0][0][:2] == expected[0][0][:2]
    assert session.batches != expected
