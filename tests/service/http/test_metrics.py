"""What Prometheus reads, and whether the service is well."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from easyscale.service.metrics import MOST_JOBS, Metrics
from easyscale.service.ports import Person
from service.fakes import FakeDesk, busy_desk, spec
from service.running import Service

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    return values[name, frozenset(labels.items())]


def test_the_figures_of_the_scheduler_are_those_that_it_told() -> None:
    metrics = Metrics()
    metrics.decided(0.02, 3)
    metrics.decided(0.002, 0)
    metrics.switched(0.4)
    metrics.lost_worker()
    metrics.appended(0.001, 5)
    values = parsed(metrics.text(busy_desk()).decode())
    assert value(values, "easyscale_decision_seconds_count") == 2
    assert value(values, "easyscale_decision_seconds_bucket", le="0.005") == 1
    assert value(values, "easyscale_decision_changes_total") == 3
    assert value(values, "easyscale_switches_total") == 1
    assert value(values, "easyscale_switch_pause_seconds_sum") == 0.4
    assert value(values, "easyscale_workers_lost_total") == 1
    assert value(values, "easyscale_log_append_seconds_count") == 1
    assert value(values, "easyscale_log_records_appended_total") == 5


def test_what_is_now_is_read_from_the_desk() -> None:
    desk = busy_desk(more=5)
    desk.lose("t4-3", "gone", Person("root", "vision", "admin"))
    values = parsed(Metrics().text(desk).decode())
    assert value(values, "easyscale_queue_jobs", team="vision") == 3
    assert value(values, "easyscale_queue_jobs", team="speech") == 3
    assert value(values, "easyscale_devices", type="v100", state="held") == 4
    assert value(values, "easyscale_devices", type="t4", state="lost") == 1
    assert value(values, "easyscale_device_utilization", type="v100") == 1.0
    assert value(values, "easyscale_device_utilization", type="t4") == 1.0
    assert value(values, "easyscale_jobs_running") == 2
    assert value(values, "easyscale_job_samples_per_second", job="job-3", team="vision") == 900.0
    assert value(values, "easyscale_records_total") == desk.records(0, 1).last
    assert value(values, "easyscale_ready") == 1.0


def test_the_number_of_lines_for_jobs_is_bounded() -> None:
    desk = FakeDesk()
    for job in desk.submit(spec(array=MOST_JOBS + 50), Person("ann", "vision", "user")).jobs:
        desk.put(job, "running")
    text = Metrics().text(desk).decode()
    assert text.count("easyscale_job_samples_per_second{") == MOST_JOBS


def test_a_name_with_quotes_and_line_ends_stays_in_its_label() -> None:
    desk = FakeDesk()
    desk.submit(spec(), Person("ann", 'a"b\\c\nd', "user"))
    values = parsed(Metrics().text(desk).decode())
    assert value(values, "easyscale_queue_jobs", team='a"b\\c\nd') == 1


def test_requests_are_counted_by_the_template_of_their_path(service: Service) -> None:
    ann = service.as_("ann")
    ann.get("/api/v1/jobs/job-1")
    ann.get("/api/v1/jobs/job-3")
    ann.get("/api/v1/jobs/job-2")
    ann.get("/some/where/else")
    service.client().request("BREW", "/healthz")
    answer = service.as_("vic").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = parsed(answer.text)
    one = {"method": "GET", "route": "/api/v1/jobs/{job}"}
    assert value(values, "easyscale_http_requests_total", **one, status="200") == 2
    assert value(values, "easyscale_http_requests_total", **one, status="403") == 1
    assert value(values, "easyscale_http_requests_total", method="GET", route="(none)", status="404") == 1
    assert value(values, "easyscale_http_requests_total", method="other", route="/healthz", status="405") == 1
    assert value(values, "easyscale_http_request_seconds_count", route="/api/v1/jobs/{job}") == 3
    assert "job-1" not in answer.text.replace("job-10", "")


def test_open_event_streams_are_counted(service: Service) -> None:
    with service.as_("ann").stream("GET", "/api/v1/stream") as stream:
        lines = stream.iter_lines()
        assert next(lines)  # kept: an iterator that is dropped closes the stream
        values = parsed(service.as_("vic").get("/metrics").text)
    assert value(values, "easyscale_event_streams") == 1


def test_figures_need_a_token_unless_they_are_opened_on_loopback(start: Callable[..., Service]) -> None:
    assert start().client().get("/metrics").status_code == 401
    assert start(open_metrics=True).client().get("/metrics").status_code == 200
    assert start(open_metrics=True, host="192.0.2.1").client().get("/metrics").status_code == 401


def test_health_is_open_and_says_nothing_else(service: Service) -> None:
    answer = service.client().get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")


def test_readiness_tells_what_is_wrong(service: Service) -> None:
    client = service.client()
    assert client.get("/readyz").text == "ok\n"
    service.desk.wrong = "The store does not answer."
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["what"] == "The store does not answer."
    assert client.get("/healthz").status_code == 200
