"""Groups of one plan after the other in a process, and what a fork of it may do to them."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest

from easyscale.runtime import group
from easyscale.runtime.group import Group, Meeting

SECONDS = 30.0


def meet(rendezvous: Path, rank: int) -> Group:
    return Group(Meeting(rendezvous=str(rendezvous), timeout=SECONDS, patience=SECONDS), rank, 2)


def in_fork(action: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended_well(pid: int) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


def leave_a_group_to_the_collector(rendezvous: Path) -> None:
    """As a switch does: nobody uses the group any more, and something that refers to itself still knows it."""
    knows: list[Any] = []
    knows += [knows, meet(rendezvous, 0)]


def collects(folder: Path) -> None:
    """A worker: it left a group behind, then starts a loader process whose garbage collector runs."""
    gc.disable()
    leave_a_group_to_the_collector(folder / "meeting")
    try:
        assert ended_well(in_fork(gc.collect))
    finally:
        (folder / "over").touch()


def is_there(folder: Path) -> None:
    """Its peer: stays until it is over."""
    group = meet(folder / "meeting", 1)
    deadline = time.monotonic() + 2 * SECONDS
    while not (folder / "over").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group.workers == 2


def test_a_fork_does_not_destroy_the_groups_of_its_parent(tmp_path: Path) -> None:
    worker, peer = in_fork(lambda: collects(tmp_path)), in_fork(lambda: is_there(tmp_path))
    assert (ended_well(worker), ended_well(peer)) == (True, True)


def test_without_that_it_would_never_end_or_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the destructor waits for threads that are not there."""
    monkeypatch.setattr(group, "_keep_from_forks", lambda: None)
    monkeypatch.setitem(globals(), "SECONDS", 3.0)
    worker, peer = in_fork(lambda: collects(tmp_path)), in_fork(lambda: is_there(tmp_path))
    monkeypatch.setitem(globals(), "SECONDS", 30.0)
    assert (ended_well(worker), ended_well(peer)) == (False, True)
