"""From the user's `DataLoader` to the stock loader of one rank: the sampler is replaced, all else is copied.

These loaders are what the promise is measured against: the stock-DDP engine iterates over them as they are, and
`Feed` gives what they would give.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
)

from easyscale.core.errors import UnsupportedError
from easyscale.runtime.data.private import rebound
from easyscale.runtime.data.sampling import ShardedBatchSampler, ShardedSampler, generators_in


def stock_loader(loader: DataLoader[Any], *, world_size: int, rank: int, seed: int) -> DataLoader[Any]:
    """A stock loader for rank `rank` of `world_size`. Call `set_epoch` before each epoch."""
    return StockLoaders(loader, world_size=world_size, seed=seed).of(rank)


class StockLoaders:
    """Stock loaders for any ranks of one process, made when they are needed. All list a custom sampler once."""

    def __init__(self, loader: DataLoader[Any], *, world_size: int, seed: int) -> None:
        _refuse_what_cannot_work(loader)
        self._loader = loader
        self._shard = _sharding(loader, world_size, seed)

    def of(self, rank: int, dataset: Dataset[Any] | None = None) -> DataLoader[Any]:
        """The loader of one rank, fresh at each call. `dataset`: read this one instead of the user's."""
        return _rebuild(self._loader, self._loader.dataset if dataset is None else dataset, self._shard(rank))


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Tell the sampler of a stock loader which epoch begins, as a DDP script does by hand."""
    sampler = _own_sampler(loader)
    if sampler is not None:
        sampler.set_epoch(epoch)


def sharded_sampler(loader: DataLoader[Any]) -> ShardedSampler | None:
    """The `ShardedSampler` of a stock loader, if it has one."""
    sampler = _own_sampler(loader)
    return sampler if isinstance(sampler, ShardedSampler) else None


def generators_of(loader: DataLoader[Any]) -> tuple[torch.Generator, ...]:
    """The generators that the user gave this loader and its samplers, each once."""
    found: list[torch.Generator] = []
    for generator in (loader.generator, *generators_in(loader.sampler), *generators_in(loader.batch_sampler)):
        if generator is not None and not any(generator is known for known in found):
            found.append(generator)
    return tuple(found)


def _own_sampler(loader: DataLoader[Any]) -> DistributedSampler[Any] | ShardedSampler | None:
    for sampler in (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.sampler):
        if isinstance(sampler, (DistributedSampler, ShardedSampler)):
            return sampler
    return None


def _sharding(loader: DataLoader[Any], world_size: int, seed: int) -> Callable[[int], dict[str, Any]]:
    """Says, for a rank, the arguments of `DataLoader` that decide which samples come in which batch."""
    plain = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.dataset, IterableDataset):
        return lambda rank: plain
    batches = loader.batch_sampler
    if batches is None or loader.batch_size is not None:
        sampler = _sampling(loader, world_size, seed)
        return lambda rank: {**plain, "sampler": sampler(rank)}
    inner = getattr(batches, "sampler", None)  # the user gave a batch sampler
    if type(batches) is BatchSampler and isinstance(inner, DistributedSampler):
        size, drop_last = batches.batch_size, batches.drop_last
        return lambda rank: {"batch_sampler": BatchSampler(_for_rank(inner, world_size, rank), size, drop_last)}
    first = ShardedBatchSampler(batches, world_size, 0, seed)
    return lambda rank: {"batch_sampler": first.sibling(rank)}


def _sampling(loader: DataLoader[Any], world_size: int, seed: int) -> Callable[[int], Iterable[Any]]:
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return lambda rank: _for_rank(sampler, world_size, rank)
    shuffle = _made_by_loader(loader)
    if shuffle is not None:
        return lambda rank: DistributedSampler(loader.dataset, world_size, rank, shuffle=shuffle, seed=seed)
    return ShardedSampler(sampler, world_size, 0, seed).sibling


def _made_by_loader(loader: DataLoader[Any]) -> bool | None:
    """The loader's `shuffle` if its sampler is the one that it makes itself, else None."""
    sampler, dataset = loader.sampler, cast(object, loader.dataset)
    if type(sampler) is SequentialSampler and sampler.data_source is dataset:
        return False
    if (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is loader.generator
    ):
        return True
    return None


def _for_rank(sampler: DistributedSampler[Any], world_size: int, rank: int) -> DistributedSampler[Any]:
    kind = type(sampler)
    if kind.__init__ is not DistributedSampler.__init__:
        raise UnsupportedError(
            f"The sampler {kind.__name__} extends DistributedSampler with an __init__ of its own.",
            "one sampler is built for each EST, and what that __init__ derives from the rank cannot be known.",
            "use DistributedSampler itself, or a Sampler that lists the whole epoch: it is sharded for you.",
        )
    made = kind(
        sampler.dataset, world_size, rank, shuffle=sampler.shuffle, seed=sampler.seed, drop_last=sampler.drop_last
    )
    made.__dict__.update({key: value for key, value in vars(sampler).items() if key not in vars(made)})
    return made


def _rebuild(loader: DataLoader[Any], dataset: Dataset[Any], shard: dict[str, Any]) -> DataLoader[Any]:
    options: dict[str, Any] = {}
    if loader.num_workers > 0:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["persistent_workers"] = loader.persistent_workers
    if loader.pin_memory_device:
        options["pin_memory_device"] = loader.pin_memory_device
    if hasattr(loader, "in_order"):
        options["in_order"] = loader.in_order
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own loader has warned of the same things
        return DataLoader(
            dataset,
            num_workers=loader.num_workers,
            collate_fn=rebound(loader.collate_fn, loader.dataset, dataset),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
            **shard,
            **options,
        )


def _refuse_what_cannot_work(loader: DataLoader[Any]) -> None:
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        raise UnsupportedError(
            f"{kind.__name__} iterates in its own way.",
            "each EST needs an iterator of its own that can be put down and taken up in the middle of an epoch, and "
            "only that of torch.utils.data.DataLoader is known well enough for that.",
            "pass a plain DataLoader; a data set or a collate_fn can do what the class adds.",
        )
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        raise UnsupportedError(
            "The loader reads from a DataPipe.",
            "DataPipes shuffle with a seed that all ranks agree on over the network, and shard themselves.",
            "use a map-style Dataset, or an IterableDataset that shards itself by easyscale.rank().",
        )
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        raise UnsupportedError(
            "The loader has in_order=False.",
            "batches would then come in the order in which loader processes happen to finish.",
            "leave in_order at True.",
        )
