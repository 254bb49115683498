"""The store through which Gloo's members find each other where they have no file in common: a board of the master.

Notes go to the master on a connection of their own, with the job's token, and from there to all members. So there is no
port but the master's to reach, and nothing that only a trusted network would protect (torch's TCPStore takes anyone).
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from easyscale.core.control import Frame, Meet, Pin, pack, unpack

RETRY_SECONDS = 0.1  # a master that is started again is back in about a second
CONNECT_SECONDS = 5.0
# A note is awaited so long where Gloo does not say how long.
WAIT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class BoardKeeper:
    """The master, as one who meets others on its boards needs to know it."""

    address: Callable[[], tuple[str, int]]  # where it listens now
    token: str
    worker: int


class BoardStore(Store):
    """What Gloo calls of a store: set, get, wait, check. Keys are set once, so what was heard stays true.

    A broken connection is made again, and the notes of this worker are pinned again: the master may be another one.
    """

    def __init__(self, board: str, keeper: BoardKeeper) -> None:
        super().__init__()
        self._board, self._keeper = board, keeper
        self._lock = threading.RLock()
        self._mine: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}
        self._link: socket.socket | None = None
        self._heard = b""
        self._timeout = WAIT_SECONDS

    def set(self, key: str, value: str | bytes) -> None:
        with self._lock:
            self._mine[key] = self._known[key] = value.encode() if isinstance(value, str) else bytes(value)
            if self._link is not None:
                self._say(Pin(key=key, value=base64.b64encode(self._mine[key]).decode()))
            else:
                self._listen(0.0)

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=self._timeout))
        return self._known[key]

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            if not all(key in self._known for key in keys):
                self._listen(0.0)
            return all(key in self._known for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + limit
        with self._lock:
            while missing := [key for key in keys if key not in self._known]:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f"timed out: {missing[0]} was not on the board within {limit:g} seconds")
                self._listen(left)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    def close(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    # ------------------------------------------------------------------ the connection

    def _listen(self, seconds: float) -> None:
        """Take in what is there, and wait at most so long if nothing is."""
        if self._link is None and not self._connect():
            time.sleep(min(seconds, RETRY_SECONDS))
            return
        link = self._link
        if link is None or not select.select([link], [], [], seconds)[0]:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = link.recv(1 << 16)
        if not data:
            self.close()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            frame = unpack(line, self._keeper.token)
            if frame is not None and isinstance(frame.body, Pin):
                self._known[frame.body.key] = base64.b64decode(frame.body.value)

    def _connect(self) -> bool:
        try:
            link = socket.create_connection(self._keeper.address(), timeout=CONNECT_SECONDS)
        except OSError:
            return False
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link, self._heard = link, b""
        self._say(Meet(worker=self._keeper.worker, board=self._board))
        for key, value in self._mine.items():
            self._say(Pin(key=key, value=base64.b64encode(value).decode()))
        return True

    def _say(self, body: Any) -> None:
        """What does not get through is said again on the next connection."""
        if self._link is not None:
            try:
                self._link.sendall(pack(Frame(body=body, sender=self._keeper.worker), self._keeper.token))
            except OSError:
                self.close()
