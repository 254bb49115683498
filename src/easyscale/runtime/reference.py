"""The stock reference: real DistributedDataParallel, one process a rank, real samplers and loaders.

Thin on purpose: it is the judge. The model object stays the script's own; DDP's own pre- and post-forward run as hooks
on it, which is how torch's composable `replicate` applies DDP.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from easyscale.core.errors import UsageError
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime.data.stock import set_epoch, stock_loader
from easyscale.runtime.engine import (
    Engine,
    PrepareOptions,
    ScriptSettings,
    attach,
    batch_size,
    give_no_sync,
    place,
    refuse_unsupported,
    sort_objects,
)
from easyscale.runtime.stops import Leaving


class ReferenceSession(Engine):
    """The engine of `--engine ddp`."""

    def __init__(self, spec: WorkerSpec, settings: ScriptSettings, started: float) -> None:
        super().__init__(spec, settings, started)
        if settings.reduction != "ddp":
            raise UsageError(
                f"--engine ddp cannot run with reduction={settings.reduction!r}.",
                "stock DDP has one order of its own.",
                "leave reduction out of es.init(), or use --engine est.",
            )
        assert spec.rendezvous is not None
        dist.init_process_group(
            "gloo",
            store=FileStore(spec.rendezvous, spec.ests),
            rank=spec.worker,
            world_size=spec.ests,
            timeout=timedelta(seconds=spec.timeout),
        )

    def prepare(self, objects: tuple[Any, ...], options: PrepareOptions) -> list[Any]:
        kinds = sort_objects(objects)
        model = kinds["models"][0]
        refuse_unsupported(model)
        model.to(self.device)
        if self.guard is not None:
            self.guard.prepared(model, kinds["optimizers"])
        wishes: dict[str, Any] = {} if options.broadcast_buffers else {"broadcast_buffers": False}
        self.ddp = DistributedDataParallel(
            model,
            find_unused_parameters=options.find_unused_parameters,
            bucket_cap_mb=options.bucket_cap_mb,
            **wishes,
        )
        self.options, self.model, self.trained = options, model, False
        attach(model, lambda args, kwargs: self._before_forward(), self._after_forward)
        give_no_sync(model, self.ddp)
        loaders = {id(loader): ReferenceLoader(self, loader) for loader in kinds["loaders"]}
        if self.observer is not None:
            self.observer.prepared(model, kinds["optimizers"])
        seed_all(self.settings.seed + self.spec.worker)
        self.rng = RngState.capture(self.random_device)
        self.seed_between()
        self.ready()
        return [loaders.get(id(thing), thing) for thing in objects]

    def _before_forward(self) -> None:
        DistributedDataParallel._active_ddp_module = self.ddp
        if torch.is_grad_enabled() or self._in_loop:
            self.ddp._pre_forward()

    def _after_forward(self, output: Any) -> Any:
        DistributedDataParallel._active_ddp_module = None
        if torch.is_grad_enabled() and self.ddp.require_backward_grad_sync:
            self.trained = True
        if torch.is_grad_enabled() or self._in_loop:
            return self.ddp._post_forward(output)
        return None

    _in_loop = False
    running: Any = staticmethod(lambda: None)

    def step_ended(self, samples: int, *, left: bool = False) -> None:
        """`left`: the script broke out of its loop; where nothing can be raised, leaving waits for the next call."""
        if not self.trained:
            return
        self.trained = False
        self.step += 1
        self.journal.step_done(self.step - 1, self.epoch, samples, list(self.ests))
        every = self.spec.fingerprint_every
        if every and self.step % every == 0 and self.spec.worker == 0:
            assert self.model is not None
            self.journal.fingerprint(self.step, fingerprint(self.model))
        if self.guard is not None:
            self.guard.check()
        if self.observer is not None:
            self.observer.step_ended(self.step - 1)
        if not left:
            self.leave_if_over()

    def leave_if_over(self) -> None:
        if self.is_over:
            self.done()
            self.leaving = True
            raise Leaving(0)

    def leave(self) -> None:
        super().leave()
        dist.destroy_process_group()
        self.level_ends()

    def epoch_ended(self) -> None:
        loop = self.running()
        if loop is not None:  # the script left an iterator open
            loop.close()

    def rank(self) -> int:
        return self.spec.worker

    def register(self, name: str, target: Any, per_est: bool) -> None:
        """Nothing travels here: each rank keeps its object."""

    def request_checkpoint(self) -> None:
        """The reference writes no checkpoints."""

    def log(self, values: dict[str, Any]) -> None:
        if self._in_loop:
            self.journal.log(self.spec.worker, values)

    def finish(self) -> None:
        self.done()
        dist.destroy_process_group()
        self.level_ends()


class ReferenceLoader:
    """A stock DataLoader with the sampler of its rank."""

    def __init__(self, session: ReferenceSession, loader: DataLoader[Any]) -> None:
        self._session = session
        rank, seed = session.spec.worker, session.settings.seed
        self._stock = stock_loader(loader, world_size=session.world, rank=rank, seed=seed)
        self._loader, self._opened = loader, 0
        self.batch_index = 0
        self.completes_step = True

    def __len__(self) -> int:
        return len(self._stock)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop()
        self._session.running = weakref.ref(loop)
        return loop

    def _loop(self) -> Generator[Any, None, None]:
        session = self._session
        session.leave_if_over()
        session.rng.restore(session.random_device)
        session._in_loop = True
        epoch = session.epoch if session.in_epochs else self._opened
        self._opened += 1
        set_epoch(self._stock, epoch)
        samples = 0
        try:
            for index, batch in enumerate(self._stock):
                self.batch_index = index
                samples += batch_size(batch)
                batch = place(batch, session.device) if session.options.place_batches else batch
                if session.observer is None:
                    yield batch
                else:
                    with session.observer.body(session.spec.worker, session.step, batch) as seen:
                        yield seen
                session.step_ended(samples)
                samples = 0
        except GeneratorExit:
            session.step_ended(samples, left=True)
            raise
        finally:
            session._in_loop = False
            session.rng = RngState.capture(session.random_device)
            session.seed_between()
