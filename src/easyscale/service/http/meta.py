"""About the service itself: health, figures, the API's description, the dashboard's files."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from easyscale.service.http.parts import API, Parts, problems
from easyscale.service.http.problems import answer
from easyscale.service.http.reference import CSS, EMPTY, page
from easyscale.service.http.rights import Anyone
from easyscale.service.metrics import TYPE
from easyscale.service.models import Info, Problem, You
from easyscale.service.version import installed

SUFFIXES = frozenset({".html", ".css", ".js", ".svg", ".png", ".ico", ".json", ".woff2", ".txt", ".webmanifest"})
TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def add_meta(app: FastAPI, parts: Parts) -> None:
    _add_health(app, parts)
    _add_reference(app)
    _add_page(app, parts.settings.page)


def _add_health(app: FastAPI, parts: Parts) -> None:
    desk = parts.desk

    @app.get("/healthz", response_class=PlainTextResponse, responses=_open(), tags=["service"])
    async def healthz() -> str:
        """The process answers."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses=_open(), tags=["service"])
    def readyz(request: Request) -> Response:
        """It can take and run jobs."""
        wrong = desk.ready()
        if wrong is None:
            return PlainTextResponse("ok\n")
        return answer(request.scope, 503, Problem(what=wrong, why="", now="see the service's log."))

    @app.get("/metrics", response_class=PlainTextResponse, responses={200: TEXT, **problems()}, tags=["service"])
    def metrics() -> Response:
        """Figures in Prometheus' text format."""
        return Response(parts.metrics.text(desk), headers={"Content-Type": TYPE})

    @app.get(f"{API}/info", responses=problems(), tags=["service"])
    def info(who: Anyone) -> Info:
        return Info(
            version=installed(),
            started=desk.started,
            policy=desk.policy,
            backend=desk.backend,
            you=You(user=who.user, team=who.team, role=who.role),
        )


def _open() -> dict[int | str, dict[str, Any]]:
    return {200: TEXT, **problems(open=True)}


def _add_reference(app: FastAPI) -> None:
    """FastAPI's own page loads scripts from elsewhere; this one needs nothing but this service."""

    @app.get(f"{API}/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return app.openapi()

    @app.get(f"{API}/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    @app.get(f"{API}/docs.css", include_in_schema=False)
    def docs_css() -> Response:
        return Response(CSS, media_type="text/css")


def _add_page(app: FastAPI, folder: Path) -> None:
    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        found = _file(folder, "index.html", request)
        return found or HTMLResponse(EMPTY)

    @app.get("/static/{path:path}", include_in_schema=False)
    def static(path: str, request: Request) -> Response:
        found = _file(folder, path, request)
        if found is None:
            raise HTTPException(404)
        return found


def _file(folder: Path, name: str, request: Request) -> Response | None:
    """Only files in the folder, and only such as a page is made of."""
    if "\x00" in name or len(name) > 300:
        return None
    root = folder.resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root) or path.suffix not in SUFFIXES or not path.is_file():
        return None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    file = FileResponse(path, media_type="text/javascript" if path.suffix == ".js" else kind, stat_result=path.stat())
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers={"ETag": file.headers["etag"]})
    return file
