"""Which service works on a data directory: a file with its process, told apart from a later one with that number."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from easyscale.master.files import fold, is_alive, process_start, read_json, write_json

FILE = "service.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    pid: int
    started: str
    url: str


def announce(data_dir: Path, url: str) -> None:
    """This process is the service of that directory."""
    started = process_start(os.getpid())
    assert started is not None
    write_json(data_dir / FILE, asdict(Presence(pid=os.getpid(), started=started, url=url)))


def withdraw(data_dir: Path) -> None:
    """It leaves. The file of another process stays."""
    found = fold(Presence, read_json(data_dir / FILE))
    if found is not None and found.pid == os.getpid():
        (data_dir / FILE).unlink(missing_ok=True)


def present(data_dir: Path) -> Presence | None:
    """The service that runs there; None: none does, or it was killed."""
    found = fold(Presence, read_json(data_dir / FILE))
    return found if found is not None and is_alive(found.pid, found.started) else None
