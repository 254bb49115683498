"""Listening: ports in use, hosts that other machines reach, certificates, the end by a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from easyscale.core.errors import UsageError
from easyscale.service.http import server, settings
from easyscale.service.http.server import check_exposure, listen
from easyscale.service.http.tls import given_certificate, own_certificate
from service.running import Service, running

CHILD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from easyscale.service.http.app import make_app
    from easyscale.service.http.server import listen, serve
    from easyscale.service.http.settings import Settings
    from easyscale.service.http.tls import own_certificate
    from service.fake_people import FakePeople
    from service.fakes import busy_desk

    tls = own_certificate(Path(sys.argv[1]), []) if len(sys.argv) > 1 else None
    sock = listen("127.0.0.1", 0)
    people = FakePeople()
    app = make_app(busy_desk(), people, Settings(port=sock.getsockname()[1], tls=tls is not None))
    print(people.add_token("ann", "", None).token, flush=True)
    serve(app, tls=tls, sock=sock, on_ready=lambda url: print(url, flush=True))
    print("ended cleanly", flush=True)
    """
)


def child(*args: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(server.__file__).parents[3])])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *args], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(UsageError, match=f"The port {port} on 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
    assert "--port" in caught.value.now


def test_a_host_that_is_not_of_this_machine_is_told() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.7") as caught:
        listen("192.0.2.7", 0)
    assert "--host" in caught.value.now
    with pytest.raises(UsageError, match="is not known"):
        listen("no-such-host.invalid", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "train.lab", "", "127.evil.example"])
def test_a_host_that_others_reach_needs_tls_and_tokens(host: str) -> None:
    with pytest.raises(UsageError, match="without TLS") as caught:
        check_exposure(host, tls=False, tokens=3)
    assert "--tls self-signed" in caught.value.now
    with pytest.raises(UsageError, match="without tokens"):
        check_exposure(host, tls=True, tokens=0)
    check_exposure(host, tls=True, tokens=1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.5"])
def test_loopback_needs_no_tls(host: str) -> None:
    check_exposure(host, tls=False, tokens=0)


def test_serving_beyond_this_machine_without_tls_does_not_even_listen(service: Service) -> None:
    with pytest.raises(UsageError, match="without TLS"):
        server.serve(None, host="0.0.0.0", port=service.port)  # type: ignore[arg-type]


def test_a_certificate_of_ones_own_is_kept_private_and_reused(tmp_path: Path) -> None:
    made = own_certificate(tmp_path / "tls", ["train.lab", "192.0.2.7"])
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700
    assert made.fingerprint.count(":") == 31
    assert own_certificate(tmp_path / "tls", ["train.lab", "192.0.2.7"]) == made
    assert given_certificate(made.cert, made.key) == made
    other = own_certificate(tmp_path / "tls", ["other.lab"])
    assert other.fingerprint != made.fingerprint


def test_certificates_that_cannot_work_are_told(tmp_path: Path) -> None:
    one, other = own_certificate(tmp_path / "one", []), own_certificate(tmp_path / "other", [])
    with pytest.raises(UsageError, match="cannot be used with the key"):
        given_certificate(one.cert, other.key)
    with pytest.raises(UsageError, match="There is no file"):
        given_certificate(tmp_path / "missing.pem", one.key)
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(UsageError, match="cannot be used with the key"):
        given_certificate(tmp_path / "junk.pem", one.key)


@pytest.mark.slow
def test_tls_is_spoken_and_a_signal_ends_the_service_cleanly_with_a_stream_open(tmp_path: Path) -> None:
    with child(str(tmp_path / "tls")) as process:
        assert process.stdout is not None
        token, url = process.stdout.readline().strip(), process.stdout.readline().strip()
        assert url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls" / "cert.pem"))
        with httpx.Client(base_url=url, verify=trust, trust_env=False) as client:
            cookie = client.post("/api/v1/login", json={"token": token}).headers["set-cookie"]
            assert "Secure" in cookie
            with client.stream("GET", "/api/v1/stream") as stream:
                assert stream.status_code == 200
                process.send_signal(signal.SIGTERM)
                ended = list(stream.iter_lines())
        assert ended[0].startswith("retry")
        assert process.stdout.readline().strip() == "ended cleanly"
        assert process.wait(20) == 0


@pytest.mark.slow
def test_an_interrupt_ends_the_service_cleanly() -> None:
    with child() as process:
        assert process.stdout is not None
        process.stdout.readline()
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/healthz", trust_env=False).text == "ok\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "ended cleanly"
        assert process.wait(20) == 0


def test_a_connection_whose_request_does_not_come_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with running() as service, socket.create_connection(("127.0.0.1", service.port), 10) as sock:
        assert service.client().get("/healthz").status_code == 200
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        assert sock.recv(100) == b""


def test_a_kept_connection_serves_slow_requests_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 5.0)
    with running() as service, socket.create_connection(("127.0.0.1", service.port), 10) as sock:
        for _ in range(3):
            sock.sendall(b"GET /healthz HTTP/1.1\r\n")
            time.sleep(0.05)
            sock.sendall(b"Host: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok\n"):
                answer += sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")


def test_a_websocket_is_not_spoken(service: Service) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert service.client().get("/api/v1/stream", headers=headers).status_code == 401


def test_the_names_that_are_served_follow_from_where_it_listens() -> None:
    assert settings.Settings().hosts == {"localhost", "127.0.0.1", "::1"}
    assert "train.lab" in (settings.Settings(host="0.0.0.0", names=("Train.Lab",)).hosts or ())
    assert settings.Settings(host="0.0.0.0").hosts is None


def test_the_page_of_the_api_needs_nothing_from_elsewhere(service: Service) -> None:
    client = service.client()
    page = client.get("/api/v1/docs").text
    assert "/api/v1/jobs/{job}/scale" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert client.get("/api/v1/docs.css").headers["content-type"].startswith("text/css")
    schema = json.loads(client.get("/api/v1/openapi.json").text)
    assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_the_dashboards_files_are_served_and_nothing_else_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>hello</p>")
    (tmp_path / "main.js").write_text("1")
    (tmp_path / "secret.py").write_text("x")
    (tmp_path / "link.js").symlink_to("/etc/hostname")
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "jobs.js").write_text("2")
    with running(page=tmp_path) as service:
        client = service.client()
        assert client.get("/").text == "<p>hello</p>"
        script = client.get("/static/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert client.get("/static/views/jobs.js").text == "2"
        unchanged = client.get("/static/main.js", headers={"If-None-Match": script.headers["etag"]})
        assert unchanged.status_code in (200, 304)
        assert [client.get(f"/static/{name}").status_code for name in ("secret.py", "link.js", "views", "")] == [
            404
        ] * 4
