"""How an epoch is dealt out to N ranks, for each way in which a user can say what an epoch is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.data.harness import SEED, Augmented, assert_same, loader_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime.data import ShardedBatchSampler, ShardedSampler, set_epoch, stock_loader
from easyscale.runtime.data.stock import StockLoaders

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Everything(Sampler[int]):
    """Draws from each global family, and counts how often it was listed."""

    def __init__(self, length: int) -> None:
        self.length, self.listed = length, 0

    def __iter__(self) -> Iterator[int]:
        self.listed += 1
        order = list(range(self.length))
        random.shuffle(order)
        order = np.random.permutation(order).tolist()
        yield from (order[i] for i in torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


@given(st.integers(1, 40), st.integers(1, 9))
def test_shards_are_cut_as_distributed_sampler_cuts_a_data_set(length: int, world: int) -> None:
    items = list(range(100, 100 + length))
    for rank in range(world):
        stock: Any = DistributedSampler(items, world, rank, shuffle=False)  # type: ignore[arg-type]
        shard = ShardedSampler(items, world, rank, SEED)
        assert list(shard) == [items[i] for i in stock]
        assert len(shard) == len(stock)


def test_every_rank_cuts_the_same_list_whatever_its_random_state_and_leaves_it_alone() -> None:
    shards = []
    for rank in range(3):
        seed_all(rank)
        before = RngState.capture()
        sampler = ShardedSampler(Everything(10), 3, rank, SEED)
        sampler.set_epoch(4)
        shards.append(list(sampler))
        assert RngState.capture().same_as(before)
    seed_all(SEED + 4)
    whole = list(Everything(10))
    assert shards == [(whole + whole[:2])[rank::3] for rank in range(3)]


def test_each_epoch_has_its_own_list_and_gives_it_again_when_asked_twice() -> None:
    sampler = ShardedSampler(Everything(10), 2, 0, SEED)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert list(sampler) == epochs[-1]
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_ests_of_a_worker_list_a_sampler_once_for_all() -> None:
    sampler = Everything(10)
    made = StockLoaders(loader_of(Augmented(10), sampler=sampler), world_size=4, seed=SEED)
    loaders = [made.of(rank) for rank in (1, 2, 3)]
    for epoch in range(2):
        for loader in loaders:
            set_epoch(loader, epoch)
            list(loader.sampler)
    assert sampler.listed == 2


def test_set_epoch_of_the_users_sampler_is_called() -> None:
    class WithEpoch(Everything):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            yield from [self.epoch] * self.length

    sampler = ShardedSampler(WithEpoch(4), 2, 0, SEED)
    sampler.set_epoch(7)
    assert list(sampler) == [7, 7]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, 0) for kind in ("replacement", "weighted", "subset", "custom", "list", "own generator", "batches")]
    + [(kind, 2) for kind in ("custom", "own generator", "batches")],
)
def test_custom_samplers_give_the_bits_of_stock_ranks(kind: str, workers: int) -> None:
    def make() -> DataLoader[Any]:
        dataset = Augmented(20)
        own = torch.Generator().manual_seed(3)
        samplers: dict[str, Any] = {
            "replacement": RandomSampler(dataset, replacement=True, num_samples=13),
            "weighted": WeightedRandomSampler([float(i) for i in range(20)], 15),
            "subset": SubsetRandomSampler([1, 3, 5, 7, 9, 11, 13]),
            "custom": Everything(20),
            "list": [5, 3, 1, 5, 2],
            "own generator": RandomSampler(dataset, generator=own),
        }
        if kind == "batches":
            batches = BatchSampler(Everything(20), 3, drop_last=False)
            return loader_of(dataset, batch_sampler=batches, num_workers=workers)
        return loader_of(dataset, batch_size=2, sampler=samplers[kind], drop_last=True, num_workers=workers)

    assert_same(make, 3, [[0, 1, 2]])


def test_a_batch_sampler_is_dealt_out_in_whole_batches() -> None:
    batches = [[0], [1, 2], [3], [4, 5, 6], [7]]
    loader = loader_of(Augmented(8), batch_sampler=batches)
    ranks = [stock_loader(loader, world_size=3, rank=rank, seed=SEED) for rank in range(3)]
    assert [list(rank.batch_sampler) for rank in ranks] == [[[0], [4, 5, 6]], [[1, 2], [7]], [[3], [0]]]  # type: ignore[arg-type]
    assert isinstance(ranks[0].batch_sampler, ShardedBatchSampler)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_distributed_sampler_is_rebuilt_for_each_rank_with_its_own_settings(drop_last: bool) -> None:
    dataset = Augmented(11)
    given_one: Any = DistributedSampler(dataset, 7, 5, shuffle=True, seed=99, drop_last=drop_last)
    for loader in (
        loader_of(dataset, batch_size=2, sampler=given_one),
        loader_of(dataset, batch_sampler=BatchSampler(given_one, 2, False)),
    ):
        for rank in range(3):
            expected: Any = DistributedSampler(dataset, 3, rank, shuffle=True, seed=99, drop_last=drop_last)
            expected.set_epoch(2)
            stock = stock_loader(loader, world_size=3, rank=rank, seed=SEED)
            set_epoch(stock, 2)
            assert list(stock.batch_sampler) == list(BatchSampler(expected, 2, False))  # type: ignore[arg-type]


def test_default_samplers_become_distributed_samplers_with_the_jobs_seed() -> None:
    dataset = Augmented(11)
    for shuffle in (False, True):
        made = stock_loader(loader_of(dataset, shuffle=shuffle), world_size=3, rank=2, seed=SEED).sampler
        assert isinstance(made, DistributedSampler)
        facts = (made.shuffle, made.seed, made.num_replicas, made.rank, made.drop_last)
        assert facts == (shuffle, SEED, 3, 2, False)


def test_all_else_of_the_loader_is_copied() -> None:
    def collate(samples: Any) -> Any:
        return samples

    def init(worker: int) -> None:
        del worker

    generator = torch.Generator()
    options: dict[str, Any] = {"timeout": 5, "prefetch_factor": 3, "persistent_workers": True, "num_workers": 2}
    options |= {"collate_fn": collate, "worker_init_fn": init, "generator": generator, "pin_memory": True}
    loader = loader_of(Augmented(), batch_size=5, drop_last=True, multiprocessing_context="spawn", **options)
    stock = stock_loader(loader, world_size=2, rank=0, seed=SEED)
    assert type(stock) is DataLoader
    assert {name: getattr(stock, name) for name in options} == options
    assert (stock.batch_size, stock.drop_last) == (5, True)
    assert stock.multiprocessing_context is loader.multiprocessing_context


class Endless(Everything):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Unsized(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0


class OwnWay(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class OwnRank(DistributedSampler[Any]):
    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__(dataset, 2, 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DataLoader(Augmented(), sampler=Unsized()), "has no length"),
        (lambda: DataLoader(Augmented(), sampler=Endless(5)), "does not end"),
        (lambda: OwnWay(Augmented()), "OwnWay iterates in its own way"),
        (lambda: DataLoader(Augmented(), sampler=OwnRank(Augmented())), "OwnRank extends DistributedSampler"),
        (lambda: loader_of(Augmented(), num_workers=2, in_order=False), "in_order=False"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_with_a_way_out(make: Any, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says) as caught:
        list(stock_loader(make(), world_size=2, rank=0, seed=SEED).sampler)
    assert caught.value.why
    assert caught.value.now


def test_a_sampler_over_another_data_set_is_not_mistaken_for_the_loaders_own() -> None:
    loader = loader_of(Augmented(10), sampler=SequentialSampler(range(4)))
    assert list(stock_loader(loader, world_size=2, rank=1, seed=SEED).sampler) == [1, 3]
