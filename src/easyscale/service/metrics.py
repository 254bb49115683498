"""Figures for Prometheus. The live scheduler tells what happens; what is, is read from the desk when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as Count
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from easyscale.service.ports import Desk, JobQuery

TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_JOBS = 200  # that have a line of their own
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Each method may be called from any thread. `streams` is set by whoever counts them."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.streams = 0
        self._decision = Histogram(
            "easyscale_decision_seconds", "Time to decide who gets which devices", buckets=SHORT, registry=registry
        )
        self._changes = Count("easyscale_decision_changes", "Allocations changed by decisions", registry=registry)
        self._pause = Histogram(
            "easyscale_switch_pause_seconds", "How long a switch kept a job", buckets=LONG, registry=registry
        )
        self._switches = Count("easyscale_switches", "Switches of jobs to another plan", registry=registry)
        self._lost = Count("easyscale_workers_lost", "Workers that died or stopped answering", registry=registry)
        self._append = Histogram(
            "easyscale_log_append_seconds", "Time to write records durably", buckets=SHORT, registry=registry
        )
        self._appended = Count("easyscale_log_records_appended", "Records written by this process", registry=registry)
        self._requests = Count(
            "easyscale_http_requests", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self._latency = Histogram(
            "easyscale_http_request_seconds", "Time to answer", ("route",), buckets=SHORT, registry=registry
        )

    def decided(self, seconds: float, changes: int) -> None:
        self._decision.observe(seconds)
        self._changes.inc(changes)

    def switched(self, seconds: float) -> None:
        self._switches.inc()
        self._pause.observe(seconds)

    def lost_worker(self) -> None:
        self._lost.inc()

    def appended(self, seconds: float, n: int) -> None:
        self._append.observe(seconds)
        self._appended.inc(n)

    def requested(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """`seconds` None: an event stream, whose length says nothing about speed."""
        self._requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self._latency.labels(route).observe(seconds)

    def text(self, desk: Desk, teams: Sequence[str]) -> bytes:
        """All of it, in Prometheus' text format. `teams`: that have a line about their queue."""
        now = _Now(desk, teams, self.streams)
        return generate_latest(self._registry) + b"".join(_lines(now))


class _Now:
    """What is at this moment, as a collector of a registry that lives for one answer."""

    def __init__(self, desk: Desk, teams: Sequence[str], streams: int) -> None:
        self._desk, self._teams, self._streams = desk, teams, streams

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("easyscale_event_streams", "Event streams that are open", value=self._streams)
        last = self._desk.records(0, 1, None, True).last
        yield CounterMetricFamily("easyscale_records", "Number of the newest record", value=last)
        yield GaugeMetricFamily("easyscale_ready", "1: ready", value=float(self._desk.ready() is None))
        yield from self._devices()
        yield from self._jobs()

    def _devices(self) -> Iterator[Metric]:
        view = self._desk.cluster()
        states = GaugeMetricFamily("easyscale_devices", "Devices", labels=("type", "state"))
        counts = Counter((device.kind, device.state) for device in view.devices)
        for (kind, state), count in sorted(counts.items()):
            states.add_metric((kind, state), count)
        yield states
        used = GaugeMetricFamily("easyscale_device_utilization", "Share of devices that are held", labels=("type",))
        for of_type in view.types:
            used.add_metric((of_type.kind,), of_type.held / of_type.total if of_type.total else 0.0)
        yield used
        yield GaugeMetricFamily("easyscale_jobs_running", "Jobs that hold devices", value=view.running)

    def _jobs(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("easyscale_queue_jobs", "Jobs that wait", labels=("team",))
        for team in self._teams:  # counted by the desk: the rows of a long queue would take their time
            queue.add_metric((team,), self._desk.jobs(JobQuery(states=("queued",), team=team, limit=1)).total)
        yield queue
        speed = GaugeMetricFamily(
            "easyscale_job_samples_per_second", f"Throughput, of at most {MOST_JOBS} jobs", labels=("job", "team")
        )
        for row in self._desk.jobs(JobQuery(states=("running",), limit=MOST_JOBS)).jobs:
            speed.add_metric((row.id, row.team), row.samples_per_second or 0.0)
        yield speed


def _lines(now: _Now) -> Iterator[bytes]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(now)
    yield generate_latest(registry)
