"""How a worker comes to a plan: at the start, beside a running job, or by a switch from the plan before.

A switch happens at the end of a global step, when all workers have the order in hand. Contexts of all ESTs are on all
workers by then, so an EST that moves between two of them is taken up from there; a worker that joins gets everything
from one peer. Nothing goes through a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from easyscale.core.control import Declined, Joined, Lost, Order
from easyscale.core.errors import WorkerLostError
from easyscale.core.messages import Ready
from easyscale.runtime import membership, state
from easyscale.runtime.checkpoint import Snapshot
from easyscale.runtime.engine import device_name
from easyscale.runtime.group import Group
from easyscale.runtime.replicas import first_slot, leaves_of, pack, tree_of, unpack, value_of
from easyscale.runtime.transfer import receive_tree, send_tree

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


# ---------------------------------------------------------------------------------------- a worker begins


def join(session: EstSession, model: torch.nn.Module) -> None:
    """Take the first place in a plan. Waits for the master's order where there is one; again if that plan breaks."""
    line = session.line
    if line is not None:
        seconds = time.time() - session.started
        worker, device = session.spec.worker, device_name(session.device)
        session.journal.tell(Ready(worker=worker, pid=os.getpid(), step=0, seconds=seconds, device=device))
    order = session.members.first_order()
    while True:
        try:
            _enter(session, model, order)
            return
        except WorkerLostError as problem:
            if line is None:
                raise
            session.members.sever()
            line.tell(Lost(worker=session.spec.worker, epoch=order.epoch, step=0, why=problem.why))
            order = line.next_order(order.epoch, membership.PATIENCE)


def _enter(session: EstSession, model: torch.nn.Module, order: Order) -> None:
    began = time.monotonic()
    session.model = None
    given = _receive_state(session, order) if session.spec.worker in order.joining else None
    groups = session.members.form(order)
    session.use_plan(order.plan, groups)
    session.turns.use_plan()
    _set_lanes(session)
    if given is None:
        session.record = membership.agree_on_record(session.talk, session.spec, session.settings, session.device)
        membership.share_initial_state(session.talk, model)
        session.founded(model)
        session.exchange.replicas.leaves = _first_leaves(session)
        state.resume(session)
    else:
        session.record = membership.own_record(session.spec, session.settings, session.device)
        record = json.loads(given["record"])
        membership.refuse_differences(session.record, record, "this worker", "the running job")
        session.founded(model)
        leaves = unpack(given["leaves"])
        contexts = [tree_of(est, leaves[est]) for est in range(session.world)]
        state.take_up(session, Snapshot(given["step"], record, given["model"], given["shared"], contexts))
        session.joined_late = True
        session.rounds = session.base_rounds = given["rounds"]
        session.share_points = session.shared_points = given["points"]
        session.exchange.replicas.boundary, session.exchange.replicas.serial = given["rounds"], given["serial"]
    _agree_on_size(session, session.talk)
    session.members.confirm(order, session.ests, session.step)
    _tell_joined(session, order, began)


def _agree_on_size(session: EstSession, talk: Group) -> None:
    talk.expect(first_slot(max(talk.gather_json(session.exchange.replicas.size))))


def _first_leaves(session: EstSession) -> dict[int, dict[str, bytes]]:
    """Of all ESTs: where they start is the same for all, but for the random states."""
    first = session.ests.start
    places = [loader.place_of(first) for loader in session.loaders]
    cursors = [{"taken": taken, "opened": opened, "feed": feed} for taken, opened, feed in places]
    contexts = session.turns.found(range(session.world), session.settings.seed)
    session.seed_between()
    return {est: leaves_of(est, {"context": contexts[est].to_tree(), "cursors": cursors}) for est in contexts}


def _receive_state(session: EstSession, order: Order) -> Any:
    group = session.members.transfer(order, donor=False)
    return receive_tree(group, 0)


# ---------------------------------------------------------------------------------------- a switch


def switch(session: EstSession, epoch: int) -> None:
    """At the end of a global step: go over to plan `epoch`, unless it was called off or its time has not come."""
    line = session.line
    assert line is not None
    order = line.newest_order
    if order is None or epoch == 0 or line.switch_in_hand() != epoch or order.epoch != epoch:
        return
    if order.at is not None and session.step < order.at:
        return
    if order.joining and not session.in_epochs:
        _decline(session, order)
        return
    if order.joining and session.loader is not None and session.loops > 1:
        return  # a script cannot begin in an epoch's second loop: wait for the next place where it can
    if session.exchange_now().checkpoint:
        session.exchange.wish_checkpoint()  # heard here, due at the end of the next step
    if not _can_move(session):
        return
    began = time.monotonic()
    if not line.begin_forming(epoch):
        raise membership.called_off(order)
    if order.joining and session.talk.worker == 0:
        _give_state(session, order)
    rank = order.rank_of(session.spec.worker)
    if rank is None:
        _leave(session, order)
    groups = session.members.form(order)
    _agree_on_size(session, groups[1])
    ests = order.members[rank].ests
    session.members.confirm(order, ests, session.step)
    came = {est: session.exchange.replicas.tree(est) for est in ests if est not in session.ests}
    session.exchange.adopt(came)
    session.use_plan(order.plan, groups)
    take_up(session, came)
    _tell_joined(session, order, began)


def _decline(session: EstSession, order: Order) -> None:
    """All workers see the same and none goes; one of them tells it."""
    assert session.line is not None
    session.line.decline(order.epoch)
    if session.talk.worker == 0:
        why = (
            "the script's loop does not run inside es.epochs(), so a new worker could not find its place in it"
            " (write `for epoch in es.epochs(count):` around it)"
        )
        session.line.tell(Declined(worker=session.spec.worker, epoch=order.epoch, why=why))


def _can_move(session: EstSession) -> bool:
    """Data that draws from the training's own random numbers cannot be taken up inside an epoch: its end is awaited.

    Read off the contexts that all workers have by now, so that all say the same.
    """
    if session.loader is None:
        return True
    name = f"loader.{session.loader.index}.draws"
    leaves = session.exchange.replicas.leaves
    return not any(value_of(name, own[name]) for own in leaves.values() if name in own)


def _give_state(session: EstSession, order: Order) -> None:
    assert session.model is not None
    replicas = session.exchange.replicas
    tree = {
        "step": session.step, "rounds": session.rounds, "points": session.share_points, "serial": replicas.serial,
        "record": json.dumps(session.record), "leaves": pack(replicas.leaves), "shared": state.gather_shared(session),
        "model": dict(session.model.state_dict()),
    }  # fmt: skip
    send_tree(session.members.transfer(order, donor=True), tree)


def _leave(session: EstSession, order: Order) -> NoReturn:
    """Not in the next plan. Stays until that plan stands: if it does not, this worker is needed again."""
    session.journal.flush(force=True)
    session.leaving = True
    assert session.line is not None
    session.line.wait_for_dismissal(order.epoch, session.spec.timeout)
    session.leaving = False
    raise membership.called_off(order)


def _tell_joined(session: EstSession, order: Order, began: float) -> None:
    if session.line is not None:
        seconds = time.monotonic() - began
        session.line.tell(
            Joined(worker=session.spec.worker, epoch=order.epoch, step=session.step, seconds=seconds)
        )


# ---------------------------------------------------------------------------------------- ESTs come and go


def take_up(session: EstSession, trees: Mapping[int, dict[str, Any]]) -> None:
    """ESTs that this worker runs from now on, as they were at a boundary; those that it no longer runs go."""
    session.turns.have({est: state.context_of(tree, session.device) for est, tree in trees.items()})
    session.turns.use_plan()
    _set_lanes(session, fresh=trees)
    for est, tree in trees.items():
        for loader in session.loaders:
            cursor = tree["cursors"][loader.index]
            loader.taken[est] = cursor["taken"]
            if not loader.running:
                loader.waiting[est] = cursor["feed"]
                continue
            session.turns.restore_feed(est, loader.feed, cursor["feed"])
            if cursor["opened"] != loader.opened or cursor["feed"]["epoch"] is None:  # it had not begun this loop
                loader.feed.close(est)
                loader.taken[est] = 0
                session.turns.open_feed(est, loader.feed, loader.epoch_number)


def _set_lanes(session: EstSession, fresh: Mapping[int, Any] | None = None) -> None:
    for loader in session.loaders:
        for est in loader.feed.ests:
            if est not in session.ests or est in (fresh or {}):
                loader.feed.remove(est)
                loader.waiting.pop(est, None)
        for est in session.ests:
            if est not in loader.feed.ests:
                loader.feed.add(est)


@contextmanager
def ghost(session: EstSession, est: int) -> Iterator[None]:
    """Inside, the local step of `est` in the round before is run again, on that round's parameters and buffers."""
    again = session.rounds if session.overtaken else session.rounds - 1
    was_a_step = session.overtaken or session.trained
    parameters = session.reducer.parameters
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    session.buffers.is_current = session.base_rounds > again
    with session.undo.back() if was_a_step else nullcontext():
        yield
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    if est == 0 and session.base_rounds > again:
        session.buffers.drop_next()
    elif est == 0 and session.buffers.next_becomes_base():
        session.base_rounds = again + 1
    session.buffers.is_current = True
    if was_a_step:
        session.journal.step_done(again_step(session), session.epoch, 0, [est])
    session.turns.capture()  # its random states are still live
    session.exchange.note_one(est, session.turns.contexts, session.loaders)
    if not any(turn.ghost for turn in session.pending):
        session.exchange.go_on()
    if est == 0 and not session.overtaken:
        session.tell_fingerprint()


def again_step(session: EstSession) -> int:
    """The global step, from 0, that a ghost belongs to."""
    return session.step if session.overtaken else session.step - 1


def accept_late(session: EstSession) -> None:
    """The round that peers had completed is over here too."""
    for parameter, gradient in zip(session.reducer.parameters, session.late_gradients, strict=True):
        parameter.grad = gradient
    session.overtaken, session.late_gradients = False, []
