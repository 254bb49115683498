"""The typed client: every error has three parts, a lost answer does nothing twice, a broken stream is taken up."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service.client import ServiceClient, TooLongError
from easyscale.service.errors import ConflictError, ForbiddenError, NotFoundError
from easyscale.service.models import RecordView
from easyscale.service.sse import events
from easyscale.service.wire import BusyError, ServiceFaultError, ServiceUnreachableError, TokenError
from service.cli.conftest import Cluster, Relay, serving, until
from service.fake_people import FakePeople
from service.fakes import FakeDesk, spec

INFO = {
    "version": "9", "started": 1.0, "policy": "fifo", "backend": "local",
    "you": {"user": "ann", "team": "vision", "role": "user"},
}  # fmt: skip


def mocked(answer: Callable[[httpx.Request], httpx.Response], **options: object) -> ServiceClient:
    transport = httpx.MockTransport(answer)
    return ServiceClient("http://127.0.0.1:1", "est_a", transport=transport, sleep=lambda _: None, **options)  # type: ignore[arg-type]


def problem(status: int, **more: object) -> httpx.Response:
    return httpx.Response(status, json={"what": "No.", "why": "because.", "now": "do.", **more})


def three_parts(error: EasyScaleError) -> None:
    assert error.what
    assert error.why
    assert error.now


# ---------------------------------------------------------------------------------------- what it says


def test_all_of_the_service_is_read_as_its_models(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.ready()
        assert client.info().you.user == "root"
        assert {one.kind for one in client.cluster().types} == {"v100", "t4"}
        assert client.timeline().spans
        page = client.jobs(states=["running"], order="name")
        assert {row.state for row in page.jobs} == {"running"}
        assert page.total == len(page.jobs) == 2
        job = page.jobs[0].id
        assert client.job(job).spec.ests
        assert client.series(job, 10).points
        (log, *_) = client.logs(job)
        part = client.log(job, run=log.run, worker=log.worker, stream=log.stream, most=40)
        assert part.text.startswith("step 0")
        assert part.next == 40
        assert all(record.job == job for record in client.records(job).records)
        assert client.what_if(["fifo", "gavel"]).figures[0].policy == "fifo"
        assert client.teams()
        assert client.users()
        assert client.tokens()
        client.drain("t4-3")
        assert client.audit()[0].action == "drain"


def test_all_pages_are_walked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.service.client.PAGE", 3)
    with cluster.client() as client:
        rows = list(client.all_jobs())
        assert len(rows) == client.jobs().total > 3
        assert len({row.id for row in rows}) == len(rows)


def test_fields_of_a_newer_service_are_left_out() -> None:
    newer = {**INFO, "moon": "full", "you": {"user": "ann", "team": "vision", "role": "user", "age": 3}}
    with mocked(lambda _: httpx.Response(200, json=newer)) as client:
        assert client.info().you.team == "vision"


def test_an_answer_that_is_none_of_the_services_is_told() -> None:
    for text in ("<html>", '{"version": 3}', "[]"):
        with mocked(lambda _, text=text: httpx.Response(200, text=text)) as client:  # type: ignore[misc]
            with pytest.raises(ServiceUnreachableError, match="cannot be understood") as error:
                client.info()
            three_parts(error.value)
    with mocked(lambda _: httpx.Response(404, text="nginx")) as client:
        with pytest.raises(ServiceUnreachableError, match="HTTP 404") as error:
            client.info()
        three_parts(error.value)


def test_an_id_cannot_lead_to_another_path() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return problem(404)

    with mocked(answer) as client, pytest.raises(NotFoundError):
        client.job("../tokens?x=1#y")
    assert seen == [b"/api/v1/jobs/..%2Ftokens%3Fx%3D1%23y"]


# ---------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UsageError), (401, TokenError), (403, ForbiddenError), (404, NotFoundError), (409, ConflictError),
        (413, UsageError), (422, UsageError), (429, BusyError), (503, BusyError), (500, ServiceFaultError),
    ],
)  # fmt: skip
def test_a_refusal_has_the_services_own_words(status: int, kind: type[EasyScaleError]) -> None:
    with mocked(lambda _: problem(status, extra=1)) as client, pytest.raises(kind) as error:
        client.info()
    assert (error.value.what, error.value.why, error.value.now) == ("No.", "because.", "do.")


def test_a_wrong_token_and_another_teams_job_are_refused_by_the_real_service(cluster: Cluster) -> None:
    with ServiceClient(cluster.url, "est_wrong") as client:
        with pytest.raises(TokenError) as error:
            client.info()
        three_parts(error.value)
    with cluster.client("ann") as client:
        with pytest.raises(ForbiddenError) as forbidden:
            client.job(cluster.named("speech-big"))
        three_parts(forbidden.value)
        with pytest.raises(ForbiddenError):
            client.tokens()
    with cluster.client("vic") as client, pytest.raises(ForbiddenError):
        client.submit(spec())


def test_nobody_there_is_told_after_some_tries(free_port: int) -> None:
    pauses: list[float] = []
    with ServiceClient(f"http://127.0.0.1:{free_port}", None, sleep=pauses.append) as client:
        with pytest.raises(ServiceUnreachableError, match="does not answer") as error:
            client.info()
        assert not client.ready()
    three_parts(error.value)
    assert len(pauses) == 6  # three for each
    assert pauses == sorted(pauses[:3]) * 2


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_a_service_that_says_nothing_is_given_up() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with mocked(silent) as client, pytest.raises(ServiceUnreachableError, match="does not answer") as error:
        client.info()
    assert "within 10 seconds" in error.value.why


def test_what_changes_something_is_sent_once() -> None:
    sent = []

    def lost(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        raise httpx.ReadError("cut", request=request)

    with mocked(lost) as client:
        for change in (lambda: client.pause("a"), lambda: client.make_token("ann"), lambda: client.drain("d")):
            sent.clear()
            with pytest.raises(ServiceUnreachableError):
                change()
            assert sent == ["POST"]


def test_what_was_not_taken_is_sent_again_when_the_service_says() -> None:
    pauses: list[float] = []
    answers = [httpx.Response(429, headers={"Retry-After": "3"}, json={"what": "x"}), problem(503)]

    def answer(request: httpx.Request) -> httpx.Response:
        return answers.pop(0) if answers else httpx.Response(200, json=[])

    client = ServiceClient("http://127.0.0.1:1", "t", transport=httpx.MockTransport(answer), sleep=pauses.append)
    with client:
        client.set_user("ann", "vision")
    assert pauses == [3.0, 0.4]


def test_a_lost_answer_to_a_submission_gives_one_job(cluster: Cluster, relay: Relay) -> None:
    with cluster.client("ann", relay.url) as client:
        before = client.jobs().total
        relay.cut()
        client.close()
    relay.lose_answers = 2
    with cluster.client("ann", relay.url) as client:
        done = client.submit(spec("once"))
        assert done.new is False  # the first one was taken; its answer was lost
        assert client.jobs().total == before + 1
        assert client.job(done.jobs[0]).name == "once"


def test_two_submissions_are_two_jobs_and_a_key_of_ones_own_makes_them_one(cluster: Cluster) -> None:
    with cluster.client("ann") as client:
        assert client.submit(spec()).jobs != client.submit(spec()).jobs
        first = client.submit(spec(array=3), key="sweep")
        assert len(first.jobs) == 3
        assert client.submit(spec(array=3), key="sweep").jobs == first.jobs


def test_an_upload_is_named_by_its_content(cluster: Cluster, relay: Relay, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"x" * 3_000_000)
    relay.lose_answers = 1
    with cluster.client("ann", relay.url) as client:
        name = client.upload(archive)
    assert cluster.desk.snapshots[name] == archive.read_bytes()


# ---------------------------------------------------------------------------------------- following and waiting


def test_events_are_read_as_the_standard_says() -> None:
    lines = ["retry: 1", ": hello", "", "id: 4", "event: record", "data: a", "data:b", "", "data: c", "", "data: lost"]
    assert list(events(lines)) == [("record", "a\nb"), ("message", "c")]


def test_records_are_followed_across_broken_connections_each_once(cluster: Cluster, relay: Relay) -> None:
    got: list[RecordView] = []
    lost: list[EasyScaleError] = []
    start = cluster.desk.records(0, 1).last

    def follow() -> None:
        with cluster.client("root", relay.url) as client:
            for record in client.follow(after=start, lost=lost.append):
                got.append(record)
                if record.text == "last":
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for number in range(3):
        cluster.desk.write("device-drain", None, f"line {number}\u2028same line", id="t4-3")
        until(lambda number=number: len(got) > number)  # type: ignore[misc]
        relay.cut()
        cluster.desk.write("device-undrain", None, f"while away {number}", id="t4-3")
        until(lambda number=number: len(got) > number + 1)  # type: ignore[misc]
    cluster.desk.write("decided", None, "last")
    thread.join(20)
    assert not thread.is_alive()
    seqs = [record.seq for record in got]
    assert seqs == list(range(start + 1, cluster.desk.records(0, 1).last + 1))
    assert "\u2028" in got[0].text
    assert relay.connections >= 4


def test_only_records_that_one_may_see_are_followed(cluster: Cluster) -> None:
    ours, theirs = cluster.named("vision-running"), cluster.named("speech-big")
    start = cluster.desk.records(0, 1).last
    cluster.desk.write("job-told", theirs, "secret")
    cluster.desk.write("job-told", ours, "ours")
    with cluster.client("ann") as client:
        stream = client.follow(after=start)
        assert next(stream).text == "ours"
        of_one = client.follow(ours, after=start)
        assert next(of_one).job == ours


def test_a_follower_gives_up_when_its_patience_ends_and_on_a_refusal(cluster: Cluster, free_port: int) -> None:
    away = ServiceClient(f"http://127.0.0.1:{free_port}", "t", sleep=lambda _: None)
    with away, pytest.raises(ServiceUnreachableError):
        next(away.follow(after=0, patience=0.0))
    with ServiceClient(cluster.url, "est_wrong") as client, pytest.raises(TokenError):
        next(client.follow(after=0))


def test_a_stream_that_the_service_ends_for_good_is_an_error() -> None:
    end = b'event: end\ndata: {"what": "The stream has ended.", "why": "gone.", "now": "log in."}\n\n'
    with mocked(lambda _: httpx.Response(200, content=end)) as client, pytest.raises(TokenError, match="has ended"):
        next(client.follow(after=0))


def test_waiting_ends_with_the_job_and_has_a_limit(cluster: Cluster) -> None:
    job = cluster.named("vision-running")
    with cluster.client("ann") as client:
        with pytest.raises(TooLongError, match=r"0\.1 seconds") as error:
            client.wait(job, timeout=0.1)
        assert "it is running" in error.value.why
        threading.Timer(0.2, lambda: cluster.desk.put(job, "finished", step=5)).start()
        assert client.wait(job, timeout=20).state == "finished"


def test_waiting_goes_on_while_the_service_is_away() -> None:
    answers = [200, 0, 503, 200]

    def answer(request: httpx.Request) -> httpx.Response:
        status = answers.pop(0)
        if status == 0:
            raise httpx.ConnectError("refused", request=request)
        state = "running" if answers else "finished"
        return problem(503) if status == 503 else httpx.Response(200, json=_job(state))

    with mocked(answer, retries=0) as client:
        assert client.wait("job-1", timeout=60).state == "finished"


def _job(state: str) -> dict[str, object]:
    plain = json.loads(spec().model_dump_json())
    return {
        "id": "job-1", "name": "digits", "team": "vision", "user": "ann", "state": state, "priority": 0, "ests": 4,
        "submitted": 1.0, "spec": plain,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A self-signed certificate for localhost, its key and fingerprint."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)),
        check=True, capture_output=True,
    )  # fmt: skip
    import hashlib

    der = ssl.PEM_cert_to_DER_cert(cert.read_text())
    return cert, key, hashlib.sha256(der).hexdigest()


def test_a_pinned_certificate_is_compared_before_the_token_is_sent(certificates: tuple[Path, Path, str]) -> None:
    cert, key, fingerprint = certificates
    people = FakePeople()
    token = people.add_token("ann", "", None).token
    with serving(FakeDesk(), people, ssl_certfile=str(cert), ssl_keyfile=str(key)) as port:
        url = f"https://localhost:{port}"
        with ServiceClient(url, token, fingerprint=fingerprint) as client:
            assert client.info().you.user == "ann"
        with ServiceClient(url, token, cacert=str(cert)) as client:
            assert client.info().you.user == "ann"
        with ServiceClient(f"https://127.0.0.1:{port}", token, fingerprint=fingerprint) as client:
            assert client.info().you.user == "ann"  # the fingerprint says more than the name
        tries: list[float] = []
        client = ServiceClient(url, token, fingerprint="0" * 64, sleep=tries.append)
        with client, pytest.raises(ServiceUnreachableError, match="another certificate") as error:
            client.info()
        assert fingerprint in error.value.now
        assert tries == []
        client = ServiceClient(url, token, sleep=tries.append)
        with client, pytest.raises(ServiceUnreachableError, match="not trusted") as untrusted:
            client.info()
        assert "--cacert" in untrusted.value.now
        client = ServiceClient(f"http://localhost:{port}", token, sleep=lambda _: None)
        with client, pytest.raises(ServiceUnreachableError) as plain:
            client.info()
        assert "https://" in plain.value.why
    assert token not in str(error.value) + str(untrusted.value)


def test_a_service_without_tls_is_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    client = ServiceClient(cluster.url.replace("http:", "https:"), None, fingerprint="0" * 64)
    with client, pytest.raises(ServiceUnreachableError, match="no TLS") as error:
        client.info()
    three_parts(error.value)
    with pytest.raises(UsageError, match="cannot be used"):
        ServiceClient("https://localhost:1", None, cacert=str(tmp_path / "none.pem"))


def test_a_proxy_of_the_environment_is_not_asked_for_the_loopback(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with cluster.client() as client:
        assert client.info().you.user == "root"
