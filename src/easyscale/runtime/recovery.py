"""After a worker was lost: the others find each other again, agree on where they are, and share what it leaves behind.

Nothing is rolled back. Workers differ by at most one round, because a round counts only for who has heard from all. Who
is ahead is right: updates are deterministic. Let R be the rounds that the furthest worker has completed:
- a worker behind (R - 1) has given its gradients, so it takes the state after the round from one that is ahead;
- likewise, between rounds, one that was still waiting for an exchange which another has left behind takes its outcome;
- the lost ESTs go on from the contexts that the workers hold. Those are of boundary R, or of R - 1 where the lost
  worker died before its peers had the new ones: then the local steps of round R - 1 are run again as ghosts, on the
  parameters of that round, for the contexts alone;
- whoever adopts ESTs in the middle of round R runs them in this very round, and only then is its sum begun.
Everything that needs the network comes first and changes nothing; what follows is local and cannot fail.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from easyscale.core.control import Joined, Lost, Order
from easyscale.core.errors import PromiseError, WorkerLostError
from easyscale.runtime import joining, state
from easyscale.runtime.checkpoint import Snapshot
from easyscale.runtime.exchange import Wishes
from easyscale.runtime.group import Group
from easyscale.runtime.replicas import Leaves, first_slot, pack, tree_of, unpack
from easyscale.runtime.transfer import receive_tree, send_tree

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """An EST that came to this worker: its context at a boundary. `ghost`: of the boundary before the last one."""

    est: int
    tree: dict[str, Any]
    ghost: bool


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the members tell each other first."""

    rank: int
    rounds: int
    held: tuple[int, int]  # boundary of the contexts that it has of all ESTs, and how new they are
    inside: bool  # it would take part in the exchange that brought them once more
    base: int  # the newest place of the script for which it has EST 0's buffers (`EstSession.share_points`)
    base_rounds: int
    ready: bool  # it knows the order of the buckets
    ests: list[int]
    wishes: tuple[bool, int]  # what was wished in the last exchange that it has heard
    size: int  # bytes of all contexts


@dataclass(kw_only=True)
class _Findings:
    """What came over the network."""

    behind: bool = False
    rounds: int = 0
    wishes: tuple[bool, int] = (False, 0)
    contexts: dict[int, Leaves] = field(default_factory=dict)  # of the lost ESTs; of all where some have older ones
    held: tuple[int, int] = (0, 0)
    missed: bool = False  # this worker waits for an exchange that is over
    snapshot: Snapshot | None = None
    base: Any = None
    points: int = 0  # up to which all members have, or now get, EST 0's buffers
    base_rounds: int = 0
    ready: list[int] | None = None


def recover(session: EstSession, problem: WorkerLostError) -> None:
    """Returns when this worker is on the next plan, with `session.adopted` to run. Raises where there is no master."""
    line = session.line
    if line is None:
        raise problem
    if session.spec.determinism == "D0":
        raise PromiseError(
            "A worker was lost, and level D0 keeps bits only on the plan that the job began with.",
            problem.why,
            "use --determinism D1, or restart with --resume latest on the same plan.",
        )
    epoch = session.members.epoch
    while True:
        session.members.sever()
        me, step = session.spec.worker, session.step
        line.tell(Lost(worker=me, epoch=epoch, step=step, why=problem.why, timed_out=problem.timed_out))
        began = time.monotonic()
        order = line.next_order(epoch, session.spec.timeout, ("recover",))
        try:
            _reconcile(session, order, began)
            return
        except WorkerLostError as again:
            problem, epoch = again, order.epoch


def _reconcile(session: EstSession, order: Order, began: float) -> None:
    assert session.line is not None
    gradients, talk = session.members.form(order)
    mine = order.members[talk.worker].ests
    kept = [est for est in session.ests if est in mine]
    gives_away = len(kept) < len(session.ests)
    if gives_away and session.line.forming is None:
        raise AssertionError(f"{order} takes ESTs from a worker that has {session.ests}")
    found = _find_out(session, talk, kept)
    if found.held[0] < found.rounds - 1 and len(kept) < len(mine):  # never seen; going on would change bits
        raise AssertionError(f"contexts of boundary {found.held[0]} for a worker lost in round {found.rounds}")
    adopted = [
        Adopted(est=est, tree=tree_of(est, found.contexts[est]), ghost=found.held[0] < found.rounds)
        for est in mine
        if est not in kept
    ]
    session.members.confirm(order, mine, session.step)
    _apply(session, found, adopted)
    session.use_plan(order.plan, (gradients, talk))
    if gives_away:  # it was on its way to a plan that others have joined, in which these are theirs
        joining.take_up(session, {})
    session.adopted += adopted
    seconds = time.monotonic() - began
    session.line.tell(Joined(worker=session.spec.worker, epoch=order.epoch, step=session.step, seconds=seconds))


def _find_out(session: EstSession, talk: Group, kept: list[int]) -> _Findings:
    """Talk to the other members; change nothing here. `kept`: the ESTs that this worker has and goes on with."""
    exchange, me = session.exchange, talk.worker
    here = session.rounds + session.overtaken  # who was overtaken has the state of the round that it is still in
    wishes = exchange.last
    ours = {
        "rounds": here, "held": [exchange.replicas.boundary, exchange.replicas.serial],
        "inside": exchange.inside,
        "base": session.share_points if 0 in session.ests else session.shared_points,
        "base_rounds": session.base_rounds, "ready": session.reducer.ready is not None, "ests": kept,
        "wishes": [wishes.checkpoint, wishes.stop], "size": exchange.replicas.size,
    }  # fmt: skip
    facts = [
        _Facts(rank=rank, **{**raw, "held": tuple(raw["held"]), "wishes": tuple(raw["wishes"])})
        for rank, raw in enumerate(talk.gather_json(ours))
    ]
    talk.expect(first_slot(max(f.size for f in facts)))
    rounds = max(f.rounds for f in facts)
    leader = next(f for f in facts if f.rounds == rounds)
    found = _Findings(rounds=rounds, behind=here < rounds, wishes=leader.wishes)
    found.held = max(f.held for f in facts)
    newest = [f for f in facts if f.held == found.held]
    holder = next((f for f in newest if not f.inside), newest[0])
    known = {est for f in facts for est in f.ests}
    wanted = [est for est in range(session.world) if est not in known or len(newest) < len(facts)]
    if wanted:
        raw = pack({est: exchange.replicas.leaves[est] for est in wanted}) if me == holder.rank else b""
        found.contexts = unpack(talk.broadcast_bytes(raw, holder.rank))
    if not found.behind and not holder.inside and exchange.announced and not session.overtaken:
        found.missed = facts[me].held < found.held or exchange.inside
        found.wishes = holder.wishes
    if any(f.rounds < rounds for f in facts):
        found.snapshot = _share_state(session, talk, leader.rank)
    found.points = max(f.base for f in facts)
    based = next(f for f in facts if f.base == found.points)
    found.base_rounds = based.base_rounds
    if any(f.base < found.points for f in facts):
        if me == based.rank:
            send_tree(talk, session.buffers.base_tree())
        elif facts[me].base < found.points:
            found.base = receive_tree(talk, based.rank)
        else:
            receive_tree(talk, based.rank)
    informed = [f.rank for f in facts if f.ready]
    if informed and len(informed) < len(facts):
        raw = json.dumps(session.reducer.ready).encode() if me == informed[0] else b""
        found.ready = json.loads(talk.broadcast_bytes(raw, informed[0]))
    return found


def _share_state(session: EstSession, talk: Group, leader: int) -> Snapshot:
    """The shared state of who is ahead, for who is behind. Its buffers travel apart."""
    assert session.model is not None
    if talk.worker != leader:
        tree = receive_tree(talk, leader)
        return Snapshot(tree["step"], {}, tree["model"], tree["shared"], [])
    shared = state.gather_shared(session, show_base=False)
    if session.overtaken:  # itself given by one that is no more
        shared["gradients"] = session.late_gradients
    send_tree(talk, {"step": session.step, "model": dict(session.model.state_dict()), "shared": shared})
    return Snapshot(session.step, {}, {}, {}, [])


def _apply(session: EstSession, found: _Findings, adopted: list[Adopted]) -> None:
    exchange = session.exchange
    if found.behind:
        assert found.snapshot is not None
        snapshot = found.snapshot
        session.undo.keep()
        session.keep_buffers_while(lambda: state.load_shared(session, snapshot))
        session.late_gradients = [parameter.grad for parameter in session.reducer.parameters]
        session.overtaken = True
        exchange.overtaken(Wishes(found.wishes[0], found.wishes[1], 0))
    elif found.missed:
        exchange.overtaken(Wishes(found.wishes[0], found.wishes[1], 0))
    session.late_order = found.ready
    if found.base is not None:
        session.buffers.take_base(found.base)
        session.base_rounds = found.base_rounds
    session.shared_points = found.points
    exchange.replicas.leaves.update(found.contexts)
    exchange.replicas.boundary, exchange.replicas.serial = found.held
    exchange.adopt(one.est for one in adopted)
    if any(one.ghost for one in adopted):
        exchange.hold_back()
