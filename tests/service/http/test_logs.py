"""One JSON line for each request; what comes from outside cannot write lines, and no secret is in them."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from easyscale.service.http.clean import clean
from easyscale.service.http.logs import JsonLines, setup_logs
from service.running import Service


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    names = ("easyscale", "uvicorn")
    before = [(logging.getLogger(n), list(logging.getLogger(n).handlers), logging.getLogger(n).level) for n in names]
    stream = io.StringIO()
    setup_logs(stream)
    yield stream
    for logger, handlers, level in before:
        logger.handlers[:], logger.propagate = handlers, True
        logger.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False


def requests(stream: io.StringIO, count: int) -> list[dict[str, Any]]:
    """The lines of requests; they are written after the answers."""
    end = time.monotonic() + 10
    while True:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        found = [line for line in found if line["logger"] == "easyscale.http.requests"]
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.01)


def test_each_request_is_a_line_with_its_route_and_user(written: io.StringIO, service: Service) -> None:
    service.as_("ann").get("/api/v1/jobs/job-1?x=1")
    service.as_("ann").get("/api/v1/jobs/job-1")
    service.client().get("/api/v1/cluster")
    lines = requests(written, 3)
    told = [(line["method"], line["route"], line["status"], line["user"]) for line in lines]
    assert told == [
        ("GET", "/api/v1/jobs/{job}", 200, "ann"),
        ("GET", "/api/v1/jobs/{job}", 200, "ann"),
        ("GET", "/api/v1/cluster", 401, ""),
    ]
    assert all(line["address"] == "127.0.0.1" and line["ms"] >= 0 and line["time"].endswith("+00:00") for line in lines)


def test_nothing_from_outside_makes_a_line_of_its_own(written: io.StringIO, service: Service) -> None:
    client = service.as_("ann")
    client.get("/x%0a%7B%22level%22:%22fake%22%7D%1b%5b31m%7f%e2%80%ae")
    client.post("/api/v1/jobs", json={"name": 'a\n{"level": "fake"}'})
    lines = requests(written, 2)
    assert len(lines) == 2
    text = written.getvalue()
    assert not any((ord(char) < 32 and char != "\n") or ord(char) > 126 for char in text)
    assert {line["level"] for line in map(json.loads, text.splitlines())} == {"info"}


def test_no_token_is_in_the_log_wherever_it_was_sent(written: io.StringIO, service: Service) -> None:
    token = service.tokens["ann"]
    client = service.as_("ann")
    client.get(f"/api/v1/jobs?token={token}")
    client.get(f"/api/v1/jobs/{token}")
    client.get(f"/{token}")
    client.post("/api/v1/login", json={"token": token})
    client.post("/api/v1/jobs", json={token: 1})
    client.get("/api/v1/info", headers={"Cookie": f"easyscale={token}", "Authorization": ""})
    requests(written, 6)
    assert token not in written.getvalue()
    assert token[4:] not in written.getvalue()


def test_an_error_is_one_line_with_its_traceback_and_without_tokens() -> None:
    try:
        raise ValueError("with est_abcdefgh12345 in it\nand a line")
    except ValueError as error:
        record = logging.LogRecord("easyscale", logging.ERROR, "", 0, "it failed", None, (ValueError, error, None))
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "est_abcdefgh12345" not in line
    assert "ValueError" in json.loads(line)["traceback"]


def test_text_from_outside_is_made_fit_to_be_shown() -> None:
    assert clean("a\nb\x1b[31m\x7f\u202e\u2028\ud800") == "a\\nb\\x1b[31m\\x7f\\u202e\\u2028\\ud800"
    assert clean("est_0123456789abc") == "est_***"
    assert clean("x" * 30, 10) == "x" * 10 + "..."
