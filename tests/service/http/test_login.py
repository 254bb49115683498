"""The cookie of the dashboard, requests from other sites, and what is written down about it."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from service.running import Service

OWN = {"X-EasyScale": "1"}


def logged_in(service: Service, user: str) -> httpx.Client:
    client = service.client()
    answer = client.post("/api/v1/login", json={"token": service.tokens[user]})
    assert answer.status_code == 200
    assert answer.json()["user"] == user
    return client


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(shared: Service) -> None:
    answer = shared.client().post("/api/v1/login", json={"token": shared.tokens["ann"]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie  # plain HTTP on loopback


def test_under_tls_the_cookie_is_secure_and_bound_to_the_host(start: Callable[..., Service]) -> None:
    service = start(tls=True)  # the flag alone: the test speaks plain HTTP
    cookie = service.client().post("/api/v1/login", json={"token": service.tokens["ann"]}).headers["set-cookie"]
    assert cookie.startswith("__Host-easyscale-")
    assert "secure" in cookie.lower()


def test_the_cookie_opens_what_the_token_opens_until_logout(service: Service) -> None:
    client = logged_in(service, "ann")
    assert client.get("/api/v1/info").json()["you"] == {"user": "ann", "team": "vision", "role": "user"}
    assert client.post("/api/v1/logout", headers=OWN).status_code == 204
    assert client.get("/api/v1/info").status_code == 401


def test_a_change_by_cookie_needs_the_header(service: Service) -> None:
    client = logged_in(service, "ann")
    assert client.post("/api/v1/jobs/job-1/pause").status_code == 403
    assert service.desk.job("job-1").state == "queued"
    assert client.post("/api/v1/jobs/job-1/pause", headers=OWN).status_code == 200
    assert service.desk.job("job-1").state == "paused"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_can_neither_change_anything_nor_log_anybody_in(service: Service, site: str) -> None:
    client = logged_in(service, "ann")
    theirs = {"Sec-Fetch-Site": site}
    assert client.post("/api/v1/jobs/job-1/pause", headers={**OWN, **theirs}).status_code == 403
    login = client.post("/api/v1/login", json={"token": service.tokens["bob"]}, headers=theirs)
    assert login.status_code == 403
    assert "set-cookie" not in login.headers


def test_a_cookie_of_another_service_on_this_host_is_none_of_ours(shared: Service) -> None:
    client = shared.client(Cookie=f"easyscale-1={shared.tokens['ann']}")
    assert client.get("/api/v1/info").status_code == 401


def test_after_too_many_failed_logins_an_address_waits_even_with_the_right_token(start: Callable[..., Service]) -> None:
    service = start(login_failures=3, login_seconds=600.0)
    client = service.client()
    wrong = [client.post("/api/v1/login", json={"token": f"est_no{n}"}).status_code for n in range(4)]
    assert wrong == [401, 401, 401, 429]
    right = client.post("/api/v1/login", json={"token": service.tokens["ann"]})
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) > 1
    # who has a token already is not kept out by a neighbour's failures
    assert service.as_("ann").get("/api/v1/info").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_a_page_whose_name_resolves_to_loopback_is_refused(shared: Service, host: str) -> None:
    answer = shared.as_("ann").get("/api/v1/info", headers={"Host": host})
    assert answer.status_code == 403
    assert "not served here" in answer.json()["what"]


@pytest.mark.parametrize("host", ["localhost", "localhost:8800", "127.0.0.1:1", "[::1]:8800", "[::1]", "LOCALHOST"])
def test_the_names_of_loopback_are_served(shared: Service, host: str) -> None:
    assert shared.as_("ann").get("/api/v1/info", headers={"Host": host}).status_code == 200


def test_a_name_that_the_service_was_told_is_served(start: Callable[..., Service]) -> None:
    service = start(names=("train.lab",))
    assert service.as_("ann").get("/api/v1/info", headers={"Host": "train.lab:443"}).status_code == 200


def test_every_change_and_every_refusal_is_in_the_audit(service: Service) -> None:
    ann, root = service.as_("ann"), service.as_("root")
    ann.post("/api/v1/jobs", json={"name": "a", "script": "t.py", "workdir": "/w", "ests": 1})
    ann.post("/api/v1/jobs/job-1/pause")
    ann.post("/api/v1/jobs/job-2/pause")  # another team's
    ann.get("/api/v1/jobs/job-2")
    ann.get("/api/v1/users")
    service.client().get("/api/v1/jobs")
    ann.get("/api/v1/jobs")  # reading what one may read is not written down
    root.post("/api/v1/devices/t4-3/drain")
    entries = root.get("/api/v1/audit").json()[::-1]
    told = [(e["user"], e["action"], e["target"], e["ok"]) for e in entries]
    assert told == [
        ("ann", "submit", "job-11", True),
        ("ann", "pause", "job-1", True),
        ("ann", "pause", "job-2", False),
        ("ann", "job", "job-2", False),
        ("ann", "users", "", False),
        ("", "GET /api/v1/jobs", "", False),
        ("root", "drain", "t4-3", True),
    ]
    assert {e["address"] for e in entries} == {"127.0.0.1"}
    assert "403 You may not do that." in entries[2]["detail"]


def test_a_flood_without_a_token_does_not_flood_the_audit(start: Callable[..., Service]) -> None:
    service = start(audit_refusals=5)
    client = service.client()
    for _ in range(40):
        assert client.get("/api/v1/jobs").status_code == 401
    assert len(service.people.audit_list(100)) == 5


def test_a_change_is_done_and_told_when_the_audit_cannot_be_written(service: Service) -> None:
    service.people.audit_fails = True
    assert service.as_("ann").post("/api/v1/jobs/job-1/pause").status_code == 200
    assert service.desk.job("job-1").state == "paused"


def test_no_token_appears_in_the_audit_or_the_list_of_tokens(service: Service) -> None:
    root = service.as_("root")
    made = root.post("/api/v1/tokens", json={"user": "ann", "note": "laptop", "days": 30}).json()
    assert made["token"].startswith("est_")
    service.client().get(f"/api/v1/jobs/{made['token']}")
    everything = root.get("/api/v1/tokens").text + root.get("/api/v1/audit").text
    assert made["id"] in everything
    assert made["token"] not in everything
    assert all(token not in everything for token in service.tokens.values())


def test_headers_for_safety_are_on_every_answer(shared: Service) -> None:
    client = shared.client()
    for path in ("/", "/healthz", "/api/v1/jobs", "/nothing", "/api/v1/docs"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    assert client.get("/api/v1/jobs").headers["cache-control"] == "no-store"
