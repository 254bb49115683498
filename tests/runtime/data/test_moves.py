"""ESTs that move between two workers, at any moment, get the bits that stock ranks get; so do those that stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.data.harness import Augmented, Loaders, OwnRandom, Session, Shards, bits, loader_of, stock
from tests.runtime.data.test_iterable import Stateful
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState
from easyscale.runtime.data import closed
from easyscale.runtime.data.pool import Pool
from easyscale.runtime.data.pooled import Pooled

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
WORLD = 3
Replica = tuple[dict[str, Any], RngState, list[int]]  # cursor, random state, batches had in each epoch


class InPlace(Sampler[int]):
    """Its order hangs on the epochs before."""

    def __init__(self, length: int) -> None:
        self.order, self.generator = list(range(length)), torch.Generator().manual_seed(8)

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        self.order = [self.order[i] for i in torch.randperm(len(self.order), generator=self.generator).tolist()]
        return iter(list(self.order))

    def __len__(self) -> int:
        return len(self.order)


class Crew:
    """Two workers. Before each local step, and between epochs, a tick passes at which ESTs may move."""

    def __init__(self, make: Loaders, first: list[int] | None = None) -> None:
        first = [0, 1] if first is None else first
        self.sessions = [Session(make, WORLD, first), Session(make, WORLD, [v for v in range(WORLD) if v not in first])]
        self.tick = 0

    def home(self, est: int) -> Session:
        return next(session for session in self.sessions if est in session.ests)

    def run(
        self, epochs: int, moves: list[tuple[int, int, bool]], before: Callable[[Any, int], None] | None = None
    ) -> None:
        """`moves`: at tick T EST v goes to the other worker, from where it stands or (True) from its replica."""
        for epoch in range(epochs):
            self._replicate()
            self._move(moves, set())
            for session in self.sessions:
                if before is not None:
                    before(session.loader.dataset, epoch)
                session.open(epoch)
            while self._global_step(moves):
                pass
            for session in self.sessions:
                session.feed.close()
        for session in self.sessions:
            session.feed.shutdown()

    def _global_step(self, moves: list[tuple[int, int, bool]]) -> bool:
        self._replicate()
        done: set[int] = set()
        got = []
        for est in range(WORLD):
            self._move(moves, done)
            got.append(self.home(est).step_of(est))
            done.add(est)
        return any(got)

    def _replicate(self) -> None:
        self.replicas: dict[int, Replica] = {est: self._replica(est) for est in range(WORLD)}

    def _replica(self, est: int) -> Replica:
        home = self.home(est)
        return home.feed.cursor(est), home.rng[est], [len(epoch) for epoch in home.batches[est]]

    def _move(self, moves: list[tuple[int, int, bool]], done: set[int]) -> None:
        for when, est, lost in moves:
            if when == self.tick:
                cursor, rng, had = self.replicas[est] if lost else self._replica(est)
                home, batches = self.home(est), self.home(est).batches[est]
                home.leave(est)
                other = next(session for session in self.sessions if session is not home)
                other.join(est, cursor, rng, [epoch[:count] for epoch, count in zip(batches, had, strict=True)])
                if lost and est in done:
                    other.step_of(est)
        self.tick += 1

    def batches(self) -> dict[int, list[list[Any]]]:
        return {est: self.home(est).batches[est] for est in range(WORLD)}

    def states(self) -> dict[int, RngState]:
        return {est: self.home(est).rng[est] for est in range(WORLD)}


def a_move(ticks: int) -> st.SearchStrategy[tuple[int, int, bool]]:
    return st.tuples(st.integers(0, ticks), st.integers(0, WORLD - 1), st.booleans())


def judge(make: Loaders, epochs: int, crew: Crew, **how: Any) -> None:
    expected, states = stock(make, WORLD, epochs, **how)
    assert any(expected[0][0])
    assert crew.batches() == expected
    for est in range(WORLD):
        assert crew.states()[est].same_as(states[est]), f"EST {est} drew something else from its random state"


def shuffled(**options: Any) -> DataLoader[Any]:
    return loader_of(Augmented(14), batch_size=2, shuffle=True, **options)


def own_generators(**options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    return loader_of(OwnRandom(14), batch_size=2, shuffle=True, generator=generator, **options)


def custom_sampler(**options: Any) -> DataLoader[Any]:
    return loader_of(Augmented(14), batch_size=2, sampler=InPlace(14), **options)


def batch_sampler(**options: Any) -> DataLoader[Any]:
    dataset, generator = Augmented(14), torch.Generator().manual_seed(5)
    batches = BatchSampler(RandomSampler(dataset, generator=generator), 2, False)
    return loader_of(dataset, batch_sampler=batches, generator=generator, **options)


def stateful() -> DataLoader[Any]:
    return loader_of(Stateful(), batch_size=5)


def replaying() -> DataLoader[Any]:
    return loader_of(Shards(WORLD, 20, draws=False), batch_size=2)


def streams(**options: Any) -> DataLoader[Any]:
    return loader_of(Shards(WORLD, 14), batch_size=2, **options)


@pytest.mark.parametrize("make", [shuffled, own_generators, custom_sampler, batch_sampler, stateful, replaying])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=st.lists(a_move(30), min_size=1, max_size=8))
def test_in_the_workers_own_process(make: Any, moves: list[tuple[int, int, bool]]) -> None:
    crew = Crew(make)
    crew.run(3, moves)
    judge(make, 3, crew)


POOLED = [
    (shuffled, {"prefetch_factor": 3}),
    (shuffled, {"persistent_workers": True, "prefetch_factor": 1}),
    (own_generators, {"persistent_workers": True}),
    (custom_sampler, {"persistent_workers": True}),
    (batch_sampler, {}),
    (streams, {}),
    (streams, {"persistent_workers": True}),
]


@pytest.mark.parametrize(("kind", "options"), POOLED)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=st.lists(a_move(30), min_size=3, max_size=10))
def test_with_loader_processes(kind: Any, options: dict[str, Any], moves: list[tuple[int, int, bool]]) -> None:
    make = lambda: kind(num_workers=2, **options)  # noqa: E731
    crew = Crew(make)
    crew.run(3, moves)
    judge(make, 3, crew)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [shuffled, custom_sampler, own_generators])
def test_a_worker_that_had_no_est_takes_all_and_gives_them_back(kind: Any, workers: int) -> None:
    make = lambda: kind(num_workers=workers)  # noqa: E731
    crew = Crew(make, first=[0, 1, 2])
    assert crew.sessions[1].feed.ests == ()
    assert len(crew.sessions[1].feed) == len(crew.sessions[0].feed)
    there = [(14, est, False) for est in range(WORLD)]  # in the middle of the second epoch
    crew.run(3, [*there, *((when + 5, est, False) for when, est, _ in there)])
    assert crew.sessions[0].feed.ests == (0, 1, 2)
    judge(make, 3, crew)


@pytest.mark.parametrize("still_open", [True, False])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", [shuffled, custom_sampler, own_generators])
def test_an_est_that_is_adopted_when_the_others_have_begun_the_next_epoch(
    kind: Any, workers: int, persistent: bool, still_open: bool
) -> None:
    """Its replica is of the epoch before; what the script changed at the top of this one counts for it too."""

    def reseed(dataset: Any, epoch: int) -> None:
        if isinstance(dataset, OwnRandom):
            dataset.rng = np.random.default_rng(epoch)
            dataset.transforms[1].seed(epoch)

    make = lambda: kind(num_workers=workers, persistent_workers=persistent)  # noqa: E731
    how: dict[str, Any] = {"before": reseed} if workers == 0 else {}
    crew = Crew(make)
    here, dies = crew.sessions
    for session in crew.sessions:
        for before in how.values():
            before(session.loader.dataset, 0)
        session.open(0)
    for _ in range(3):
        here.step()
        dies.step()
    replica = crew._replica(2)
    assert not here.step()
    assert not dies.step()
    here.feed.close()
    dies.feed.close()
    if not still_open:
        replica = crew._replica(2)
    assert closed(replica[0]) is not still_open
    for before in how.values():
        before(here.loader.dataset, 1)
    here.open(1)
    here.step_of(0)
    batches = dies.batches[2]
    dies.leave(2)
    dies.feed.shutdown()
    here.join(2, replica[0], replica[1], batches)
    if still_open:
        assert not here.step_of(2)
        here.feed.close(2)
    here.turn(2, lambda: here.feed.open(2, 1))
    here.batches[2].append([])
    here.step_of(1)
    here.step_of(2)
    while here.step():
        pass
    here.feed.shutdown()
    judge(make, 2, crew, **how)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_est_that_was_never_read_can_be_opened_elsewhere(workers: int) -> None:
    make = lambda: own_generators(num_workers=workers)  # noqa: E731
    expected, _ = stock(make, WORLD, 1)
    session = Session(make, WORLD, [0])
    session.open(0)
    assert session.step()  # moves the generators that the ESTs share
    other = Session(make, WORLD, [1])
    session.feed.add(1)
    session.ests.append(1)
    session.rng[1], session.batches[1] = other.rng[1], [[]]
    session.turn(1, lambda: session.feed.open(1, 0))
    while session.step():
        pass
    session.feed.shutdown()
    assert session.batches == {est: expected[est] for est in (0, 1)}


@pytest.mark.parametrize("persistent", [False, True])
def test_what_was_made_ahead_for_an_est_that_left_is_dropped(persistent: bool) -> None:
    make = lambda: shuffled(num_workers=2, prefetch_factor=4, persistent_workers=persistent)  # noqa: E731
    session = Session(make, WORLD, [0, 1])
    session.open(0)
    session.step()
    pool: Pool = session.feed._source.pool  # type: ignore[union-attr]
    session.leave(1)
    while session.step():
        pass
    assert not pool._arrived
    session.feed.close()
    session.run(range(1, 2))
    assert session.batches[0] == stock(make, WORLD, 2)[0][0]
    session.feed.shutdown()


def test_a_batch_of_an_earlier_stay_is_not_taken_for_one_of_a_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name for each stay, the bits differ."""
    make = lambda: shuffled(num_workers=2, prefetch_factor=2, persistent_workers=True)  # noqa: E731
    expected, _ = stock(make, WORLD, 2)

    def come_back() -> Any:
        session, other = Session(make, WORLD, [0]), Session(make, WORLD, [0])
        other.run(range(1))
        session.open(0)  # what it sends now is still on the way when the EST comes back in its next epoch
        session.leave(0)
        session.join(0, other.feed.cursor(0), other.rng[0], other.batches[0])
        session.run(range(1, 2))
        for one in (session, other):
            one.feed.shutdown()
        return session.batches[0]

    assert come_back() == expected[0]
    monkeypatch.setattr(Pool, "forget", lambda self, life: None)
    original = Pooled.__init__

    def one_name(self: Pooled, *args: Any) -> None:
        original(self, *args)
        self._names = iter([7, 7, 7])  # type: ignore[assignment]

    monkeypatch.setattr(Pooled, "__init__", one_name)
    assert come_back() != expected[0]


def test_with_a_random_state_of_another_moment_the_bits_differ() -> None:
    crew = Crew(shuffled)
    for session in crew.sessions:
        session.open(0)
        session.step()
    cursor, _, had = crew._replica(0)
    first, second = crew.sessions
    first.step_of(0)
    first.leave(0)
    second.join(0, cursor, first.rng[0], [first.batches[0][0][: had[0]]])
    for session in crew.sessions:
        while session.step():
            pass
    with pytest.raises(AssertionError):
        judge(shuffled, 1, crew)


def test_a_sampler_that_cannot_go_back_two_epochs_is_refused() -> None:
    session, late = Session(custom_sampler, WORLD, [0]), Session(custom_sampler, WORLD, [1])
    late.open(0)
    late.step()
    session.run(range(3))
    with pytest.raises(PromiseError, match="InPlace was asked for an epoch that it has left behind"):
        session.join(1, late.feed.cursor(1), late.rng[1], late.batches[1])


def test_a_generator_assigned_before_the_loop_is_found_when_an_est_is_taken_up() -> None:
    """The top of the epoch runs again in the new worker, and makes a new object."""

    def reseed(dataset: Any, epoch: int) -> None:
        dataset.rng = np.random.default_rng(epoch)

    expected, _ = stock(own_generators, 1, 2, before=reseed)
    first = Session(own_generators, 1, [0])
    first.run(range(1), before=reseed)
    reseed(first.loader.dataset, 1)
    first.open(1)
    first.step()
    second = Session(own_generators, 1, [])
    reseed(second.loader.dataset, 1)
    second.join(0, first.feed.cursor(0), first.rng[0], first.batches[0])
    while second.step():
        pass
    assert second.batches[0] == expected[0]


def test_a_cursor_keeps_its_objects_while_they_do_not_change() -> None:
    for kind, workers in ((custom_sampler, 0), (custom_sampler, 2), (streams, 2)):
        session = Session(lambda: kind(num_workers=workers), WORLD, [0, 1])  # noqa: B023
        session.run(range(2))
        before = session.feed.cursor(0)
        assert session.feed.cursor(0)["listed"] is before["listed"]
        session.open(2)
        session.step()
        one = session.feed.cursor(0)
        session.step()
        two = session.feed.cursor(0)
        for part in ("opening", "loader", "listed"):
            assert one[part] is two[part]
        assert two["consumed"] == one["consumed"] + 1
        if workers:
            same = [a["state"] is b["state"] for a, b in zip(one["streams"], two["streams"], strict=True)]
            assert same == [True, False]  # the second batch came from the second process
        assert bits(session.feed.cursor(0)) == bits(two)
        session.feed.shutdown()
