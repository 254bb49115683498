"""The client against a master of its own: what it asks, and what each kind of silence or nonsense becomes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.client import Address, JobClient, RefusedError, TooLongError, UnreachableError
from easyscale.core.control import MAX_FRAME
from easyscale.core.requests import (
    Accepted,
    AskCheckpoint,
    AskScale,
    AskStop,
    Happening,
    JobStatus,
    Refused,
    pack_reply,
)
from fake_master import FakeMaster, fake_job


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with fake_job() as master:
        yield master


def client_of(master: FakeMaster, seconds: float = 10.0, token: str | None = None) -> JobClient:
    address = Address(host="127.0.0.1", port=master.port, token=token or master.token)
    return JobClient("train-1a2b", lambda: address, seconds)


def test_the_status_comes_with_as_many_events_as_wished(master: FakeMaster) -> None:
    events = tuple(Happening(step=n, what="plan", text=f"event {n}", time=0.0) for n in range(5))
    master.status = replace(master.status, events=events)
    assert client_of(master).status().events == events[-1:]
    assert client_of(master).status(events=3).events == events[-3:]


def test_requests_arrive_as_they_were_meant(master: FakeMaster) -> None:
    client = client_of(master)
    assert client.scale(workers=3) == Accepted(text="accepted ask-scale")
    client.scale(split=(2, 1, 1))
    client.scale(leave=1)
    client.stop(now=True)
    client.stop()
    client.checkpoint()
    assert master.requests == [
        AskScale(workers=3), AskScale(split=(2, 1, 1)), AskScale(leave=1),
        AskStop(now=True), AskStop(), AskCheckpoint(),
    ]  # fmt: skip


def test_a_refusal_keeps_its_three_parts(master: FakeMaster) -> None:
    master.answer = lambda _: Refused(what="No.", why="because.", now="rest.")
    with pytest.raises(RefusedError) as caught:
        client_of(master).scale(workers=3)
    assert (caught.value.what, caught.value.why, caught.value.now) == ("No.", "because.", "rest.")


def test_another_job_s_token_is_not_answered(master: FakeMaster) -> None:
    with pytest.raises(UnreachableError, match="without a word"):
        client_of(master, token="another").status()
    assert master.requests == [None]


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\n",
        b"\x00\xff\xfe\n",
        b"x" * (MAX_FRAME + 10),
        pack_reply(Accepted(text="yes"), "another token"),
    ],
)
def test_an_answer_that_is_none_is_an_error(master: FakeMaster, raw: bytes) -> None:
    master.raw = raw
    with pytest.raises(UnreachableError, match="no answer that can be understood"):
        client_of(master).status()


def test_an_answer_of_the_wrong_kind_is_an_error(master: FakeMaster) -> None:
    master.answer = lambda _: Accepted(text="yes")
    with pytest.raises(UnreachableError):
        client_of(master).status()
    master.answer = lambda _: master.status
    with pytest.raises(UnreachableError):
        client_of(master).stop()


def test_half_a_line_is_an_error(master: FakeMaster) -> None:
    master.raw = pack_reply(master.status, master.token)[:100]
    with pytest.raises(UnreachableError):
        client_of(master).status()


def test_a_master_that_says_nothing_is_waited_for_with_a_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(host="127.0.0.1", port=silent.getsockname()[1], token="t")
        with pytest.raises(UnreachableError, match="does not answer"):
            JobClient("j", lambda: address, 0.1).status()


def test_a_master_that_drips_is_waited_for_with_the_same_limit(master: FakeMaster) -> None:
    def drip(_: object) -> JobStatus:
        time.sleep(0.2)
        return master.status

    master.answer = drip
    with pytest.raises(UnreachableError):
        client_of(master, seconds=0.05).status()


def test_a_closed_port_and_no_master_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        JobClient("j", lambda: Address(host="0.0.0.0", port=port, token="t")).status()
    assert caught.value.now
    with pytest.raises(UnreachableError, match="has no master"):
        JobClient("j", lambda: None).status()


def test_a_master_that_moved_is_found_again(master: FakeMaster) -> None:
    places = [None, Address(host="127.0.0.1", port=master.port, token=master.token)]
    client = JobClient("j", lambda: places.pop(0))
    with pytest.raises(UnreachableError):
        client.status()
    assert client.status().step == 7


def test_waiting_has_an_end(master: FakeMaster) -> None:
    client = client_of(master)
    with pytest.raises(TooLongError, match="step 7"):
        client.wait_until(lambda status: status.step > 7, timeout=0.0)

    def count(_: object) -> JobStatus:
        master.status = replace(master.status, step=master.status.step + 1)
        return master.status

    master.answer = count
    assert client.wait_until(lambda status: status.step > 8, timeout=60).step == 9


def test_wait_is_for_the_end_of_the_job(master: FakeMaster) -> None:
    master.status = replace(master.status, state="failed")
    status = client_of(master).wait(60)
    assert status is not None
    assert status.state == "failed"
    assert JobClient("j", lambda: None).wait(60) is None
