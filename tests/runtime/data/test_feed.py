"""Every batch of every EST has the bits that a stock loader on its rank gives, and costs the same random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.data.harness import (
    SEED,
    Augmented,
    OwnRandom,
    Session,
    announce,
    assert_same,
    bits,
    draw,
    fed,
    loader_of,
    splits_of,
    stock,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler, get_worker_info

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime.data import pool_worker

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize(
    ("workers", "world", "drop_last", "shuffle"),
    [
        (0, 2, False, True), (0, 3, True, True), (0, 4, False, False),
        (2, 2, True, True), (2, 4, False, True), (3, 3, False, True), (3, 2, True, False),
    ],
)  # fmt: skip
def test_any_split_gives_the_bits_of_stock_ranks(workers: int, world: int, drop_last: bool, shuffle: bool) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(Augmented(), batch_size=2, shuffle=shuffle, drop_last=drop_last, num_workers=workers)

    expected = stock(make, world)
    for splits in splits_of(world):
        got, states = fed(make, world, splits)
        assert got == expected[0]
        assert all(states[est].same_as(expected[1][est]) for est in range(world))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_is_what_a_ddp_script_writes_by_hand(workers: int) -> None:
    expected: dict[int, list[list[Any]]] = {}
    for rank in range(3):
        dataset = Augmented()
        sampler: Any = DistributedSampler(dataset, 3, rank, shuffle=True, seed=SEED)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers)
        announce(rank)
        seed_all(SEED + rank)
        expected[rank] = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            expected[rank].append([])
            for batch in loader:
                expected[rank][-1].append(bits(batch))
                draw()
    make = lambda: loader_of(Augmented(), batch_size=4, shuffle=True, num_workers=workers)  # noqa: E731
    assert fed(make, 3, [[0, 1, 2]])[0] == expected


def test_no_more_processes_than_the_loader_asks_for_and_none_after_shutdown() -> None:
    session = Session(lambda: loader_of(Augmented(), batch_size=2, num_workers=2), 4, [0, 1, 2, 3])
    session.open(0)
    session.step()
    members = session.feed._source.pool._processes.members  # type: ignore[union-attr]
    assert len(members) == 2
    session.feed.shutdown()
    session.feed.shutdown()
    assert not any(process.is_alive() for process in members)


def test_a_forgotten_feed_leaves_no_process() -> None:
    session = Session(lambda: loader_of(Augmented(), batch_size=2, num_workers=2, persistent_workers=True), 2, [0, 1])
    session.run(range(1))
    members = session.feed._source.pool._processes.members  # type: ignore[union-attr]
    assert all(process.is_alive() for process in members)
    del session
    assert not any(process.is_alive() for process in members)


def collate_with_noise(samples: list[torch.Tensor]) -> dict[str, Any]:
    return {"x": torch.stack(samples) * random.random(), "noise": torch.randn(2), "numpy": float(np.random.rand())}


def reseeding_init(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    np.random.seed((info.seed + 1) % 2**32)
    random.random()
    torch.rand(3)
    info.dataset.length += worker  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_draws_from_the_ests_random_state(workers: int) -> None:
    make = lambda: loader_of(Augmented(9), batch_size=2, collate_fn=collate_with_noise, num_workers=workers)  # noqa: E731
    assert_same(make, 2, [[0, 1]])


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_runs_once_a_stream_on_its_own_copy_of_the_data_set(persistent: bool) -> None:
    class Grows(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            self.epoch += 1  # what the stream's process has fetched so far
            return torch.cat([super().__getitem__(index), torch.tensor([float(self.length)])])

    def make() -> DataLoader[Any]:
        options: dict[str, Any] = {"worker_init_fn": reseeding_init, "persistent_workers": persistent}
        return loader_of(Grows(), batch_size=2, shuffle=True, num_workers=2, **options)

    assert_same(make, 3, [[0, 1, 2]], epochs=3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_the_loader_belongs_to_each_est(workers: int) -> None:
    def make() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        return loader_of(Augmented(), batch_size=3, shuffle=True, generator=generator, num_workers=workers)

    assert_same(make, 2, [[0, 1]])
    assert len(Session(make, 2, [0]).feed.generators) == 1


@pytest.mark.parametrize("stop", [None, 2])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_persistent_workers_keep_their_random_state_over_epochs(prefetch: int, stop: int | None) -> None:
    """After a break, stock's processes still do all that was sent to them, and so move their random state."""

    def make() -> DataLoader[Any]:
        options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": prefetch, "num_workers": 2}
        return loader_of(Augmented(30), batch_size=2, shuffle=True, **options)

    assert_same(make, 2, [[0, 1]], epochs=3, stop=stop)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_break_and_the_next_epoch_are_as_in_stock(workers: int) -> None:
    make = lambda: loader_of(Augmented(30), batch_size=2, shuffle=True, num_workers=workers)  # noqa: E731
    assert_same(make, 2, [[0, 1]], epochs=3, stop=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_size_none_gives_single_samples(workers: int) -> None:
    assert_same(lambda: loader_of(Augmented(9), batch_size=None, shuffle=True, num_workers=workers), 2, [[0, 1]])


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_data_set_changed_between_epochs_is_seen_as_in_stock(workers: int, persistent: bool) -> None:
    def change(dataset: Any, epoch: int) -> None:
        dataset.epoch = epoch * 100

    make = lambda: loader_of(Augmented(9), batch_size=2, num_workers=workers, persistent_workers=persistent)  # noqa: E731
    assert_same(make, 2, [[0, 1]], before=change)


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_inside_a_data_set_have_a_state_for_each_est(workers: int) -> None:
    make = lambda: loader_of(OwnRandom(), batch_size=2, shuffle=True, num_workers=workers)  # noqa: E731
    assert_same(make, 2, [[0, 1]])

    def reseed(dataset: Any, epoch: int) -> None:
        dataset.rng = np.random.default_rng(epoch)
        dataset.transforms[1].seed(epoch)

    assert_same(make, 2, [[0, 1]], before=reseed)


class MadeWhenNeeded:
    """A collate function that makes its generator at the first batch, one for each loader process."""

    rng: np.random.Generator | None = None

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        info = get_worker_info()
        if self.rng is None:
            self.rng = np.random.default_rng(info.id if info is not None else 0)
        return torch.stack(samples) + self.rng.random()


class Methods(Augmented):
    """Its methods are the loader's worker_init_fn and collate_fn."""

    offset = 0

    def init(self, worker: int) -> None:
        self.offset += worker + 1

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.offset += 10
        return torch.stack(samples) + self.offset


def test_what_a_loader_process_makes_for_itself_is_made_for_each_stream() -> None:
    assert_same(lambda: loader_of(Augmented(), batch_size=2, collate_fn=MadeWhenNeeded(), num_workers=2), 2, [[0, 1]])

    def methods() -> DataLoader[Any]:
        data = Methods()
        return loader_of(data, batch_size=2, collate_fn=data.collate, worker_init_fn=data.init, num_workers=2)

    assert_same(methods, 2, [[0, 1]])


def test_a_generator_made_while_ests_read_the_same_object_is_refused() -> None:
    session = Session(lambda: loader_of(Augmented(), batch_size=2, collate_fn=MadeWhenNeeded()), 2, [0, 1])
    session.open(0)
    with pytest.raises(PromiseError, match="made a random generator"):
        session.step()
    assert_same(lambda: loader_of(Augmented(), batch_size=2, collate_fn=MadeWhenNeeded()), 2, [[0], [1]])


def test_batches_of_one_est_may_be_consumed_ahead_of_the_others() -> None:
    make = lambda: loader_of(Augmented(), batch_size=2, shuffle=True, num_workers=2)  # noqa: E731
    expected, _ = stock(make, 3, 1)
    for pattern in ([2, 2, 0, 0, 1, 1], [1] * 20 + [0] * 20 + [2] * 20):
        session = Session(make, 3, [0, 1, 2])
        session.open(0)
        while sum(session.step_of(est) for est in pattern):
            pass
        session.feed.close()
        assert {est: session.batches[est] for est in range(3)} == expected


def test_the_tasks_in_flight_do_not_grow_with_the_ests() -> None:
    dataset = Augmented(4000)
    session = Session(lambda: loader_of(dataset, batch_size=1, num_workers=2, prefetch_factor=4), 8, list(range(8)))
    session.open(0)
    for _ in range(5):
        session.step()
        lanes = session.feed._source.lanes.values()
        iterators: list[Any] = [lane.iterator for lane in lanes]  # type: ignore[union-attr]
        assert sum(iterator.sent - iterator.received for iterator in iterators) <= 8 + 2
    session.feed.shutdown()


def test_without_the_swap_of_random_states_the_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: loader_of(Augmented(), batch_size=2, shuffle=True, num_workers=2)  # noqa: E731
    expected, _ = stock(make, 2, 1)
    monkeypatch.setattr(pool_worker.Stream, "_put_in", lambda self: None)
    assert fed(make, 2, [[0, 1]], 1)[0] != expected
    assert fed(make, 2, [[0], [1]], 1)[0] == expected  # one stream a process needs no swap


def test_length_is_that_of_one_rank() -> None:
    session = Session(
        lambda: loader_of(Augmented(22), batch_size=4, sampler=WeightedRandomSampler([1.0] * 22, 10)), 3, [1]
    )
    assert len(session.feed) == 1
    assert len(Session(lambda: loader_of(Augmented(22), batch_size=4), 3, [1]).feed) == 2
    assert len(Session(lambda: loader_of(Augmented(22), batch_size=4, drop_last=True, num_workers=2), 3, [1]).feed) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_pinning_without_an_accelerator_warns_as_stock(workers: int) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    session = Session(lambda: loader_of(Augmented(8), batch_size=2, pin_memory=True, num_workers=workers), 2, [0])
    with pytest.warns(UserWarning, match="no accelerator is found"):
        session.open(0)
    session.feed.shutdown()


def test_spawned_loader_processes_give_the_same_bits() -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    make = lambda: loader_of(data, batch_size=2, num_workers=1, multiprocessing_context="spawn")  # noqa: E731
    reference = lambda: loader_of(data, batch_size=2, num_workers=1)  # noqa: E731
    session = Session(make, 2, [0, 1])
    session.feed._source._announce = lambda est: None  # type: ignore[union-attr]  # cannot be pickled, so it is left out
    session.run(range(1))
    session.feed.shutdown()
    expected, states = stock(reference, 2, 1)
    assert session.batches == expected
    assert all(session.rng[est].same_as(states[est]) for est in range(2))


def test_opening_and_reading_leave_no_trace_beyond_what_stock_draws() -> None:
    make = lambda: loader_of(Augmented(8), batch_size=2, num_workers=2)  # noqa: E731
    session = Session(make, 2, [0])
    seed_all(SEED)
    torch.empty((), dtype=torch.int64).random_()  # the base seed, and nothing else
    expected = RngState.capture()
    session.open(0)
    assert session.rng[0].same_as(expected)
    session.turn(0, lambda: session.feed.next(0))
    assert session.rng[0].same_as(expected)
    session.feed.shutdown()
