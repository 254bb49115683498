"""The job's state: gathered at a step boundary, written to a checkpoint or a hand-off folder, and put back.

Model, optimizers, schedulers, scalers and registered shared objects are the same on every worker and are stored once;
each EST's context and loader cursor is stored by virtual rank, so that any plan can pick it up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from easyscale.core.errors import CheckpointError
from easyscale.runtime import codec
from easyscale.runtime.checkpoint import CheckpointStore, Snapshot
from easyscale.runtime.context import EstContext, placed_like
from easyscale.runtime.membership import refuse_differences

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


def open_store(session: EstSession) -> CheckpointStore | None:
    """Every worker knows the folder; only the one that holds EST 0 writes there."""
    spec = session.spec
    if spec.checkpoint_dir is None:
        return None
    return CheckpointStore(Path(spec.checkpoint_dir), keep=spec.checkpoint_keep, report=session.journal.event)


def save(session: EstSession) -> None:
    """Write a checkpoint in the background. A disk that fails is reported; training goes on."""
    assert session.store is not None
    snapshot = _gather(session)
    if snapshot is not None:
        session.store.save_in_background(snapshot)


def hand_over(session: EstSession) -> None:
    """Leave the state for the workers of the next plan."""
    assert session.spec.handoff is not None
    snapshot = _gather(session)
    if snapshot is not None:
        CheckpointStore(Path(session.spec.handoff), keep=1, report=lambda *_: None).save(snapshot)


def resume(session: EstSession) -> None:
    """Put the state of a checkpoint back, after refusing what does not belong together."""
    snapshot = _find(session)
    if snapshot is None:
        return
    here = f"this start (plan {session.spec.plan})"
    refuse_differences(session.record, snapshot.record, here, f"the checkpoint of step {snapshot.step}")
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
    for est in session.ests:
        tree = snapshot.contexts[est]
        session.turns.contexts[est] = _context(tree["context"], session.device)
    session.step, session.epoch, session.resumed = snapshot.step, shared["loop"]["epoch"], True
    if shared["ready"] is not None:
        session.reducer.rebuild(shared["ready"])
    if shared["loop"]["loader"] is not None:
        session.resumed_loop = (shared["loop"]["loader"], shared["loop"]["before"])
        session.rhythm.replaying = True
    session.left_epochs = shared["loop"]["left"]
    _restore_cursors(session, snapshot)
    for name, target in session.turns.per_est.items():
        session.turns.register(name, target)
    session.buffers.keep_as_base()
    if session.spec.worker == 0:
        text = f"resumed at global step {snapshot.step}, epoch {session.epoch}, on plan {session.spec.plan}."
        session.journal.event("resumed", text, snapshot.step)


# ---------------------------------------------------------------------------------------- gathering


def _gather(session: EstSession) -> Snapshot | None:
    """The whole state at worker 0, copied to host memory; None on the others."""
    assert session.model is not None
    session.turns.capture()
    session.buffers.base_to_live()
    mine = codec.to_host([_est_tree(session, est) for est in session.ests])
    if session.group.workers == 1:
        contexts = mine
    else:
        contexts = [tree for payload in session.group.gather_bytes(_pack(mine)) for tree in _unpack(payload)]
    if session.group.worker != 0:
        return None
    shared = {
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
        "gradients": [p.grad for p in session.reducer.parameters],
        "transient": _transient(session.model),
    }
    record = {**session.record, "job": session.spec.job, "buckets": session.reducer.bucket_map}
    return Snapshot(
        session.step, record, codec.to_host(dict(session.model.state_dict())), codec.to_host(shared), contexts
    )


def _transient(model: Any) -> dict[str, torch.Tensor]:
    """Buffers that are not in the state_dict (persistent=False)."""
    stored = model.state_dict().keys()
    return {name: tensor for name, tensor in model.named_buffers() if name not in stored}


def _est_tree(session: EstSession, est: int) -> dict[str, Any]:
    """Cursors of all loaders, open or closed: streams of loader processes may live on between epochs."""
    cursors = [
        {
            "taken": loader.taken.get(est, 0),
            "opened": loader.opened,
            "feed": loader.waiting.get(est) or loader.feed.cursor(est),
        }
        for loader in session.loaders
    ]
    return {"context": session.turns.contexts[est].to_tree(), "cursors": cursors}


def _pack(trees: list[Any]) -> bytes:
    structure, tensors = codec.encode(trees)
    text = json.dumps(structure).encode()
    return len(text).to_bytes(8, "little") + text + safetensors.torch.save(tensors)


def _unpack(payload: bytes) -> list[Any]:
    length = int.from_bytes(payload[:8], "little")
    tensors = safetensors.torch.load(payload[8 + length :])
    return list(codec.decode(json.loads(payload[8 : 8 + length]), tensors))


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


def _context(tree: dict[str, Any], device: torch.device) -> EstContext:
    context = EstContext.from_tree(tree)
    context.buffers = codec.to_device(context.buffers, device)
    context.gradients = codec.to_device(context.gradients, device)
    return context


def _restore_cursors(session: EstSession, snapshot: Snapshot) -> None:
    """Taken up when a loop begins: code above it may still set up its data set, as in each epoch."""
    for loader in session.loaders:
        for est in session.ests:
            saved = snapshot.contexts[est]["cursors"][loader.index]
            loader.taken[est], loader.opened = saved["taken"], saved["opened"]
            loader.waiting[est] = saved["feed"]
