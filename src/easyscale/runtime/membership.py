"""Joining the job: the group of this plan's workers, the same record everywhere, the same first state."""

from __future__ import annotations

import json
from typing import Any

import torch

from easyscale.core.errors import RecordMismatchError
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.record import collect, differences
from easyscale.runtime.engine import ScriptSettings
from easyscale.runtime.group import Group
from easyscale.runtime.reduce import Reducer


def join(spec: WorkerSpec, name: str) -> Group:
    return Group(spec.rendezvous, spec.worker, spec.plan.workers, spec.timeout, name)


def agree_on_record(group: Group, spec: WorkerSpec, settings: ScriptSettings, device: torch.device) -> dict[str, Any]:
    """Collect the numerics record; refuse a plan whose workers differ where the level forbids it."""
    ours = collect(
        level=spec.determinism, ests=spec.ests, seed=settings.seed, reduction=settings.reduction, device=device,
        split=spec.plan.split,
    )  # fmt: skip
    others = [json.loads(raw) for raw in group.gather_bytes(json.dumps(ours).encode())]
    odd = [worker for worker, theirs in enumerate(others) if differences(theirs, ours)]
    # All workers learn of it, so that none waits for one that has left.
    verdict = json.loads(group.broadcast_bytes(json.dumps([odd[0], others[odd[0]], ours] if odd else None).encode()))
    if verdict is not None:
        worker, theirs, first = verdict
        refuse_differences(theirs, first, f"worker {worker}", "worker 0")
    return ours


def refuse_differences(ours: dict[str, Any], theirs: dict[str, Any], here: str, there: str) -> None:
    found = differences(ours, theirs)
    if found:
        raise RecordMismatchError(
            f"Level {theirs.get('level')} cannot be kept between {here} and {there}: {'; '.join(found)}.",
            "these decide bits, so the result would differ from a run that never moved.",
            "use the same torch, device type, flags and --threads as the job began with, or start a new job.",
        )


def share_initial_state(group: Group, model: torch.nn.Module) -> None:
    """As DDP's constructor: every worker starts from the first one's parameters and buffers."""
    if group.workers == 1:
        return
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            host = tensor.detach().cpu().contiguous()
            group.broadcast(host)
            tensor.copy_(host)


def share_order(group: Group, reducer: Reducer) -> None:
    """After the first global step: EST 0's order of gradients decides everyone's buckets."""
    ready = json.loads(group.broadcast_bytes(json.dumps(reducer.recorded_order()).encode()))
    reducer.rebuild(ready)
