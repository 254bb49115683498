"""The real server with a fake desk, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from easyscale.service.http.app import make_app
from easyscale.service.http.server import Server, address_of, config, listen
from easyscale.service.http.settings import Settings
from easyscale.service.metrics import Metrics
from service.fake_people import FakePeople
from service.fakes import FakeDesk, busy_desk

USERS = ("root", "ann", "vic", "bob")


@dataclass
class Service:
    url: str
    desk: FakeDesk
    people: FakePeople
    metrics: Metrics
    tokens: dict[str, str]
    ids: dict[str, str]  # of the tokens
    _clients: list[httpx.Client] = field(default_factory=list)

    def client(self, **headers: str) -> httpx.Client:
        """Without a token; `verify` spares reading the system's certificates."""
        client = httpx.Client(base_url=self.url, headers=headers, verify=False, trust_env=False, timeout=20.0)
        self._clients.append(client)
        return client

    def as_(self, user: str) -> httpx.Client:
        return self.client(Authorization=f"Bearer {self.tokens[user]}")

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def running(**settings: Any) -> Iterator[Service]:
    desk, people, metrics = busy_desk(), FakePeople(), Metrics()
    new = {user: people.add_token(user, "test", None) for user in USERS}
    with listen("127.0.0.1", 0) as sock:
        url = address_of(sock, "127.0.0.1", False)
        port = sock.getsockname()[1]
        app = make_app(desk, people, Settings(port=port, **settings), metrics)
        ready = threading.Event()
        server = Server(config(app), url, lambda _: ready.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        assert ready.wait(20)
        service = Service(
            url, desk, people, metrics, {u: t.token for u, t in new.items()}, {u: t.id for u, t in new.items()}
        )
        try:
            yield service
        finally:
            service.close()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
