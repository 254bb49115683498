"""An EST that is taken up in another process, among other ESTs, goes on with the bits that stock would have given."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.runtime.data.harness import SEED, Augmented, Loaders, OwnRandom, Session, draw, loader_of, resume, stock
from torch.utils.data import DataLoader, RandomSampler

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def travelled(cursors: dict[int, Any]) -> dict[int, Any]:
    """Through a file that can hold plain values and tensors only."""
    file = io.BytesIO()
    torch.save(cursors, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)  # type: ignore[no-any-return]


def cut(
    make: Loaders, world: int, *, epoch: int, steps: int, splits: Sequence[Sequence[int]], epochs: int = 3
) -> tuple[dict[int, list[list[Any]]], list[Session]]:
    """All ESTs on one worker up to a step of an epoch, then on `splits`. Gives the epochs from that one on."""
    first = Session(make, world, range(world))
    first.run(range(epoch))
    first.open(epoch)
    for _ in range(steps):
        assert first.step()
    cursors, rng = travelled(first.cursors()), dict(first.rng)
    before = {est: first.batches[est][-1] for est in first.ests}
    first.step()  # what is drawn after the cursor was taken is not in it
    first.feed.shutdown()
    batches: dict[int, list[list[Any]]] = {}
    sessions = []
    for ests in splits:
        draw()
        session = resume(make, world, ests, cursors, rng)
        while session.step():
            pass
        session.feed.close()
        session.run(range(epoch + 1, epochs))
        session.feed.shutdown()
        for est in ests:
            batches[est] = [before[est][:steps] + session.batches[est][0], *session.batches[est][1:]]
        sessions.append(session)
    return batches, sessions


def from_epoch(batches: dict[int, list[list[Any]]], epoch: int) -> dict[int, list[list[Any]]]:
    return {est: epochs[epoch:] for est, epochs in batches.items()}


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True), (3, True)])
def test_an_epoch_is_continued_to_the_bit(workers: int, persistent: bool) -> None:
    def make() -> DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
        return loader_of(Augmented(22), batch_size=2, shuffle=True, **options)

    epochs = 3 if persistent else 2
    expected, _ = stock(make, 3, epochs)
    for steps in (0, 1, 3, 4) if workers != 3 else (2,):  # 4 is the end of the epoch
        got, _ = cut(make, 3, epoch=1, steps=steps, splits=[[0], [1, 2]], epochs=epochs)
        assert got == from_epoch(expected, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_that_was_consumed_is_fetched_again(workers: int) -> None:
    make = lambda: loader_of(Augmented(24), batch_size=2, shuffle=True, num_workers=workers)  # noqa: E731
    _, sessions = cut(make, 3, epoch=0, steps=3, splits=[[0, 1, 2]], epochs=1)
    assert sessions[0].loader.dataset.fetched.value == 24 - 3 * 3 * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_and_custom_samplers_are_continued(workers: int) -> None:
    class InPlace(torch.utils.data.Sampler[int]):
        """Its order hangs on the epochs before, and on a generator that the loader shares."""

        def __init__(self, generator: torch.Generator) -> None:
            self.order, self.generator = torch.arange(20), torch.Generator().manual_seed(8)
            self.shared = generator

        def __iter__(self) -> Any:
            self.order = self.order[torch.randperm(20, generator=self.generator)]
            order = self.order.tolist()
            random.shuffle(order)
            return iter(order)

        def __len__(self) -> int:
            return 20

    def in_place() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        sampler = InPlace(generator)
        return loader_of(Augmented(20), batch_size=2, sampler=sampler, num_workers=workers, generator=generator)

    def shared() -> DataLoader[Any]:
        generator, dataset = torch.Generator().manual_seed(5), Augmented(20)
        sampler = RandomSampler(dataset, replacement=True, num_samples=20, generator=generator)
        return loader_of(dataset, batch_size=2, sampler=sampler, num_workers=workers, generator=generator)

    for make in (in_place, shared):
        expected, _ = stock(make, 2, 2)
        got, _ = cut(make, 2, epoch=1, steps=2, splits=[[1], [0]], epochs=2)
        assert got == from_epoch(expected, 1)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_generators_inside_a_data_set_are_continued(workers: int, persistent: bool) -> None:
    make = lambda: loader_of(OwnRandom(), batch_size=2, num_workers=workers, persistent_workers=persistent)  # noqa: E731
    expected, _ = stock(make, 3, 3)
    got, _ = cut(make, 3, epoch=1, steps=2, splits=[[0, 1], [2]])
    assert got == from_epoch(expected, 1)


@pytest.mark.parametrize("stop", [None, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_between_two_epochs_a_cursor_keeps_what_outlives_an_epoch(workers: int, stop: int | None) -> None:
    def make() -> DataLoader[Any]:
        generator, dataset = torch.Generator().manual_seed(5), Augmented(20)
        sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(6))
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "generator": generator}
        return loader_of(dataset, batch_size=2, sampler=sampler, **options)

    expected, _ = stock(make, 2, 3, stop=stop)
    first = Session(make, 2, [0, 1])
    for epoch in range(2):
        first.open(epoch)
        while len(first.batches[0][-1]) != stop and first.step():
            pass
        first.feed.close()
    cursors = travelled(first.cursors())
    first.feed.shutdown()
    for est in range(2):
        session = Session(make, 2, [est])
        session.feed.restore(est, cursors[est])
        session.rng[est] = first.rng[est]
        session.run(range(2, 3))
        session.feed.shutdown()
        assert session.batches[est] == expected[est][2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cursor_can_be_taken_each_step_and_handed_on_many_times(workers: int) -> None:
    make = lambda: loader_of(Augmented(24), batch_size=2, shuffle=True, num_workers=workers)  # noqa: E731
    expected, _ = stock(make, 2, 1)
    session = Session(make, 2, [0, 1])
    session.open(0)
    got: dict[int, list[Any]] = {0: [], 1: []}
    for steps in (1, 2, 3):
        for _ in range(steps):
            session.step()
            cursors = session.cursors()
        for est in (0, 1):
            got[est] += session.batches[est][0]
        session.feed.shutdown()
        session = resume(make, 2, [1, 0] if steps == 2 else [0, 1], cursors, session.rng)
    assert not session.step()
    session.feed.shutdown()
    assert got == {est: expected[est][0] for est in (0, 1)}


@pytest.mark.parametrize("change", [{"num_workers": 1}, {"batch_size": 3}, {"drop_last": True}])
def test_a_loader_with_other_arguments_is_refused(change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 0}
    session = Session(lambda: loader_of(Augmented(), **options), 2, [0])
    session.open(0)
    session.step()
    with pytest.raises(PromiseError, match=next(iter(change))):
        resume(lambda: loader_of(Augmented(), **options | change), 2, [0], session.cursors(), session.rng)


def test_without_the_states_of_the_streams_the_bits_differ() -> None:
    make = lambda: loader_of(Augmented(24), batch_size=2, shuffle=True, num_workers=2)  # noqa: E731
    session = Session(make, 2, [0, 1])
    session.open(0)
    for _ in range(3):
        session.step()
    cursors, rng = session.cursors(), dict(session.rng)
    session.step()
    session.feed.shutdown()
    for forget in (False, True):
        if forget:
            for stream in cursors[0]["streams"]:
                stream["state"] = None
        after = resume(make, 2, [0, 1], cursors, dict(rng))
        after.step()
        after.feed.shutdown()
        assert (after.batches[1][0][0] == session.batches[1][0][3]) is True
        assert (after.batches[0][0][0] == session.batches[0][0][3]) is not forget


def test_a_stream_that_draws_nothing_sends_no_state() -> None:
    make = lambda: loader_of(list(range(24)), batch_size=2, num_workers=2)  # noqa: E731
    session = Session(make, 2, [0, 1])
    session.open(0)
    session.step()
    cursor = session.feed.cursor(0)
    assert [stream["state"] for stream in cursor["streams"]] == [None, None]
    assert RngState.from_tree(cursor["opening"]).cpu.numel() > 0
    assert cursor["base_seed"] == int(
        torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(SEED))
    )
    session.feed.shutdown()
