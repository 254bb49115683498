"""Listening. Not beyond this machine without TLS and tokens."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from easyscale.core.errors import UsageError
from easyscale.service.http.settings import is_loopback
from easyscale.service.http.tls import Tls

HEAD_SECONDS = 15.0  # the head of a request must be there by then
LEAVE_SECONDS = 5  # that requests have to end when the service leaves
DEAD_SECONDS = 60  # a client that acknowledges nothing, or takes nothing, for so long is gone


def check_exposure(host: str, tls: bool, tokens: int) -> None:
    """Refuse to be reachable from other machines without TLS, or if nobody could prove who they are."""
    if is_loopback(host):
        return
    if not tls:
        raise UsageError(
            f"The service does not start on {host} without TLS.",
            "tokens, code and logs would cross the network for everybody to read.",
            "give --tls-cert and --tls-key, or --tls self-signed, or stay on 127.0.0.1.",
        )
    if not tokens:
        raise UsageError(
            f"The service does not start on {host} without tokens.",
            "there is none, so nobody could log in.",
            "make one with `easyscale token add`, then start again.",
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. `port` 0: any that is free."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(
            f"The host {host} is not known.", f"{error.strerror}.", "give a name or an address of this machine."
        ) from error
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; what is accepted inherits it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
    try:
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise _no_port(host, port, error) from error
    return sock


def _no_port(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"The port {port} on {host} is in use.",
            "another program listens there; maybe the service runs already.",
            "stop it, or choose another port with --port (0: any that is free).",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(
            f"The port {port} may not be used.", "ports below 1024 are the system's.", "choose one above with --port."
        )
    return UsageError(
        f"The service cannot listen on {host}.", f"{error.strerror}.", "give an address of this machine with --host."
    )


def serve(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: Tls | None = None,
    tokens: int = 1,
    connections: int = 2000,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Answer until SIGINT or SIGTERM, then return. To be called in the main thread, else nothing ends it.

    `tokens`: how many there are. `sock`: from `listen`, for who must know the port before there is an app.
    """
    check_exposure(host, tls is not None, tokens)
    with sock or listen(host, port) as own:
        url = address_of(own, host, tls is not None)
        Server(config(app, tls, connections), url, on_ready).run(sockets=[own])


def config(app: FastAPI, tls: Tls | None = None, connections: int = 2000) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # else who comes from this machine could claim any address
        limit_concurrency=connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=LEAVE_SECONDS,
        ssl_certfile=None if tls is None else str(tls.cert),
        ssl_keyfile=None if tls is None else str(tls.key),
    )


def address_of(sock: socket.socket, host: str, tls: bool) -> str:
    """The URL to type."""
    bare = host.strip("[]")
    name = f"[{bare}]" if ":" in bare else bare
    return f"{'https' if tls else 'http'}://{name}:{sock.getsockname()[1]}"


class Server(uvicorn.Server):
    """`on_ready` is told the URL when it answers."""

    def __init__(self, config: uvicorn.Config, url: str, on_ready: Callable[[str], None] | None = None) -> None:
        super().__init__(config)
        self._url, self._on_ready = url, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.close()  # event streams would keep it waiting
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn, but a signal is not raised again at the end: others have to end cleanly too."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


class Patient(H11Protocol):
    """Closes a connection whose request does not come: uvicorn itself would wait without end."""

    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._slow is None:
            self._slow = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _unwatch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        self._slow = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
