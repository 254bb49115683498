"""New records are read once and kept a while for all event streams. Who is further behind reads from the log."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from easyscale.core.errors import EasyScaleError
from easyscale.service.http.rights import Rights
from easyscale.service.models import RecordView
from easyscale.service.ports import Desk

PAGE = 500  # records read at a time
PAUSE = 0.02  # seconds: records that come close together are read together
log = logging.getLogger("easyscale.http")


@dataclass(frozen=True, slots=True)
class Item:
    """A record, ready to be sent."""

    seq: int
    job: str | None
    team: str | None  # None: of no job
    text: bytes


class Hub:
    """All but `_woken` runs in the event loop."""

    def __init__(self, desk: Desk, rights: Rights, recent: int) -> None:
        self._desk, self._rights = desk, rights
        self._ring: deque[Item] = deque(maxlen=recent)
        self._floor = 0  # all records above this one, up to `last`, are in the ring
        self.last = 0
        self.closed = False
        self.open: dict[str, int] = {}  # streams of each user
        self._news = asyncio.Event()
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._pending = False

    async def start(self) -> None:
        """Called by each stream; the first one subscribes."""
        async with self._starting:
            if self._loop is not None:
                return
            page = await asyncio.to_thread(self._desk.records, 0, 1, None, True)
            self._floor = self.last = page.last
            self._loop = asyncio.get_running_loop()
            self._unsubscribe = self._desk.subscribe(self._woken)
            self._kick()  # for what was written meanwhile

    def close(self) -> None:
        """All streams end."""
        self.closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._pulling is not None:
            self._pulling.cancel()
        self._tell()

    async def wait(self, after: int, seconds: float) -> None:
        """Until there is a record above `after`, or the time is over."""
        news = self._news
        if self.closed or self.last > after:
            return
        try:
            await asyncio.wait_for(news.wait(), seconds)
        except TimeoutError:
            return

    async def read(self, after: int) -> list[Item]:
        """The next records above `after`, a page at most."""
        if after >= self._floor:
            found: list[Item] = []
            for item in reversed(self._ring):
                if item.seq <= after:
                    break
                found.append(item)
            return found[: -PAGE - 1 : -1]
        return await asyncio.to_thread(self._page, after)

    def _woken(self) -> None:
        """From any thread, after each record."""
        if not self._pending and self._loop is not None and not self.closed:
            self._pending = True
            try:
                self._loop.call_soon_threadsafe(self._kick)
            except RuntimeError:  # the loop is closed: the service ends
                self._pending = False

    def _kick(self) -> None:
        if not self.closed and (self._pulling is None or self._pulling.done()):
            self._pulling = asyncio.get_running_loop().create_task(self._pull())

    async def _pull(self) -> None:
        while not self.closed:
            self._pending = False  # what comes from now on wakes again
            try:
                items = await asyncio.to_thread(self._page, self.last)
            except Exception:
                log.exception("new records could not be read")
                await asyncio.sleep(1.0)
                continue
            for item in items:
                if len(self._ring) == self._ring.maxlen:
                    self._floor = self._ring[0].seq
                self._ring.append(item)
                self.last = item.seq
            if items:
                self._tell()
            await asyncio.sleep(PAUSE)
            if not items and not self._pending:
                return

    def _page(self, after: int) -> list[Item]:
        page = self._desk.records(after, PAGE)
        return [
            Item(record.seq, record.job, self._team(record), record.model_dump_json().encode())
            for record in page.records
        ]

    def _team(self, record: RecordView) -> str | None:
        try:
            return self._rights.team_of(record)
        except EasyScaleError:
            return ""  # of a job that nobody knows: for admins only

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
