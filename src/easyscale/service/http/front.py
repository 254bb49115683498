"""Around everything: headers for safety, one line in the log, figures, the audit, and no traceback to a client."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from easyscale.service.http.clean import clean
from easyscale.service.http.gate import SAFE
from easyscale.service.http.limits import Buckets, neighbourhood
from easyscale.service.http.logs import Line, write
from easyscale.service.http.parts import API, Parts
from easyscale.service.http.problems import crashed
from easyscale.service.ports import Person

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HARMLESS = ("what_if",)  # POST, but nothing changes
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
log = logging.getLogger("easyscale.http")


class Front:
    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts
        a_minute = parts.settings.audit_refusals
        self._refusals = Buckets(a_minute / 60.0, a_minute, parts.settings.table)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        scope.setdefault("state", {})["address"] = client[0] if client else "local"
        status = 0
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _harden(scope, MutableHeaders(scope=message))
                await self._audit(scope, status)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except (ClientDisconnect, ConnectionError):
            status = status or 499
        except Exception as error:
            response = crashed(scope, error)
            if status == 0:
                await response(scope, receive, sending)
        finally:
            self._note(scope, status or 499, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "")
        method = scope["method"] if scope["method"] in METHODS else "other"
        stream = route == f"{API}/stream" and status == 200
        self._parts.metrics.requested(method, route or "(none)", status, None if stream else seconds)
        person = scope["state"].get("person")
        line = Line(
            method=method,
            route=route or clean(scope["path"], 200),
            status=status,
            ms=round(seconds * 1000, 2),
            user=person.user if isinstance(person, Person) else "",
            address=scope["state"]["address"],
        )
        write(line)

    async def _audit(self, scope: Scope, status: int) -> None:
        """All that may change something, done or not, and all that was not allowed."""
        refused = status in (401, 403, 429)
        name = getattr(scope.get("route"), "name", "")
        change = scope["method"] not in SAFE and name and name not in HARMLESS
        if not refused and not change:
            return
        state = scope["state"]
        person = state.get("person")
        user = person.user if isinstance(person, Person) else ""
        if (not user or status == 429) and self._refusals.take(neighbourhood(state["address"])):
            return  # a flood of refusals is not to flood the audit
        detail = "" if status < 400 else f"{status} {state.get('problem', '')}"
        target = state.get("target") or " ".join(str(part) for part in scope.get("path_params", {}).values())
        entry = (user, name or clean(f"{scope['method']} {scope['path']}", 100), clean(target, 500))
        rest = {"ok": status < 400, "address": state["address"], "detail": clean(detail, 500)}
        try:
            await asyncio.to_thread(self._parts.people.audit, *entry, **rest)
        except Exception:
            log.exception("the audit could not be written: %s %s", entry, rest)


def _harden(scope: Scope, headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/") or scope["path"] == "/metrics":
        headers["Cache-Control"] = "no-store"
    else:
        headers.setdefault("Cache-Control", "no-cache")
