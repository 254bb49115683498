"""Whether a process lives is asked where it runs, and never of another process that has its number here."""

from __future__ import annotations

import os

import pytest

from easyscale.backends.apart import process_start
from easyscale.backends.lives import KEPT_VARIABLE, is_alive, own_start
from easyscale.master.census import processes_of


def test_the_number_of_a_worker_on_another_machine_is_nobody_here() -> None:
    """0 is the group and the session of the kernel's own processes: to count from there would end the machine."""
    assert processes_of({0}) == set()
    assert not is_alive(0, "")


def test_a_process_elsewhere_is_not_looked_for_by_its_pid() -> None:
    mine = process_start(os.getpid()) or ""
    assert is_alive(os.getpid(), mine)
    assert not is_alive(os.getpid(), f"ray:127.0.0.1:1/{mine}"), "a cluster that is not there has no living process"


def test_a_master_that_is_kept_elsewhere_is_found_by_that_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_start() == process_start(os.getpid())
    monkeypatch.setenv(KEPT_VARIABLE, "ray:10.0.0.1:6379/job/master")
    assert own_start() == "ray:10.0.0.1:6379/job/master"
