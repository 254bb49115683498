"""Runs as folders and processes of this machine: what is seen of them, and that none begins twice or too late."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale.client import UnreachableError
from easyscale.core.cluster import Slot
from easyscale.master.files import process_start
from easyscale.master.registry import JobFolder, JobResult, TakenError
from easyscale.service import fleet as module
from easyscale.service.fleet import LocalFleet
from easyscale.service.models import JobSpec
from easyscale.service.ports import Launch
from service.real import until

SLOT = Slot(id="cpu-0", kind="cpu")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    secret = {"PATH": os.environ["PATH"], "SECRET_OF_THE_SERVICE": "hunter2", "LC_ALL": "C.UTF-8"}
    fleet = LocalFleet(tmp_path / "data", secret)
    yield fleet
    for child in fleet._children.values():
        child.kill()
        child.wait()


def launch(tmp_path: Path, run: int = 1, **more: object) -> Launch:
    workdir = tmp_path / "work"
    workdir.mkdir(exist_ok=True)
    spec = JobSpec(**{"name": "job", "script": "train.py", "workdir": str(workdir), "ests": 1, **more})
    where = Path(spec.workdir) if spec.workdir is not None else tmp_path / "snapshot"
    return Launch(
        job="job", run=run, spec=spec, workdir=where, checkpoint_dir=tmp_path / "ckpt", slots=(SLOT,),
        kinds=("cpu", "z"),
    )  # fmt: skip


def sleeper(tmp_path: Path) -> str:
    """An interpreter that sleeps, whatever it is asked to run."""
    path = tmp_path / "sleeper"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    return str(path)


def test_a_run_that_has_not_begun_never_does_once_it_was_stopped(fleet: LocalFleet, tmp_path: Path) -> None:
    assert fleet.look("job", 1).state == "absent"
    fleet.stop("job", 1)
    assert (fleet.look("job", 1).state, fleet.look("job", 1).exit_code) == ("ended", 143)
    fleet.launch(launch(tmp_path))
    assert not fleet._children
    with pytest.raises(TakenError, match="has ended"), JobFolder(fleet.folder("job", 1)).claim():
        pass


def test_the_same_run_begins_once(fleet: LocalFleet, tmp_path: Path) -> None:
    one = launch(tmp_path, python=sleeper(tmp_path))
    fleet.launch(one)
    first = fleet._children["job.1"].pid
    fleet.launch(one)
    assert fleet._children["job.1"].pid == first
    assert fleet.look("job", 1).state == "starting"
    record = JobFolder(fleet.folder("job", 1)).record()
    assert record is not None
    assert record.settings["kinds"] == ["cpu", "z"]


def test_a_folder_without_a_master_is_begun_again_after_a_while(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was killed between the folder and the process."""
    with monkeypatch.context() as patch:
        patch.setattr(LocalFleet, "_spawn", lambda *_: None)
        fleet.launch(launch(tmp_path))
    assert fleet.look("job", 1).state == "starting"
    monkeypatch.setattr(module, "STARTING", 0.0)
    assert fleet.look("job", 1).state == "absent"
    holder = subprocess.Popen(
        (sys.executable, "-c", "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
         "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()",
         str(fleet.folder("job", 1) / "master.lock")), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert fleet.look("job", 1).state == "starting"  # it has just begun, and will say so
        fleet.launch(launch(tmp_path, python=sleeper(tmp_path)))
        assert not fleet._children
        with pytest.raises(UnreachableError):
            fleet.stop("job", 1)
        holder.kill()
    fleet.launch(launch(tmp_path, python=sleeper(tmp_path)))
    assert fleet.look("job", 1).state == "starting"


@pytest.mark.parametrize(
    ("more", "says"),
    [({"python": "/no/such/python"}, "/no/such/python"), ({"workdir": "/no/such/folder"}, "/no/such/folder")],
)
def test_what_can_never_start_has_failed_and_says_why(
    fleet: LocalFleet, tmp_path: Path, more: dict[str, str], says: str
) -> None:
    fleet.launch(launch(tmp_path, **more))
    sight = fleet.look("job", 1)
    assert (sight.state, sight.exit_code) == ("ended", 127)
    assert "cannot be started" in str(sight.error)
    assert says in str(sight.error)


def test_a_checkpoint_folder_that_cannot_be_made_is_the_end_of_the_run(fleet: LocalFleet, tmp_path: Path) -> None:
    (tmp_path / "ckpt").touch()
    fleet.launch(launch(tmp_path))
    assert "ckpt" in str(fleet.look("job", 1).error)


def test_a_full_disk_is_no_reason_to_give_a_job_up(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFleet, "_spawn", full)
        with pytest.raises(OSError, match="No space"):
            fleet.launch(launch(tmp_path))
    assert fleet.look("job", 1).state == "starting"


def test_a_master_that_dies_before_it_began_is_gone_for_good(fleet: LocalFleet, tmp_path: Path) -> None:
    bad = tmp_path / "python"
    bad.write_text("#!/bin/sh\necho no module named easyscale\nexit 3\n")
    bad.chmod(0o755)
    fleet.launch(launch(tmp_path, python=str(bad)))
    until(lambda: fleet._children["job.1"].poll() is not None, 20)
    assert fleet.look("job", 1).state == "gone"
    again = LocalFleet(tmp_path / "data", {})  # after a restart
    sight = again.look("job", 1)
    assert (sight.state, sight.exit_code) == ("ended", 137)
    assert "no module named easyscale" in str(sight.error)


def test_a_master_that_does_not_answer_is_killed_when_it_has_to_end_now(fleet: LocalFleet, tmp_path: Path) -> None:
    fleet.launch(launch(tmp_path, python=sleeper(tmp_path)))
    child = fleet._children["job.1"]
    folder = JobFolder(fleet.folder("job", 1))
    until(lambda: process_start(child.pid) is not None, 5)
    folder.write_master(child.pid, process_start(child.pid) or "", "127.0.0.1", 9)
    assert fleet.look("job", 1).state == "starting"
    with pytest.raises(UnreachableError):
        fleet.stop("job", 1)
    fleet.stop("job", 1, now=True)
    child.wait(10)
    assert fleet.look("job", 1).state == "gone"
    assert folder.result() is not None


def test_many_are_started_at_once_and_none_is_forgotten(fleet: LocalFleet, tmp_path: Path) -> None:
    one = launch(tmp_path, python=sleeper(tmp_path))
    threads = [threading.Thread(target=fleet.launch, args=(launch(tmp_path, run, python=one.spec.python),))
               for run in range(1, 9)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fleet._children) == 8


def test_a_job_has_a_copy_of_its_own_of_a_snapshot(fleet: LocalFleet, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "train.py").write_text("original")
    script = tmp_path / "writer"
    script.write_text("#!/bin/sh\necho spoiled > train.py\nexec sleep 60\n")
    script.chmod(0o755)
    fleet.launch(launch(tmp_path, python=str(script), snapshot="0" * 64, workdir=None))
    own = fleet.folder("job", 0) / "work" / "train.py"
    until(lambda: own.is_file() and own.read_text() == "spoiled\n", 20)
    assert (snapshot / "train.py").read_text() == "original"


def test_a_job_gets_what_programs_need_and_nothing_of_the_service(fleet: LocalFleet, tmp_path: Path) -> None:
    spec = launch(tmp_path, env={"MINE": "1"}, python=sleeper(tmp_path))
    fleet.launch(spec)
    file = Path(f"/proc/{fleet._children['job.1'].pid}/environ")
    seen: list[bytes] = []  # what was seen once: while one program gives way to the next, there is nothing to read

    def told() -> bool:
        seen[:] = [file.read_bytes()]
        return b"MINE" in seen[0]

    until(told, 10)
    environment = dict(part.split("=", 1) for part in seen[0].decode().split("\0") if part)
    assert environment.keys() - {"PWD", "_"} == {"PATH", "LC_ALL", "MINE", "TMPDIR", "XDG_RUNTIME_DIR"}
    assert Path(environment["TMPDIR"]).is_dir()
    assert Path(environment["TMPDIR"]).is_relative_to(fleet.folder("job", 0))


def test_a_result_is_never_written_over(tmp_path: Path, fleet: LocalFleet) -> None:
    fleet.launch(launch(tmp_path, python=sleeper(tmp_path)))
    folder = JobFolder(fleet.folder("job", 1))
    folder.write_result(JobResult(exit_code=0, steps=7, fingerprint="abc"))
    fleet.stop("job", 1)
    sight = fleet.look("job", 1)
    assert (sight.exit_code, sight.steps, sight.fingerprint) == (0, 7, "abc")
