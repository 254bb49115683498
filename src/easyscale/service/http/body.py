"""Bodies have a size and a time. A JSON body is read before its path is called; an upload is counted as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from easyscale.service.http.parts import API, Parts
from easyscale.service.http.problems import RefusedError, refused

UPLOADS = (f"{API}/snapshots",)
DRAIN_BYTES = 16 * 2**20  # of a body that is too large are read and dropped, so that the client hears the answer
DRAIN_SECONDS = 5.0


class Gone(Exception):
    """The client closed the connection."""


class Body:
    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._settings = app, parts.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"] in UPLOADS
        most = int(self._settings.snapshot_mb * 2**20) if upload else self._settings.body_kb * 1024
        declared = Headers(scope=scope).get("content-length", "")
        try:
            if declared.isdigit() and (len(declared) > 15 or int(declared) > most):
                raise too_large(most)
            if upload:
                receive = _counted(receive, most, self._settings.body_seconds)
            else:
                receive = _replay(await _read(receive, most, self._settings.body_seconds), receive)
        except RefusedError as error:
            if error.status == 413:
                await _drain(receive)
            await refused(scope, error)(scope, receive, send)
            return
        except Gone:
            return
        await self._app(scope, receive, send)


def too_large(most: int) -> RefusedError:
    size = f"{most / 2**20:g} MiB"
    return RefusedError(
        413, "The body is too large.", f"at most {size} are taken.", "send less.", {"Connection": "close"}
    )


def _too_slow(seconds: float) -> RefusedError:
    return RefusedError(
        408, "The body did not come.", f"{seconds:g} s were waited.", "send it again.", {"Connection": "close"}
    )


async def _read(receive: Receive, most: int, seconds: float) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > most:
                    raise too_large(most)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise _too_slow(seconds) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever comes: the end of the connection."""
    messages: Iterable[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> Message:
        for message in messages:
            return message
        return await receive()

    return again


def _counted(receive: Receive, most: int, seconds: float) -> Receive:
    """What reads it meets a `RefusedError` if it is too much or silent for too long."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        try:
            message = await asyncio.wait_for(receive(), seconds)
        except TimeoutError:
            raise _too_slow(seconds) from None
        size += len(message.get("body", b""))
        if size > most:
            await _drain(receive)
            raise too_large(most)
        return message

    return counted


async def _drain(receive: Receive) -> None:
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
