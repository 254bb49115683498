"""A real HTTP server with a fake desk, in a thread; and a wire in between that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from easyscale.cli.main import app as command_line
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service import connection
from easyscale.service.client import ServiceClient
from easyscale.service.http.app import make_app
from easyscale.service.http.settings import Settings
from service.fake_people import FakePeople
from service.fakes import FakeDesk, busy_desk


@dataclass
class Cluster:
    """A service, its desk and a token for each of its people."""

    url: str
    port: int
    desk: FakeDesk
    people: FakePeople
    tokens: dict[str, str] = field(default_factory=dict)

    def client(self, user: str = "root", url: str | None = None) -> ServiceClient:
        return ServiceClient(url or self.url, self.tokens[user], sleep=lambda seconds: time.sleep(min(seconds, 0.05)))

    def named(self, name: str) -> str:
        """The id of the job with this name."""
        return next(job.id for job in self.desk.jobs(_everything()).jobs if job.name == name)


def _everything() -> object:
    from easyscale.service.ports import JobQuery

    return JobQuery(limit=1000)


@contextlib.contextmanager
def serving(desk: FakeDesk, people: FakePeople, port: int = 0, **tls: str) -> Iterator[int]:
    """Yields the port."""
    listening = socket.create_server(("127.0.0.1", port))
    port = listening.getsockname()[1]
    app = make_app(desk, people, Settings(port=port, tls=bool(tls), rate=1000, burst=10_000))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1, ws="none", **tls)
    )
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield port
    finally:
        app.state.close()
        server.should_exit = True
        thread.join(20)
        listening.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without jobs and without a service."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for name, folder in (("XDG_RUNTIME_DIR", runtime), ("XDG_CONFIG_HOME", tmp_path / "config"), ("HOME", tmp_path)):
        monkeypatch.setenv(name, str(folder))
    ours = ("EASYSCALE_DATA", "EASYSCALE_STORE", "XDG_DATA_HOME")
    for name in (connection.SERVER, connection.TOKEN, connection.CACERT, connection.PLAIN, *ours):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    desk, people = busy_desk(), FakePeople()
    with serving(desk, people) as port:
        tokens = {user.name: people.add_token(user.name, "test", None).token for user in people.users()}
        yield Cluster(f"http://127.0.0.1:{port}", port, desk, people, tokens)


@pytest.fixture
def login(cluster: Cluster) -> Cluster:
    """The user is logged in as ann, of team vision."""
    connection.save(connection.Connection(url=cluster.url, token=cluster.tokens["ann"]))
    return cluster


@pytest.fixture
def admin(cluster: Cluster) -> Cluster:
    connection.save(connection.Connection(url=cluster.url, token=cluster.tokens["root"]))
    return cluster


# ---------------------------------------------------------------------------------------- commands


def easyscale(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command_line, args, input=stdin)


def done(*args: str, stdin: str | None = None) -> Result:
    result = easyscale(*args, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(*args: str, kind: type[EasyScaleError] = UsageError, stdin: str | None = None) -> EasyScaleError:
    """The error that a user would see in three parts."""
    result = easyscale(*args, stdin=stdin)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    assert result.exception.what
    assert result.exception.why
    assert result.exception.now
    return result.exception


# ---------------------------------------------------------------------------------------- a wire that can be cut


class Relay:
    """Passes bytes on to a port. `lose_answers`: of so many connections the answer is dropped and the wire cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lose_answers = 0
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            lose = self.lose_answers > 0
            self.lose_answers -= lose
            for one, other, drop in ((client, server, False), (server, client, lose)):
                thread = threading.Thread(target=self._pass_on, args=(one, other, drop), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, one: socket.socket, other: socket.socket, drop: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if drop:
                    break
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """All connections that there are now."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in self._open:
            end.close()


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    relay = Relay(cluster.port)
    yield relay
    relay.close()


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)
