"""Records as they happen, as server-sent events. A client that comes back says what it had and misses nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import FastAPI, Header, Query, Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send

from easyscale.service.http.jobs import MOST
from easyscale.service.http.limits import too_often
from easyscale.service.http.parts import API, Parts, problems
from easyscale.service.http.rights import Anyone, may_see
from easyscale.service.models import Model, Problem
from easyscale.service.ports import Person

LastId = Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^\s*[0-9]{0,16}\s*$")]
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
ENDED = Problem(
    what="The stream has ended.", why="the token is no longer valid.", now="log in again with another token."
)


class StreamAsked(Model):
    """Records above `after`; only new ones unless told. `job`: only that one's."""

    after: Annotated[int | None, Field(ge=0, le=MOST)] = None
    job: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] = None


def add_stream(app: FastAPI, parts: Parts) -> None:
    text = {"type": "string"}
    event = {"type": "object", "properties": {"id": text, "event": text, "data": text}}
    events = {"text/event-stream": {"schema": event}}
    shape = {"description": "Events `record`, with the seq as id", "content": events}

    @app.get(f"{API}/stream", response_class=Response, responses={200: shape, **problems(404)}, tags=["records"])
    async def stream(
        who: Anyone, request: Request, asked: Annotated[StreamAsked, Query()], last_event_id: LastId = None
    ) -> Response:
        if asked.job is not None:
            await asyncio.to_thread(parts.rights.check, who, asked.job)
        if parts.hub.open.get(who.user, 0) >= parts.settings.streams:
            raise too_often(5.0, f"{who.user} has {parts.settings.streams} event streams open.")
        await parts.hub.start()
        seen = (last_event_id or "").strip()
        after = int(seen) if seen else asked.after
        start = parts.hub.last if after is None else min(after, parts.hub.last)
        return EventStream(parts, who, request.state.token, start, asked.job)


class EventStream(Response):
    """Nothing is kept for a slow client but the page that is being sent: what it has not taken is in the log."""

    def __init__(self, parts: Parts, who: Person, token: str, after: int, job: str | None) -> None:
        super().__init__()
        self._parts, self._who, self._token, self._after, self._job = parts, who, token, after, job
        self._settings, self._hub = parts.settings, parts.hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user, streams = self._who.user, self._hub.open
        streams[user] = streams.get(user, 0) + 1
        self._parts.metrics.streams += 1
        tasks = [asyncio.ensure_future(_left(receive)), asyncio.ensure_future(self._pump(send))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except TimeoutError:
            pass  # it took nothing for too long: dropped, and may come back with the id that it had
        finally:
            for task in tasks:
                task.cancel()
            self._parts.metrics.streams -= 1
            streams[user] -= 1
            if not streams[user]:
                del streams[user]

    async def _pump(self, send: Send) -> None:
        async def put(text: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": text, "more_body": more}
            await asyncio.wait_for(send(message), self._settings.stall_seconds)

        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await put(f"retry: 2000\n: from {self._after}\n\n".encode())
        end = time.monotonic() + self._settings.stream_seconds
        check = time.monotonic() + self._settings.heartbeat
        while not self._hub.closed and (now := time.monotonic()) < end:
            if now >= check:
                check = now + self._settings.heartbeat
                if not await self._still_known():
                    await put(f"event: end\ndata: {ENDED.model_dump_json()}\n\n".encode())
                    break
                await put(b": \n\n")
            text = await self._next()
            if text:
                await put(text)
            await self._hub.wait(self._after, max(0.0, min(check, end) - time.monotonic()))
        await put(b"", False)

    async def _next(self) -> bytes:
        """The next page of events that this person may see."""
        items = await self._hub.read(self._after)
        if not items:
            return b""
        self._after = items[-1].seq
        return b"".join(
            b"id: %d\nevent: record\ndata: %b\n\n" % (item.seq, item.text)
            for item in items
            if may_see(self._who, item.team) and self._job in (None, item.job)
        )

    async def _still_known(self) -> bool:
        person = await asyncio.to_thread(self._parts.people.authenticate, self._token)
        if person is None or person.user != self._who.user:
            return False
        self._who = person  # the team or the role may have changed
        if self._job is not None:
            return may_see(person, await asyncio.to_thread(self._parts.rights.team, self._job))
        return True


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
