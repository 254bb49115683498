"""`Feed`: all batches of one user `DataLoader` for the ESTs of this worker."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from easyscale.runtime.data.inline import Inline
from easyscale.runtime.data.pooled import Pooled
from easyscale.runtime.data.stock import StockLoaders, generators_of


def _unheard(said: int | str) -> None:
    del said


class Feed:
    """Each EST gets, to the bit, what a stock loader on rank v of N would give it.

    All calls for an EST are made while its random state is live (Python, NumPy, torch and `generators`), and consume
    of it what stock would. `restore` alone may leave any random state behind; `add`, `remove`, `close` and `cursor`
    touch none.

    ESTs come and go at any time, also while others are in the middle of their epoch.
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
        report: Callable[[str], None] = _unheard,
    ) -> None:
        """`announce(v)` is called in a loader process before it works for EST v. `report(sentence)` is called here
        when loader processes died and were started anew."""
        self.generators = generators_of(loader)
        self._stock = StockLoaders(loader, world_size=world_size, seed=seed)
        self._pattern = self._stock.of(0)  # of what all ranks have in common
        self._length_known = False
        self._source: Inline | Pooled
        if loader.num_workers == 0:
            self._source = Inline(self._pattern, device, self.generators)
        else:
            self._source = Pooled(self._pattern, device, self.generators, announce, report)
        for est in ests:
            self.add(est)
        weakref.finalize(self, self._source.shutdown)  # a feed that is forgotten leaves no process behind

    @property
    def pattern(self) -> DataLoader[Any]:
        """The stock loader of rank 0, for reading: what all ranks have in common."""
        return self._pattern

    @property
    def ests(self) -> tuple[int, ...]:
        """The ESTs that this worker runs, in the order in which they came."""
        return tuple(self._source.lanes)

    def __len__(self) -> int:
        """Batches of one EST in an epoch. TypeError where the stock loader has no length."""
        length = len(self._pattern)
        for lane in self._source.lanes.values():
            len(lane.loader)  # stock remembers that it was asked
        self._length_known = True
        return length

    def add(self, est: int) -> None:
        """This worker now also runs the EST. `restore` or `open` follows before its first batch."""
        assert est not in self._source.lanes, f"EST {est} is here already"
        self._source.add(est, lambda dataset: self._stock.of(est, dataset))
        if self._length_known:
            len(self._source.lanes[est].loader)

    def remove(self, est: int) -> None:
        """This worker no longer runs the EST. Batches that were made ahead for it are dropped."""
        self._source.remove(est)

    def open(self, est: int, epoch: int) -> None:
        """What a stock rank does in `iter(loader)`, after `set_epoch`."""
        self._source.open(est, epoch)

    def next(self, est: int) -> Any:
        """The EST's next batch; StopIteration at the end of its epoch."""
        return self._source.next(est)

    def cursor(self, est: int) -> dict[str, Any]:
        """The EST's place: plain values and tensors, for a checkpoint or another worker. Not to be changed.

        `opening`, `loader` and `listed`, and the tensors in `streams`, are the same objects as in the cursor before
        while they have not changed.
        """
        return self._source.lanes[est].cursor()

    def restore(self, est: int, cursor: dict[str, Any]) -> None:
        """Take up an EST, which was not read here since it was added, where another process left it. No batch that
        was consumed is fetched again, except those of an IterableDataset without `state_dict`/`load_state_dict` or
        with loader processes."""
        self._source.restore(est, cursor)

    def close(self, est: int | None = None) -> None:
        """The epoch is over, or was broken off, for all ESTs or for one. Loader processes stay if they are persistent,
        or if it is for one."""
        self._source.close(est)

    def shutdown(self) -> None:
        """Stop the loader processes for good."""
        self._source.shutdown()
