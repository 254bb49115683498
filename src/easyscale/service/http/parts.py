"""What the paths share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from easyscale.service.http.hub import Hub
from easyscale.service.http.limits import Buckets
from easyscale.service.http.rights import Rights
from easyscale.service.http.settings import Settings
from easyscale.service.metrics import Metrics
from easyscale.service.models import Problem
from easyscale.service.ports import Desk, PeoplePort

API = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    desk: Desk
    people: PeoplePort
    settings: Settings
    metrics: Metrics
    rights: Rights
    hub: Hub
    failures: Buckets  # logins and tokens that were wrong, by address


REASONS = {
    400: "A mistake in what was asked",
    401: "No token, or one that is not valid",
    403: "Not allowed",
    404: "There is no such thing",
    405: "Not this method",
    408: "The body came too slowly",
    409: "It does not fit the present state",
    413: "Too large",
    422: "A field is wrong",
    429: "Too many requests",
    500: "A mistake in the service",
    503: "Not ready",
}
ALWAYS = (400, 401, 403, 408, 413, 422, 429, 500, 503)


def problems(*also: int, open: bool = False) -> dict[int | str, dict[str, Any]]:
    """The refusals that a path may answer with, for its schema."""
    codes = sorted(({*ALWAYS} - ({401} if open else set())) | {*also})
    return {code: {"model": Problem, "description": REASONS[code]} for code in codes}
