"""The worker's line to its master: a thread that sends heartbeats and messages, and takes orders.

Nothing here waits for the network on the training thread's time: messages go into a box and out when they can. What is
numbered stays in the box until the master has it; a master that comes back is told again. Without one for too long the
worker leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from easyscale.core.control import (
    MAX_FRAME,
    Beat,
    Dismiss,
    Fence,
    Frame,
    Halt,
    Heard,
    Hello,
    How,
    Order,
    Status,
    WantsToLeave,
    Wish,
    pack,
    unpack,
)
from easyscale.core.errors import WorkerLostError
from easyscale.core.messages import StepDone
from easyscale.core.spec import Control, WorkerSpec
from easyscale.runtime.stops import Leaving

WIRE_SECONDS = 0.01  # for the other thread to finish its sending, which takes it microseconds
RETRY_SECONDS = 0.1  # between attempts to reach a master that is away: it may be back any moment
SEND_SECONDS = 5.0  # a master that takes nothing for so long is away
# Messages kept for a master that is away. Then metrics of the oldest steps go first; they are not needed for the bits.
MOST_KEPT = 100_000
FAREWELL_SECONDS = 10.0  # for the last messages to reach the master; one that is away may be back by then
FENCED = 75  # exit code: another worker runs this one's ESTs (EX_TEMPFAIL)


def line_of(spec: WorkerSpec) -> Line | None:
    """The process's line, opened when it is first asked for; None where there is no master."""
    return None if spec.control is None else _open_line(spec)


@lru_cache(maxsize=1)
def _open_line(spec: WorkerSpec) -> Line:
    assert spec.control is not None
    return Line(spec, spec.control)


class Line:
    """One per worker. Fields that the thread tells the master are set by the training thread, plainly."""

    def __init__(self, spec: WorkerSpec, control: Control) -> None:
        self._spec, self._control = spec, control
        self.epoch, self.step = -1, 0
        self.ests: tuple[int, ...] = tuple(spec.plan.range_of(spec.place))
        self.forming: int | None = None
        self.is_waiting: Callable[[], bool] = lambda: False
        self.on_halt: Callable[[], None] = lambda: None
        self.on_wish: Callable[[Wish], None] = lambda wish: None
        self._order: Order | None = None
        self._halted = -1  # epochs up to this one are over, joined or not
        self._declined = -1  # a switch that the workers cannot make
        self._dismissed = self._listening = False
        self._changed = threading.Condition()
        self._box: deque[tuple[int, bytes]] = deque()
        self._sent = 0  # how many of the box were sent on this connection
        self._number = 0
        self._loose: deque[bytes] = deque()  # frames without a number
        self._leave_by: float | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._connection: socket.socket | None = None
        self._wire = threading.Lock()  # held while bytes are sent, and while `_out` changes
        self._out = b""  # on its way, frames that were sent in part among them
        self._called = (control.host, control.port)  # where the line leads
        self._pid = os.getpid()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="easyscale-control", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for the training thread

    def tell(self, message: Any) -> None:
        """Numbered: it reaches the master, or the master after it."""
        if os.getpid() != self._pid:  # a loader process
            return
        with self._changed:
            self._number += 1
            raw = pack(Frame(body=message, sender=self._spec.worker, seq=self._number), self._control.token)
            self._box.append((self._number, raw))
            if len(self._box) > MOST_KEPT:
                self._forget_metrics()
        self._send_now()

    @property
    def newest_order(self) -> Order | None:
        return self._order

    def switch_in_hand(self) -> int:
        """The epoch of a switch that this worker has been told of and has not made."""
        order = self._order
        return order.epoch if order is not None and order.how == "switch" and order.epoch > self._passed else 0

    def decline(self, epoch: int) -> None:
        """Never make that switch."""
        self._declined = epoch

    @property
    def _passed(self) -> int:
        return max(self.epoch, self._halted, self._declined)

    def next_order(self, after: int, limit: float, hows: tuple[How, ...] = ("start", "recover", "switch")) -> Order:
        """Wait for a newer order of which this worker is a member. Leaves if it is dismissed meanwhile."""
        deadline = time.monotonic() + limit
        with self._changed:
            self._listening = True
            try:
                while True:
                    if self._dismissed:
                        raise Leaving(0)
                    order = self._order
                    if order is not None and order.how in hows and self._is_for_me(order, after):
                        return order
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise _no_order(limit)
                    self._changed.wait(left)
            finally:
                self._listening = False

    def _is_for_me(self, order: Order, after: int) -> bool:
        return order.epoch > max(after, self._halted) and order.rank_of(self._spec.worker) is not None

    def wait_for_switch(self, limit: float, unless: Callable[[], bool]) -> int:
        """The epoch of the next switch, once it is ordered; 0 if it does not come, or need not."""
        deadline, joined = time.monotonic() + limit, self.epoch
        with self._changed:
            while not (epoch := self.switch_in_hand()):
                if self._halted >= joined:
                    raise _no_order(0.0)
                if unless() or time.monotonic() > deadline:
                    return 0
                self._changed.wait(0.1)
            return epoch

    def wait_for_dismissal(self, epoch: int, limit: float) -> bool:
        """Leaves when it comes. False: plan `epoch` was called off, so this worker is needed again."""
        deadline = time.monotonic() + limit
        with self._changed:
            self._listening = True
            try:
                while self._halted < epoch:
                    if self._dismissed or (left := deadline - time.monotonic()) <= 0:
                        raise Leaving(0)
                    self._changed.wait(left)
                return False
            finally:
                self._listening = False

    def superseded(self, epoch: int) -> bool:
        """Plan `epoch` will not come about: a halt or a newer order came, or this worker is to leave."""
        order = self._order
        return self._dismissed or self._halted >= epoch or (order is not None and order.epoch > epoch)

    def begin_forming(self, epoch: int) -> bool:
        """False: too late, plan `epoch` was called off."""
        with self._changed:
            if self._halted >= epoch:
                return False
            self.forming = epoch
            return True

    def joined(self, epoch: int, ests: range, step: int) -> bool:
        """False: too late, plan `epoch` was called off."""
        with self._changed:
            if self._halted >= epoch:
                return False
            self.epoch, self.ests, self.step, self.forming = epoch, tuple(ests), step, None
            return True

    def want_to_leave(self) -> None:
        """SIGTERM: ask the master for a plan without this worker; leave without one when the grace is over."""
        if self._leave_by is None:
            grace = self._control.grace_seconds
            self._leave_by = time.monotonic() + grace
            self.tell(WantsToLeave(worker=self._spec.worker, grace=grace))

    def flush(self, seconds: float) -> None:
        """Wait until the master has all that was told, at most so long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._box and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.05))

    def close(self) -> None:
        self._closing = True
        self._wake()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        away_since = time.monotonic()
        while not self._closing:
            connection = self._connect()
            if connection is not None:
                with connection:
                    self._talk(connection)
                    self._connection = None
                away_since = time.monotonic()
            self._look_at_clock()
            if time.monotonic() - away_since > self._control.orphan_seconds:
                self._be_orphaned()
                away_since = time.monotonic()
            time.sleep(RETRY_SECONDS)

    def address(self) -> tuple[str, int]:
        """Where the master listens now: one that was started again may have had to take another port."""
        if self._control.endpoint is not None:
            try:
                found = json.loads(Path(self._control.endpoint).read_text())
                return str(found["host"]), int(found["port"])
            except (OSError, ValueError, KeyError, TypeError):
                pass  # the address from before is as good a guess
        return self._called

    def _connect(self) -> socket.socket | None:
        self._called = self.address()
        try:
            connection = socket.create_connection(self._called, timeout=SEND_SECONDS)
        except OSError:
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a cut network is noticed when the kernel gives up: minutes
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_SECONDS * 1000))
        return connection

    def _talk(self, connection: socket.socket) -> None:
        """Until the connection ends."""
        hello = Hello(worker=self._spec.worker, pid=os.getpid(), epoch=self.epoch, step=self.step, ests=self.ests)
        with self._wire, self._changed:
            self._sent, self._out = 0, self._frame(hello)
            self._loose.clear()
        heard, beat_at = b"", 0.0
        try:
            self._send(connection)
            self._connection = connection
            while not self._closing:
                now = time.monotonic()
                if now >= beat_at:
                    if self.address() != self._called:  # whoever answers here is not the master any more
                        return
                    self._say(Beat(**self._facts(), waiting=self.is_waiting()))
                    beat_at = now + self._control.beat_seconds
                self._send(connection)
                self._look_at_clock()
                pause = max(0.0, beat_at - time.monotonic())
                ready, _, _ = select.select([connection.fileno(), self._wake_reader], [], [], pause)
                if self._wake_reader in ready:
                    os.read(self._wake_reader, 4096)
                if connection.fileno() in ready:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    *lines, heard = (heard + data).split(b"\n")
                    for line in lines:
                        self._take(line)
                    if len(heard) > MAX_FRAME:
                        return
            self._send(connection)
        except OSError:
            return

    def _facts(self) -> dict[str, Any]:
        return {"worker": self._spec.worker, "epoch": self.epoch, "step": self.step}

    def _send(self, connection: socket.socket) -> None:
        with self._wire:
            self._fetch()
            if self._out:
                connection.sendall(self._out)
                self._out = b""

    def _send_now(self) -> None:
        """On the training thread, if it can be done at once: what the kernel has outlives this process.

        Else a worker that is killed takes along what it told just before, whenever its other thread was not quick.
        """
        connection, sent = self._connection, False
        if connection is not None and self._wire.acquire(timeout=WIRE_SECONDS):
            try:
                self._fetch()
                if select.select([], [connection.fileno()], [], 0)[1]:
                    self._out = self._out[connection.send(self._out) :]
                sent = not self._out
            except (OSError, ValueError):  # it is broken, or was closed: the other thread deals with it
                pass
            finally:
                self._wire.release()
        if not sent:
            self._wake()

    def _fetch(self) -> None:
        """What has not been sent on this connection goes out next, whole frames in their order."""
        with self._changed:
            box = list(self._box)  # a signal's handler may put more into it meanwhile
            unsent = [*self._loose, *(raw for _, raw in box[self._sent :])]
            self._loose.clear()
            self._sent = len(box)
            self._out += b"".join(unsent)

    def _take(self, line: bytes) -> None:
        frame = unpack(line, self._control.token)
        match frame.body if frame is not None else None:
            case Heard(seq=seq):
                with self._changed:
                    while self._box and self._box[0][0] <= seq:
                        self._box.popleft()
                        self._sent = max(0, self._sent - 1)
                    self._changed.notify_all()
            case Order() as order:
                with self._changed:
                    if order.epoch > max(self._halted, -1 if self._order is None else self._order.epoch):
                        self._order = order
                    self._changed.notify_all()
            case Halt(epoch=epoch):
                with self._changed:
                    self._halted = max(self._halted, epoch)
                    self._changed.notify_all()
                self.on_halt()
                self._say(Status(**self._facts(), forming=self.forming, ests=self.ests))
            case Wish() as wish:
                self.on_wish(wish)
            case Dismiss():
                self._be_dismissed()
            case Fence():
                os._exit(FENCED)

    def _say(self, body: Any) -> None:
        with self._changed:
            self._loose.append(self._frame(body))

    def _frame(self, body: Any) -> bytes:
        return pack(Frame(body=body, sender=self._spec.worker), self._control.token)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self._wake_writer, b"x")

    def _forget_metrics(self) -> None:
        """Half of the box: the metrics among its oldest messages."""
        mark = f'"kind":"{StepDone.kind}"'.encode()
        old = [self._box.popleft() for _ in range(MOST_KEPT // 2)]
        self._box.extendleft(reversed([entry for entry in old if mark not in entry[1]]))
        self._sent = 0

    def _be_dismissed(self) -> None:
        with self._changed:
            self._dismissed = True
            waits = self._listening
            self._changed.notify_all()
        if not waits and self.epoch < 0:  # its script has not come to es.prepare(): nobody there would hear it
            os._exit(0)

    def _look_at_clock(self) -> None:
        if self._leave_by is not None and time.monotonic() > self._leave_by:
            os._exit(0)  # whoever sent SIGTERM will not wait longer; the peers adopt its ESTs

    def _be_orphaned(self) -> None:
        """No master for too long: stop at the next step, with a checkpoint; wait no longer than the grace for that."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self._control.grace_seconds
            self.on_wish(Wish(stop=15))
            if self._listening or self.epoch < 0:
                os._exit(0)


def _no_order(limit: float) -> WorkerLostError:
    return WorkerLostError(
        f"No order of the master came in {limit:g} seconds.",
        "the master is away, or could not find enough workers for a plan.",
        "look at the lines of `easyscale run`; a job with --checkpoint-dir goes on with --resume latest.",
    )
