"""Both sides of the comparison: N real stock loaders, one rank after the other, and feeds driven as a session does it.

The session's part here: a random state for each EST, put in place before `open` and `next`, taken away afterwards.
"""

from __future__ import annotations

import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime.data import Feed, set_epoch, stock_loader
from easyscale.runtime.data.stock import generators_of

SEED = 11
Loaders = Callable[[], DataLoader[Any]]
Batches = dict[int, list[list[Any]]]  # by EST, by epoch
current = {"rank": -1}


def announce(est: int) -> None:
    current["rank"] = est


def draw() -> list[float]:
    """A number of each family, more than one word of it, so that counts show too."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    ]


class Augmented(Dataset[Any]):
    """Each sample is its index, the numbers drawn for it, and the rank that it was made for."""

    def __init__(self, length: int = 22) -> None:
        self.length, self.epoch = length, 0
        self.fetched = multiprocessing.Value("i", 0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.fetched.get_lock():
            self.fetched.value += 1
        return torch.tensor([index, *draw(), current["rank"], self.epoch], dtype=torch.float64)


class OwnRandom(Augmented):
    """Draws from generators of its own, some of them inside transforms, and not from the global ones."""

    def __init__(self, length: int = 22) -> None:
        super().__init__(length)
        self.rng = np.random.default_rng(3)
        self.transforms: list[Any] = [{"legacy": np.random.RandomState(4)}, random.Random(5)]
        self.inner = Wrapper(torch.Generator().manual_seed(6))

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [self.rng.random(), self.transforms[0]["legacy"].randn(), self.transforms[1].gauss(0, 1)]
        return torch.tensor([index, *drawn, float(torch.rand((), generator=self.inner.generator))], dtype=torch.float64)


class Wrapper:
    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator


class Shards(IterableDataset[Any]):
    """Sharded by rank and loader worker; loader workers end at different times."""

    def __init__(self, world: int, length: int = 23, *, draws: bool = True) -> None:
        self.world, self.length, self.draws = world, length, draws

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        seed = info.seed if info is not None else 0
        numbers = list(range(current["rank"], self.length, self.world))
        # Uneven on purpose: loader worker 0 has more than its share.
        mine = numbers[worker::workers] + (numbers if worker == 0 else [])
        for number in mine:
            yield torch.tensor([number, worker, seed % 1009, *(draw() if self.draws else [])], dtype=torch.float64)


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more loader processes than cores
        return DataLoader(dataset, **options)


def bits(tree: Any) -> Any:
    """A value that is equal exactly when every bit is."""
    if isinstance(tree, torch.Tensor):
        return (str(tree.dtype), tuple(tree.shape), tree.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(tree, (list, tuple)):
        return [type(tree).__name__, *map(bits, tree)]
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    return repr(tree)


def stock(
    make: Loaders,
    world: int,
    epochs: int = 2,
    *,
    stop: int | None = None,
    before: Callable[[Any, int], None] | None = None,
) -> tuple[Batches, dict[int, RngState]]:
    """What N stock ranks get. `stop`: break out of each epoch but the last after so many batches."""
    batches: Batches = {}
    states = {}
    for rank in range(world):
        user = make()
        loader = stock_loader(user, world_size=world, rank=rank, seed=SEED)
        announce(rank)
        seed_all(SEED + rank)
        batches[rank] = []
        for epoch in range(epochs):
            set_epoch(loader, epoch)
            if before is not None:
                before(loader.dataset, epoch)
            batches[rank].append(list(_until(loader, stop if epoch < epochs - 1 else None)))
        states[rank] = RngState.capture(None, generators_of(user))
        del loader
    return batches, states


def _until(loader: DataLoader[Any], stop: int | None) -> Iterator[Any]:
    for number, batch in enumerate(loader, 1):
        yield bits(batch)
        draw()  # the training step
        if number == stop:
            return


class Session:
    """One worker's feed, and the random states of its ESTs."""

    def __init__(self, make: Loaders, world: int, ests: Sequence[int]) -> None:
        self.loader = make()
        self.ests = list(ests)
        self.reports: list[str] = []
        report = self.reports.append
        self.feed = Feed(self.loader, world_size=world, ests=ests, seed=SEED, announce=announce, report=report)
        self.rng: dict[int, RngState] = {}
        for est in ests:
            seed_all(SEED + est)
            self.rng[est] = self._capture()
        self.batches: Batches = {est: [] for est in ests}

    def _capture(self) -> RngState:
        return RngState.capture(None, self.feed.generators)

    def turn(self, est: int, act: Callable[[], Any]) -> Any:
        announce(est)
        self.rng[est].restore(None, self.feed.generators)
        try:
            return act()
        finally:
            self.rng[est] = self._capture()

    def open(self, epoch: int) -> None:
        for est in self.ests:
            self.turn(est, lambda est=est: self.feed.open(est, epoch))  # type: ignore[misc]
            self.batches[est].append([])

    def step(self) -> bool:
        """One batch for each EST that has one; False when they are all exhausted."""
        got = [self.step_of(est) for est in self.ests]
        return any(got)

    def step_of(self, est: int) -> bool:
        def act() -> bool:
            try:
                batch = self.feed.next(est)
            except StopIteration:
                return False
            self.batches[est][-1].append(bits(batch))
            draw()  # the training step
            return True

        return bool(self.turn(est, act))

    def run(self, epochs: range, *, stop: int | None = None, before: Callable[[Any, int], None] | None = None) -> None:
        for epoch in epochs:
            if before is not None:
                before(self.loader.dataset, epoch)
            self.open(epoch)
            steps = 0
            while (steps != stop or epoch == epochs[-1]) and self.step():
                steps += 1
            self.feed.close()

    def processes(self) -> list[Any]:
        return list(self.feed._source.pool._processes.members)  # type: ignore[union-attr]

    def cursors(self) -> dict[int, Any]:
        return {est: self.feed.cursor(est) for est in self.ests}

    def leave(self, est: int) -> None:
        self.feed.remove(est)
        self.ests.remove(est)

    def join(self, est: int, cursor: Any, rng: RngState, batches: list[list[Any]]) -> None:
        self.feed.add(est)
        self.ests.append(est)
        announce(est)
        self.feed.restore(est, cursor)
        draw()  # what `restore` leaves behind is nobody's
        self.rng[est], self.batches[est] = rng, batches


def resume(
    make: Loaders, world: int, ests: Sequence[int], cursors: dict[int, Any], rng: dict[int, RngState]
) -> Session:
    """A new worker that takes up ESTs where others left them."""
    session = Session(make, world, ests)
    for est in ests:
        announce(est)
        session.feed.restore(est, cursors[est])
        session.rng[est] = rng[est]
        session.batches[est].append([])
    return session


def fed(
    make: Loaders, world: int, splits: Sequence[Sequence[int]], epochs: int = 2, **how: Any
) -> tuple[Batches, dict[int, RngState]]:
    """What the ESTs get on workers with these ESTs each."""
    batches: Batches = {}
    states: dict[int, RngState] = {}
    for ests in splits:
        session = Session(make, world, ests)
        session.run(range(epochs), **how)
        session.feed.shutdown()
        batches.update(session.batches)
        states.update(session.rng)
    return batches, states


def assert_same(make: Loaders, world: int, splits: Sequence[Sequence[int]], epochs: int = 2, **how: Any) -> None:
    expected, expected_states = stock(make, world, epochs, **how)
    got, states = fed(make, world, splits, epochs, **how)
    assert any(expected[0][0])
    assert got == expected
    for est in range(world):
        assert states[est].same_as(expected_states[est]), f"EST {est} drew something else from its random state"


def splits_of(world: int) -> list[list[list[int]]]:
    """All ESTs on one worker, and an uneven split."""
    together = [list(range(world))]
    return [together, [list(range(world - 1)), [world - 1]]]
