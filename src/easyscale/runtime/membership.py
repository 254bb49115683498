"""The workers of the plan in force, this one's place among them, and what they must have in common."""

from __future__ import annotations

import json
from typing import Any

import torch

from easyscale.core.control import Member, Order
from easyscale.core.errors import RecordMismatchError, WorkerLostError
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.record import collect, differences
from easyscale.runtime.board import BoardKeeper
from easyscale.runtime.control import Line
from easyscale.runtime.engine import ScriptSettings
from easyscale.runtime.group import LOOPBACK, Group, Meeting
from easyscale.runtime.reduce import Reducer

# A worker that is to join waits for a step to end, however long that takes; the master calls it off before this.
PATIENCE = 24 * 3600.0


class Membership:
    """Forms the groups of one plan after the other. `line` is None where the plan never changes."""

    def __init__(self, spec: WorkerSpec, line: Line | None) -> None:
        self._spec, self.line = spec, line
        self.epoch = -1
        self.until: int | None = None  # completed steps after which the next order is waited for
        self._groups: list[Group] = []
        if line is not None:
            line.on_halt = self.sever
            line.is_waiting = lambda: any(group.waiting for group in self._groups)

    def first_order(self) -> Order:
        """The plan with which this worker begins."""
        if self.line is not None:
            return self.line.next_order(-1, PATIENCE)
        ranges = self._spec.plan.ranges()
        members = tuple(Member(worker=w, first=r.start, count=len(r)) for w, r in enumerate(ranges))
        return Order(epoch=0, how="start", members=members, rendezvous=self._spec.rendezvous or "")

    def form(self, order: Order) -> tuple[Group, Group]:
        """The groups of a plan: one for gradients, one to talk beside them."""
        rank = order.rank_of(self._spec.worker)
        assert rank is not None
        self._groups = []
        return tuple(self._group(order, rank, order.plan.workers, name) for name in ("gradients", "talk"))  # type: ignore[return-value]

    def transfer(self, order: Order, donor: bool) -> Group:
        """For the state on its way to the workers that join: the donor is rank 0."""
        rank = 0 if donor else 1 + sorted(order.joining).index(self._spec.worker)
        return self._group(order, rank, 1 + len(order.joining), "state", PATIENCE)

    def _group(self, order: Order, rank: int, workers: int, name: str, patience: float | None = None) -> Group:
        line = self.line
        meeting = Meeting(
            rendezvous=f"{order.rendezvous}.state" if name == "state" else order.rendezvous,
            timeout=self._spec.timeout,
            patience=patience or self._spec.timeout,
            address=self._spec.control.address if self._spec.control is not None else LOOPBACK,
            called_off=lambda: line is not None and line.superseded(order.epoch),
            keeper=self._keeper(),
        )
        group = Group(meeting, rank, workers, name)
        self._groups.append(group)
        if line is not None and line.superseded(order.epoch):  # while it was formed, so that nobody severed it
            self.sever()
        return group

    def _keeper(self) -> BoardKeeper | None:
        control = self._spec.control
        if self.line is None or control is None:
            return None
        return BoardKeeper(address=self.line.address, token=control.token, worker=self._spec.worker)

    def sever(self) -> None:
        for group in self._groups:
            group.sever()

    def confirm(self, order: Order, ests: range, step: int) -> None:
        """From here on this worker is on the plan; refused if it was called off meanwhile."""
        if self.line is not None and not self.line.joined(order.epoch, ests, step):
            raise called_off(order)
        self.epoch, self.until = order.epoch, order.until


def called_off(order: Order) -> WorkerLostError:
    return WorkerLostError(
        f"Plan {order.epoch} was called off.", "one of its workers was lost.", "the master names the next plan."
    )


def agree_on_record(group: Group, spec: WorkerSpec, settings: ScriptSettings, device: torch.device) -> dict[str, Any]:
    """Collect the numerics record; refuse a plan whose workers differ where the level forbids it."""
    ours = own_record(spec, settings, device)
    others = group.gather_json(ours)
    for worker, theirs in enumerate(others):
        refuse_differences(theirs, others[0], f"worker {worker}", "worker 0")
    return ours


def own_record(spec: WorkerSpec, settings: ScriptSettings, device: torch.device) -> dict[str, Any]:
    return collect(
        level=spec.determinism, ests=spec.ests, seed=settings.seed, reduction=settings.reduction, device=device,
        split=spec.plan.split,
    )  # fmt: skip


_CORRECTION = {
    "D1": "use the same torch, device type, C library, flags and --threads as the job began with, or start a new job.",
    "D2": "use --determinism D2 with the --ests, seed and reduction that the job began with, and an EasyScale with the "
    "same D2 definitions, where the C library computes alike (glibc on processors with FMA does); device type, torch "
    "version and --threads are free.",
}


def refuse_differences(ours: dict[str, Any], theirs: dict[str, Any], here: str, there: str) -> None:
    found = differences(ours, theirs)
    if found:
        raise RecordMismatchError(
            f"Level {theirs.get('level')} cannot be kept between {here} and {there}: {'; '.join(found)}.",
            "these decide bits, so the result would differ from a run that never moved.",
            f"use --determinism {theirs['level']}, as the job began, or start a new job."
            if ours.get("level") != theirs.get("level")
            else _CORRECTION["D2" if theirs.get("level") == "D2" else "D1"],
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
