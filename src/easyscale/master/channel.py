"""The control channel: a TCP port on which workers and commands speak to the master, one JSON line a frame.

Nothing here blocks. What does not parse, has no right token, speaks out of turn or is too long is dropped and counted;
who never says who it is has no place here for long. Knows frames and connections, not what they mean.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from easyscale.core.control import MAX_FRAME, VERSION, Frame, FromMaster, Hello, Meet, Pin, pack, unpack
from easyscale.core.requests import Reply, Request, pack_reply, unpack_request
from easyscale.master.boards import Boards
from easyscale.master.inputs import Said

_CHUNK = 1 << 16
# What a worker has not taken yet. Orders are small; so much means that it does not read at all.
MOST_UNSENT = 8 << 20
# Connections that have not said who they are: commands come one by one, workers say hello at once.
MOST_STRANGERS = 64


class Listener(Protocol):
    """Whoever wants to know what was said."""

    def knows(self, worker: int) -> bool:
        """Whether there ever was a worker of this number."""

    def heard(self, said: Said) -> None: ...
    def asked(self, request: Request) -> Reply: ...


class Channel:
    """Registers itself with a selector; each key's data is to be called with the mask of events."""

    def __init__(
        self, selector: selectors.BaseSelector, token: str, listener: Listener, host: str, port: int = 0
    ) -> None:
        self._selector, self._token, self._listener = selector, token, listener
        self.dropped: Counter[str] = Counter()
        self._workers: dict[int, _Connection] = {}
        self._strangers: list[_Connection] = []
        self._boards: Boards[_Connection] = Boards(self._post)
        self._server = _listen(host, port)
        self.host, self.port = self._server.getsockname()[:2]
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    def send(self, worker: int, body: FromMaster) -> None:
        """To nobody where it is not connected: it is told again when it comes back."""
        connection = self._workers.get(worker)
        if connection is not None:
            connection.send(pack(Frame(body=body), self._token))

    def drain(self, worker: int) -> None:
        """All that a worker said before it ended."""
        connection = self._workers.get(worker)
        if connection is not None:
            connection.read()

    def forget(self, worker: int) -> None:
        connection = self._workers.pop(worker, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for connection in [*self._workers.values(), *self._strangers, *self._boards.guests()]:
            connection.close()
        self._selector.unregister(self._server)
        self._server.close()

    # ------------------------------------------------------------------ connections

    def _accept(self, mask: int) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:  # all taken, or the peer left, or no descriptor is free: the next round tries again
                return
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._strangers) >= MOST_STRANGERS:
                self._strangers.pop(0).close()
                self.dropped["stranger"] += 1
            self._strangers.append(_Connection(self._selector, link, self._line, self._gone))

    def _gone(self, connection: _Connection) -> None:
        if connection in self._strangers:
            self._strangers.remove(connection)
        self._boards.leave(connection)
        if connection.worker is not None and self._workers.get(connection.worker) is connection:
            del self._workers[connection.worker]

    def _line(self, connection: _Connection, line: bytes) -> None:
        if connection.worker is None:
            self._first(connection, line)
            return
        frame = unpack(line, self._token)
        if frame is None:
            self.dropped[_reason(line, self._token)] += 1
        elif isinstance(frame.body, Meet | Pin):
            if not (isinstance(frame.body, Pin) and self._boards.pin(connection, frame.body)):
                self.dropped["no board"] += 1
        elif frame.sender != connection.worker:
            self.dropped["nobody"] += 1
        else:
            self._listener.heard(Said(worker=connection.worker, body=frame.body, seq=frame.seq))

    def _first(self, connection: _Connection, line: bytes) -> None:
        request = unpack_request(line, self._token)
        if request is not None:
            connection.send(pack_reply(self._listener.asked(request), self._token))
            connection.finish()
            return
        frame = unpack(line, self._token)
        if frame is None or not isinstance(frame.body, Hello | Meet) or frame.sender != frame.body.worker:
            self.dropped[_reason(line, self._token) if frame is None else "no hello"] += 1
            connection.close()
            return
        worker = frame.body.worker
        if not self._listener.knows(worker):
            self.dropped["nobody"] += 1
            connection.close()
            return
        if isinstance(frame.body, Meet):
            self._strangers.remove(connection)
            connection.worker = worker
            self._boards.meet(connection, frame.body.board)
            return
        self.forget(worker)  # its older connection is dead, whatever our side of it thinks
        self._strangers.remove(connection)
        connection.worker, self._workers[worker] = worker, connection
        self._listener.heard(Said(worker=worker, body=frame.body, seq=frame.seq))


    def _post(self, connection: _Connection, pins: list[Pin]) -> None:
        connection.send(b"".join(pack(Frame(body=pin), self._token) for pin in pins))


class _Connection:
    """One socket: cuts what comes into lines, keeps what cannot go yet."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        link: socket.socket,
        on_line: Callable[[_Connection, bytes], None],
        on_end: Callable[[_Connection], None],
    ) -> None:
        self.worker: int | None = None
        self._selector, self._link, self._on_line, self._on_end = selector, link, on_line, on_end
        self._in, self._out = bytearray(), bytearray()
        self._open, self._finishing = True, False
        selector.register(link, selectors.EVENT_READ, self._event)

    def send(self, data: bytes) -> None:
        if self._open:
            self._out += data
            self._write()

    def finish(self) -> None:
        """Close once all is sent."""
        self._finishing = True
        self._write()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._selector.unregister(self._link)
            self._link.close()
            self._on_end(self)

    def read(self) -> None:
        """Take all that is there."""
        while self._open:
            try:
                data = self._link.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, rest = (bytes(self._in) + data).split(b"\n") if b"\n" in data else [self._in + data]
        self._in = bytearray(rest)
        for line in lines:
            if self._open:
                self._on_line(self, bytes(line))
        if len(self._in) > MAX_FRAME:  # no frame is so long: there is no way to find the next one
            self._on_line(self, bytes(self._in))
            self.close()

    def _event(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if mask & selectors.EVENT_READ and self._open:
            self.read()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while self._open and self._out:
                    del self._out[: self._link.send(self._out)]
            except BlockingIOError:
                raise
            except OSError:
                self.close()
        if self._open and (len(self._out) > MOST_UNSENT or (self._finishing and not self._out)):
            self.close()
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            self._selector.modify(self._link, wanted, self._event)


def _listen(host: str, port: int) -> socket.socket:
    try:
        server = socket.create_server((host, port), backlog=128)
    except OSError:
        if port == 0:
            raise
        server = socket.create_server((host, 0), backlog=128)  # it is taken
    server.setblocking(False)
    return server


def _reason(line: bytes, token: str) -> str:
    """Why a line is no frame, as a word to count by."""
    if len(line) > MAX_FRAME:
        return "too long"
    try:
        raw = json.loads(line)
        if raw["v"] != VERSION:
            return "other version"
        if not hmac.compare_digest(str(raw["token"]).encode(), token.encode()):
            return "wrong token"
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return "unreadable"
