"""What is malformed, too large, too slow, or meant to lead elsewhere."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from easyscale.service.errors import NotReadyError
from service.running import Service

SPEC = {"name": "digits", "script": "train.py", "workdir": "/srv/work", "ests": 4}


def raw(service: Service, request: bytes, wait: float = 10.0) -> bytes:
    """Bytes as they are, and all that comes back until the server closes or is silent."""
    with socket.create_connection(("127.0.0.1", service.port), 10) as sock:
        sock.sendall(request)
        sock.settimeout(wait)
        answer = b""
        try:
            while data := sock.recv(65536):
                answer += data
        except TimeoutError:
            pass
        return answer


def test_an_unknown_field_is_refused_with_the_nearest_name(shared: Service) -> None:
    answer = shared.as_("ann").post("/api/v1/jobs", json={**SPEC, "min_worker": 2, "limits": {"log_m": 1}})
    assert answer.status_code == 422
    problem = answer.json()
    assert "There is no field min_worker. Did you mean min_workers?" in problem["what"]
    assert "There is no field limits.log_m. Did you mean log_mb?" in problem["what"]
    assert "max_workers" in problem["why"]


def test_a_wrong_value_is_refused_with_its_field_and_what_is_allowed(shared: Service) -> None:
    problem = shared.as_("ann").post("/api/v1/jobs", json={**SPEC, "determinism": "D9", "ests": 0}).json()
    assert "The field determinism is wrong." in problem["what"]
    assert "'D0', 'D1' or 'D2'" in problem["why"]
    assert "The field ests is wrong." in problem["what"]
    assert "greater than or equal to 1 (given: 0)" in problem["why"]


def test_a_missing_field_is_named(shared: Service) -> None:
    problem = shared.as_("ann").post("/api/v1/jobs", json={"script": "t.py", "workdir": "/w", "ests": 1}).json()
    assert problem["what"] == "The field name is missing."


def test_fields_that_do_not_fit_one_another_are_told(shared: Service) -> None:
    problem = shared.as_("ann").post("/api/v1/jobs", json={**SPEC, "module": "m"}).json()
    assert "exactly one of script and module" in problem["why"]


def test_an_unknown_parameter_of_the_query_is_refused(shared: Service) -> None:
    answer = shared.as_("ann").get("/api/v1/jobs", params={"sate": "queued"})
    assert answer.status_code == 422
    assert answer.json()["what"] == "There is no parameter sate. Did you mean state?"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b"\x00",
        b'{"name": "\\ud800"}',
        b"[" * 100_000,
        b"NaN",
    ],
)
def test_a_malformed_body_is_a_mistake_and_not_a_crash(shared: Service, body: bytes) -> None:
    answer = shared.as_("ann").post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["what"]
    assert "Traceback" not in answer.text


def test_a_body_of_another_type_is_told_which_type_to_send(shared: Service) -> None:
    answer = shared.as_("ann").post("/api/v1/jobs", content=json.dumps(SPEC), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422
    assert "application/json" in answer.json()["now"]


def test_a_body_that_says_it_is_too_large_is_refused(shared: Service) -> None:
    answer = shared.as_("ann").post("/api/v1/jobs", json={**SPEC, "args": ["x" * 4000] * 300})
    assert answer.status_code == 413
    assert "1 MiB" in answer.json()["why"]


def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_large(shared: Service) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    answer = shared.as_("ann").post("/api/v1/jobs", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_a_body_whose_length_is_a_lie_of_many_digits_is_refused(service: Service) -> None:
    answer = raw(
        service,
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + service.tokens["ann"].encode()
        + b"\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        wait=7.0,
    )
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


def test_a_body_that_does_not_come_is_given_up(start: Callable[..., Service]) -> None:
    service = start(body_seconds=0.2)
    head = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + service.tokens["ann"].encode()
        + b"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    assert raw(service, head).startswith(b"HTTP/1.1 408")


def test_no_body_is_read_of_who_has_no_token(shared: Service) -> None:
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    assert raw(shared, head, wait=1.0).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/api/v1/jobs/%2e%2e",
        "/api/v1/jobs/%2e%2e/log",
        "/api/v1/jobs/-x",
        "/api/v1/jobs/a%00b",
        "/api/v1/jobs/a%0d%0aX-Bad:%201",
        "/static/..%2f..%2fpyproject.toml",
        "/static/%2e%2e/%2e%2e/http/app.py",
        "/static//etc/passwd",
        "/static/a%00.js",
        "//api/v1/jobs",
        "/api/v1/jobs/",
        "/api/v1/../../etc/passwd",
    ],
)
def test_a_path_that_leads_elsewhere_leads_nowhere(shared: Service, path: str) -> None:
    request = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {shared.tokens['root']}\r\n\r\n"
    )
    head, _, body = raw(shared, request.encode()).partition(b"\r\n\r\n")
    assert head.split()[1] in (b"404", b"422")
    assert b"x-bad" not in head.lower()
    assert json.loads(body)["what"]


def test_a_key_cannot_put_a_header_or_a_line_anywhere(service: Service) -> None:
    client = service.as_("ann")
    bad = client.post("/api/v1/jobs", json=SPEC, headers={"Idempotency-Key": "a b"})
    assert bad.status_code == 422
    injected = raw(
        service,
        b"GET /api/v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\x0bb\r\nX: y\x00z\r\n\r\n",
    )
    assert injected.startswith(b"HTTP/1.1 400")


def test_a_submission_with_the_same_key_is_the_same_submission(service: Service) -> None:
    client = service.as_("ann")
    first = client.post("/api/v1/jobs", json={**SPEC, "array": 3}, headers={"Idempotency-Key": "k1"})
    again = client.post("/api/v1/jobs", json={**SPEC, "array": 3}, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["jobs"] == again.json()["jobs"]
    assert (len(first.json()["jobs"]), again.json()["new"]) == (3, False)


def test_a_job_that_has_ended_cannot_be_paused(shared: Service) -> None:
    answer = shared.as_("root").post("/api/v1/jobs/job-7/pause")
    assert answer.status_code == 409
    assert set(answer.json()) == {"what", "why", "now"}


def test_an_upload_arrives_whole_and_is_named_by_its_sha256(service: Service) -> None:
    data = bytes(range(256)) * 20_000  # more than one piece
    answer = service.as_("ann").post("/api/v1/snapshots", content=iter([data[:100], data[100:]]))
    assert answer.status_code == 201
    assert answer.json() == {"snapshot": hashlib.sha256(data).hexdigest()}
    assert service.desk.snapshots[answer.json()["snapshot"]] == data


def test_an_upload_that_is_too_large_is_refused_and_leaves_no_file(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = start(snapshot_mb=1.0, spool=tmp_path)
    client = service.as_("ann")
    said = client.post("/api/v1/snapshots", content=b"x" * (2**20 + 1))
    chunked = client.post("/api/v1/snapshots", content=iter([b"x" * 2**19] * 3))
    assert (said.status_code, chunked.status_code) == (413, 413)
    assert service.desk.snapshots == {}
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_stops_in_the_middle_is_given_up(start: Callable[..., Service], tmp_path: Path) -> None:
    service = start(body_seconds=0.2, spool=tmp_path)
    head = (
        b"POST /api/v1/snapshots HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + service.tokens["ann"].encode()
        + b"\r\nContent-Length: 100\r\n\r\nabc"
    )
    assert raw(service, head).startswith(b"HTTP/1.1 408")
    assert list(tmp_path.iterdir()) == []


def test_an_upload_whose_client_leaves_is_forgotten(service: Service) -> None:
    head = (
        b"POST /api/v1/snapshots HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + service.tokens["ann"].encode()
        + b"\r\nContent-Length: 100\r\n\r\nabc"
    )
    with socket.create_connection(("127.0.0.1", service.port), 10) as sock:
        sock.sendall(head)
    until = time.monotonic() + 10
    while b'status="499"' not in service.metrics.text(service.desk) and time.monotonic() < until:
        time.sleep(0.02)
    assert b'status="499"' in service.metrics.text(service.desk)
    assert service.desk.snapshots == {}


def test_an_empty_upload_is_a_mistake(shared: Service) -> None:
    assert shared.as_("ann").post("/api/v1/snapshots", content=b"").status_code == 400


def test_what_the_service_cannot_do_now_is_told_as_503(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise NotReadyError("The job was not taken.", "the disk is full.", "free some space.")

    monkeypatch.setattr(service.desk, "submit", full)
    answer = service.as_("ann").post("/api/v1/jobs", json=SPEC)
    assert answer.status_code == 503
    assert answer.json()["why"] == "the disk is full."


def test_a_mistake_of_ours_shows_an_id_and_no_traceback(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(service.desk, "cluster", broken)
    answer = service.as_("ann").get("/api/v1/cluster")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Zero" not in answer.text
    mark = answer.json()["what"].split("(error ")[1].split(")")[0]
    assert any(mark in record.getMessage() and record.exc_info for record in caplog.records)


def test_unknown_paths_and_methods_are_told_in_three_parts(shared: Service) -> None:
    client = shared.as_("ann")
    assert client.get("/api/v1/nothing").json()["what"] == "There is nothing at this address."
    wrong = client.put("/api/v1/jobs")
    assert wrong.status_code == 405
    assert wrong.json()["now"]
