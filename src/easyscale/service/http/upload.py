"""An upload goes to a file as it comes, never into memory."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import tempfile
from pathlib import Path
from typing import IO, Any

from fastapi import Request

from easyscale.core.errors import UsageError
from easyscale.service.errors import StoreError
from easyscale.service.http.limits import too_often
from easyscale.service.http.settings import Settings
from easyscale.service.models import Snapshot
from easyscale.service.ports import Desk, Person

PIECE = 2**20  # bytes that are written at a time


class Uploads:
    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk, self._settings = desk, settings
        self._running = 0

    async def take(self, request: Request, who: Person) -> Snapshot:
        if self._running >= self._settings.uploads:
            raise too_often(5.0, f"{self._running} uploads run already.")
        self._running += 1
        try:
            return await self._take(request, who)
        except OSError as error:
            raise _no_room(error) from error
        finally:
            self._running -= 1

    async def _take(self, request: Request, who: Person) -> Snapshot:
        with tempfile.NamedTemporaryFile(dir=self._settings.spool, prefix="upload-", suffix=".tar.gz") as file:
            digest = await _spool(request, file)
            if file.tell() == 0:
                raise UsageError("The upload is empty.", "no byte came.", "send a tar.gz as the body.")
            name = await asyncio.to_thread(self._desk.snapshot, Path(file.name), who)
        if name != digest:
            raise StoreError(
                "The upload was not taken in.", "it changed on the way to the disk.", "send it again; check the disk."
            )
        return Snapshot(snapshot=name)


async def _spool(request: Request, file: IO[Any]) -> str:
    digest = hashlib.sha256()

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    piece = bytearray()
    async for chunk in request.stream():
        piece += chunk
        if len(piece) >= PIECE:
            await asyncio.to_thread(put, bytes(piece))
            piece.clear()
    await asyncio.to_thread(put, bytes(piece))
    await asyncio.to_thread(file.flush)
    return digest.hexdigest()


def _no_room(error: OSError) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk of the service is full." if full else f"the disk of the service failed: {error.strerror}."
    return StoreError("The upload was not taken in.", why, "free some space there, then send it again.")
