"""One worker: composes contexts, data, buffers, reduction and gates into the rhythm of global steps.

Reads from top to bottom as a step runs: `loop_begins`, for each EST a turn (`turns`), then `round_ends`, which
completes the global step and is the only place where state is consistent: fingerprints, checkpoints, stops and
hand-overs happen there.
"""

from __future__ import annotations

import signal
from typing import Any, Literal, NoReturn

import torch

from easyscale.core.errors import EasyScaleError, LoopError, PromiseError, UsageError
from easyscale.core.messages import HandedOver
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.fingerprint import fingerprint
from easyscale.runtime import membership, state
from easyscale.runtime.agreement import Agreement, Wishes
from easyscale.runtime.buffers import Buffers
from easyscale.runtime.context import placed_like
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
from easyscale.runtime.gates import (
    SHARED_UPDATES,
    Rhythm,
    allow_empty_clipping,
    gate_methods,
    gate_optimizer,
    refuse_unprepared_schedulers,
)
from easyscale.runtime.loop import PreparedLoader
from easyscale.runtime.reduce import Reducer, ReductionSettings
from easyscale.runtime.stops import Leaving
from easyscale.runtime.turns import Turns, module_generators


class EstSession(Engine):
    """The engine of `--engine est`."""

    def __init__(self, spec: WorkerSpec, settings: ScriptSettings, started: float) -> None:
        super().__init__(spec, settings, started)
        self.group = membership.join(spec, "gradients")
        self.record = membership.agree_on_record(self.group, spec, settings, self.device)
        self.store = state.open_store(self)
        self.rhythm = Rhythm()
        self.turns: Turns
        self.registered: dict[str, Any] = {}
        self._early: dict[str, Any] = {}  # registered per EST before es.prepare()
        self.unclaimed: dict[str, Any] = {}  # registered state of a checkpoint that waits for its object
        self.resumed = False
        self.resumed_loop: tuple[int, int] | None = None  # (loader, how many loops the epoch began before it)
        self.loader: PreparedLoader | None = None
        self.samples = 0
        self._saved_step = -1
        self._broken: EasyScaleError | None = None
        self._unsettled: Literal["round", "step"] | None = None
        self.agreement = Agreement(membership.join(spec, "agreement"), spec.checkpoint_seconds)
        self.trained = True  # the last round was a global step
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
        self.loaders = [
            PreparedLoader(self, loader, self._make_feed(loader), i) for i, loader in enumerate(kinds["loaders"])
        ]
        feeds = [generator for loader in self.loaders for generator in loader.feed.generators]
        generators = tuple(dict.fromkeys([*feeds, *module_generators(model)]))
        self.turns = Turns(model, self.buffers, self.reducer, self.rhythm, generators, options, self.device)
        self.turns.found(self.settings.seed)
        self.seed_between()
        self.model = model
        self.buffers.keep_as_base()
        for name, target in self._early.items():
            self.turns.register(name, target)
        self._install(model)
        if self.observer is not None:
            self.observer.prepared(model, self.optimizers)
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
        self.turns.current = est

    def _install(self, model: torch.nn.Module) -> None:
        attach(model, self._before_forward, self.turns.after_forward)
        give_no_sync(model, self.turns)
        allow_empty_clipping()
        for optimizer in self.optimizers:
            gate_optimizer(optimizer, self.rhythm.optimizer_step, self.reducer.parameters)
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
        known = {*self.registered, *self._early, *(self.turns.per_est if self.model is not None else ())}
        if name in known:
            raise UsageError(f"{name!r} is registered twice.", "names tell states apart.", "choose another name.")
        if per_est and self.model is None:
            self._early[name] = target
        elif per_est:
            self.turns.register(name, target)
        else:
            self.registered[name] = target
            if name in self.unclaimed:
                target.load_state_dict(placed_like(target.state_dict(), self.unclaimed.pop(name)))
            gate_methods(target, SHARED_UPDATES, self.rhythm.shared_update)

    # ------------------------------------------------------------------ a loop

    def loop_begins(self, loader: PreparedLoader) -> None:
        self.settle()
        if self.loader is not None:
            raise LoopError(
                "A loop over a prepared loader began inside another one.",
                "ESTs take turns in one loop at a time.",
                "finish the first loop, or leave the inner loader out of es.prepare().",
            )
        unclaimed = [*self.unclaimed, *self.turns.unclaimed()]
        if unclaimed:
            raise UsageError(
                f"The checkpoint has registered state that the script did not register: {', '.join(unclaimed)}.",
                "training on without it would change the bits.",
                "call es.register() with these names before the loop.",
            )
        if self.resumed and not self.in_epochs:
            raise LoopError(
                "The job was resumed, but the loop does not run inside es.epochs().",
                "a plain range() would start again at epoch 0.",
                "write `for epoch in es.epochs(count):` around the loop.",
            )
        if self.step == 0:
            refuse_unprepared_schedulers(self.optimizers, self.schedulers)
        here, self.loops = (loader.index, self.loops), self.loops + 1
        if self.resumed_loop not in (None, here):
            raise PromiseError(
                "The job was resumed in the middle of an epoch, in a loop that is not the epoch's first.",
                "what the loops before it did would be done again.",
                "train in one loop an epoch, or checkpoint between epochs with es.checkpoint().",
            )
        self.loader, self.trained = loader, True
        self.buffers.keep_as_base()  # code between loops may have changed them; rank 0's count
        self.buffers.share_base()
        for est, cursor in loader.waiting.items():
            self.turns.restore_feed(est, loader.feed, cursor)
        loader.waiting = {}
        if self.resumed_loop is not None:
            self.resumed_loop, self.rhythm.replaying = None, False  # its cursors stand where the checkpoint left them
            return
        loader.taken = {}
        for est in self.ests:
            self.turns.open_feed(est, loader.feed, self.epoch if self.in_epochs else loader.opened)
        loader.opened += 1

    def round_ends(self) -> None:
        """All ESTs of this worker had their turn: the global step is complete."""
        wishes = self.agreement.hear()
        if self._close_round():
            self._share_step()
            self._act(wishes)

    def data_ended(self) -> None:
        """The loaders of all workers are exhausted. What follows the loop sees EST 0's buffers on every worker."""
        if not self.trained:  # its last round was no global step, which would have shared them
            self.buffers.share_base()

    def _close_round(self) -> bool:
        """This worker's part of ending a round. Returns whether it was a global step."""
        self.buffers.next_becomes_base()
        self.trained = self.turns.was_a_step()
        if not self.trained:
            self.samples = 0
            return False
        if not self.optimizers:
            raise UsageError(
                "The job trains, but no optimizer was passed to es.prepare().",
                "it would step once for each EST, and a resume would lose its state.",
                "pass it: model, optimizer, loader = es.prepare(model, optimizer, loader).",
            )
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
        if self.observer is not None:
            self.observer.step_ended(self.step - 1)

    def _act(self, wishes: Wishes) -> None:
        """Save, stop or hand over: only here, where the state of all workers is that of one step."""
        if self.store is not None and (wishes.checkpoint or wishes.stop or self._checkpoint_is_due()):
            self._save()
        if wishes.stop:
            self._stop(wishes.stop)
        if self.spec.stop_at is not None and self.step >= self.spec.stop_at:
            self._hand_over()
        self._leave_if_over()

    def _checkpoint_is_due(self) -> bool:
        every = self.spec.checkpoint_every
        return every is not None and self.step % every == 0 and self.step != self._saved_step

    def loop_ends(self, loader: PreparedLoader, outcome: BaseException | None) -> None:
        """Local only: this may run while an exception of the script unwinds, when peers may be gone."""
        if isinstance(outcome, GeneratorExit):
            self._left_early(loader)
        self.loader = None
        if self.turns.current is not None:
            self.turns.abandon()
        if self.turns.switch(None):
            self.seed_between()
        self.buffers.base_to_live()
        loader.feed.close()

    def _left_early(self, loader: PreparedLoader) -> None:
        """`break` in the body: fine before the first backward of a round, or after the last."""
        turns = self.turns
        if turns.current is None:
            return
        if turns.position == len(self.ests) - 1 and self.reducer.synchronised:
            turns.end()
            self._unsettled = "step" if self._close_round() else "round"
        elif turns.position == 0 and not self.reducer.synchronised and not self.reducer.accumulated:
            turns.abandon()
            loader.draw_for_the_rest(0)
            self._unsettled = "round"
        else:
            self._broken = LoopError(
                f"The loop was left in the middle of a global step: EST {turns.current} of {list(self.ests)}.",
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
        else:
            self.buffers.share_base()
        self.buffers.base_to_live()
        # Between loops the place in the epoch is not known: what is wished waits for the end of the epoch's body.
        if wishes.checkpoint or (unsettled == "step" and self._checkpoint_is_due()):
            self.agreement.wish_checkpoint()
        if wishes.stop:
            self.agreement.wish_stop(wishes.stop)
        self._leave_if_over()

    def _before_forward(self) -> None:
        if self.turns.current is None:
            self.settle()  # an evaluation after a `break` sees rank 0's buffers
        self.turns.before_forward()

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
        if self.loader is not None:
            self.loader.leave()
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

    def _leave_if_over(self) -> None:
        if self.is_over:
            self.buffers.base_to_live()
            self.done(self.group.bytes_sent)
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
        current = self.turns.current if hasattr(self, "turns") else None
        return self.ests.start if current is None else current

    def log(self, values: dict[str, Any]) -> None:
        if self.model is not None and self.turns.current is not None:
            self.journal.log(self.turns.current, values)

    def finish(self) -> None:
        if self.loader is not None:
            self.loader.leave()
        if self.model is not None:
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
