"""What goes over HTTP, both ways. Unknown fields are refused; every text and every list has a limit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal["admin", "user", "viewer"]
Level = Literal["D0", "D1", "D2"]
JobWord = Literal["queued", "starting", "running", "pausing", "paused", "stopping", "finished", "failed", "cancelled"]
ENDED = ("finished", "failed", "cancelled")
DeviceWord = Literal["free", "held", "leaving", "draining", "drained", "lost", "away"]

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Text = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
MOST_ARRAY = 1000
MOST_STEPS = 10**15  # fits every store and every number of JSON


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ------------------------------------------------------------------------------------------ what a user asks for


class JobLimits(Model):
    """What the processes of a job may use. A log that is full loses its oldest part; the others end the job."""

    log_mb: Annotated[float, Field(ge=0.01, le=100_000)] = 64.0  # of one worker's output
    processes: Annotated[int, Field(ge=8, le=100_000)] = 1024
    memory_gb: Annotated[float | None, Field(gt=0, le=100_000)] = None  # address space of one process
    open_files: Annotated[int | None, Field(ge=64, le=10_000_000)] = None


class JobSpec(Model):
    """`job.yaml`, and the body of a submission."""

    name: Name
    script: Text | None = None  # a path in the working directory
    module: Text | None = None  # or a module, as in `python -m`
    args: Annotated[list[Text], Field(max_length=1000)] = []
    workdir: Text | None = None  # a path on the service's machine
    snapshot: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None  # or an uploaded copy, by its sha256
    python: Text | None = None  # the interpreter of the job's environment; None: the service's own
    env: Annotated[dict[EnvName, Text], Field(max_length=200)] = {}

    ests: Annotated[int, Field(ge=1, le=4096)]
    min_workers: Annotated[int, Field(ge=1, le=4096)] = 1
    max_workers: Annotated[int | None, Field(ge=1, le=4096)] = None  # None: as many as it has ESTs
    gang: bool = False  # exactly max_workers or none: not elastic
    types: Annotated[list[Name] | None, Field(min_length=1, max_length=64)] = None  # of devices; None: any
    memory_gb: Annotated[float, Field(ge=0, le=100_000)] = 0.0  # of one device
    determinism: Level = "D1"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    team: Name | None = None  # None: the user's own
    deadline: datetime | None = None  # shown, and said when it is missed; the job goes on
    steps: Annotated[int | None, Field(ge=1, le=MOST_STEPS)] = None  # global steps in all, as far as the user knows
    max_steps: Annotated[int | None, Field(ge=1, le=MOST_STEPS)] = None  # the job ends there
    checkpoint_dir: Text | None = None  # None: a folder of the service's
    checkpoint_every: Annotated[int | None, Field(ge=1, le=MOST_STEPS)] = None
    checkpoint_seconds: Annotated[float | None, Field(gt=0, le=1e9)] = 600.0
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    array: Annotated[int | None, Field(ge=1, le=MOST_ARRAY)] = None  # so many jobs; EASYSCALE_ARRAY_INDEX tells which
    limits: JobLimits = JobLimits()

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if (self.script is None) == (self.module is None):
            raise ValueError("exactly one of script and module says what to run")
        if (self.workdir is None) == (self.snapshot is None):
            raise ValueError("exactly one of workdir and snapshot says where")
        most = min(self.ests, self.max_workers or self.ests)
        if self.min_workers > most:
            raise ValueError(f"min_workers {self.min_workers} is more than the {most} workers that the job can use")
        return self


class ScaleWish(Model):
    """New limits of a job that waits or runs; what is left out stays."""

    min_workers: Annotated[int | None, Field(ge=1, le=4096)] = None
    max_workers: Annotated[int | None, Field(ge=1, le=4096)] = None


class Lend(Model):
    """A serving system lends devices, by type or by name, or calls them back. `within`: seconds that training has."""

    types: dict[Name, Annotated[int, Field(ge=1, le=100_000)]] = {}
    devices: Annotated[list[Name], Field(max_length=10_000)] = []
    within: Annotated[float, Field(gt=0, le=3600)] = 5.0


class WhatIf(Model):
    """Run the simulator on the present queue under these policies."""

    policies: Annotated[list[Name], Field(min_length=1, max_length=8)]


# ------------------------------------------------------------------------------------------ what the service answers


class Problem(Model):
    """Every answer that is not 2xx: what happened, why, what to do now."""

    what: str
    why: str = ""
    now: str = ""


class DeviceView(Model):
    id: str
    kind: str
    node: str = ""
    memory_gb: float | None = None
    uuid: str | None = None
    state: DeviceWord
    lent: bool = False
    by: float | None = None  # called back: when it must be free, seconds since the epoch
    job: str | None = None


class TypeView(Model):
    kind: str
    total: int  # that training may use now
    held: int
    free: int
    lent: int = 0
    lost: int = 0
    drained: int = 0
    away: int = 0


class ClusterView(Model):
    policy: str
    backend: str
    types: list[TypeView]
    devices: list[DeviceView]
    queued: int
    running: int


class JobRow(Model):
    """A line of the list. Of another team's job, this is all that one sees."""

    id: str
    name: str
    team: str
    user: str
    state: JobWord
    priority: int
    ests: int
    submitted: float  # seconds since the epoch, as all times
    started: float | None = None
    ended: float | None = None
    devices: dict[str, int] = {}  # held now, by type
    step: int = 0
    steps: int | None = None  # in all, where known
    loss: float | None = None
    samples_per_second: float | None = None
    waits: str | None = None  # why, in a sentence
    error: str | None = None


class Allocation(Model):
    """Devices that a job held from `since` until `until` (None: it still does), and its split over them."""

    since: float
    until: float | None = None
    devices: list[str]


class PlanView(Model):
    """Which ESTs ran where, from step `step` on."""

    time: float
    step: int
    seats: list[SeatView]


class SeatView(Model):
    worker: int
    device: str | None = None
    first: int
    count: int


class ProposalView(Model):
    """A way to grow or to shrink, what it would bring, and what the scheduler answered."""

    devices: dict[str, int]
    rate: float  # global steps a second
    speedup: float  # against what the job has
    per_device: float
    waste: float = 0.0
    sure: bool = True
    answer: str = ""


class JobView(JobRow):
    """All of a job, for its team."""

    spec: JobSpec
    run: int = 0  # how often it was started
    held: list[str] = []  # device ids
    fingerprint: str | None = None
    exit_code: int | None = None
    checkpoint_dir: str | None = None
    expected_end: float | None = None
    late: bool = False
    allocations: list[Allocation] = []
    plans: list[PlanView] = []
    grow: list[ProposalView] = []
    shrink: list[ProposalView] = []
    pauses: list[float] = []  # seconds of each switch


class JobPage(Model):
    jobs: list[JobRow]
    total: int  # that match, on all pages


class Submitted(Model):
    """`new` false: this key was used before, and these are the jobs of then."""

    jobs: list[str]
    new: bool = True


class RecordView(Model):
    """Something that happened. `text` is a sentence for people."""

    seq: int
    time: float
    kind: str
    job: str | None = None
    text: str
    body: dict[str, object] = {}


class RecordPage(Model):
    records: list[RecordView]
    last: int  # the newest seq there is
    next: int | None = None  # ask again after this one: what lies before it was looked at, if not shown


class LogPart(Model):
    """A part of a worker's output. Ask again from `next`."""

    worker: int
    stream: Literal["out", "err"]
    text: str
    start: int  # bytes; more than asked for if the oldest part is gone
    next: int
    end: bool  # no more will come


class LogFile(Model):
    run: int
    worker: int
    stream: Literal["out", "err"]
    size: int


class Point(Model):
    step: int
    time: float
    values: dict[str, float]


class Series(Model):
    """What a job logged, thinned to at most so many points."""

    points: list[Point]


class Span(Model):
    """A device was held by a job from `since` until `until`."""

    device: str
    job: str
    since: float
    until: float | None = None


class Timeline(Model):
    since: float
    until: float
    spans: list[Span]


class PolicyFigures(Model):
    policy: str
    jct: float
    median_jct: float
    makespan: float
    utilization: float
    switches: float


class Comparison(Model):
    jobs: int
    figures: list[PolicyFigures]
    note: str = ""


class Login(Model):
    """A token is exchanged for a cookie, once."""

    token: Annotated[str, Field(min_length=1, max_length=512)]


class You(Model):
    user: str
    team: str
    role: Role


class Info(Model):
    version: str
    started: float
    policy: str
    backend: str
    you: You


class TeamIn(Model):
    name: Name
    quota: Annotated[int | None, Field(ge=0, le=1_000_000)] = None  # devices; None: no limit
    borrow: bool = True  # may use idle devices above its quota, and gives them back when others need theirs


class UserIn(Model):
    name: Name
    team: Name
    role: Role = "user"


class TokenIn(Model):
    user: Name
    note: Annotated[str, Field(max_length=200)] = ""
    days: Annotated[float | None, Field(gt=0, le=3650)] = None


class TokenView(Model):
    id: str
    user: str
    note: str
    made: float
    expires: float | None
    revoked: float | None
    used: float | None


class NewToken(TokenView):
    token: str  # shown this once


class Snapshot(Model):
    snapshot: str  # its sha256, by which a job names it


class AuditView(Model):
    time: float
    user: str
    action: str
    target: str
    ok: bool
    address: str
    detail: str = ""


PlanView.model_rebuild()
