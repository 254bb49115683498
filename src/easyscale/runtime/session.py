"""One worker: composes contexts, data, buffers, reduction and gates into the rhythm of global steps.

Reads from top to bottom as a step runs: `loop_begins`, for each EST `turn_begins` .. the script's body .. `turn_ends`,
then `round_ends`, which completes the global step and is the only place where state is consistent: fingerprints,
checkpoints, stops and hand-overs happen there.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel

from easyscale.core.errors import EasyScaleError, LoopError, UnsupportedError, UsageError
from easyscale.core.messages import HandedOver
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.buckets import bucket_limits
from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime import membership, state
from easyscale.runtime.agreement import Agreement, Wishes
from easyscale.runtime.buffers import Buffers
from easyscale.runtime.context import EstContext
from easyscale.runtime.data.feed import Feed
from easyscale.runtime.engine import (
    Engine,
    PrepareOptions,
    ScriptSettings,
    attach,
    give_no_sync,
    refuse_unsupported,
    sort_objects,
)
from easyscale.runtime.gates import SHARED_UPDATES, Rhythm, allow_empty_clipping, gate_methods, gate_optimizer
from easyscale.runtime.loop import PreparedLoader
from easyscale.runtime.reduce import Reducer, ReductionSettings
from easyscale.runtime.stops import Leaving


class EstSession(Engine):
    """The engine of `--engine est`."""

    def __init__(self, spec: WorkerSpec, settings: ScriptSettings, started: float) -> None:
        super().__init__(spec, settings, started)
        self.group = membership.join(spec)
        self.record = membership.agree_on_record(self.group, spec, settings, self.device)
        self.store = state.open_store(self)
        self.rhythm = Rhythm()
        self.current: int | None = None  # the EST whose local step runs
        self.registered: dict[str, Any] = {}
        self.per_est: dict[str, Any] = {}
        self.unclaimed: dict[str, Any] = {}  # registered state of a checkpoint that waits for its object
        self.resumed = False
        self.resumed_loader: int | None = None
        self.loader: PreparedLoader | None = None
        self.samples = 0
        self._live: int | None = None  # the EST whose random states the generators hold
        self._synchronise = True  # False inside model.no_sync()
        self._carried: list[torch.Tensor | None] | None = None
        self._synchronised: list[bool] = []  # for each turn of this round: did its backward synchronise?
        self._saved_step = -1
        self._broken: EasyScaleError | None = None
        self._unsettled: Literal["round", "step"] | None = None
        self.agreement = Agreement(self.group, spec.checkpoint_seconds)
        signals = [signal.SIGTERM] + ([signal.SIGINT] if spec.events_fd is not None else [])
        self.agreement.listen(signals, self._stop_now)

    # ------------------------------------------------------------------ prepare

    def prepare(self, objects: tuple[Any, ...], options: PrepareOptions) -> list[Any]:
        kinds = sort_objects(objects)
        if self.model is not None:
            raise UsageError("es.prepare() was called twice.", "a job has one model.", "pass all objects in one call.")
        model = kinds["models"][0]
        refuse_unsupported(model)
        self.options = options
        model.to(self.device)
        membership.share_initial_state(self.group, model)
        self.optimizers, self.schedulers, self.scalers = kinds["optimizers"], kinds["schedulers"], kinds["scalers"]
        ignored = frozenset(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
        self.buffers = Buffers(model, ignored, self.group, self.ests)
        self.reducer = self._make_reducer(model, ignored)
        self.rhythm.synchronised = lambda: self.reducer.synchronised
        self.reducer.on_reduced = self._gradients_reduced
        self.loaders = [
            PreparedLoader(self, loader, self._make_feed(loader), i) for i, loader in enumerate(kinds["loaders"])
        ]
        self.generators = tuple(dict.fromkeys(g for loader in self.loaders for g in loader.feed.generators))
        self.contexts = {est: self._first_context(est) for est in self.ests}
        self.seed_between()
        self.model = model
        self.buffers.keep_as_base()
        if not options.broadcast_buffers:
            for context in self.contexts.values():
                context.buffers = self.buffers.copy()
        self._install(model)
        state.resume(self)
        self.ready()
        prepared = iter(self.loaders)
        return [next(prepared) if thing in kinds["loaders"] else thing for thing in objects]

    def _make_reducer(self, model: torch.nn.Module, ignored: frozenset[str]) -> Reducer:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and n not in ignored]
        if not named:
            raise UsageError(
                "The model has no parameter that requires a gradient.",
                "there is nothing to train; stock DDP refuses it too.",
                "set requires_grad=True where it should learn.",
            )
        settings = ReductionSettings(
            order=self.settings.reduction,
            staging=self.settings.staging,
            bucket_cap_mb=self.options.bucket_cap_mb,
            find_unused_parameters=self.options.find_unused_parameters,
        )
        names, parameters = zip(*named, strict=True)
        return Reducer(names, parameters, self.spec.plan.split, self.group, settings, self.device)

    def _make_feed(self, loader: Any) -> Feed:
        return Feed(
            loader, world_size=self.world, ests=self.ests, seed=self.settings.seed, device=self.device,
            announce=self._announce,
        )  # fmt: skip

    def _announce(self, est: int) -> None:
        """Inside a loader process: whose batch is being made."""
        self.current = est

    def _first_context(self, est: int) -> EstContext:
        own = [g.get_state() for g in self.generators]
        seed_all(self.settings.seed + est)
        rng = RngState.capture(self.device, self.generators)
        rng.extra = tuple(own)  # a loader's generator starts as the script made it, on every rank
        own_states = {name: copy.deepcopy(target.state_dict()) for name, target in self.per_est.items()}
        return EstContext(est, rng, registered=own_states)

    def _install(self, model: torch.nn.Module) -> None:
        attach(model, self._before_forward, self._after_forward)
        give_no_sync(model, self)
        # torch.compile cuts graphs at stock DDP's bucket limits; the cut can change bits, so it must be ours too.
        self._compile_hint = SimpleNamespace(bucket_bytes_cap=bucket_limits(self.options.bucket_cap_mb)[-1])
        allow_empty_clipping()
        for optimizer in self.optimizers:
            gate_optimizer(optimizer, self.rhythm.optimizer_step)
        for scheduler in self.schedulers:
            gate_methods(scheduler, ("step",), self.rhythm.shared_update)
        for scaler in self.scalers:
            gate_methods(scaler, ("step", "unscale_", "update"), self.rhythm.shared_update)

    def register(self, name: str, target: Any, per_est: bool) -> None:
        if not (hasattr(target, "state_dict") and hasattr(target, "load_state_dict")):
            raise UsageError(
                f"es.register({name!r}, ...) got a {type(target).__name__}.",
                "it has no state_dict() and load_state_dict(), so its state cannot travel.",
                "give it these two methods, with plain values and tensors.",
            )
        if name in self.registered or name in self.per_est:
            raise UsageError(f"{name!r} is registered twice.", "names tell states apart.", "choose another name.")
        if per_est:
            self.per_est[name] = target
            for context in getattr(self, "contexts", {}).values():
                context.registered.setdefault(name, copy.deepcopy(target.state_dict()))
            state.load_per_est(self, name)
        else:
            self.registered[name] = target
            if name in self.unclaimed:
                target.load_state_dict(self.unclaimed.pop(name))
            gate_methods(target, SHARED_UPDATES, self.rhythm.shared_update)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As DDP's: gradients of backwards whose forward ran in here accumulate locally."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    # ------------------------------------------------------------------ a loop

    def loop_begins(self, loader: PreparedLoader) -> None:
        self.settle()
        if self.loader is not None:
            raise LoopError(
                "A loop over a prepared loader began inside another one.",
                "ESTs take turns in one loop at a time.",
                "finish the first loop, or leave the inner loader out of es.prepare().",
            )
        if self.unclaimed:
            raise UsageError(
                f"The checkpoint has registered state that the script did not register: {', '.join(self.unclaimed)}.",
                "training on without it would change the bits.",
                "call es.register() with these names before the loop.",
            )
        if self.resumed and not self.in_epochs:
            raise LoopError(
                "The job was resumed, but the loop does not run inside es.epochs().",
                "a plain range() would start again at epoch 0.",
                "write `for epoch in es.epochs(count):` around the loop.",
            )
        self.loader = loader
        self.buffers.keep_as_base()  # code between loops may have changed them; rank 0's count
        self.buffers.share_base()
        if self.resumed_loader == loader.index:
            self.resumed_loader = None  # its cursors stand where the checkpoint left them
            return
        loader.taken = {}
        for est in self.ests:
            self._switch(est)
            loader.feed.open(est, self.epoch if self.in_epochs else loader.opened)
        loader.opened += 1

    def turn_begins(self, est: int, position: int) -> None:
        """The turn of an EST: its random states are live, its next batch can be drawn."""
        self._switch(est)
        self.current = self.rhythm.est = est
        self._position, self._forwards = position, 0
        self.rhythm.is_last = est == self.ests[-1]
        if position == 0:
            self._carried, self._synchronised = None, []
        self.reducer.begin(est)

    def batch_drawn(self) -> None:
        """There is a batch: the EST's state goes where the script will see it."""
        assert self.current is not None
        context, position = self.contexts[self.current], self._position
        for name, target in self.per_est.items():
            if len(self.ests) > 1 and name in context.registered:
                target.load_state_dict(context.registered[name])
        if context.gradients is not None:
            self._put_gradients(context.gradients)
            context.gradients = None
        elif position > 0 and self._carried is not None:
            self._put_gradients([None if g is None else g.clone() for g in self._carried])
        if context.buffers is not None:
            self.buffers.put(context.buffers)
            context.buffers = None

    def wants_more(self) -> bool:
        """The EST is in the middle of an accumulation window."""
        return self.reducer.accumulated and not self.reducer.synchronised

    def turn_ends(self) -> None:
        assert self.current is not None
        context = self.contexts[self.current]
        self._synchronised.append(self.reducer.synchronised)
        if self.wants_more():
            context.gradients = [p.grad for p in self.reducer.parameters]
            self._put_gradients([None] * len(context.gradients))
        if self.current == 0:
            self.buffers.keep_as_next()
        if context.buffers is None:
            self._keep_own_buffers(context)
        for name, target in self.per_est.items():
            context.registered[name] = copy.deepcopy(target.state_dict())
        self.turn_abandoned()

    def _keep_own_buffers(self, context: EstContext) -> None:
        if not context.synchronise_buffers or not self.options.broadcast_buffers:
            context.buffers = self.buffers.copy()

    def _gradients_reduced(self) -> None:
        """What follows in the body (an average of the weights, say) sees rank 0's buffers, as on rank 0."""
        if self.current != 0 and 0 in self.ests and self.buffers:
            assert self.current is not None
            self._keep_own_buffers(self.contexts[self.current])
            self.buffers.next_to_live()

    def turn_abandoned(self) -> None:
        self.reducer.end()
        self.current = self.rhythm.est = None
        self.rhythm.is_last = True

    def round_ends(self) -> None:
        """All ESTs of this worker had their turn: the global step is complete."""
        wishes = self.agreement.hear()
        if self._close_round():
            self._share_step()
            self._act(wishes)

    def _close_round(self) -> bool:
        """This worker's part of ending a round. Returns whether it was a global step."""
        self.buffers.next_becomes_base()
        if len(set(self._synchronised)) > 1:
            raise LoopError(
                f"In one round, only some ESTs called backward(): {self._synchronised} for ESTs {list(self.ests)}.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "call backward() for each batch, or for none (multiply the loss by 0 to leave a batch out).",
            )
        if not self._synchronised or not self._synchronised[0]:
            self.samples = 0
            return False
        self.step += 1
        self.journal.step_done(self.step - 1, self.epoch, self.samples)
        self.samples = 0
        return True

    def _share_step(self) -> None:
        """The peers' part: rank 0's buffers for all, and once the order of the buckets."""
        self.buffers.share_base()
        if self.reducer.ready is None:
            membership.share_order(self.group, self.reducer)
        every = self.spec.fingerprint_every
        if every and self.step % every == 0 and 0 in self.ests:
            assert self.model is not None
            self.buffers.base_to_live()
            self.journal.fingerprint(self.step, fingerprint(self.model))

    def _act(self, wishes: Wishes) -> None:
        """Save, stop or hand over: only here, where the state of all workers is that of one step."""
        if self.store is not None and (wishes.checkpoint or wishes.stop or self._checkpoint_is_due()):
            self._save()
        if wishes.stop:
            self._stop(wishes.stop)
        if self.spec.stop_at is not None and self.step >= self.spec.stop_at:
            self._hand_over()

    def _checkpoint_is_due(self) -> bool:
        every = self.spec.checkpoint_every
        return every is not None and self.step % every == 0 and self.step != self._saved_step

    def loop_ends(self, loader: PreparedLoader, outcome: BaseException | None) -> None:
        """Local only: this may run while an exception of the script unwinds, when peers may be gone."""
        if isinstance(outcome, GeneratorExit):
            self._left_early(loader)
        self.loader = None
        if self.current is not None:
            self.turn_abandoned()
        self._switch(None)
        self.buffers.base_to_live()
        loader.feed.close()

    def _left_early(self, loader: PreparedLoader) -> None:
        """`break` in the body: fine before the first backward of a round, or after the last."""
        if self.current is None:
            return
        if self._position == len(self.ests) - 1 and self.reducer.synchronised:
            self.turn_ends()
            self._unsettled = "step" if self._close_round() else "round"
        elif self._position == 0 and not self.reducer.synchronised:
            self.turn_abandoned()
            loader.draw_for_the_rest(0)
            self._unsettled = "round"
        elif any(self._synchronised) or self.reducer.synchronised:
            self._broken = LoopError(
                f"The loop was left in the middle of a global step: EST {self.current} of {list(self.ests)}.",
                "the ESTs after it did not run, so the step has no result.",
                "leave at the top of the body, e.g. `if loader.batch_index == 100: break`.",
            )

    def settle(self) -> None:
        """Do with the peers what was left over when the script broke out of a loop, at its next call of ours."""
        if self._broken is not None:
            raise self._broken
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is None:
            return
        wishes = self.agreement.hear()
        if unsettled == "step":
            self._share_step()
        # Between loops the place in the epoch is not known: what is wished waits for the end of the epoch's body.
        if wishes.checkpoint or (unsettled == "step" and self._checkpoint_is_due()):
            self.agreement.wish_checkpoint()
        if wishes.stop:
            self.agreement.wish_stop(wishes.stop)

    # ------------------------------------------------------------------ forward hooks

    def _before_forward(self) -> None:
        DistributedDataParallel._active_ddp_module = self._compile_hint  # type: ignore[assignment]
        if self.current is None:
            self.settle()  # an evaluation after a `break` sees rank 0's buffers
            return
        context = self.contexts[self.current]
        if self._forwards == 0 and self._position == 0 and len(self.ests) > 1:
            grads = [p.grad for p in self.reducer.parameters]
            if any(g is not None for g in grads) and not self.reducer.accumulated:
                self._carried = [None if g is None else g.detach().clone() for g in grads]
        if self.buffers and self.options.broadcast_buffers and context.synchronise_buffers:
            if self._forwards == 0:
                self.buffers.base_to_live()
            elif self.current != 0 and self.buffers.changed_outside_batch_norm():
                raise UnsupportedError(
                    f"EST {self.current} runs a second forward in one local step, and its first one changed a buffer.",
                    "stock DDP would give it rank 0's buffers in between, which another EST may not have made yet.",
                    "run one forward a local step, or pass broadcast_buffers=False to es.prepare().",
                )
        self._forwards += 1

    def _after_forward(self, output: Any) -> None:
        DistributedDataParallel._active_ddp_module = None
        if self.current is None:
            return
        synchronise = torch.is_grad_enabled() and self._synchronise
        self.contexts[self.current].synchronise_buffers = synchronise
        if torch.is_grad_enabled():
            self.reducer.arm(synchronise)

    # ------------------------------------------------------------------ leaving

    def request_checkpoint(self) -> None:
        if self.store is None:
            raise UsageError(
                "es.checkpoint() was called, but the job has no checkpoint folder.",
                "nobody said where checkpoints go.",
                "start it with --checkpoint-dir DIR, or es.init(checkpoint_dir=...).",
            )
        self.agreement.wish_checkpoint()

    def epoch_ended(self) -> None:
        self.settle()
        self.agreement.announce(more=True)
        self._act(self.agreement.hear())

    def _save(self) -> None:
        self.agreement.saved()
        self._saved_step = self.step
        state.save(self)

    def _hand_over(self) -> NoReturn:
        state.hand_over(self)
        self.journal.flush(force=True)
        sent = self.group.bytes_sent
        self.journal.tell(HandedOver(step=self.step, worker=self.spec.worker, timings=self.timings, bytes_sent=sent))
        self.leaving = True
        raise Leaving(0)

    def _stop(self, number: int) -> NoReturn:
        self.leaving = True
        raise Leaving(128 + number)

    def _stop_now(self, number: int) -> bool:
        """A signal came. Before the first step and after the last, nothing is in the way of leaving."""
        if self.loader is None and not self.in_epochs:
            self._stop(number)
        return False

    # ------------------------------------------------------------------ small things

    def rank(self) -> int:
        return self.ests.start if self.current is None else self.current

    def log(self, values: dict[str, Any]) -> None:
        if self.current is not None:
            self.journal.log(self.current, values)

    def capture(self) -> None:
        """Bring the stored random state of the EST whose states are live up to date."""
        if self._live is not None:
            self.contexts[self._live].rng = RngState.capture(self.device, self.generators)

    def finish(self) -> None:
        self.settle()
        if self.model is not None and self.store is not None:
            self._save()
            self.store.wait()
        self.done(self.group.bytes_sent)
        self.close()

    def leave(self) -> None:
        super().leave()
        if self.store is not None:
            self.store.wait()
        self.close()

    def close(self) -> None:
        for loader in getattr(self, "loaders", []):
            loader.feed.shutdown()
        if self.model is not None:
            self.reducer.close()

    def _switch(self, est: int | None) -> None:
        if est == self._live:
            return
        self.capture()
        self._live = est
        if est is None:
            self.seed_between()
        else:
            self.contexts[est].rng.restore(self.device, self.generators)

    def _put_gradients(self, gradients: list[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self.reducer.parameters, gradients, strict=True):
            parameter.grad = gradient
