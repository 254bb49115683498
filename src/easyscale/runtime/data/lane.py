"""One EST's way through the loader: what a stock rank would call its iterator, with a place that can be kept.

A lane is opened at the point where a stock rank calls `iter(loader)`, with that EST's random state live, and then
draws from it what stock draws, in the same order. Its cursor is a tree of plain values and tensors.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState
from easyscale.runtime.data.stock import set_epoch, sharded_sampler

Tree = dict[str, Any]
# What decides which samples come together and which random numbers they get.
FACTS = ("num_workers", "batch_size", "drop_last", "persistent_workers")


def closed(cursor: Tree) -> bool:
    """Was this cursor taken between two epochs? Then its EST opens the next one; else it goes on in the open one."""
    return cursor["epoch"] is None


class Lane(abc.ABC):
    """What both kinds of lane share: the epoch, the random state at its opening, and the batches consumed."""

    def __init__(
        self, loader: DataLoader[Any], device: torch.device | None, generators: Sequence[torch.Generator]
    ) -> None:
        self.loader = loader
        self.epoch: int | None = None  # None: between two epochs
        self._used = False
        self.consumed = 0
        self._device, self._generators = device, generators
        self._sampler = sharded_sampler(loader)
        self._opening: Tree | None = None
        # A cursor is taken after each global step; these parts of it stay the same objects while they do not change.
        self._listed: list[int] = []
        self._facts = {name: getattr(loader, name) for name in FACTS}

    def open(self, epoch: int) -> None:
        assert self.epoch is None, "an EST opens its next epoch before it closed the last"
        self._used = True
        self._enter(epoch, self._capture().to_tree())
        self._begin()

    @abc.abstractmethod
    def next(self) -> Any: ...

    def close(self) -> None:
        """The epoch is over, or was broken off."""
        if self.epoch is not None:
            self._end()
        self.epoch, self.consumed, self._opening = None, 0, None

    def cursor(self) -> Tree:
        if self.epoch is None:
            self._note_listed()
        return {
            "loader": self._facts,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "opening": self._opening,
            "listed": self._listed,
            **self._place(),
        }

    def restore(self, cursor: Tree) -> None:
        assert not self._used, "an EST is taken up by a feed that has not read it yet"
        self._used = True
        if cursor["loader"] != self._facts:
            raise PromiseError(
                f"The loader was {_words(cursor['loader'])}; now it is {_words(self._facts)}.",
                "these decide which samples come together and which random numbers they get.",
                "give the loader the arguments that it had, or begin a new job.",
            )
        if self._sampler is not None:
            self._sampler.resume(cursor["listed"])
        if closed(cursor):
            self._resume_closed(cursor)
            return
        RngState.from_tree(cursor["opening"]).restore(self._device, self._generators)
        self._enter(cursor["epoch"], cursor["opening"])
        self.consumed = cursor["consumed"]
        self._resume(cursor)

    def _enter(self, epoch: int, opening: Tree) -> None:
        self._note_listed()
        set_epoch(self.loader, epoch)
        self.epoch, self.consumed, self._opening = epoch, 0, opening

    def _note_listed(self) -> None:
        listed = list(self._sampler.listed) if self._sampler is not None else []
        if listed != self._listed:
            self._listed = listed

    def _capture(self) -> RngState:
        return RngState.capture(self._device, self._generators)

    @abc.abstractmethod
    def _begin(self) -> None:
        """Do what stock does in `iter(loader)`."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Drop the iterator."""

    @abc.abstractmethod
    def _place(self) -> Tree:
        """This kind's part of the cursor."""

    @abc.abstractmethod
    def _resume(self, cursor: Tree) -> None:
        """Continue an open epoch. The random state is that of its opening; it need not be kept."""

    def _resume_closed(self, cursor: Tree) -> None:
        """Take up what outlives an epoch."""
        del cursor


def _words(facts: Tree) -> str:
    return ", ".join(f"{name}={value}" for name, value in facts.items())
