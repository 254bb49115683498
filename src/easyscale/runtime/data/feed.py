"""`Feed`: all batches of one user `DataLoader` for the ESTs of this worker."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from easyscale.runtime.data.inline import Inline
from easyscale.runtime.data.pooled import Pooled
from easyscale.runtime.data.private import Follower
from easyscale.runtime.data.stock import generators_of, stock_loaders


def _unheard(est: int) -> None:
    del est


class Feed:
    """Each EST gets, to the bit, what a stock loader on rank v of N would give it.

    All calls for an EST are made while its random state is live (Python, NumPy, torch and `generators`), and consume
    of it what stock would. `restore` alone may leave any random state behind.
    """

    # The generators that the user gave the loader and its samplers. On N ranks each has its own, so the caller keeps
    # their states per EST, together with the other random states.
    generators: tuple[torch.Generator, ...]

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        world_size: int,
        ests: Sequence[int],
        seed: int,
        device: torch.device | None = None,
        announce: Callable[[int], None] = _unheard,
    ) -> None:
        """`announce(v)` is called in a loader process before it works for EST v."""
        self.generators = generators_of(loader)
        followers: dict[int, Follower] = {}
        if isinstance(loader.dataset, IterableDataset) and loader.num_workers == 0:
            followers = {est: Follower(loader.dataset) for est in ests}
        stock = stock_loaders(
            loader,
            world_size=world_size,
            ranks=ests,
            seed=seed,
            datasets=[follower.copy for follower in followers.values()] or None,
        )
        self._loaders = dict(zip(ests, stock, strict=True))
        self._source: Inline | Pooled
        if loader.num_workers == 0:
            self._source = Inline(self._loaders, followers, device, self.generators)
        else:
            self._source = Pooled(self._loaders, device, self.generators, announce)
        weakref.finalize(self, self._source.shutdown)  # a feed that is forgotten leaves no process behind

    def __len__(self) -> int:
        """Batches of one EST in an epoch. TypeError where the stock loader has no length."""
        lengths = [len(loader) for loader in self._loaders.values()]  # stock remembers that it was asked
        return lengths[0]

    def open(self, est: int, epoch: int) -> None:
        """What a stock rank does in `iter(loader)`, after `set_epoch`."""
        self._source.switch(est, opens=True)
        self._source.lanes[est].open(epoch)

    def next(self, est: int) -> Any:
        """The EST's next batch; StopIteration at the end of its epoch."""
        self._source.switch(est)
        return self._source.lanes[est].next()

    def cursor(self, est: int) -> dict[str, Any]:
        """The EST's place: plain values and tensors, for a checkpoint or another worker. Not to be changed."""
        return self._source.lanes[est].cursor()

    def restore(self, est: int, cursor: dict[str, Any]) -> None:
        """Take up an EST where another process left it. No batch that was consumed is fetched again, except those
        of an IterableDataset without `state_dict`/`load_state_dict` or with loader processes."""
        self._source.switch(est)
        self._source.lanes[est].restore(cursor)

    def close(self) -> None:
        """The epoch is over, or was broken off, for all ESTs. Loader processes stay if they are persistent."""
        self._source.close()

    def shutdown(self) -> None:
        """Stop the loader processes for good."""
        self._source.shutdown()
