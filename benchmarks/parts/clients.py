"""Clients that cost little: what is measured is the service, and there are hundreds of them in one process."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

API = "/api/v1"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
NEXT_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
TIME = re.compile(rb'"time":([0-9.e+]+)')


@dataclass
class Caller:
    """One connection that is kept, one question at a time."""

    url: str
    token: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body. Asked again once on a new connection if the old one had been closed."""
        for last in (self._streams is None, True):
            try:
                return await self._ask(path, body)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if last:
                    raise
        raise AssertionError

    async def _ask(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        if self._streams is None:
            self._streams = await asyncio.open_connection(host, int(port), limit=2**22)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{'GET' if body is None else 'POST'} {API}{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer "
            f"{self.token}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        assert length is not None, head
        return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Listener:
    """One event stream. `seqs`: the numbers of the records; `delays`: seconds from a record to its event."""

    url: str
    token: str
    after: int
    seqs: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    async def listen(self) -> None:
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
        writer.write(
            f"GET {API}/stream?after={self.after} HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {self.token}\r\n\r\n".encode()
        )
        try:
            first = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in first.split(b"\r\n", 1)[0], first
            rest = b""
            while part := await reader.read(2**20):
                whole, mark, rest = (rest + part).rpartition(b"\n\n")
                self.seqs += map(int, NEXT_ID.findall(whole))
                if mark and (times := TIME.findall(whole)):
                    self.delays.append(time.time() - float(times[-1]))
        finally:
            writer.close()
