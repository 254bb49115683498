"""A PostgreSQL server of Debian's, of the tests' own: on a unix socket in a temporary folder, with passwords.

`with Server() as server, server.database() as url`, or the fixture `postgres`, which a conftest imports. As root the
server runs as another user, since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "easyscale"
INSTALL = "install PostgreSQL's server: `apt-get install postgresql` (its programs lie in /usr/lib/postgresql/*/bin)"


def programs() -> Path:
    """Where initdb and pg_ctl are; Debian's package is installed where they are missing."""
    if (found := _installed()) is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with open(Path(tempfile.gettempdir()) / "easyscale-tests-apt.lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # several test processes may want it at once
            if _installed() is None:
                _install()
        if (found := _installed()) is not None:
            return found
    pytest.fail(f"there is no PostgreSQL server, and it could not be installed here: {INSTALL}")


def _installed() -> Path | None:
    def version(folder: Path) -> int:
        return int(folder.parent.name) if folder.parent.name.isdigit() else 0

    found = [file.parent for file in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=version, default=None)


def _install() -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    want = ("apt-get", "install", "-y", "--no-install-recommends", "postgresql")
    if subprocess.run(want, env=quiet, capture_output=True, check=False).returncode:
        subprocess.run(("apt-get", "update"), env=quiet, capture_output=True, check=False)
        done = subprocess.run(want, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"apt-get could not install it: {done.stderr[-500:]}\n{INSTALL}")


class Server:
    def __init__(self) -> None:
        self.password = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self._bin = programs()
        # Not pytest's folder: the path of a socket is short, and another user must get there.
        self.folder = Path(tempfile.mkdtemp(prefix="es-pg-", dir="/tmp"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            name = _user()
            self._as_user = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
            shutil.chown(self.folder, name)

    def __enter__(self) -> Server:
        try:
            secret = self.folder / "password"
            secret.write_text(self.password)
            secret.chmod(0o644)  # in a folder that only its owner may enter
            self._call("initdb", "-D", self._data, "-EUTF8", "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}")
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c max_connections=200"
        self._call("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def url(self, database: str, password: str | None = None, scheme: str = "postgresql+psycopg") -> str:
        return f"{scheme}://{USER}:{password or self.password}@/{database}?host={self.folder}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty one. To make one takes a while, so one that was used is emptied."""
        name = self._free.pop() if self._free else self._new()
        yield self.url(name)
        with psycopg.connect(self.url(name, scheme="postgresql"), autocommit=True) as connection:
            others = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) {others}", (name,))
            connection.execute("SET client_min_messages = warning")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def _new(self) -> str:
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url("postgres", scheme="postgresql"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def _call(self, program: str, *args: str) -> None:
        # Into a file: pg_ctl's server keeps what it inherits open, and a pipe would never end.
        with tempfile.TemporaryFile("w+") as said:
            command = (str(self._bin / program), *args)
            done = subprocess.run(command, stdout=said, stderr=said, cwd="/", check=False, **self._as_user)
            said.seek(0)
            assert done.returncode == 0, f"{program} failed: {said.read()}"


def _user() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for each test process."""
    with Server() as server:
        yield server
