"""One worker: composes contexts, data, buffers, reduction and gates into the rhythm of global steps.

Reads from top to bottom as a step runs: `loop_begins`, `round_begins`, for each EST a turn (`turns`), then
`finish_round`, which completes the global step and is the only place where state is consistent: fingerprints,
checkpoints, stops and switches happen there. A peer may be lost at any moment: `recovery` then brings this worker onto
the next plan, and what was being done with the peers is done again.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch

from easyscale.core.control import Wish
from easyscale.core.errors import EasyScaleError, LoopError, PromiseError, UsageError, WorkerLostError
from easyscale.core.plan import Plan
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.fingerprint import fingerprint
from easyscale.runtime import breaks, joining, membership, preparing, saving, state
from easyscale.runtime.buffers import Buffers
from easyscale.runtime.control import FAREWELL_SECONDS
from easyscale.runtime.engine import (
    Engine,
    PrepareOptions,
    ScriptSettings,
    refuse_unsupported,
    sort_objects,
)
from easyscale.runtime.exchange import Exchange, Wishes
from easyscale.runtime.gates import (
    Rhythm,
    refuse_unprepared_schedulers,
)
from easyscale.runtime.group import Group
from easyscale.runtime.length import steps_in_all
from easyscale.runtime.loop import PreparedLoader
from easyscale.runtime.pace import Pace
from easyscale.runtime.recovery import Adopted, recover
from easyscale.runtime.stops import Leaving
from easyscale.runtime.turns import Turns, module_generators
from easyscale.runtime.undo import Undo
from easyscale.runtime.warmup import Sample, warm_up


@dataclass(frozen=True, slots=True)
class Turn:
    """An EST that is to run in this round; as a ghost: once more in the round before."""

    est: int
    ghost: bool = False


class EstSession(Engine):
    """The engine of `--engine est`."""

    def __init__(self, spec: WorkerSpec, settings: ScriptSettings, started: float) -> None:
        super().__init__(spec, settings, started)
        self.plan = spec.plan
        self.members = membership.Membership(spec, self.line)
        self.group = self.talk = Group(None, 0, 1)
        self._sent_before = 0  # bytes, to the peers of earlier plans
        self.record: dict[str, Any] = {}
        self.store = state.open_store(self)
        self.rhythm = Rhythm()
        self.pace = Pace(self.device)
        self.turns: Turns
        self.registered: dict[str, Any] = {}
        self.early: dict[str, Any] = {}  # registered per EST before es.prepare()
        self.unclaimed: dict[str, Any] = {}  # registered state of a checkpoint that waits for its object
        self.resumed = False
        self.joined_late = False  # it came to a running job
        self.resumed_loop: tuple[int, int] | None = None  # (loader, how many loops the epoch began before it)
        self.loader: PreparedLoader | None = None
        self.window = 0  # batches of an EST in a local step
        self._length_asked = False
        self.samples = 0
        self._left: tuple[int | None, Any, int] = (None, None, 0)  # the EST, code and line where a loop was left early
        self.broken: EasyScaleError | None = None
        self.unsettled: Literal["round", "step"] | None = None
        self.exchange = Exchange(spec.checkpoint_seconds)
        self.saving = saving.Saving(self)
        self._saves = False  # the checkpoints of an elastic job are this worker's to write
        self.sample = Sample(self)
        self.trained = True  # the last round was a global step
        self.rounds = 0  # complete ones: global steps, and rounds without a backward
        self.base_rounds = 0  # rounds after which EST 0 had the buffers that are `base`
        # Places of the script where EST 0's buffers go to all workers, that this one has come to and has left behind:
        # counted, so that after a loss all agree on what is still to be shared.
        self.share_points = self.shared_points = 0
        self.wishes = Wishes(False, 0, 0)  # of the last complete round
        self.pending: list[Turn] = []
        self.ran: list[int] = []  # ESTs that had their turn in this round
        self.adopted: list[Adopted] = []  # ESTs of a lost worker that are to be taken up
        self.overtaken = False  # peers have completed this round
        self.late_order: list[int] | None = None  # of the buckets, from a peer
        self.late_gradients: list[Any] = []  # what p.grad is when the round that peers have completed is over
        self._told_step = True
        self._round_is: Literal["none", "open", "closed"] = "none"
        signals = [signal.SIGTERM] + ([signal.SIGINT] if spec.events_fd is not None else [])
        self.exchange.listen(signals, self._signalled)
        if self.line is not None:
            self.line.on_wish = self._wished
            self.exchange.newest_order = self.line.switch_in_hand

    # ------------------------------------------------------------------ prepare

    def prepare(self, objects: tuple[Any, ...], options: PrepareOptions) -> list[Any]:
        kinds = sort_objects(objects)
        if self.model is not None:
            raise UsageError("es.prepare() was called twice.", "a job has one model.", "pass all objects in one call.")
        model = kinds["models"][0]
        refuse_unsupported(model)
        self.options = options
        model.to(self.device)
        if self.line is not None:
            warm_up(self, model)
        self.optimizers, self.schedulers, self.scalers = kinds["optimizers"], kinds["schedulers"], kinds["scalers"]
        if self.guard is not None:
            self.guard.prepared(model, self.optimizers, shared=len(self.ests) > 1)
        ignored = frozenset(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
        self.buffers = Buffers(model, ignored)
        self.reducer = preparing.make_reducer(self, model, ignored)
        self.reducer.on_lost, self.reducer.before_commit = self._lost_in_sum, self._before_commit
        self.reducer.on_backward_ended = self.pace.backward_ended
        self.undo = Undo(self.reducer.parameters)
        feeding = [(loader, preparing.make_feed(self, loader)) for loader in kinds["loaders"]]
        self.loaders = [PreparedLoader(self, loader, feed, i) for i, (loader, feed) in enumerate(feeding)]
        feeds = [generator for loader in self.loaders for generator in loader.feed.generators]
        generators = tuple(dict.fromkeys([*feeds, *module_generators(model)]))
        self.turns = Turns(model, self.buffers, self.reducer, self.rhythm, generators, options, self.random_device)
        self.turns.elastic = self.line is not None
        preparing.install(self, model, self._before_forward)
        joining.join(self, model)
        if self.line is None:
            self.ready()
        prepared = iter(self.loaders)
        return [next(prepared) if thing in kinds["loaders"] else thing for thing in objects]

    def founded(self, model: torch.nn.Module) -> None:
        """The job begins: every worker can say where each EST starts."""
        self.turns.have(self.turns.found(self.ests, self.settings.seed))
        self.seed_between()
        self.model = model
        self.buffers.keep_as_base()
        for name, target in self.early.items():
            self.turns.register(name, target)
        if self.observer is not None:
            self.observer.prepared(model, self.optimizers)

    @property
    def bytes_sent(self) -> int:
        return self._sent_before + self.group.bytes_sent

    def use_plan(self, plan: Plan, groups: tuple[Group, Group]) -> None:
        """This worker's ESTs and peers from now on. The contexts of ESTs that come are taken up by `settle_in`."""
        self._sent_before = self.bytes_sent
        self.plan, (self.group, self.talk) = plan, groups
        self.ests = plan.range_of(self.group.worker)
        saves = self.store is not None and self.line is not None and 0 in self.ests
        if saves and not self._saves and self.store is not None:
            self.store.take_over()
        self._saves = saves
        self.reducer.use_plan(plan.split, self.group)
        self.buffers.use_plan(self.group, self.ests, fixed=self.line is None)
        self.exchange.regrouped(self.talk)

    def register(self, name: str, target: Any, per_est: bool) -> None:
        preparing.register(self, name, target, per_est)

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
        loader.epoch_number = self.epoch if self.in_epochs else loader.opened
        if self.joined_late and self.resumed_loop is not None:
            self.buffers.base_to_live()  # the peers are inside the loop: what they gave counts
        else:
            self.buffers.keep_as_base()  # code between loops may have changed them; rank 0's count
            self.share_points += 1
            self.together(self.share_base)
        for est, cursor in loader.waiting.items():
            self.turns.restore_feed(est, loader.feed, cursor)
            if self.resumed_loop is None:
                loader.feed.close(est)  # it stood at the end of a loop that is over
        loader.waiting = {}
        loader.running = True
        if self.resumed_loop is not None:
            self.resumed_loop, self.rhythm.replaying = None, False  # its cursors stand where the checkpoint left them
            return
        loader.taken = {}
        for est in self.ests:
            self.turns.open_feed(est, loader.feed, loader.epoch_number)
        loader.opened += 1

    def round_begins(self) -> None:
        self.pace.begin()
        self.turns.capture()
        self.exchange.note(self.turns.contexts, self.loaders)
        self._round_is = "open"
        self.pending, self.ran = [Turn(est) for est in self.ests], []

    def announce(self) -> None:
        """The first batch of a round is there, so the round is."""
        try:
            self.exchange.announce(self.rounds, more=True, trained=self.trained)
        except WorkerLostError as problem:  # only where the announcement waits for its answer
            self._recover(problem)
            self.together(lambda: None if self.exchange.is_held_back else self.exchange.hear())
        if not self.trained:
            self.pace.begin()  # the announcement has waited for the peers

    def turn_ended(self, est: int) -> None:
        self.pace.turn_ended()
        self.ran.append(est)
        self.settle_in()

    def settle_in(self) -> None:
        """Take up the ESTs of a lost worker. Nobody's turn: their random states may be made live."""
        adopted, self.adopted = self.adopted, []
        if not adopted:
            return
        joining.take_up(self, {one.est: one.tree for one in adopted})
        ghosts = [Turn(one.est, ghost=True) for one in adopted if one.ghost]
        if ghosts and self._round_is == "none":
            raise WorkerLostError(
                f"A worker was lost whose last local steps (ESTs {[turn.est for turn in ghosts]}) cannot be repeated.",
                "it died while the loop was being left, before its ESTs' contexts had reached its peers.",
                "restart with --resume latest.",
            )
        joins = self._round_is == "open" and not self.overtaken
        self.pending += [*ghosts, *(Turn(one.est) for one in adopted if joins)]

    def together(self, action: Callable[[], Any]) -> Any:
        """Do something with all workers of the plan; again with the others where one is lost."""
        while True:
            try:
                return action()
            except WorkerLostError as problem:
                self._recover(problem)
                if self.turns.current is None:
                    self.settle_in()

    def _recover(self, problem: WorkerLostError) -> None:
        recover(self, problem)
        if self.turns.current is not None and (self.adopted or self.overtaken):
            self.reducer.is_last = False  # of the turn that runs: others follow
            self.turns.set_aside()

    def _lost_in_sum(self, problem: WorkerLostError) -> bool:
        """A peer was lost before the step counted. True: sum again; False: ESTs were adopted that must run first."""
        self._recover(problem)
        return not (self.adopted or self.overtaken)

    def _before_commit(self) -> None:
        """All sums are there: the step counts if all workers have been heard."""
        if self.line is not None and self.registered and self.buffers:
            self.buffers.share_early(est0_is_live=self.turns.current == 0)
        self.exchange.hear()
        if self.line is not None and self.group.workers > 1:
            self.undo.keep()

    def keep_buffers_while(self, action: Callable[[], None]) -> None:
        mine = self.buffers.copy()
        action()
        self.buffers.put(mine)

    def ghost_begins(self, est: int) -> Any:
        """Run a local step of the round before again, on what it had then. Enter what comes back."""
        return joining.ghost(self, est)

    def finish_round(self) -> bool:
        """All ESTs of this worker had their turn. False: a peer was lost, and there are turns to run before."""
        try:
            if self._round_is == "open":
                self.wishes = self.exchange.hear()
                self.close_round()
            if self.trained:
                self.share_step()
                self._act()
        except WorkerLostError as problem:
            self._recover(problem)
            self.settle_in()
            return False
        self._round_is = "none"
        return True

    def end_of_data(self) -> bool:
        """The loaders of all workers are exhausted. What follows the loop sees EST 0's buffers on every worker.

        The contexts go to all workers before anyone leaves the loop: outside of it no local step can be run again.
        """
        try:
            if not self.exchange.announced:
                self._round_is = "open"
                self.share_points += not self.trained  # its last round was no global step, which would have shared them
                self.turns.capture()
                self.exchange.note(self.turns.contexts, self.loaders)
                self.exchange.announce(self.rounds, more=False, trained=self.trained)
            self.exchange.hear()
            self.saving.contexts_are_there()
            self.share_base()
        except WorkerLostError as problem:
            self._recover(problem)
            self.settle_in()
            self.pending = [turn for turn in self.pending if turn.ghost]
            return False
        self.exchange.round_over()
        self._round_is = "none"
        return True

    def close_round(self) -> None:
        """This worker's part of ending a round, local and once."""
        self.exchange.round_over()
        self.saving.contexts_are_there()
        self._round_is = "closed"
        self.rounds += 1
        if self.group.workers == 1:
            self.undo.drop()
        if self.buffers.next_becomes_base():
            self.base_rounds = self.rounds
        self.turns.round_over()
        self.trained = self.overtaken or self.turns.was_a_step()
        samples, self.samples = self.samples, 0
        if self.overtaken:
            joining.accept_late(self)
        if not self.trained:
            return
        if not self.optimizers:
            raise UsageError(
                "The job trains, but no optimizer was passed to es.prepare().",
                "it would step once for each EST, and a resume would lose its state.",
                "pass it: model, optimizer, loader = es.prepare(model, optimizer, loader).",
            )
        self.step += 1
        self.share_points += 1
        if self.line is not None:
            self.line.step = self.step
        if not self._length_asked:
            self._length_asked, self.journal.total = True, steps_in_all(self)
        self.journal.step_done(self.step - 1, self.epoch, samples, self.ran, self.pace.take())
        self._told_step = False

    def share_step(self) -> None:
        """The peers' part, each piece once: rank 0's buffers for all, and at first the order of the buckets."""
        self.share_base()
        if self.reducer.ready is None:
            if self.late_order is None:
                membership.share_order(self.group, self.reducer)
            else:
                self.reducer.rebuild(self.late_order)
        if self._told_step:
            return
        self._told_step = True
        self.tell_fingerprint()
        if self.guard is not None:
            self.guard.check()
        if self.observer is not None:
            self.observer.step_ended(self.step - 1)

    def share_base(self) -> None:
        if self.shared_points < self.share_points:
            self.buffers.share_base()
            self.base_rounds, self.shared_points = self.rounds, self.share_points

    def tell_fingerprint(self) -> None:
        every = self.spec.fingerprint_every
        if every and self.step % every == 0 and 0 in self.ests:
            assert self.model is not None
            self.buffers.base_to_live()
            self.journal.fingerprint(self.step, fingerprint(self.model))

    def _act(self) -> None:
        """Save, stop, switch or hand over: only here, where the state of all workers is that of one step."""
        wishes, due = self.wishes, self.saving.is_due(self.wishes)
        if wishes.stop or (due and self.is_over):
            self.saving.save_now()
        elif due:
            self.saving.begin()
        if wishes.stop:
            self._stop(wishes.stop)
        if self.spec.stop_at is not None and self.step >= self.spec.stop_at:
            self.saving.hand_over()
        self.leave_if_over()
        if wishes.switch:
            joining.switch(self, wishes.switch)
        elif self.line is not None and self.members.until is not None and self.step >= self.members.until:
            joining.switch(self, self.line.wait_for_switch(self.spec.timeout, self.exchange.is_stopping))

    def exchange_now(self) -> Wishes:
        """Between two rounds: all workers have the contexts of all ESTs as they are now."""
        if not self.exchange.announced:
            self.turns.capture()
            self.exchange.note(self.turns.contexts, self.loaders, whole=True)
            self.exchange.announce(self.rounds, more=True)
        wishes = self.exchange.hear()
        self.saving.contexts_are_there()
        self.exchange.round_over()
        return wishes

    def loop_ends(self, loader: PreparedLoader, outcome: BaseException | None) -> None:
        """Local only: this may run while an exception of the script unwinds, when peers may be gone."""
        if isinstance(outcome, GeneratorExit):
            frame = sys._getframe(2)  # of the script: the line where it left the loop
            self._left = (self.turns.current, frame.f_code, frame.f_lineno)
            breaks.left_early(self, loader)
        self.loader, loader.running, self._round_is = None, False, "none"
        if self.turns.current is not None:
            self.turns.abandon()
        if self.turns.switch(None):
            self.seed_between()
        self.buffers.base_to_live()
        loader.feed.close()

    def settle(self) -> None:
        """Do with the peers what was left over when the script broke out of a loop, at its next call of ours."""
        breaks.settle(self)

    def _before_forward(self, args: Any, kwargs: Any) -> None:
        if self.turns.current is None:
            self.settle()  # an evaluation after a `break` sees rank 0's buffers
        self.sample.look(self, args, kwargs)
        self.turns.before_forward()

    # ------------------------------------------------------------------ leaving

    def request_checkpoint(self) -> None:
        if self.store is None:
            raise UsageError(
                "es.checkpoint() was called, but the job has no checkpoint folder.",
                "nobody said where checkpoints go.",
                "start it with --checkpoint-dir DIR, or es.init(checkpoint_dir=...).",
            )
        self.exchange.wish_checkpoint()

    def epoch_ended(self) -> None:
        if self.loader is not None:
            self.loader.leave()
        self.settle()
        self.wishes = self.together(self.exchange_now)
        self.together(self._act)

    def leave_if_over(self) -> None:
        if self.is_over:
            self.buffers.base_to_live()
            self.done(self.bytes_sent)
            self.leaving = True
            raise Leaving(0)

    def _stop(self, number: int) -> NoReturn:
        self.leaving = True
        raise Leaving(128 + number)

    def _signalled(self, number: int) -> bool:
        """A signal came. Before the first step and after the last, nothing is in the way of leaving."""
        if self.line is not None and self.members.epoch >= 0:
            self.line.want_to_leave()  # this worker alone: the others go on
            return True
        if self.loader is None and not self.in_epochs:
            self._stop(number)
        return False

    def _wished(self, wish: Wish) -> None:
        """By the master, on the thread of its line."""
        if wish.checkpoint and self.store is not None:
            self.exchange.wish_checkpoint()
        if wish.stop:
            self.exchange.wish_stop(wish.stop)

    # ------------------------------------------------------------------ small things

    def current_est(self) -> int | None:
        return self.turns.current if hasattr(self, "turns") else None

    def est_of(self, problem: BaseException) -> int | None:
        """Python ends the loop before the error is told: so the place where it was left is looked for in the error."""
        est, *place = self._left
        entries = traceback.walk_tb(problem.__traceback__)
        return est if any([frame.f_code, line] == place for frame, line in entries) else self.current_est()

    def rank(self) -> int:
        current = self.current_est()
        return self.ests.start if current is None else current

    def log(self, values: dict[str, Any]) -> None:
        if self.model is not None and self.turns.current is not None:
            self.journal.log(self.turns.current, values)

    def finish(self) -> None:
        if self.loader is not None:
            self.loader.leave()
        if self.model is not None:
            self.settle()
            if self.line is not None and self.store is None:
                self.together(self.exchange_now)  # while one is still at work, the others can finish in its place
            self.together(self.saving.save_now)
            if self.store is not None:
                self.store.wait()
        self.done(self.bytes_sent)
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
        if self.line is not None:
            self.line.flush(FAREWELL_SECONDS)
        self.level_ends()
