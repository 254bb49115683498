"""up and down: what is wrong is told before anything starts; a service is stopped by who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from easyscale.cli import up as command
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.master.files import process_start, write_json
from easyscale.service import connection
from easyscale.service.options import UpOptions, hide_password
from easyscale.service.presence import announce, present, withdraw
from service.cli.conftest import Cluster, done, easyscale, refused


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[UpOptions]:
    """What `run` of the service would be told."""
    told: list[UpOptions] = []
    module = types.ModuleType("easyscale.service.serve")
    module.run = told.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "easyscale.service.serve", module)
    return told


# ---------------------------------------------------------------------------------------- what it is told


def test_the_flags_become_options(started: list[UpOptions], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_STORE", "postgresql://me:secret@db/easyscale")
    done(
        "up", "--data-dir", "data", "--host", "0.0.0.0", "--port", "0", "--name", "cluster",
        "--devices", "v100:2,p100:1", "--policy", "fifo", "--tls", "self-signed", "--quiet",
    )  # fmt: skip
    (told,) = started
    assert told == UpOptions(
        data_dir=home / "data", host="0.0.0.0", port=0, names=("cluster",), devices={"v100": 2, "p100": 1},
        policy="fifo", store="postgresql://me:secret@db/easyscale", self_signed=True, quiet=True,
    )  # fmt: skip
    assert told.url(99) == "https://127.0.0.1:99"
    assert not told.loopback


def test_the_defaults_are_for_one_machine(started: list[UpOptions], home: Path) -> None:
    done("up")
    (told,) = started
    assert told == UpOptions(data_dir=home / ".local/share/easyscale")
    assert (told.url(), told.tls, told.loopback, told.devices, told.store) == (
        "http://127.0.0.1:8470", False, True, None, None,
    )  # fmt: skip
    assert UpOptions(data_dir=home, host="::1").url() == "http://[::1]:8470"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--port", "70000"), "70000 is no port"),
        (("--port", "-1"), "-1 is no port"),
        (("--host", "http://x"), "no name or address"),
        (("--host", "10.0.0.1"), "without TLS"),
        (("--host", "0.0.0.0"), "without TLS"),
        (("--name", "a b"), "no name or address"),
        (("--devices", "v100"), "TYPE:COUNT"),
        (("--devices", "v100:0"), "TYPE:COUNT"),
        (("--devices", "a/b:1"), "no type of device"),
        (("--devices", "v100:20000"), "20,000 devices"),
        (("--policy", "easyscal"), "there is no policy"),
        (("--store", "mysql://x/y"), "no store"),
        (("--store", "postgresql://me:secret@db/x"), "password of the store"),
        (("--tls", "yes"), "not known"),
        (("--tls-cert", "cert.pem"), "needs its key"),
        (("--tls-cert", "none.pem", "--tls-key", "none.pem"), "cannot be used"),
        (("--tls-cert", "a", "--tls-key", "b", "--tls", "self-signed"), "stands beside"),
        (("--host", "10.0.0.1", "--tls", "self-signed", "--open-metrics"), "--open-metrics"),
        (("--data-dir", "file"), "data directory"),
        (("--data-dir", "file/below"), "data directory"),
    ],
)
def test_what_cannot_be_is_refused(started: list[UpOptions], home: Path, flags: tuple[str, ...], said: str) -> None:
    (home / "file").write_text("")
    error = refused("up", *flags)
    assert said in error.what
    assert "secret" not in str(error)
    assert started == []
    assert not (home / ".local").exists()


def test_a_policy_that_is_near_is_named(started: list[UpOptions]) -> None:
    assert "easyscale" in refused("up", "--policy", "easyscal").now
    assert easyscale("up", "--backend", "mesos").exit_code == 2
    with pytest.raises(UsageError, match="no back end"):
        UpOptions(data_dir=Path("/tmp"), backend="mesos")  # type: ignore[arg-type]


def test_without_ray_the_ray_back_end_says_what_to_install(
    started: list[UpOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "[ray]" in refused("up", "--backend", "ray").now


def test_passwords_are_hidden() -> None:
    assert hide_password("postgresql://me:secret@db:5/x") == "postgresql://me:***@db:5/x"
    assert hide_password("postgresql://me@db/x") == "postgresql://me@db/x"
    assert hide_password("sqlite:////a/b") == "sqlite:////a/b"


def test_one_data_directory_has_one_service(started: list[UpOptions], home: Path) -> None:
    (home / "data").mkdir()
    announce(home / "data", "http://127.0.0.1:1")
    found = present(home / "data")
    assert found is not None
    assert (found.pid, found.url) == (os.getpid(), "http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in refused("up", "--data-dir", "data").why
    withdraw(home / "data")
    assert present(home / "data") is None
    done("up", "--data-dir", "data")


def test_a_later_process_with_the_same_number_is_another(home: Path) -> None:
    write_json(home / "service.json", {"pid": os.getpid(), "started": "0@another", "url": "http://127.0.0.1:1"})
    assert present(home) is None
    (home / "service.json").write_text("{")
    assert present(home) is None


# ---------------------------------------------------------------------------------------- in the background

FAKE = """
import http.server, pathlib, signal, sys
sys.modules["easyscale.service.serve"] = module = type(sys)("easyscale.service.serve")
from easyscale.service.presence import announce, withdraw

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
    def log_message(self, *args): pass

def run(options):
    if options.policy == "fifo":
        sys.exit("error: the port is in use")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = http.server.HTTPServer(("127.0.0.1", options.port), Ready)
    announce(options.data_dir, options.url(server.server_port))
    print("told:", options.devices, options.store, flush=True)
    try:
        server.serve_forever()
    finally:
        withdraw(options.data_dir)

module.run = run
from easyscale.cli.main import main
sys.argv = ["easyscale", *sys.argv[1:]]
main()
"""


@pytest.fixture
def fake_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`up --detach` starts this instead of the real service."""
    script = home / "fake_up.py"
    script.write_text(FAKE)
    popen = subprocess.Popen
    seen: list[Any] = []

    def start(words: tuple[str, ...], **options: Any) -> Any:
        seen.append(popen((sys.executable, str(script), *words[3:]), **options))
        return seen[-1]

    monkeypatch.setattr(command.subprocess, "Popen", start)
    yield home / "data"
    for process in seen:
        if process_start(process.pid):
            os.kill(process.pid, signal.SIGKILL)
        process.returncode = None
        process.wait(10)


def test_detached_it_runs_on_until_down(fake_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_STORE", "postgresql://me:secret@db/x")
    text = done("up", "--detach", "--data-dir", str(fake_up), "--port", "0", "--devices", "v100:2").stdout
    found = present(fake_up)
    assert found is not None
    assert found.url in text
    line = Path(f"/proc/{found.pid}/cmdline").read_bytes()
    assert b"--detach" not in line
    assert b"secret" not in line
    log = (fake_up / "service.log").read_text()
    assert "told: {'v100': 2} postgresql://me:secret@db/x" in log
    assert (fake_up / "service.log").stat().st_mode & 0o077 == 0
    assert "runs with" in refused("up", "--data-dir", str(fake_up)).what
    assert done("down", "--data-dir", str(fake_up)).stdout == "The service has ended. Jobs that ran go on.\n"
    assert present(fake_up) is None
    assert "No service runs" in refused("down", "--data-dir", str(fake_up)).what


def test_a_service_that_does_not_start_says_why(fake_up: Path) -> None:
    error = refused("up", "-d", "--data-dir", str(fake_up), "--policy", "fifo", kind=EasyScaleError)
    assert "did not start" in error.what
    assert "the port is in use" in error.why
    assert "service.log" in error.now


def test_down_gives_up_on_one_that_does_not_end(home: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); input()"
    with subprocess.Popen(
        (sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record = {"pid": process.pid, "started": process_start(process.pid), "url": "http://127.0.0.1:1"}
        write_json(home / "service.json", record)
        error = refused("down", "--data-dir", str(home), "--timeout", "0.2", kind=EasyScaleError)
        assert f"kill -9 {process.pid}" in error.now
        process.kill()


def test_down_can_cancel_the_jobs_first(admin: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        record = {"pid": process.pid, "started": process_start(process.pid), "url": admin.url}
        write_json(home / "service.json", record)
        result = done("down", "--data-dir", str(home), "--cancel-jobs")
        assert result.stdout == "The service has ended.\n"
        assert admin.named("vision-running") in result.stderr
    states = {job.state for job in admin.desk._jobs.values()}
    assert states == {"finished", "failed", "cancelled"}


def test_the_connection_file_is_what_up_and_login_share(home: Path) -> None:
    options = UpOptions(data_dir=home / "data")
    connection.save(connection.Connection(url=options.url(), token="est_a"))
    assert connection.needed().url == "http://127.0.0.1:8470"
