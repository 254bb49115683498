"""Iterable data sets: each EST has an iterator of its own in each loader process, as each stock process has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.runtime.data.harness import Session, Shards, assert_same, current, draw, loader_of, stock
from tests.runtime.data.test_cursor import cut, from_epoch
from torch.utils.data import DataLoader, IterableDataset

from easyscale.core.errors import PromiseError, UnsupportedError
from easyscale.runtime.data import Feed

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class SelfIterating(IterableDataset[Any]):
    """Its own iterator, with a count that outlives the epoch."""

    def __init__(self) -> None:
        self.at = self.epochs = 0

    def __iter__(self) -> SelfIterating:
        self.at, self.epochs = current["rank"], self.epochs + 1
        return self

    def __next__(self) -> torch.Tensor:
        if self.at >= 17:
            raise StopIteration
        self.at += 2
        return torch.tensor([self.at, self.epochs, *draw()], dtype=torch.float64)


class Counting(Shards):
    """Changes its own attributes while it is iterated over."""

    def __iter__(self) -> Iterator[Any]:
        self.length -= 4
        yield from super().__iter__()


class Stateful(IterableDataset[Any]):
    """Draws from the training's random state at each step, and says where it stands."""

    def __init__(self) -> None:
        self.place: dict[str, Any] = {"at": 0, "sum": 0.0}

    def __iter__(self) -> Iterator[Any]:
        while self.place["at"] < 20:
            self.place["at"] += 1
            self.place["sum"] += float(torch.rand(()))
            yield torch.tensor([current["rank"], self.place["at"], self.place["sum"]])
        self.place = {"at": 0, "sum": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = dict(state)


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, False), (3, True)])
def test_shards_by_rank_and_loader_worker_are_as_in_stock(
    workers: int, persistent: bool, batch_size: int | None
) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(Shards(2), batch_size=batch_size, num_workers=workers, persistent_workers=persistent)

    assert_same(make, 2, [[0, 1]])


@pytest.mark.parametrize("kind", [SelfIterating, Stateful, lambda: Counting(3)])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_a_data_set_that_changes_itself_does_so_for_its_est_only(kind: Any, workers: int, persistent: bool) -> None:
    make = lambda: loader_of(kind(), batch_size=2, num_workers=workers, persistent_workers=persistent)  # noqa: E731
    assert_same(make, 3, [[0, 1], [2]])


def test_what_the_script_assigns_reaches_every_copy() -> None:
    def change(dataset: Any, epoch: int) -> None:
        dataset.length = 20 + epoch

    assert_same(lambda: loader_of(Shards(2), batch_size=2), 2, [[0, 1]], before=change)


def test_drop_last_drops_in_each_loader_worker() -> None:
    assert_same(lambda: loader_of(Shards(2), batch_size=3, drop_last=True, num_workers=2), 2, [[0, 1]])


@pytest.mark.parametrize(("workers", "persistent"), [(2, False), (3, True)])
def test_with_loader_processes_it_is_taken_up_by_making_the_batches_again(workers: int, persistent: bool) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(Shards(2, 32), batch_size=2, num_workers=workers, persistent_workers=persistent)

    epochs = 3 if persistent else 2
    expected, _ = stock(make, 2, epochs)
    for steps in (0, 1, 4):
        got, _ = cut(make, 2, epoch=1, steps=steps, splits=[[1], [0]], epochs=epochs)
        assert got == from_epoch(expected, 1)


@pytest.mark.parametrize("kind", [lambda: Shards(2, draws=False), Stateful])
def test_in_the_workers_process_it_is_taken_up_by_replay_or_by_its_state(kind: Any) -> None:
    make = lambda: loader_of(kind(), batch_size=2)  # noqa: E731
    expected, _ = stock(make, 2, 2)
    got, _ = cut(make, 2, epoch=1, steps=2, splits=[[0], [1]], epochs=2)
    assert got == from_epoch(expected, 1)


def test_an_order_drawn_at_the_start_of_the_epoch_can_be_replayed() -> None:
    class Shuffled(Shards):
        def __iter__(self) -> Iterator[Any]:
            items = list(super().__iter__())
            yield from (items[i] for i in torch.randperm(len(items)).tolist())

    make = lambda: loader_of(Shuffled(2), batch_size=2)  # noqa: E731
    expected, _ = stock(make, 2, 2)
    got, _ = cut(make, 2, epoch=1, steps=3, splits=[[0], [1]], epochs=2)
    assert got == from_epoch(expected, 1)


def test_a_replay_that_would_need_the_trainings_random_numbers_is_refused() -> None:
    with pytest.raises(PromiseError, match="state_dict"):
        cut(lambda: loader_of(Shards(2), batch_size=2), 2, epoch=0, steps=3, splits=[[0]])


def test_a_replay_that_goes_another_way_is_refused() -> None:
    entropy = [0]

    class Unsteady(Shards):
        def __iter__(self) -> Iterator[Any]:
            torch.rand(entropy[0])
            yield from super().__iter__()

    def make() -> DataLoader[Any]:
        entropy[0] += 1  # as if it hung on the clock
        return loader_of(Unsteady(2), batch_size=2, num_workers=2)

    with pytest.raises(PromiseError, match="did not draw the random numbers that it drew before"):
        cut(make, 2, epoch=0, steps=3, splits=[[0]])


def test_an_iterator_of_its_own_that_cannot_be_copied_is_refused() -> None:
    class Open(SelfIterating):
        def __init__(self) -> None:
            super().__init__()
            self.file = (line for line in "abc")

    with pytest.raises(UnsupportedError, match="cannot be copied"):
        Feed(loader_of(Open(), batch_size=2), world_size=2, ests=[0, 1], seed=0)


def test_without_a_length_there_is_none() -> None:
    with pytest.raises(TypeError):
        len(Session(lambda: loader_of(Shards(2), batch_size=2), 2, [0]).feed)
