"""Who may do what: every path with each role, another team's job, no token, a wrong one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.running import Service, running

SPEC = {"name": "digits", "script": "train.py", "workdir": "/srv/work", "ests": 4}
ALL = ("root", "ann", "vic", "bob")
CHANGERS = ("root", "ann", "bob")
ADMINS = ("root",)
VISION = ("root", "ann", "vic")  # job-1 is vision's
VISION_CHANGERS = ("root", "ann")

# method, path (as in the schema), what fills its parameters, body, who may
CASES: list[tuple[str, str, dict[str, str], object, tuple[str, ...]]] = [
    ("GET", "/metrics", {}, None, ALL),
    ("GET", "/api/v1/info", {}, None, ALL),
    ("GET", "/api/v1/cluster", {}, None, ALL),
    ("GET", "/api/v1/timeline", {}, None, ALL),
    ("GET", "/api/v1/jobs", {}, None, ALL),
    ("POST", "/api/v1/jobs", {}, SPEC, CHANGERS),
    ("GET", "/api/v1/jobs/{job}", {"job": "job-1"}, None, VISION),
    ("GET", "/api/v1/jobs/{job}/logs", {"job": "job-1"}, None, VISION),
    ("GET", "/api/v1/jobs/{job}/log", {"job": "job-3"}, None, VISION),
    ("GET", "/api/v1/jobs/{job}/series", {"job": "job-3"}, None, VISION),
    ("GET", "/api/v1/jobs/{job}/records", {"job": "job-1"}, None, VISION),
    ("POST", "/api/v1/jobs/{job}/scale", {"job": "job-1"}, {"max_workers": 2}, VISION_CHANGERS),
    ("POST", "/api/v1/jobs/{job}/pause", {"job": "job-1"}, None, VISION_CHANGERS),
    ("POST", "/api/v1/jobs/{job}/resume", {"job": "job-1"}, None, VISION_CHANGERS),
    ("POST", "/api/v1/jobs/{job}/cancel", {"job": "job-1"}, None, VISION_CHANGERS),
    ("GET", "/api/v1/records", {}, None, ALL),
    ("GET", "/api/v1/stream", {}, None, ALL),
    ("POST", "/api/v1/what-if", {}, {"policies": ["fifo"]}, ALL),
    ("POST", "/api/v1/snapshots", {}, b"bytes of a tar", CHANGERS),
    ("POST", "/api/v1/devices/{device}/drain", {"device": "t4-3"}, None, ADMINS),
    ("POST", "/api/v1/devices/{device}/undrain", {"device": "t4-3"}, None, ADMINS),
    ("POST", "/api/v1/devices/{device}/lost", {"device": "t4-3"}, None, ADMINS),
    ("POST", "/api/v1/serving/lend", {}, {"devices": ["t4-3"]}, ADMINS),
    ("POST", "/api/v1/serving/call-back", {}, {"devices": ["t4-3"]}, ADMINS),
    ("GET", "/api/v1/teams", {}, None, ADMINS),
    ("POST", "/api/v1/teams", {}, {"name": "text", "quota": 2}, ADMINS),
    ("GET", "/api/v1/users", {}, None, ADMINS),
    ("POST", "/api/v1/users", {}, {"name": "eve", "team": "vision"}, ADMINS),
    ("GET", "/api/v1/tokens", {}, None, ADMINS),
    ("POST", "/api/v1/tokens", {}, {"user": "eve"}, ADMINS),
    ("DELETE", "/api/v1/tokens/{id}", {"id": "{token}"}, None, ADMINS),
    ("DELETE", "/api/v1/users/{name}", {"name": "eve"}, None, ADMINS),
    ("GET", "/api/v1/audit", {}, None, ADMINS),
    ("POST", "/api/v1/logout", {}, None, ALL),
]
OPEN = {"/healthz", "/readyz", "/api/v1/login"}


@pytest.fixture(scope="module", params=ALL)
def service_and_user(request: pytest.FixtureRequest) -> Iterator[tuple[Service, str]]:
    with running(stream_seconds=0.05) as service:
        yield service, request.param


def call(service: Service, user: str | None, case: tuple[str, str, dict[str, str], object, tuple[str, ...]]) -> int:
    method, path, values, body, _ = case
    spare = next(token.id for token in service.people.tokens() if token.user == "bob")
    url = path.format(**{name: value.format(token=spare) for name, value in values.items()})
    client = service.as_(user) if user else service.client()
    if isinstance(body, bytes):
        return client.request(method, url, content=body).status_code
    return client.request(method, url, json=body).status_code


def test_each_role_may_do_what_it_may_and_nothing_else(service_and_user: tuple[Service, str]) -> None:
    service, user = service_and_user
    wrong = []
    for case in CASES:
        status = call(service, user, case)
        if (status < 300) != (user in case[4]) or (status >= 300 and status != 403):
            wrong.append((user, *case[:2], status))
    assert wrong == []


def test_every_path_of_the_schema_is_in_the_table_of_rights(shared: Service) -> None:
    schema = shared.client().get("/api/v1/openapi.json").json()
    known = {(method, path) for method, path, *_ in CASES}
    asked = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    assert {case for case in asked if case[1] not in OPEN} == known


def test_without_a_token_nothing_of_the_service_is_shown_or_done(shared: Service) -> None:
    before = shared.desk.records(0, 1000).last
    for case in CASES:
        assert call(shared, None, case) == 401, case[:2]
    assert shared.desk.records(0, 1000).last == before


def test_with_a_wrong_token_every_path_answers_401_until_it_is_too_often(service: Service) -> None:
    client = service.client(Authorization="Bearer est_wrong")
    statuses = [client.get("/api/v1/cluster").status_code for _ in range(15)]
    assert statuses[:10] == [401] * 10
    assert set(statuses[10:]) <= {401, 429}
    assert 429 in statuses


@pytest.mark.parametrize("header", ["est_x", "Basic YTpi", "Bearer", "bearer", "Bearer \xff\xfe"])
def test_a_malformed_authorization_header_is_no_token(shared: Service, header: str) -> None:
    answer = shared.client().get("/api/v1/cluster", headers=[(b"Authorization", header.encode("latin-1"))])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["now"]


def test_a_revoked_token_opens_nothing(service: Service) -> None:
    client = service.as_("ann")
    assert client.get("/api/v1/info").status_code == 200
    assert service.as_("root").delete(f"/api/v1/tokens/{service.ids['ann']}").status_code == 204
    assert client.get("/api/v1/info").status_code == 401


def test_another_teams_job_is_a_row_and_nothing_more(shared: Service) -> None:
    ann = shared.as_("ann")
    rows = ann.get("/api/v1/jobs").json()["jobs"]
    assert {row["team"] for row in rows} == {"vision", "speech"}
    assert "spec" not in rows[0]
    answer = ann.get("/api/v1/jobs/job-2")
    assert answer.status_code == 403
    assert "speech" in answer.json()["why"]


def test_a_user_submits_for_the_own_team_and_an_admin_for_any(service: Service) -> None:
    own = service.as_("ann").post("/api/v1/jobs", json={**SPEC, "team": "vision"})
    other = service.as_("ann").post("/api/v1/jobs", json={**SPEC, "team": "speech"})
    admin = service.as_("root").post("/api/v1/jobs", json={**SPEC, "team": "speech"})
    assert (own.status_code, other.status_code, admin.status_code) == (201, 403, 201)
    assert service.desk.job(admin.json()["jobs"][0]).team == "speech"


def test_an_unknown_job_is_not_found_for_everybody(shared: Service) -> None:
    for user in ALL:
        answer = shared.as_(user).get("/api/v1/jobs/job-999")
        assert answer.status_code == 404
        assert answer.json()["what"] == "There is no job job-999."


def test_records_show_the_own_teams_jobs_and_the_cluster(shared: Service) -> None:
    ann = shared.as_("ann").get("/api/v1/records", params={"limit": 1000}).json()
    bob = shared.as_("bob").get("/api/v1/records", params={"limit": 1000}).json()
    root = shared.as_("root").get("/api/v1/records", params={"limit": 1000}).json()
    team = {job.id: job.team for job in shared.desk._jobs.values()}
    assert {team[r["job"]] for r in ann["records"] if r["job"]} == {"vision"}
    assert {team[r["job"]] for r in bob["records"] if r["job"]} == {"speech"}
    assert {r["kind"] for r in ann["records"] if not r["job"]} >= {"device-added", "decided"}
    assert len(root["records"]) == root["last"]
    assert ann["next"] == ann["last"] == root["last"]


def test_the_newest_records_are_the_newest_that_one_may_see(shared: Service) -> None:
    page = shared.as_("bob").get("/api/v1/records", params={"limit": 3, "newest": True}).json()
    seen = shared.as_("bob").get("/api/v1/records", params={"limit": 1000}).json()["records"]
    assert page["records"] == seen[-3:]


def test_pages_of_records_join_without_a_gap(shared: Service) -> None:
    bob = shared.as_("bob")
    whole = bob.get("/api/v1/records", params={"limit": 1000}).json()["records"]
    parts, after = [], 0
    while True:
        page = bob.get("/api/v1/records", params={"limit": 2, "after": after}).json()
        parts += page["records"]
        after = page["next"]
        if after >= page["last"]:
            break
    assert parts == whole
