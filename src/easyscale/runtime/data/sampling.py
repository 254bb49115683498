"""Samplers that cut any sampler's epoch into N shards, the way `DistributedSampler` cuts a data set.

The whole list of an epoch is drawn under a random state of its own, seeded with `seed + epoch` in every family
(as `numerics.rng.seed_all` does), and put back afterwards: it is the same on each rank and leaves no trace in the
rank's own random state. A `torch.Generator` that the sampler holds is not re-seeded: it goes on from epoch to epoch,
as it does without us. The list is padded by wrap-around to a multiple of N, and rank v takes every N-th from v on.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from easyscale.core.errors import PromiseError, UnsupportedError
from easyscale.numerics.rng import RngState

# Their lists depend on nothing that an earlier epoch left behind, except a generator.
_MEMORYLESS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, list, tuple, range)


class ShardedSampler(Sampler[Any]):
    """The v-th of N equal shards of any finite sampler: an ordinary torch sampler with `set_epoch`.

    As with `DistributedSampler`, `set_epoch` must be called before each epoch; iterating twice without it gives the
    same shard twice. Nothing is drawn before the first index is asked for.
    """

    def __init__(self, sampler: Iterable[Any], num_replicas: int, rank: int, seed: int) -> None:
        self.num_replicas, self.rank = num_replicas, rank
        self.epoch = 0
        self._listing = _Listing(sampler, seed)
        self._listed: tuple[int, ...] = ()  # the epochs listed before this one, in order
        self._shard: list[Any] | None = None

    def sibling(self, rank: int) -> ShardedSampler:
        """The sampler of another rank in this process. The two list the sampler once for both."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, rank=rank)
        return other

    @property
    def generators(self) -> list[torch.Generator]:
        return self._listing.generators

    @property
    def listed(self) -> tuple[int, ...]:
        """The epochs that were listed so far. It goes into a checkpoint; a new process hands it to `resume`."""
        return self._listed if self._shard is None else (*self._listed, self.epoch)

    def resume(self, listed: Sequence[int]) -> None:
        self._listed, self._shard = tuple(listed), None

    def set_epoch(self, epoch: int) -> None:
        self._listed, self._shard = self.listed, None
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        # A generator: stock calls iter() twice when it has loader processes, and only one of them is used.
        if self._shard is None:
            self._shard = _shard(self._listing.of(self._listed, self.epoch), self.num_replicas, self.rank)
        yield from self._shard

    def __len__(self) -> int:
        return math.ceil(len(self._listing) / self.num_replicas)


class ShardedBatchSampler(ShardedSampler):
    """The same for a batch sampler: whole batches are dealt out, and padding repeats whole batches."""


@dataclass(frozen=True)
class _Epoch:
    """The list of one epoch: after which others, and the states of the sampler's generators around it."""

    listed: tuple[int, ...]
    before: list[torch.Tensor]
    after: list[torch.Tensor]
    indices: list[Any]


class _Listing:
    """The whole list of a sampler's current epoch, listed once for all ranks that ask in this process."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self.sampler, self.seed = sampler, seed
        self.generators = generators_in(sampler)
        self._made: tuple[int, ...] = ()  # the epochs that the sampler has listed, in order
        self._after = self._generator_states()  # of its generators, when it had listed the last of them
        # The last epoch, and the one before: an EST may join this process that has not left it yet.
        self._kept: deque[_Epoch] = deque(maxlen=2)
        len(self)  # refuses now, not in the middle of the training

    def __len__(self) -> int:
        try:
            return len(self.sampler)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            raise UnsupportedError(
                f"The sampler {type(self.sampler).__name__} has no length.",
                "an epoch is dealt out to N ESTs from its whole list of indices, so the list must end.",
                "give the sampler a __len__ and let it end, or use an IterableDataset that shards itself by rank().",
            ) from None

    def of(self, listed: tuple[int, ...], epoch: int) -> list[Any]:
        """The list of `epoch`, after the epochs `listed`. The sampler's generators move on as if listed anew."""
        before, wanted = self._generator_states(), (*listed, epoch)
        for kept in self._kept:
            if kept.listed == wanted and _equal(kept.before, before):
                self._set_generators(kept.after)
                return kept.indices
        if not _memoryless(self.sampler) and self._made != listed:
            self._catch_up(listed)
            self._set_generators(before)
        indices = self._run(epoch)
        self._made, self._after = wanted, self._generator_states()
        self._kept.append(_Epoch(wanted, before, self._after, indices))
        return indices

    def _catch_up(self, listed: tuple[int, ...]) -> None:
        """A sampler of the user's may shuffle a list of its own in place, so what it gives depends on the epochs
        before. Those that it has not listed in this process are listed now; indices only, no data."""
        if listed[: len(self._made)] != self._made:
            raise PromiseError(
                f"The sampler {type(self.sampler).__name__} was asked for an epoch that it has left behind.",
                "what it lists may hang on the epochs before, and it cannot be taken back to them.",
                "give it a set_epoch() method and let the epoch's number decide the order.",
            )
        self._set_generators(self._after)
        for past in listed[len(self._made) :]:
            self._run(past)

    def _run(self, epoch: int) -> list[Any]:
        with _scoped_rng(self.seed + epoch):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            # A length may be an estimate, as those of dynamic batch samplers are; nothing that ends is this far off.
            bound = 4 * len(self) + 1024
            everything = list(itertools.islice(iter(self.sampler), bound + 1))
        if len(everything) > bound:
            raise UnsupportedError(
                f"The sampler {type(self.sampler).__name__} says that its length is {len(self)}, but it does not end.",
                "an epoch is dealt out to N ESTs from its whole list of indices, so the list must end.",
                "let the sampler end after one epoch.",
            )
        return everything

    def _generator_states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.generators]

    def _set_generators(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


def generators_in(sampler: object) -> list[torch.Generator]:
    """The torch generators that a sampler, or the sampler inside a batch sampler, holds."""
    found: list[torch.Generator] = []
    for holder in (sampler, getattr(sampler, "sampler", None)):
        for value in getattr(holder, "__dict__", {}).values():
            if isinstance(value, torch.Generator) and not any(value is known for known in found):
                found.append(value)
    return found


def _memoryless(sampler: object) -> bool:
    if type(sampler) is BatchSampler:
        return _memoryless(sampler.sampler)
    # `set_epoch` is a promise that the epoch's number decides.
    return type(sampler) in _MEMORYLESS or hasattr(sampler, "set_epoch")


def _shard(everything: list[Any], replicas: int, rank: int) -> list[Any]:
    if not everything:
        return []
    total = math.ceil(len(everything) / replicas) * replicas
    padding = list(itertools.islice(itertools.cycle(everything), total - len(everything)))
    return (everything + padding)[rank::replicas]


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@contextmanager
def _scoped_rng(seed: int) -> Iterator[None]:
    # `torch.manual_seed` would re-seed each GPU of the machine; only what can be put back is seeded.
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None
    state = RngState.capture(device)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device is not None:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        state.restore(device)
