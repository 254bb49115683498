"""Before anything else: is the host ours, who asks, how often, and was a change meant by who sent it."""

from __future__ import annotations

import asyncio
import hashlib
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from easyscale.core.errors import EasyScaleError
from easyscale.service.http.clean import clean
from easyscale.service.http.limits import Buckets, neighbourhood, too_often
from easyscale.service.http.parts import API, Parts
from easyscale.service.http.problems import RefusedError, refused
from easyscale.service.ports import Person

OPEN = frozenset({f"{API}/login", f"{API}/openapi.json", f"{API}/docs", f"{API}/docs.css"})
SAFE = ("GET", "HEAD", "OPTIONS")


class Gate:
    """Puts `person`, `token` and `address` into the state of what may pass."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts
        settings = parts.settings
        self._hosts = settings.hosts
        self._open_metrics = settings.open_metrics and settings.loopback
        self._rate = Buckets(settings.rate, settings.burst, settings.table)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._admit(scope, Headers(scope=scope))
            except EasyScaleError as error:  # a refusal, or a store that does not answer
                await refused(scope, error)(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, headers: Headers) -> None:
        state = scope.setdefault("state", {})
        self._check_host(headers.get("host", ""))
        address = neighbourhood(state["address"])
        if not self._needs_token(scope["path"]):
            self._count(f"address {address}")
            if scope["path"] == f"{API}/login":
                _check_sender(headers)
            return
        token, by_cookie = credentials(headers, self._parts.settings.cookie)
        if token is None:
            self._count(f"address {address}")
            raise unknown_person("no token was sent.")
        state["person"] = person = await self._person(token, address)
        self._count(f"token {hashlib.sha256(token.encode()).hexdigest()}")
        state["token"] = token
        if by_cookie and scope["method"] not in SAFE:
            _check_sender(headers)
            if headers.get("x-easyscale") != "1":
                raise RefusedError(
                    403,
                    "This change was not made.",
                    f"it came with the cookie of {person.user} but without the header X-EasyScale: 1, "
                    "so another site may have sent it.",
                    "send the header too, or use a token instead of the cookie.",
                )

    def _needs_token(self, path: str) -> bool:
        if path == "/metrics":
            return not self._open_metrics
        return path.startswith("/api/") and path not in OPEN

    def _count(self, key: str) -> None:
        wait = self._rate.take(key)
        if wait:
            settings = self._parts.settings
            raise too_often(wait, f"{settings.rate:g} a second are answered, {settings.burst} at once.")

    async def _person(self, token: str, address: str) -> Person:
        person = await asyncio.to_thread(self._parts.people.authenticate, token)
        if person is not None:
            return person
        wait = self._parts.failures.take(address)
        if wait:
            raise too_often(wait, "this address has sent too many tokens that are not valid.")
        self._count(f"address {address}")
        raise unknown_person("the token is not valid: it is wrong, revoked or too old.")

    def _check_host(self, host: str) -> None:
        """A page on the web may have its own name resolved to 127.0.0.1; its requests then name that host."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts is not None and name.strip("[]").lower() not in self._hosts:
            raise RefusedError(
                403,
                f"The host {clean(host, 100) or '(none)'} is not served here.",
                "the Host header must name this service, else a page on the web could speak for you.",
                "use localhost or the name that the service was started with; --name adds one.",
            )


def credentials(headers: Headers, cookie: str) -> tuple[str | None, bool]:
    """The token, and whether it came by cookie. The header goes first."""
    given = headers.get("authorization")
    if given is not None:
        scheme, _, token = given.partition(" ")
        return (token.strip() or None) if scheme.lower() == "bearer" else None, False
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(cookie)
    except CookieError:
        return None, False
    return (morsel.value or None, True) if morsel is not None else (None, False)


def unknown_person(why: str) -> RefusedError:
    return RefusedError(
        401,
        "You are not known here.",
        why,
        "send the header Authorization: Bearer TOKEN; an admin makes tokens with `easyscale token add`.",
        {"WWW-Authenticate": "Bearer"},
    )


def _check_sender(headers: Headers) -> None:
    """Browsers say where a request comes from; another site may not log anybody in or change anything."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise RefusedError(
            403, "This was not done.", "another web site sent it.", "do it from the dashboard or the command line."
        )
