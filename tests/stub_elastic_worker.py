"""Stands in for `easyscale.runtime.worker` in an elastic job: the real line to the master, no torch.

"Training" counts steps. The members of a plan agree through files beside the order's rendezvous: who is there, which
step each has, and whether all have the next order in hand. A peer that is dead breaks the group, as a socket would.

    stub_elastic_worker.py BEHAVIOUR STEPS [SECONDS_A_STEP]
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from easyscale.core.control import Joined, Lost, Order, Wish
from easyscale.core.messages import Done, Event, Failed, Ready, StepDone
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec
from easyscale.runtime.control import line_of
from easyscale.runtime.stops import Leaving

spec = WorkerSpec.from_json(os.environ[WORKER_VARIABLE])
behaviour, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.002
me = spec.worker
if behaviour == "plain":
    sys.exit(0)
line = line_of(spec)
assert line is not None
stop = 0


class BrokenError(Exception):
    """A peer is gone, or the plan was called off."""


def wish(word: Wish) -> None:
    global stop
    stop = word.stop or stop


line.on_wish = wish
signal.signal(signal.SIGTERM, lambda *_: line.want_to_leave())


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def meet(folder: Path, name: str, word: dict[str, object], peers: Sequence[int], epoch: int) -> list[dict[str, object]]:
    """Say a word and wait for those of all peers."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}-{me}"
    part.write_text(json.dumps({"pid": os.getpid(), **word}))
    part.rename(folder / f"{name}-{me}")
    words: dict[int, dict[str, object]] = {}
    line.is_waiting = lambda: True
    try:
        while len(words) < len(peers):
            if line.superseded(epoch) and line._halted >= epoch:
                raise BrokenError
            for peer in peers:
                path = folder / f"{name}-{peer}"
                if peer not in words and path.exists():
                    words[peer] = json.loads(path.read_text())
                elif peer not in words and peer in pids and has_ended(pids[peer]) and not path.exists():
                    raise BrokenError
            time.sleep(0.0005)
    finally:
        line.is_waiting = lambda: False
    return [words[peer] for peer in peers]


pids: dict[int, int] = {}
step = int(json.loads(os.environ.get("STUB_CHECKPOINT", "0"))) if spec.resume == "auto" else 0


def join(order: Order) -> bool:
    """Form the plan's group; False: it was called off."""
    global step
    began = time.monotonic()
    if not line.begin_forming(order.epoch):
        return False
    pids.clear()
    peers = [member.worker for member in order.members]
    try:
        words = meet(Path(order.rendezvous + ".d"), "join", {"step": step}, peers, order.epoch)
    except BrokenError:
        return False
    pids.update({peer: int(str(word["pid"])) for peer, word in zip(peers, words, strict=True)})
    if behaviour == "dies-joining" and me == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    step = max(int(str(word["step"])) for word in words)
    rank = order.rank_of(me)
    assert rank is not None
    if not line.joined(order.epoch, order.members[rank].ests, step):
        return False
    line.tell(Joined(worker=me, epoch=order.epoch, step=step, seconds=time.monotonic() - began))
    return True


def train(order: Order) -> Order | None:
    """Steps on one plan. The order of the switch that ends it; None: the script is at its end."""
    global step
    peers = [member.worker for member in order.members]
    while step < steps:
        word = {"switch": line.switch_in_hand(), "stop": stop}
        words = meet(Path(order.rendezvous + ".d"), f"step-{step}", word, peers, order.epoch)
        agreed = min(int(str(w["switch"])) for w in words)
        if max(int(str(w["stop"])) for w in words):
            line.tell(Event(worker=me, step=step, what="checkpoint-saved", text=f"Saved at step {step}."))
            line.flush(5.0)
            raise SystemExit(128 + max(int(str(w["stop"])) for w in words))
        newest = line.newest_order
        if agreed and newest is not None and newest.epoch == agreed and step >= (newest.at or 0):
            return newest
        misbehave()
        time.sleep(pause)
        losses: list[float | None] = [est + step / 100 for est in line.ests]
        line.tell(
            StepDone(
                worker=me, step=step, epoch=0, ests=list(line.ests), metrics={"loss": losses}, samples=1,
                time=time.time(),
            )
        )  # fmt: skip
        step += 1
        line.step = step
    return None


def misbehave() -> None:
    if behaviour == "user-error" and step == 3 and me == 1:
        line.tell(Failed(worker=me, step=step, ours=False, text="Traceback\nValueError: bad data", est=line.ests[0]))
        line.flush(5.0)
        raise SystemExit(1)
    if behaviour == "out-of-memory" and step == 3 and me == 1:
        line.tell(Failed(worker=me, step=step, ours=True, text="No memory.", oom=True))
        line.flush(5.0)
        raise SystemExit(1)
    if behaviour == "talk" and step == 2:
        print(f"hello from {me}", flush=True)
        print("trouble", file=sys.stderr, flush=True)


def main() -> None:
    if behaviour == "slow-newcomer" and me >= 2:
        time.sleep(600)
    if behaviour == "bad-newcomer" and me >= 2:
        line.tell(Failed(worker=me, step=0, ours=False, text="Traceback\nValueError: no data"))
        line.flush(5.0)
        raise SystemExit(1)
    line.tell(Ready(worker=me, pid=os.getpid(), step=0, seconds=0.1))
    order = line.next_order(-1, 600.0)
    while True:
        if not join(order):
            order = line.next_order(order.epoch, 600.0)
            continue
        try:
            following = train(order)
        except BrokenError:
            if line._halted < order.epoch:
                line.tell(Lost(worker=me, epoch=order.epoch, step=step, why="a peer is gone"))
            order = line.next_order(order.epoch, 600.0)
            continue
        if following is None:
            break
        if following.rank_of(me) is None:
            line.wait_for_dismissal(following.epoch, 600.0)
            order = line.next_order(following.epoch, 600.0)
        else:
            order = following
    first = 0 in line.ests
    sha = hashlib.sha256(str(step).encode()).hexdigest()
    line.tell(Done(worker=me, steps=step, fingerprint=sha if first else None, timings={"reduce": 1.0}, bytes_sent=10))
    line.flush(10.0)


try:
    main()
except Leaving as leaving:
    sys.exit(leaving.code)
