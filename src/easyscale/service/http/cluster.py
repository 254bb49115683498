"""The cluster: devices, the timeline, lending and calling back, what another policy would do, uploads of code."""

from __future__ import annotations

import time
from threading import BoundedSemaphore
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request
from pydantic import Field

from easyscale.core.errors import UsageError
from easyscale.service.http.limits import too_often
from easyscale.service.http.parts import API, Parts, problems
from easyscale.service.http.rights import Admin, Anyone, Changer
from easyscale.service.http.upload import Uploads
from easyscale.service.models import ClusterView, Comparison, Lend, Model, Snapshot, Timeline, WhatIf

DeviceId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
Moment = Annotated[float | None, Field(ge=0, le=1e11, allow_inf_nan=False)]


class TimelineAsked(Model):
    """Seconds since the epoch; the last hour unless told."""

    since: Moment = None
    until: Moment = None


def add_cluster(app: FastAPI, parts: Parts) -> None:
    _add_views(app, parts)
    _add_devices(app, parts)
    _add_serving(app, parts)
    _add_snapshots(app, parts)


def _add_views(app: FastAPI, parts: Parts) -> None:
    desk = parts.desk
    turn = BoundedSemaphore(parts.settings.what_ifs)

    @app.get(f"{API}/cluster", responses=problems(), tags=["cluster"])
    def cluster(who: Anyone) -> ClusterView:
        return desk.cluster()

    @app.get(f"{API}/timeline", responses=problems(), tags=["cluster"])
    def timeline(who: Anyone, asked: Annotated[TimelineAsked, Query()]) -> Timeline:
        """Which job held which device, and when."""
        until = time.time() if asked.until is None else asked.until
        since = max(0.0, until - 3600.0) if asked.since is None else asked.since
        if since > until:
            raise UsageError("The timeline cannot be shown.", "since is after until.", "swap them.")
        return desk.timeline(since, until)

    @app.post(f"{API}/what-if", responses=problems(404, 409), tags=["cluster"])
    def what_if(who: Anyone, wish: WhatIf) -> Comparison:
        """The simulator runs the present queue under other policies."""
        if not turn.acquire(blocking=False):
            raise too_often(5.0, f"{parts.settings.what_ifs} comparisons run already.")
        try:
            return desk.what_if(wish.policies)
        finally:
            turn.release()


def _add_devices(app: FastAPI, parts: Parts) -> None:
    desk = parts.desk

    @app.post(f"{API}/devices/{{device}}/drain", responses=problems(404, 409), tags=["devices"])
    def drain(who: Admin, device: DeviceId) -> ClusterView:
        """No new work for it; what runs there moves away."""
        return desk.drain(device, who)

    @app.post(f"{API}/devices/{{device}}/undrain", responses=problems(404, 409), tags=["devices"])
    def undrain(who: Admin, device: DeviceId) -> ClusterView:
        return desk.undrain(device, who)

    @app.post(f"{API}/devices/{{device}}/lost", responses=problems(404, 409), tags=["devices"])
    def lost(who: Admin, device: DeviceId, why: Annotated[str, Query(max_length=500)] = "") -> ClusterView:
        """It is broken or gone: nobody is to use it, at once."""
        return desk.lose(device, why or f"{who.user} said so", who)


def _add_serving(app: FastAPI, parts: Parts) -> None:
    desk = parts.desk

    @app.post(f"{API}/serving/lend", responses=problems(404, 409), tags=["serving"])
    def lend(who: Admin, wish: Lend) -> ClusterView:
        """A serving system lends devices to training."""
        return desk.lend(wish, who)

    @app.post(f"{API}/serving/call-back", responses=problems(404, 409), tags=["serving"])
    def call_back(who: Admin, wish: Lend) -> ClusterView:
        """It wants them back; training leaves within `within` seconds."""
        return desk.call_back(wish, who)


def _add_snapshots(app: FastAPI, parts: Parts) -> None:
    uploads = Uploads(parts.desk, parts.settings)
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    archive = {"requestBody": {"required": True, "content": content}}

    @app.post(f"{API}/snapshots", status_code=201, responses=problems(409), openapi_extra=archive, tags=["jobs"])
    async def snapshot(who: Changer, request: Request) -> Snapshot:
        """Upload a working directory as tar.gz. A job names it by its sha256."""
        done = await uploads.take(request, who)
        request.state.target = done.snapshot
        return done
