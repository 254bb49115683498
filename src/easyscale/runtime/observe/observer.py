"""Watches the local steps of a worker and tells the launcher their digests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten_with_path

from easyscale.core.messages import Witness
from easyscale.core.observe import Observation
from easyscale.numerics.digest import combined, digest, plain, read
from easyscale.numerics.record import flags, surroundings
from easyscale.numerics.rng import NumpyState
from easyscale.runtime.journal import Journal
from easyscale.runtime.observe.evidence import take_evidence
from easyscale.runtime.observe.plant import planted
from easyscale.runtime.observe.trace import Tracer

if TYPE_CHECKING:
    from easyscale.runtime.observe.scan import Scanner


class Observer:
    """One per process. Engines call `prepared` once, `body` around each pass of the loop body, then `step_ended`."""

    def __init__(self, observation: Observation, journal: Journal, worker: int, device: torch.device) -> None:
        self._observation, self._journal, self._worker, self._device = observation, journal, worker, device
        self._digests: dict[int, dict[str, Any]] = {}
        self._tracer = Tracer(observation, device)
        self._scanner = _make_scanner(observation, device)

    def prepared(self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        if self._scanner is not None:
            self._scanner.prepared(model, optimizers)
            return
        self._model, self._optimizers = model, optimizers
        self._tracer.prepared(model, optimizers)
        if self._worker == 0:
            self._journal.event("record", json.dumps(surroundings(self._device)), 0)

    @contextmanager
    def body(self, est: int, step: int, batch: Any) -> Iterator[Any]:
        """The script's loop body runs inside, with this EST's mini-batch."""
        if self._scanner is not None:
            with self._scanner.body(step):
                yield batch
            return
        plant = self._observation.plant
        mine = plant if plant is not None and (plant.step, plant.est) == (step, est) else None
        with ExitStack() as around:
            if mine is not None:
                batch = around.enter_context(planted(mine, self._model, batch))
            seen = self._digests.setdefault(est, {"batch": []})
            seen["batch"] += [digest(leaf) for _, leaf in leaves(batch)]
            if self._observation.traces(step):
                around.enter_context(self._tracer.body(est, [(path, digest(leaf)) for path, leaf in leaves(batch)]))
            try:
                yield batch
            finally:  # the script may leave its loop here
                seen.update(random_states(self._device))
                seen["threads"], seen["settings"] = str(torch.get_num_threads()), plain(flags())

    def step_ended(self, step: int) -> None:
        """Global step `step` (from 0) is complete; parameters are the next step's."""
        if self._scanner is not None:
            self._scanner.step_ended()
            return
        parameters = combined(read(digest(p) for p in self._model.parameters()))
        optimizer = combined(read(digest(t) for t in optimizer_tensors(self._optimizers)))
        for est, seen in self._digests.items():
            digests = {**seen, "batch": combined(read(seen["batch"])), "parameters": parameters, "optimizer": optimizer}
            self._journal.tell(Witness(worker=self._worker, step=step, est=est, digests=digests))
        for what, place in take_evidence():
            self._journal.event(f"evidence:{what}", place, step)
        self._digests = {}
        if self._observation.traces(step):
            self._tracer.write(step)


def _make_scanner(observation: Observation, device: torch.device) -> Scanner | None:
    if observation.scan_to is None:
        return None
    from easyscale.runtime.observe.scan import Scanner

    return Scanner(observation.scan_to, device)


def leaves(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a mini-batch with their place in it: `[0]`, `['image']`."""
    found, _ = tree_flatten_with_path(batch)
    named = [("".join(str(key) for key in path) or "the batch", leaf) for path, leaf in found]
    return [(path, leaf) for path, leaf in named if isinstance(leaf, torch.Tensor)]


def random_states(device: torch.device) -> dict[str, str]:
    numpy = NumpyState.capture()
    states = {
        "random.python": plain(random.getstate()),
        "random.numpy": plain((numpy.raw, numpy.has_gauss, numpy.gauss)),
        "random.torch": plain(torch.default_generator.get_state().numpy().tobytes()),
    }
    if device.type == "cuda":
        states["random.cuda"] = plain(torch.cuda.get_rng_state(device).numpy().tobytes())
    return states


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for _, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                    if isinstance(value, torch.Tensor):
                        yield value
