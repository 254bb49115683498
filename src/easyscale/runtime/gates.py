"""Calls in the loop body that must take effect once a global step, not once an EST.

The body runs for each EST of a worker; stock DDP's ranks run it once a step each. `optimizer.step()`, a scheduler's
`step()`, a scaler's `step()` and `update()`, and the update of registered shared objects take effect only in the local
step that completes the global step; in the others they return at once. Objects keep their identity, their type's name
and their `state_dict()`.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from easyscale.core.errors import LoopError, UnsupportedError

Gate = Callable[[], bool]

# Methods by which shared objects that people register (EMA, SWA, counters) change once a step.
SHARED_UPDATES = ("step", "update", "update_parameters")


class Rhythm:
    """What the gates ask: is this a local step, has it had its backward, is it the worker's last?"""

    def __init__(self) -> None:
        self.est: int | None = None
        self.is_last = True
        # After a resume in the middle of an epoch, code above its loop runs again; what it updates has its new state.
        self.replaying = False
        self.synchronised: Callable[[], bool] = lambda: True

    def shared_update(self) -> bool:
        return not self.replaying and (self.est is None or self.is_last)

    def optimizer_step(self) -> bool:
        if self.est is None:
            return not self.replaying
        if not self.synchronised():
            raise LoopError(
                f"optimizer.step() was called in a local step of EST {self.est} without a backward() through the "
                "prepared model before it.",
                "the gradients of this EST would be missing from the global step.",
                "call model(x), not one of its other methods, then loss.backward(); with model.no_sync(), step only "
                "after the backward outside of it.",
            )
        return self.is_last


def gate_optimizer(optimizer: torch.optim.Optimizer, gate: Gate, reduced: Iterable[torch.Tensor]) -> None:
    """A bound method, because torch's schedulers look for `step.__func__`. `reduced` are those the ESTs sum."""
    original: Any = optimizer.step
    known = {id(parameter) for parameter in reduced}

    @functools.wraps(original.__func__ if hasattr(original, "__func__") else original)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if (args and callable(args[0])) or kwargs.get("closure") is not None:
            raise UnsupportedError(
                f"{type(self).__name__}.step() was called with a closure.",
                "a closure runs several backwards in one local step, and ESTs share one optimizer step.",
                "use an optimizer that needs no closure.",
            )
        if not gate():
            return None
        _refuse_strangers(self, known)
        return original(*args, **kwargs)

    if hasattr(original, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def _refuse_strangers(optimizer: torch.optim.Optimizer, known: set[int]) -> None:
    """Gradients that no reduction sums: each rank of stock DDP would go its own way there."""
    groups = optimizer.param_groups
    strangers = [p for group in groups for p in group["params"] if p.grad is not None and id(p) not in known]
    if strangers:
        raise UnsupportedError(
            f"The optimizer holds {len(strangers)} parameters with gradients that are not summed over the ESTs "
            f"(shapes {', '.join(str(tuple(p.shape)) for p in strangers[:3])}).",
            "they are outside the model, or were frozen or not there yet at es.prepare().",
            "put them into the model, with requires_grad=True, before es.prepare().",
        )


def refuse_unprepared_schedulers(optimizers: list[Any], prepared: list[Any]) -> None:
    """A scheduler that was not passed to `prepare` would step once an EST, and forget its state at a resume."""
    known = {id(s) for s in prepared} | {id(inner) for s in prepared for inner in getattr(s, "_schedulers", ())}
    ours = {id(optimizer) for optimizer in optimizers}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.optim.lr_scheduler.LRScheduler) or id(thing) in known:
            continue
        if id(getattr(thing, "optimizer", None)) in ours:
            raise UnsupportedError(
                f"A {type(thing).__name__} follows a prepared optimizer, but was not passed to es.prepare().",
                "its step() would take effect once for each EST, and a resume would lose its state.",
                "pass it: model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler).",
            )


def allow_empty_clipping() -> None:
    """`clip_grad_value_` fails where no parameter has a gradient (`clip_grad_norm_` does not): let it do nothing."""
    clipping: Any = torch.nn.utils.clip_grad
    grouping = clipping._group_tensors_by_device_and_dtype
    if getattr(grouping, "allows_nothing", False):
        return

    def group(lists: list[list[torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        return grouping(lists, *args, **kwargs) if lists[0] else {}

    group.allows_nothing = True  # type: ignore[attr-defined]
    clipping._group_tensors_by_device_and_dtype = group


def gate_methods(target: Any, names: Iterable[str], gate: Gate) -> None:
    """Give `target` a subclass of its own class in which these methods pass the gate first."""
    cls = type(target)
    namespace: dict[str, Any] = {}
    for name in names:
        method = getattr(cls, name, None)
        if callable(method):
            namespace[name] = _gated(method, gate)
    if not namespace:
        return
    namespace["__module__"], namespace["__qualname__"] = cls.__module__, cls.__qualname__
    namespace["__reduce_ex__"] = _refuse_pickle
    try:
        target.__class__ = type(cls.__name__, (cls,), namespace)
    except TypeError:
        raise UnsupportedError(
            f"A {cls.__name__} cannot be prepared.",
            "its class does not let a method be replaced, so its updates would run once an EST.",
            "wrap it in a small Python class with step(), state_dict() and load_state_dict().",
        ) from None


def _gated(method: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @functools.wraps(method)
    def gated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs) if gate() else None

    return gated


def _refuse_pickle(self: Any, protocol: Any) -> Any:
    raise UnsupportedError(
        f"A prepared {type(self).__name__} cannot be pickled or deep-copied.",
        "its methods follow the rhythm of this worker's local steps.",
        "save its state_dict(), or copy it before es.prepare().",
    )
