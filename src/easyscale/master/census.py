"""The processes of a job's workers: counted, and ended together. From /proc; where there is none, nobody is found."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

ROUNDS = 100  # looks for those that were born since the last one; each round leaves fewer that can fork


def processes_of(roots: Collection[int]) -> set[int]:
    """All that live in the sessions and groups of these processes, with all their descendants."""
    roots = {root for root in roots if root > 0}  # 0: on another machine, where nobody here can count
    found, children = set(), dict[int, list[int]]()
    for pid, parent, group, session in _table():
        children.setdefault(parent, []).append(pid)
        if pid in roots or group in roots or session in roots:
            found.add(pid)
    todo = list(found)
    while todo:
        born = [child for child in children.get(todo.pop(), ()) if child not in found]
        found.update(born)
        todo += born
    return found - {1, os.getpid()}


def end_all(roots: Collection[int]) -> None:
    """Stop them all first, so that none can fork while the others are found; then kill."""
    found: set[int] = set()
    for _ in range(ROUNDS):
        new = processes_of({*roots, *found}) - found
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        found |= new
    _signal(found, signal.SIGKILL)


def _signal(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _table() -> list[tuple[int, int, int, int]]:
    """(pid, parent, group, session) of every living process."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    # The name in the second field may hold anything, brackets and spaces included.
                    state, parent, group, session = (
                        Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split(maxsplit=4)[:4]
                    )
                    if state not in (b"Z", b"X"):
                        found.append((int(name), int(parent), int(group), int(session)))
    return found
