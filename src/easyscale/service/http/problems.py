"""Every refusal is a `Problem`: what happened, why, what to do now. No traceback of ours reaches a client."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from easyscale.core.errors import EasyScaleError
from easyscale.service.errors import ConflictError, ForbiddenError, KeyUsedError, NotFoundError, StoreError
from easyscale.service.http.clean import clean
from easyscale.service.http.mistakes import explain
from easyscale.service.models import Problem

log = logging.getLogger("easyscale.http")

STATUS: tuple[tuple[type[EasyScaleError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (KeyUsedError, 409),
    (ForbiddenError, 403),
    (StoreError, 503),
)
SAID = {
    404: ("There is nothing at this address.", "no path is called so.", "see /api/v1/docs for the paths."),
    405: ("This address does not take this method.", "", "see /api/v1/docs for the paths and their methods."),
}


class RefusedError(EasyScaleError):
    """A refusal that only HTTP knows of: no token, too much, too often."""

    def __init__(
        self, status: int, what: str, why: str = "", now: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(what, why, now)
        self.status, self.headers = status, dict(headers or {})


def answer(scope: Scope, status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The response; the sentence is also kept for the audit."""
    scope.setdefault("state", {})["problem"] = problem.what
    return Response(problem.model_dump_json(), status, dict(headers or {}), "application/json")


def refused(scope: Scope, error: EasyScaleError) -> Response:
    """The response to an error of ours."""
    problem = Problem(what=clean(error.what), why=clean(error.why), now=clean(error.now))
    if isinstance(error, RefusedError):
        return answer(scope, error.status, problem, error.headers)
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 400)
    return answer(scope, status, problem)


def crashed(scope: Scope, error: BaseException) -> Response:
    """The response to a mistake of ours: it is logged with an id, and the id is all that a client sees."""
    mark = secrets.token_hex(6)
    log.error("unexpected error %s", mark, exc_info=error)
    problem = Problem(
        what=f"The service failed to answer (error {mark}).",
        why="of a mistake in the service.",
        now=f"look for {mark} in the service's log, and report it.",
    )
    return answer(scope, 500, problem)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, EasyScaleError)
    return refused(request.scope, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer(request.scope, 422, explain(error, request.scope))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what, why, now = SAID.get(error.status_code, ("", "", ""))
    if not what:
        what = f"{HTTPStatus(error.status_code).phrase}." if error.status_code != 400 else "The body cannot be read."
        why, now = clean(str(error.detail)), "send a body as /api/v1/docs describes it."
    return answer(request.scope, error.status_code, Problem(what=what, why=why, now=now), error.headers)


def handle_problems(app: FastAPI) -> None:
    app.add_exception_handler(EasyScaleError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
