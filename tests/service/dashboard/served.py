"""The real HTTP app with the scenery behind it, in a thread, on a port that stays the same when it is started again."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn

from easyscale.service.http.app import make_app
from easyscale.service.http.settings import Settings
from service.dashboard.scenery import SceneDesk, busy_cluster
from service.fake_people import FakePeople

WAIT = 20.0


class Served:
    """`root` is admin, `ann` user and `vic` viewer of vision, `bob` user of speech; `tokens` by name."""

    def __init__(self, desk: SceneDesk | None = None) -> None:
        self.desk = desk or busy_cluster(time.time())
        self.people = FakePeople()
        self.tokens = {user.name: self.people.add_token(user.name, "tests", None).token for user in self.people.users()}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        app = make_app(self.desk, self.people, Settings(port=self.port))
        self._close = app.state.close
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        end = time.monotonic() + WAIT
        while not server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < end, "the server did not start in time"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._close()
        self._server.should_exit = True
        self._thread.join(WAIT)
        assert not self._thread.is_alive(), "the server did not stop"
        self._server = self._thread = None
