"""What `es.prepare` and `es.register` do to the script's objects: hooks and gates, which follow the ESTs' turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from easyscale.core.errors import UsageError
from easyscale.runtime.context import placed_like
from easyscale.runtime.data.feed import Feed
from easyscale.runtime.engine import attach, give_no_sync
from easyscale.runtime.gates import SHARED_UPDATES, allow_empty_clipping, gate_methods, gate_optimizer
from easyscale.runtime.reduce import Reducer, ReductionSettings

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


def make_reducer(session: EstSession, model: torch.nn.Module, ignored: frozenset[str]) -> Reducer:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and n not in ignored]
    if not named:
        raise UsageError(
            "The model has no parameter that requires a gradient.",
            "there is nothing to train; stock DDP refuses it too.",
            "set requires_grad=True where it should learn.",
        )
    settings = ReductionSettings(
        order=session.settings.reduction,
        staging=session.settings.staging,
        bucket_cap_mb=session.options.bucket_cap_mb,
        find_unused_parameters=session.options.find_unused_parameters,
    )
    names, parameters = zip(*named, strict=True)
    return Reducer(names, parameters, session.world, settings, session.device)


def make_feed(session: EstSession, loader: Any) -> Feed:
    def announce(est: int) -> None:
        """Inside a loader process: whose batch is being made."""
        session.turns.current = est

    def report(text: str) -> None:
        session.journal.event("loader-restarted", text, session.step)

    return Feed(
        loader, world_size=session.world, ests=(), seed=session.settings.seed, device=session.random_device,
        announce=announce, report=report,
    )  # fmt: skip


def install(session: EstSession, model: torch.nn.Module, before_forward: Callable[[Any, Any], None]) -> None:
    attach(model, before_forward, session.turns.after_forward)
    give_no_sync(model, session.turns)
    allow_empty_clipping()
    for optimizer in session.optimizers:
        gate_optimizer(optimizer, session.rhythm.optimizer_step, session.reducer.parameters)
    for scheduler in session.schedulers:
        gate_methods(scheduler, ("step",), session.rhythm.shared_update)
    for scaler in session.scalers:
        gate_methods(scaler, ("step", "unscale_", "update"), session.rhythm.shared_update)


def register(session: EstSession, name: str, target: Any, per_est: bool) -> None:
    if not (hasattr(target, "state_dict") and hasattr(target, "load_state_dict")):
        raise UsageError(
            f"es.register({name!r}, ...) got a {type(target).__name__}.",
            "it has no state_dict() and load_state_dict(), so its state cannot travel.",
            "give it these two methods, with plain values and tensors.",
        )
    known = {*session.registered, *session.early, *(session.turns.per_est if session.model is not None else ())}
    if name in known:
        raise UsageError(f"{name!r} is registered twice.", "names tell states apart.", "choose another name.")
    if per_est and session.model is None:
        session.early[name] = target
    elif per_est:
        session.turns.register(name, target)
    else:
        session.registered[name] = target
        if name in session.unclaimed:
            target.load_state_dict(placed_like(target.state_dict(), session.unclaimed.pop(name)))
        gate_methods(target, SHARED_UPDATES, session.rhythm.shared_update)
