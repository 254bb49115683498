"""Records as they happen: resuming, rights, revoked tokens, clients that do not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from easyscale.service.errors import StoreError
from easyscale.service.ports import Person
from service.fakes import spec
from service.running import Service

ANN = Person("ann", "vision", "user")
BOB = Person("bob", "speech", "user")


def events(answer: httpx.Response) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """(event, id, data) as an EventSource would give them."""
    kind, mark, data = "message", None, ""
    for line in answer.iter_lines():
        if not line:
            if data:
                yield kind, mark, json.loads(data)
            kind, mark, data = "message", None, ""
            continue
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            mark = int(value)
        elif name == "data":
            data += value


def read(answer: httpx.Response, count: int) -> list[dict[str, Any]]:
    found = []
    for kind, mark, data in events(answer):
        assert kind == "record"
        assert mark == data["seq"]
        found.append(data)
        if len(found) == count:
            return found
    raise AssertionError(f"the stream ended after {len(found)} of {count}")


def until_open(service: Service, count: int = 1) -> None:
    end = time.monotonic() + 10
    while service.metrics.streams < count and time.monotonic() < end:
        time.sleep(0.01)
    assert service.metrics.streams == count


def until_closed(service: Service) -> None:
    """The client sees the end of a stream before the server has put it away."""
    end = time.monotonic() + 10.0
    while service.metrics.streams and time.monotonic() < end:
        time.sleep(0.01)
    assert service.metrics.streams == 0


def test_a_stream_tells_what_happens_from_now_on(service: Service) -> None:
    with service.as_("ann").stream("GET", "/api/v1/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        until_open(service)
        (job,) = service.desk.submit(spec("fresh"), ANN).jobs
        (record,) = read(answer, 1)
    assert (record["kind"], record["job"]) == ("job-submitted", job)


def test_a_stream_resumes_after_what_the_client_had(service: Service) -> None:
    root = service.as_("root")
    with root.stream("GET", "/api/v1/stream", params={"after": 3}) as answer:
        assert [record["seq"] for record in read(answer, 4)] == [4, 5, 6, 7]
    with root.stream("GET", "/api/v1/stream", params={"after": 0}, headers={"Last-Event-ID": "7"}) as answer:
        assert [record["seq"] for record in read(answer, 2)] == [8, 9]


def test_nothing_is_missed_between_two_streams(service: Service) -> None:
    root = service.as_("root")
    seen, last = [], 0
    for _ in range(5):
        for n in range(7):
            service.desk.write("decided", None, f"decision {n}", n=n)
        with root.stream("GET", "/api/v1/stream", params={"after": last}) as answer:
            got = [record["seq"] for record in read(answer, 5)]
        seen += got
        last = got[-1]
    assert seen == list(range(1, 26))


def test_a_client_far_behind_reads_from_the_log_and_then_goes_on_live(start: Callable[..., Service]) -> None:
    service = start(recent=10)
    with service.as_("root").stream("GET", "/api/v1/stream") as live:
        until_open(service)  # from now on the last ten are kept
        for n in range(1500):
            service.desk.write("decided", None, f"decision {n}", n=n)
        last = service.desk.records(0, 1).last
        with service.as_("root").stream("GET", "/api/v1/stream", params={"after": 0}) as behind:
            seqs = []
            for _, mark, _ in events(behind):
                seqs.append(mark)
                if mark == last:
                    service.desk.write("decided", None, "one more")
                elif mark == last + 1:
                    break
        assert [record["seq"] for record in read(live, 1501)] == list(range(last - 1499, last + 2))
    assert seqs == list(range(1, last + 2))


def test_two_users_see_different_things(service: Service) -> None:
    ann, bob = service.as_("ann"), service.as_("bob")
    with ann.stream("GET", "/api/v1/stream") as one, bob.stream("GET", "/api/v1/stream") as other:
        until_open(service, 2)
        (hers,) = service.desk.submit(spec("hers"), ANN).jobs
        (his,) = service.desk.submit(spec("his"), BOB).jobs
        service.desk.write("decided", None, "for all", changes=[])
        assert [(r["kind"], r["job"]) for r in read(one, 2)] == [("job-submitted", hers), ("decided", None)]
        assert [(r["kind"], r["job"]) for r in read(other, 2)] == [("job-submitted", his), ("decided", None)]


def test_a_stream_of_one_job_tells_of_that_job_only(service: Service) -> None:
    with service.as_("ann").stream("GET", "/api/v1/stream", params={"after": 0, "job": "job-3"}) as answer:
        assert {record["job"] for record in read(answer, 2)} == {"job-3"}
    assert service.as_("bob").get("/api/v1/stream", params={"job": "job-3"}).status_code == 403
    assert service.as_("bob").get("/api/v1/stream", params={"job": "job-999"}).status_code == 404


def test_a_stream_ends_when_its_token_is_revoked(start: Callable[..., Service]) -> None:
    service = start(heartbeat=0.05)
    with service.as_("ann").stream("GET", "/api/v1/stream") as answer:
        until_open(service)
        service.people.revoke(service.ids["ann"])
        (last,) = list(events(answer))
    assert last[0] == "end"
    assert "no longer valid" in last[2]["why"]
    until_closed(service)


def test_a_quiet_stream_has_heartbeats(start: Callable[..., Service]) -> None:
    service = start(heartbeat=0.05)
    with service.as_("ann").stream("GET", "/api/v1/stream") as answer:
        comments = 0
        for line in answer.iter_lines():
            comments += line.startswith(":")
            if comments == 3:
                break
    assert comments == 3


def test_a_stream_ends_after_its_time_and_can_be_taken_up_again(start: Callable[..., Service]) -> None:
    service = start(stream_seconds=0.2)
    with service.as_("root").stream("GET", "/api/v1/stream", params={"after": 0}) as answer:
        seqs = [mark for _, mark, _ in events(answer)]
    assert seqs == list(range(1, len(seqs) + 1))
    with service.as_("root").stream("GET", "/api/v1/stream", params={"after": seqs[-1]}) as answer:
        service.desk.write("decided", None, "later")
        assert [mark for _, mark, _ in events(answer)] == [len(seqs) + 1]


def test_a_client_that_does_not_read_is_dropped_and_can_come_back(start: Callable[..., Service]) -> None:
    service = start(stall_seconds=0.3)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", service.port))
        sock.sendall(
            f"GET /api/v1/stream?after=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.tokens['root']}"
            "\r\n\r\n".encode()
        )
        until_open(service)
        for n in range(4000):
            service.desk.write("decided", None, "x" * 4000, n=n)
        end = time.monotonic() + 20
        while service.metrics.streams and time.monotonic() < end:
            time.sleep(0.02)
        assert service.metrics.streams == 0
    with service.as_("root").stream("GET", "/api/v1/stream", params={"after": 3990}) as answer:
        assert [record["seq"] for record in read(answer, 10)] == list(range(3991, 4001))


def test_a_client_that_leaves_is_noticed(service: Service) -> None:
    with service.as_("ann").stream("GET", "/api/v1/stream"):
        until_open(service)
    end = time.monotonic() + 10
    while service.metrics.streams and time.monotonic() < end:
        time.sleep(0.01)
    assert service.metrics.streams == 0


def test_a_number_from_another_log_starts_at_the_end_of_this_one(service: Service) -> None:
    with service.as_("root").stream("GET", "/api/v1/stream", headers={"Last-Event-ID": "900000"}) as answer:
        until_open(service)
        written = service.desk.write("decided", None, "new")
        assert read(answer, 1)[0]["seq"] == written.seq


def test_a_malformed_last_event_id_is_a_mistake(service: Service) -> None:
    answer = service.as_("root").get("/api/v1/stream", headers={"Last-Event-ID": "drop table"})
    assert answer.status_code == 422


def test_a_stream_ends_when_the_store_fails_and_starts_again_when_it_is_back(
    start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(heartbeat=0.05)

    def silent(*_: object) -> None:
        raise StoreError("The store does not answer.", "its disk is full.", "free some space.")

    with monkeypatch.context() as patch:
        patch.setattr(service.desk, "records", silent)
        assert service.as_("root").get("/api/v1/stream").status_code == 503
    with service.as_("root").stream("GET", "/api/v1/stream", params={"after": 0}) as answer:
        assert read(answer, 1)[0]["seq"] == 1
    with monkeypatch.context() as patch, service.as_("root").stream("GET", "/api/v1/stream") as answer:
        until_open(service)
        patch.setattr(service.people, "authenticate", silent)
        with pytest.raises(httpx.RemoteProtocolError):
            list(answer.iter_lines())
