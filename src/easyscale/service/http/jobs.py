"""Jobs: submit, list, look at, change; their logs, series and records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Path, Query, Request, Response
from pydantic import Field

from easyscale.service.errors import KeyUsedError
from easyscale.service.http.parts import API, Parts, problems
from easyscale.service.http.records import visible
from easyscale.service.http.rights import Anyone, Changer, forbidden
from easyscale.service.models import (
    JobPage,
    JobSpec,
    JobView,
    JobWord,
    LogFile,
    LogPart,
    Model,
    Name,
    RecordPage,
    ScaleWish,
    Series,
    Submitted,
)
from easyscale.service.ports import JobQuery, Order

MOST = 2**53
JobId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Key = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[!-~]{1,200}$")]


class JobsAsked(Model):
    state: Annotated[list[JobWord], Field(max_length=20, default_factory=list)]
    team: Name | None = None
    user: Name | None = None
    text: Annotated[str | None, Field(max_length=200)] = None
    order: Order = "-submitted"
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0, le=MOST)] = 0


class LogAsked(Model):
    run: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # 0: the last one
    worker: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    stream: Literal["out", "err"] = "out"
    start: Annotated[int, Field(ge=0, le=MOST)] = 0
    most: Annotated[int, Field(ge=1, le=2**20)] = 65_536


class RecordsAsked(Model):
    after: Annotated[int, Field(ge=0, le=MOST)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    newest: bool = False


def add_jobs(app: FastAPI, parts: Parts) -> None:
    _add_list(app, parts)
    _add_changes(app, parts)
    _add_views(app, parts)


def _add_list(app: FastAPI, parts: Parts) -> None:
    desk = parts.desk

    @app.get(f"{API}/jobs", responses=problems(), tags=["jobs"])
    def jobs(who: Anyone, asked: Annotated[JobsAsked, Query()]) -> JobPage:
        """A page of the list. Everybody sees the rows of all teams."""
        fields = asked.model_dump(exclude={"state"})
        return desk.jobs(JobQuery(states=tuple(asked.state), **fields))

    again: dict[int | str, dict[str, Any]] = {
        200: {"model": Submitted, "description": "This key was used before; the jobs of then"}
    }

    @app.post(f"{API}/jobs", status_code=201, responses={**problems(409), **again}, tags=["jobs"])
    def submit(
        who: Changer, spec: JobSpec, request: Request, response: Response, idempotency_key: Key = None
    ) -> Submitted:
        """Queue a job, or an array of them. A second call with the same key submits nothing."""
        team = spec.team or who.team
        if who.role != "admin" and team != who.team:
            raise forbidden(f"{who.user} is not in the team {team}.", "leave the team out, or ask an admin.")
        try:
            done = desk.submit(spec, who, idempotency_key)
        except KeyUsedError as error:
            done = Submitted(jobs=error.jobs, new=False)
        request.state.target = " ".join(done.jobs[:20])
        response.status_code = 201 if done.new else 200
        return done


def _add_changes(app: FastAPI, parts: Parts) -> None:
    desk, rights = parts.desk, parts.rights

    @app.post(f"{API}/jobs/{{job}}/scale", responses=problems(404, 409), tags=["jobs"])
    def scale(who: Changer, job: JobId, wish: ScaleWish) -> JobView:
        """Other limits on the number of workers."""
        rights.check(who, job)
        return desk.scale(job, wish, who)

    @app.post(f"{API}/jobs/{{job}}/pause", responses=problems(404, 409), tags=["jobs"])
    def pause(who: Changer, job: JobId) -> JobView:
        """It leaves its devices, with its state kept, until it is resumed."""
        rights.check(who, job)
        return desk.pause(job, who)

    @app.post(f"{API}/jobs/{{job}}/resume", responses=problems(404, 409), tags=["jobs"])
    def resume(who: Changer, job: JobId) -> JobView:
        rights.check(who, job)
        return desk.resume(job, who)

    @app.post(f"{API}/jobs/{{job}}/cancel", responses=problems(404, 409), tags=["jobs"])
    def cancel(who: Changer, job: JobId) -> JobView:
        rights.check(who, job)
        return desk.cancel(job, who)


def _add_views(app: FastAPI, parts: Parts) -> None:
    desk, rights = parts.desk, parts.rights

    @app.get(f"{API}/jobs/{{job}}", responses=problems(404), tags=["jobs"])
    def job(who: Anyone, job: JobId) -> JobView:
        """All of a job, for its team and for admins."""
        rights.check(who, job)
        return desk.job(job)

    @app.get(f"{API}/jobs/{{job}}/logs", responses=problems(404), tags=["jobs"])
    def logs(who: Anyone, job: JobId) -> list[LogFile]:
        """Which outputs there are."""
        rights.check(who, job)
        return desk.logs(job)

    @app.get(f"{API}/jobs/{{job}}/log", responses=problems(404), tags=["jobs"])
    def log(who: Anyone, job: JobId, asked: Annotated[LogAsked, Query()]) -> LogPart:
        """A part of a worker's output. Ask on from `next`."""
        rights.check(who, job)
        run = asked.run or desk.job(job).run
        return desk.log(job, run, asked.worker, asked.stream, asked.start, asked.most)

    @app.get(f"{API}/jobs/{{job}}/series", responses=problems(404), tags=["jobs"])
    def series(who: Anyone, job: JobId, most: Annotated[int, Query(ge=2, le=10_000)] = 1000) -> Series:
        """What it logged, thinned."""
        rights.check(who, job)
        return desk.series(job, most)

    @app.get(f"{API}/jobs/{{job}}/records", responses=problems(404), tags=["records"])
    def job_records(who: Anyone, job: JobId, asked: Annotated[RecordsAsked, Query()]) -> RecordPage:
        """What happened to a job."""
        rights.check(who, job)
        return desk.records(asked.after, asked.limit, job, asked.newest)

    @app.get(f"{API}/records", responses=problems(), tags=["records"])
    def records(who: Anyone, asked: Annotated[RecordsAsked, Query()]) -> RecordPage:
        """What happened, as far as one may see it."""
        return visible(parts, who, asked.after, asked.limit, asked.newest)
