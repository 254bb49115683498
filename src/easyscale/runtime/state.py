"""The job's state: gathered at a step boundary, written to a checkpoint, sent to a peer, and put back.

Model, optimizers, schedulers, scalers and registered shared objects are the same on every worker and are stored once;
each EST's context and loader cursor is stored by virtual rank, so that any plan can pick it up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from easyscale.core.errors import CheckpointError
from easyscale.runtime import codec
from easyscale.runtime.checkpoint import CheckpointStore, Snapshot
from easyscale.runtime.context import EstContext, placed_like
from easyscale.runtime.membership import refuse_differences
from easyscale.runtime.origin import origin
from easyscale.runtime.replicas import leaves_of

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


def open_store(session: EstSession) -> CheckpointStore | None:
    """Every worker knows the folder; only the one that holds EST 0 writes there."""
    spec = session.spec
    if spec.checkpoint_dir is None:
        return None
    return CheckpointStore(Path(spec.checkpoint_dir), keep=spec.checkpoint_keep, report=session.journal.event)


def hand_over(session: EstSession, snapshot: Snapshot) -> None:
    """Leave the state for the workers of the next plan."""
    assert session.spec.handoff is not None
    CheckpointStore(Path(session.spec.handoff), keep=1, report=lambda *_: None).save(snapshot)


def resume(session: EstSession) -> bool:
    """Put the state of a checkpoint back, after refusing what does not belong together. False: there is none."""
    snapshot = _find(session)
    if snapshot is None:
        return False
    here = f"this start (plan {session.spec.plan})"
    refuse_differences(session.record, snapshot.record, here, f"the checkpoint of step {snapshot.step}")
    take_up(session, snapshot)
    if session.group.worker == 0:
        text = f"resumed at global step {snapshot.step}, epoch {session.epoch}, on plan {session.plan}."
        session.journal.event("resumed", text, snapshot.step)
    return True


def take_up(session: EstSession, snapshot: Snapshot) -> None:
    """Become a worker of the job at the snapshot's step. The script has not begun its loops."""
    load_shared(session, snapshot)
    shared = snapshot.shared
    contexts = {est: context_of(snapshot.contexts[est], session.device) for est in session.ests}
    session.turns.have(contexts)
    session.step, session.epoch, session.resumed = snapshot.step, shared["loop"]["epoch"], True
    if shared["ready"] is not None:
        session.reducer.rebuild(shared["ready"])
    inside = shared["loop"]["loader"] is not None
    session.resumed_loop = (shared["loop"]["loader"], shared["loop"]["before"]) if inside else None
    session.rhythm.replaying = inside  # said both ways: a worker that joins may have been given an older state before
    session.left_epochs = shared["loop"]["left"]
    for est in session.ests:
        await_cursors(session, est, snapshot.contexts[est])
    for name, target in session.turns.per_est.items():
        session.turns.register(name, target)
    session.buffers.keep_as_base()
    session.exchange.replicas.leaves = {est: leaves_of(est, tree) for est, tree in enumerate(snapshot.contexts)}


def load_shared(session: EstSession, snapshot: Snapshot) -> None:
    """What all workers have alike."""
    _load_model(session, snapshot)
    assert session.model is not None
    shared = snapshot.shared  # on the host: each object knows where its state belongs
    gradients = codec.to_device(shared["gradients"], session.device)
    for parameter, gradient in zip(session.reducer.parameters, gradients, strict=True):
        parameter.grad = gradient
    for name, tensor in _transient(session.model).items():
        tensor.copy_(shared["transient"][name])
    for kind in ("optimizers", "schedulers", "scalers"):
        _load_each(kind, getattr(session, kind), shared[kind])
    session.unclaimed = dict(shared["registered"])
    for name, target in session.registered.items():
        if name in session.unclaimed:
            target.load_state_dict(placed_like(target.state_dict(), session.unclaimed.pop(name)))


# ---------------------------------------------------------------------------------------- gathering


def gather_shared(session: EstSession, *, show_base: bool = True) -> dict[str, Any]:
    """What all workers have alike, at a boundary. Live tensors, not copies."""
    assert session.model is not None
    if show_base:
        session.buffers.base_to_live()
    return {
        "optimizers": [o.state_dict() for o in session.optimizers],
        "schedulers": [s.state_dict() for s in session.schedulers],
        "scalers": [s.state_dict() for s in session.scalers],
        "registered": {name: target.state_dict() for name, target in session.registered.items()},
        "loop": {
            "epoch": session.epoch,
            "loader": session.loader.index if session.loader is not None else None,
            "before": session.loops - 1,  # loops that the epoch began before this one
            "left": session.left_epochs,
        },
        "ready": session.reducer.ready,
        "gradients": session.turns.boundary_gradients(),
        "transient": _transient(session.model),
    }


def snapshot_of(session: EstSession) -> Snapshot:
    """The shared state, copied to host memory now; the contexts follow when they are known."""
    assert session.model is not None
    record = {
        **session.record, "job": session.spec.job, "buckets": session.reducer.bucket_map, "target": origin(),
        "fingerprints": dict(session.journal.fingerprints),
    }  # fmt: skip
    shared = codec.to_host(gather_shared(session))
    return Snapshot(session.step, record, codec.to_host(dict(session.model.state_dict())), shared, [])


def _transient(model: Any) -> dict[str, torch.Tensor]:
    """Buffers that are not in the state_dict (persistent=False)."""
    stored = model.state_dict().keys()
    return {name: tensor for name, tensor in model.named_buffers() if name not in stored}


# ---------------------------------------------------------------------------------------- putting back


def _find(session: EstSession) -> Snapshot | None:
    source = session.spec.resume
    if source is None:
        return None
    if source in ("latest", "auto"):
        if session.store is None:
            raise CheckpointError(
                f"--resume {source} was asked for without a checkpoint folder.",
                "nobody said where the checkpoints are.",
                "add --checkpoint-dir DIR, or name a checkpoint: --resume DIR/step-0000000120.",
            )
        found = session.store.latest()
        if found is None and source == "latest":
            raise CheckpointError(
                f"There is no checkpoint in {session.spec.checkpoint_dir}.",
                "--resume latest needs one.",
                "check the folder, or use --resume auto, which starts anew where there is none.",
            )
        return found
    path = Path(source)
    if path.is_dir() and not (path / "checkpoint.json").exists():
        found = CheckpointStore(path, report=session.journal.event).latest()
        if found is not None:
            return found
    return CheckpointStore.load(path)


def _load_model(session: EstSession, snapshot: Snapshot) -> None:
    assert session.model is not None
    ours = session.model.state_dict()
    theirs = snapshot.model
    missing, extra = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    shapes = [n for n, t in ours.items() if n in theirs and isinstance(t, torch.Tensor) and t.shape != theirs[n].shape]
    if missing or extra or shapes:
        parts = {"missing there": missing, "unknown here": extra, "of another shape": shapes}
        text = "; ".join(f"{words}: {', '.join(names[:3])}" for words, names in parts.items() if names)
        raise CheckpointError(
            f"The checkpoint of step {snapshot.step} is of another model ({text}).",
            "its weights do not fit the model that the script built.",
            "resume with the script and arguments that the job began with, or choose another --checkpoint-dir.",
        )
    session.model.load_state_dict(theirs)


def _load_each(kind: str, targets: list[Any], states: list[Any]) -> None:
    if len(targets) != len(states):
        raise CheckpointError(
            f"The checkpoint has {len(states)} {kind}, the script prepares {len(targets)}.",
            "their states would be mixed up.",
            "pass the same objects to es.prepare() as when the job began.",
        )
    for target, saved in zip(targets, states, strict=True):
        target.load_state_dict(saved)
        if isinstance(target, torch.optim.Optimizer):
            _undo_casts(target, saved)


def _undo_casts(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """`load_state_dict` casts state to the parameter's dtype; state of another dtype must come back as it was."""
    numbered = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in saved["state"].items():
        for name, value in values.items():
            current = optimizer.state[numbered[index]].get(name)
            if isinstance(value, torch.Tensor) and isinstance(current, torch.Tensor) and current.dtype != value.dtype:
                optimizer.state[numbered[index]][name] = value.to(current.device, copy=True)


def context_of(tree: dict[str, Any], device: torch.device) -> EstContext:
    context = EstContext.from_tree(tree["context"])
    context.buffers = codec.to_device(context.buffers, device)
    context.gradients = codec.to_device(context.gradients, device)
    return context


def await_cursors(session: EstSession, est: int, tree: dict[str, Any]) -> None:
    """Taken up when a loop begins: code above it may still set up its data set, as in each epoch."""
    for loader in session.loaders:
        saved = tree["cursors"][loader.index]
        loader.taken[est], loader.opened = saved["taken"], saved["opened"]
        loader.waiting[est] = saved["feed"]
