"""Turns: one EST after the other uses the worker's model, generators and gradients as if they were its own.

Between `begin` and `end` lies the script's loop body. What an EST must find as it left it is put in place before the
body and taken away after it: random states, registered state, its own buffers, gradients under accumulation. The model
itself, and what all ESTs share, never moves. Switching touches the host only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from easyscale.core.errors import LoopError, UnsupportedError
from easyscale.numerics.buckets import bucket_limits
from easyscale.numerics.rng import RngState, seed_all
from easyscale.runtime.buffers import Buffers
from easyscale.runtime.context import EstContext, placed_like
from easyscale.runtime.data.feed import Feed
from easyscale.runtime.engine import PrepareOptions
from easyscale.runtime.gates import Rhythm
from easyscale.runtime.reduce import Reducer

# Forwards after which a module that counts in plain attributes has shown itself; a cache has settled by then.
WATCHED_FORWARDS = 4


class Turns:
    """The contexts of a worker's ESTs, and whose turn it is."""

    def __init__(
        self,
        model: torch.nn.Module,
        buffers: Buffers,
        reducer: Reducer,
        rhythm: Rhythm,
        generators: tuple[torch.Generator, ...],
        options: PrepareOptions,
        device: torch.device,
    ) -> None:
        self._buffers, self._reducer, self._rhythm, self._options = buffers, reducer, rhythm, options
        self._model, self._generators, self._device = model, generators, device
        self.ests = reducer.ests
        self.contexts: dict[int, EstContext] = {}
        self.per_est: dict[str, Any] = {}  # registered objects of which each EST has its own state
        self._first_states: dict[str, Any] = {}  # what an EST starts from that has no state of that name yet
        self._shown: int | None = None  # the EST whose state the registered objects have
        self.current: int | None = None  # the EST whose local step runs
        self.synchronised: list[bool] = []  # for each turn of this round: did its backward synchronise?
        self.is_first = self.is_ghost = False
        self._forwards = 0
        self._shows_est0 = False  # the live buffers are EST 0's in the turn of another EST
        self._stamp: tuple[int, ...] | None = None  # EST 0's buffers as its turn began
        self._live: int | None = None  # the EST whose random states the generators hold
        self._synchronise = True  # False inside model.no_sync()
        self._carried: list[torch.Tensor | None] | None = None
        self._round_has_forwards = False
        self.elastic = False  # ESTs may come to this worker in the middle of a round
        # torch.compile cuts graphs at stock DDP's bucket limits; the cut can change bits, so it must be ours too.
        self._watched: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._watches = WATCHED_FORWARDS if reducer.world > 1 else 0
        self._changes: dict[tuple[int, str], float] = {}
        self._compile_hint: Any = SimpleNamespace(bucket_bytes_cap=bucket_limits(options.bucket_cap_mb)[-1])
        rhythm.synchronised = lambda: reducer.synchronised
        reducer.on_reduced = self._gradients_reduced

    # ------------------------------------------------------------------ contexts

    def found(self, ests: Iterable[int], seed: int) -> dict[int, EstContext]:
        """The contexts with which a job begins: EST v continues under `seed + v`."""
        own = tuple(generator.get_state() for generator in self._generators)
        contexts = {}
        for est in ests:
            seed_all(seed + est)
            rng = RngState.capture(self._device, self._generators)
            rng.extra = own  # a loader's generator starts as the script made it, on every rank
            contexts[est] = EstContext(est, rng)
            if not self._options.broadcast_buffers:
                contexts[est].buffers = self._buffers.copy()
        return contexts

    def have(self, contexts: Mapping[int, EstContext]) -> None:
        """This worker runs these ESTs now, besides those that it has; `ests` follows when all are there."""
        for est, context in contexts.items():
            self.contexts[est] = context
            for name, target in self.per_est.items():
                self._place(context, name, target)

    def use_plan(self) -> None:
        """The reducer's ESTs are the worker's: contexts of others go."""
        self.capture()
        self.ests = self._reducer.ests
        for est in [est for est in self.contexts if est not in self.ests]:
            del self.contexts[est]
            if self._live == est:
                self._live = None

    def register(self, name: str, target: Any) -> None:
        """Each EST starts from the object's state now, or goes on from the checkpoint's."""
        self.per_est[name] = target
        self._first_states[name] = copy.deepcopy(target.state_dict())
        for context in self.contexts.values():
            self._place(context, name, target)
        target.load_state_dict(copy.deepcopy(self.contexts[self.ests.start].registered[name]))
        self._shown = self.ests.start if len(self.ests) == 1 else None

    def _place(self, context: EstContext, name: str, target: Any) -> None:
        state = context.registered.get(name, copy.deepcopy(self._first_states[name]))
        context.registered[name] = placed_like(target.state_dict(), state)

    def unclaimed(self) -> set[str]:
        """Names of states in the contexts whose objects the script did not register."""
        return set(self.contexts[self.ests.start].registered) - set(self.per_est)

    def open_feed(self, est: int, feed: Feed, epoch: int) -> None:
        """Start an EST's epoch in a loader. Its data set may draw, and may ask for its rank."""
        self.switch(est)
        self.current = est
        feed.open(est, epoch)
        self.current = None

    def restore_feed(self, est: int, feed: Feed, cursor: dict[str, Any]) -> None:
        """Take up an EST's place in a loader. A data set that is replayed may ask for its rank, and may draw."""
        self.switch(est)
        self.current = est
        feed.restore(est, cursor)
        self.current = None
        self.contexts[est].rng.restore(self._device, self._generators)

    def switch(self, est: int | None) -> bool:
        """Make an EST's random states live, or none's. Returns whether that changed anything."""
        if est == self._live:
            return False
        self.capture()
        self._live = est
        if est is not None:
            self.contexts[est].rng.restore(self._device, self._generators)
        return True

    def capture(self) -> None:
        """Bring the stored random state of the EST whose states are live up to date."""
        if self._live is not None:
            self.contexts[self._live].rng = RngState.capture(self._device, self._generators)

    # ------------------------------------------------------------------ a turn

    def begin(self, est: int, *, first: bool, last: bool, ghost: bool = False) -> None:
        """The EST's random states are live: its next batch can be drawn. `ghost`: see `Reducer.begin`."""
        self.switch(est)
        self.current = self._rhythm.est = est
        self.is_first, self.is_ghost = first, ghost
        self._forwards, self._shows_est0 = 0, False
        self._rhythm.is_last = last and not ghost
        if first:
            self.round_over()
            self.synchronised = []
        self._reducer.begin(est, first=first, last=last, ghost=ghost)

    def boundary_gradients(self) -> list[torch.Tensor | None]:
        """What p.grad held when the round began."""
        if self._carried is not None:
            return list(self._carried)
        live = [p.grad for p in self._reducer.parameters]
        return [None] * len(live) if self._round_has_forwards else live

    def round_over(self) -> None:
        self._carried, self._round_has_forwards = None, False

    def set_aside(self) -> None:
        """What looked like the last turn of the round is not: updates that all ESTs share wait for another one."""
        self._rhythm.is_last = False

    def batch_drawn(self) -> None:
        """There is a batch: the EST's state goes where the script will see it."""
        assert self.current is not None
        context = self.contexts[self.current]
        if self._shown != self.current:
            for name, target in self.per_est.items():
                target.load_state_dict(context.registered[name])
            self._shown = self.current
        if context.gradients is not None:
            self._put_gradients(context.gradients)
            context.gradients = None
        elif not self.is_first and self._carried is not None:
            self._put_gradients([None if g is None else g.clone() for g in self._carried])
        if self.is_ghost and context.buffers is None and self._options.broadcast_buffers:
            self._buffers.ghost_to_live()
        elif context.buffers is not None:
            self._buffers.put(context.buffers)
            context.buffers = self._stamp = None
        elif self.current == 0 and self._options.broadcast_buffers:
            self._buffers.base_to_live()
            self._stamp = self._buffers.stamp()

    def wants_more(self) -> bool:
        """The EST is in the middle of an accumulation window."""
        return self._reducer.accumulated and not self._reducer.synchronised

    def end(self) -> None:
        """The body is over: what is the EST's own goes back into its context."""
        assert self.current is not None
        context = self.contexts[self.current]
        if not self.is_ghost:
            self.synchronised.append(self._reducer.synchronised)
        if self.wants_more():
            context.gradients = [p.grad for p in self._reducer.parameters]
            self._put_gradients([None] * len(context.gradients))
        if self.current == 0 or self._shows_est0:  # what the body changed after the reduction is rank 0's too
            self._buffers.keep_as_next()
        if context.buffers is None:
            self._keep_own_buffers(context)
        for name, target in self.per_est.items():
            context.registered[name] = copy.deepcopy(target.state_dict())
        self.abandon()

    def abandon(self) -> None:
        """Nobody's turn."""
        self._reducer.end()
        self.current = self._rhythm.est = None
        self._rhythm.is_last = True

    def was_a_step(self) -> bool:
        """Whether the round was a global step; refused where only some of its ESTs had a backward."""
        if len(set(self.synchronised)) > 1:
            raise LoopError(
                f"In one round, only some ESTs called backward(): {self.synchronised} for ESTs {list(self.ests)}.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "call backward() for each batch, or for none (multiply the loss by 0 to leave a batch out).",
            )
        return bool(self.synchronised) and self.synchronised[0]

    def _put_gradients(self, gradients: list[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self._reducer.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _keep_own_buffers(self, context: EstContext) -> None:
        if not context.synchronise_buffers or not self._options.broadcast_buffers:
            context.buffers = self._buffers.copy()

    def _gradients_reduced(self) -> None:
        """What follows in the body (an average of the weights, say) sees rank 0's buffers, as on rank 0."""
        if self.current != 0 and 0 in self.ests and self._buffers:
            assert self.current is not None
            self._keep_own_buffers(self.contexts[self.current])
            self._buffers.next_to_live()
            self._shows_est0 = True
        elif self._buffers.early is not None:
            assert self.current is not None
            self._keep_own_buffers(self.contexts[self.current])
            self._buffers.early_to_live()

    # ------------------------------------------------------------------ around each forward of the model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As DDP's: gradients of backwards whose forward ran in here accumulate locally."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def before_forward(self) -> None:
        DistributedDataParallel._active_ddp_module = self._compile_hint
        if self.current is None:
            return
        if self._forwards == 0 and self.is_first and (len(self.ests) > 1 or self.elastic):
            self._carry_gradients()
        self._round_has_forwards = self._round_has_forwards or not self.is_ghost
        if self._buffers and self._options.broadcast_buffers and self.contexts[self.current].synchronise_buffers:
            self._synchronise_buffers()
        self._forwards += 1
        if self._watches and torch.is_grad_enabled():
            self._watched = [(module, _plain_state(module)) for module in self._model.modules()]

    def after_forward(self, output: Any) -> None:
        DistributedDataParallel._active_ddp_module = None
        if self.current is None:
            return
        synchronise = torch.is_grad_enabled() and self._synchronise
        self.contexts[self.current].synchronise_buffers = synchronise
        if torch.is_grad_enabled():
            self._reducer.arm(synchronise)
            self._refuse_hidden_state()

    def _refuse_hidden_state(self) -> None:
        """A count or an average that a forward keeps in a module, but not as a buffer, would be shared by the ESTs.

        Told from a cache by its steadiness: the same change in each of the first forwards.
        """
        watched, self._watched = self._watched, []
        for module, before in watched:
            for name, value in _plain_state(module).items():
                change = value - before.get(name, value)
                steady = self._changes.setdefault((id(module), name), change) == change and change != 0
                self._changes[id(module), name] = change if steady else 0
                if steady and self._watches == 1:
                    raise UnsupportedError(
                        f"Each forward of {type(module).__name__} changes its attribute {name!r}.",
                        "each rank of stock DDP has its own, while the ESTs of a worker share the module; and no "
                        "checkpoint has it.",
                        "make it a buffer (self.register_buffer), or part of an es.register(per_est=True) object.",
                    )
        if watched:
            self._watches -= 1

    def _carry_gradients(self) -> None:
        """Gradients that the script did not set to None are there for each EST, as on each rank."""
        grads = [p.grad for p in self._reducer.parameters]
        if any(g is not None for g in grads) and not self._reducer.accumulated:
            self._carried = [None if g is None else g.detach().clone() for g in grads]

    def _synchronise_buffers(self) -> None:
        if self.is_ghost:
            return
        if self._forwards == 0 and self.current == 0:
            self._take_changes_of_rank0()
        elif self._forwards == 0:
            self._buffers.base_to_live()
        elif self.current != 0 and self._buffers.changed_outside_batch_norm():
            raise UnsupportedError(
                f"EST {self.current} runs a second forward in one local step, and its first one changed a buffer.",
                "stock DDP would give it rank 0's buffers in between, which another EST may not have made yet.",
                "run one forward a local step, or pass broadcast_buffers=False to es.prepare().",
            )


    def _take_changes_of_rank0(self) -> None:
        """What the body wrote into EST 0's buffers before its forward: stock DDP sends it to all ranks then."""
        if self._stamp is None or self._stamp == self._buffers.stamp():
            return
        if len(self.ests) < self._reducer.world:
            raise UnsupportedError(
                "The loop body changed a buffer of the model before the forward of EST 0.",
                "stock DDP would copy it to every rank at once, but ESTs on other workers have begun without it.",
                "change buffers inside forward(), after backward(), or between the loops.",
            )
        self._buffers.keep_as_base()


def module_generators(model: torch.nn.Module) -> list[torch.Generator]:
    """Generators that modules draw from: on N ranks each has its own, so they are kept per EST."""
    held = [value for module in model.modules() for value in vars(module).values()]
    return [value for value in held if isinstance(value, torch.Generator)]


def _plain_state(module: torch.nn.Module) -> dict[str, float]:
    """Numbers that a module keeps outside of parameters and buffers; of tensors, how often they were written to."""
    found: dict[str, float] = {}
    for name, value in vars(module).items():
        if isinstance(value, (int, float)):
            found[name] = value
        elif isinstance(value, torch.Tensor) and not value.requires_grad:
            found[name] = value._version
    return found
