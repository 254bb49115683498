"""How often somebody may ask, and how many event streams there may be."""

from __future__ import annotations

from collections.abc import Callable

from easyscale.service.http.limits import Buckets, neighbourhood
from service.running import Service


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    clock = Clock()
    buckets = Buckets(2.0, 3, 100, clock)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    clock.now = 0.5
    assert buckets.wait("a") == 0.0
    assert buckets.take("a") == 0.0
    assert buckets.take("a") == 0.5
    assert buckets.take("b") == 0.0


def test_a_bucket_that_was_left_alone_is_full_and_not_more() -> None:
    clock = Clock()
    buckets = Buckets(2.0, 3, 100, clock)
    buckets.take("a")
    clock.now = 1e6
    assert [buckets.take("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_the_table_is_bounded_and_forgets_the_quietest() -> None:
    buckets = Buckets(0.001, 1, 2, Clock())
    for key in ("a", "b", "c"):
        assert buckets.take(key) == 0.0
    assert len(buckets) == 2
    assert buckets.take("c") > 0.0
    assert buckets.take("a") == 0.0  # it was forgotten


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:2") != neighbourhood("2001:db9::1")
    assert neighbourhood("10.0.0.1") != neighbourhood("10.0.0.2")
    assert neighbourhood("not an address") == "not an address"


def test_a_token_that_asks_too_often_waits_and_others_do_not(start: Callable[..., Service]) -> None:
    service = start(rate=0.01, burst=5)
    ann, bob = service.as_("ann"), service.as_("bob")
    assert [ann.get("/api/v1/info").status_code for _ in range(6)] == [200] * 5 + [429]
    refused = ann.get("/api/v1/info")
    assert 90 <= int(refused.headers["retry-after"]) <= 101
    assert refused.json()["what"] == "Too many requests."
    assert bob.get("/api/v1/info").status_code == 200


def test_an_address_without_a_token_has_a_rate_too(start: Callable[..., Service]) -> None:
    service = start(rate=0.01, burst=3)
    client = service.client()
    assert [client.get("/healthz").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_only_so_many_comparisons_run_at_a_time(start: Callable[..., Service]) -> None:
    service = start(what_ifs=1)
    inner: list[int] = []
    real = service.desk.what_if
    client = service.as_("ann")

    def nested(policies: list[str]) -> object:
        if not inner:
            inner.append(0)
            inner[0] = service.as_("bob").post("/api/v1/what-if", json={"policies": ["fifo"]}).status_code
        return real(policies)

    service.desk.what_if = nested  # type: ignore[method-assign, assignment]
    assert client.post("/api/v1/what-if", json={"policies": ["fifo"]}).status_code == 200
    assert inner == [429]
    assert client.post("/api/v1/what-if", json={"policies": ["fifo"]}).status_code == 200


def test_a_user_has_so_many_event_streams_and_gets_another_when_one_ends(start: Callable[..., Service]) -> None:
    service = start(streams=2, heartbeat=0.05)
    ann = service.as_("ann")
    with ann.stream("GET", "/api/v1/stream"), ann.stream("GET", "/api/v1/stream") as second:
        assert ann.get("/api/v1/stream").status_code == 429
        with service.as_("bob").stream("GET", "/api/v1/stream") as other:
            assert other.status_code == 200
        second.close()
        for _ in range(200):
            with ann.stream("GET", "/api/v1/stream") as third:
                if third.status_code == 200:
                    break
        assert third.status_code == 200
