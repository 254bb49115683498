"""The app: the paths, and what stands before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from easyscale.service.http.body import Body
from easyscale.service.http.cluster import add_cluster
from easyscale.service.http.front import Front
from easyscale.service.http.gate import OPEN, Gate
from easyscale.service.http.hub import Hub
from easyscale.service.http.jobs import add_jobs
from easyscale.service.http.limits import Buckets
from easyscale.service.http.meta import add_meta
from easyscale.service.http.parts import Parts
from easyscale.service.http.people import add_people
from easyscale.service.http.problems import handle_problems
from easyscale.service.http.rights import Rights
from easyscale.service.http.settings import Settings
from easyscale.service.http.stream import add_stream
from easyscale.service.metrics import Metrics
from easyscale.service.ports import Desk, PeoplePort
from easyscale.service.version import installed

ABOUT = "Elastic PyTorch training: jobs, devices, people. Times are seconds since the epoch."


def make_app(desk: Desk, people: PeoplePort, settings: Settings, metrics: Metrics | None = None) -> FastAPI:
    """`metrics`: the object that the live scheduler tells what happens; one of its own unless given."""
    rights = Rights(desk)
    parts = Parts(
        desk=desk,
        people=people,
        settings=settings,
        metrics=metrics or Metrics(),
        rights=rights,
        hub=Hub(desk, rights, settings.recent),
        failures=Buckets(1.0 / settings.login_seconds, settings.login_failures, settings.table),
    )

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        parts.hub.close()

    app = FastAPI(
        title="EasyScale",
        version=installed(),
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=life,
        generate_unique_id_function=_name,
    )
    app.state.close = parts.hub.close  # ends the event streams, which would keep the server from leaving
    for add in (add_jobs, add_cluster, add_people, add_stream, add_meta):
        add(app, parts)
    handle_problems(app)
    app.add_middleware(Body, parts=parts)
    app.add_middleware(Gate, parts=parts)
    app.add_middleware(Front, parts=parts)  # the last added is the outermost
    _describe(app, settings)
    return app


def _name(route: APIRoute) -> str:
    return route.name


def _describe(app: FastAPI, settings: Settings) -> None:
    """The schema, with how one proves who one is."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
            schema["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": settings.cookie},
            }
            for path, methods in schema["paths"].items():
                for operation in methods.values():
                    if path not in OPEN and path not in ("/healthz", "/readyz"):
                        operation["security"] = [{"token": []}, {"cookie": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
