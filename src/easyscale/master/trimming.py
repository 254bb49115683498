"""Logs that stay short: the oldest part of a long one is dropped, and places in it still count from its first byte.

A worker appends to its log at any time, so the newest part is copied to the front and the file is cut behind it; what
is written in the moment between is lost, nothing is mixed up. How much was dropped so far is in a small file beside it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of a log. `start`: where it begins, counted from the first byte that was ever written; `next` its end."""

    data: bytes
    start: int
    next: int


def dropped(path: Path) -> int:
    """How many bytes of a log are gone."""
    with contextlib.suppress(OSError, ValueError):
        return int(_beside(path).read_text())
    return 0


def end_of(path: Path) -> int:
    """How many bytes were ever written to a log."""
    with contextlib.suppress(OSError):
        return dropped(path) + path.stat().st_size
    return 0


def read_part(path: Path, start: int, most: int) -> Part:
    """From `start` on, or from the oldest byte that is left. Nothing there: no bytes."""
    gone = dropped(path)
    start = max(start, gone)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Part(data=b"", start=start, next=start)
    try:
        data = os.pread(file, most, start - gone)
    finally:
        os.close(file)
    return Part(data=data, start=start, next=start + len(data))


def trim(path: Path, most: int) -> bool:
    """Of a log that is longer than `most` bytes, about half of that is left, from the beginning of a line on."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # not for appending: that would decide where we write
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        if size <= most:
            return False
        cut = size - most // 2
        cut += os.pread(file, _CHUNK, cut).find(b"\n") + 1
        kept = 0
        while kept < most and (data := os.pread(file, _CHUNK, cut + kept)):
            kept += os.pwrite(file, data, kept)
        os.ftruncate(file, kept)
        _note(path, dropped(path) + cut)
        return True
    finally:
        os.close(file)


def _note(path: Path, count: int) -> None:
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(OSError):  # a full disk costs some lines told twice, at worst
        part.write_text(str(count))
        part.chmod(0o600)
        part.replace(_beside(path))


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.dropped")
