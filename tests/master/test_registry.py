"""Job folders: who may see them, what is left of torn files, and what each state looks like from outside."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.master import registry
from easyscale.master.files import is_alive, jobs_directory, process_start, read_json, write_json
from easyscale.master.registry import JobFolder, JobResult, Keep, clean, clean_name, list_jobs, tidy


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def new_job(name: str = "train") -> JobFolder:
    return JobFolder.create(name, ("easyscale", "run", "train.py"), 4, {"resume": None})


def claim_by_me(folder: JobFolder) -> None:
    started = process_start(os.getpid())
    assert started is not None
    folder.write_master(os.getpid(), started, "127.0.0.1", 5000)


def claim_by_the_dead(folder: JobFolder) -> None:
    folder.write_master(os.getpid(), "0@another-boot", "127.0.0.1", 5000)


@contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.communicate()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---------------------------------------------------------------------------------------- the directory


def test_a_job_is_private(runtime: Path) -> None:
    former = os.umask(0)
    try:
        folder = new_job()
        claim_by_me(folder)
        folder.write_worker(0, os.getpid())
        folder.write_result(JobResult(exit_code=0))
    finally:
        os.umask(former)
    assert folder.path.parent == runtime / "easyscale" / "jobs"
    for path in (runtime / "easyscale", *(runtime / "easyscale").rglob("*")):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_without_that_it_is_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wanted = tmp_path / f"easyscale-{os.getuid()}" / "jobs"
    assert jobs_directory({}) == wanted
    assert jobs_directory({"XDG_RUNTIME_DIR": "relative"}) == wanted
    assert jobs_directory({"XDG_RUNTIME_DIR": str(tmp_path / "missing")}) == wanted
    assert mode(wanted) == mode(wanted.parent) == 0o700


def test_a_directory_that_others_could_have_made_is_refused(runtime: Path) -> None:
    elsewhere = runtime / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (runtime / "easyscale").symlink_to(elsewhere)
    with pytest.raises(EasyScaleError, match="symbolic link"):
        jobs_directory()
    (runtime / "easyscale").unlink()
    (runtime / "easyscale").mkdir()
    (runtime / "easyscale").chmod(0o755)
    with pytest.raises(EasyScaleError, match="mode 755"):
        list_jobs()
    (runtime / "easyscale").chmod(0o700)
    assert list_jobs() == []


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.getuid()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: us + 1)
    (tmp_path / f"easyscale-{us + 1}").mkdir(mode=0o700)
    with pytest.raises(EasyScaleError, match=f"user with number {us}"):
        new_job()  # whose $XDG_RUNTIME_DIR is another's as well, so it is not used
    assert not (tmp_path / "easyscale").exists()


def test_the_jobs_folder_is_looked_at_as_well(runtime: Path) -> None:
    (runtime / "easyscale").mkdir(mode=0o700)
    (runtime / "easyscale" / "jobs").symlink_to(runtime)
    with pytest.raises(EasyScaleError, match="jobs is not safe"):
        list_jobs()


def test_a_directory_that_cannot_be_made_is_an_error_of_ours(runtime: Path) -> None:
    (runtime / "easyscale").write_text("in the way")
    with pytest.raises(EasyScaleError, match="a file"):
        list_jobs()


# ---------------------------------------------------------------------------------------- records


def test_what_is_written_is_read(runtime: Path) -> None:
    folder = new_job("my train!.py")
    record = JobFolder.open(folder.id).record()
    assert record is not None
    assert record.id == folder.id
    assert record.id.startswith("my-train-.py-")
    assert len(record.token) == 32
    assert record.command == ("easyscale", "run", "train.py")
    assert record.settings == {"resume": None}
    assert record.cwd == os.getcwd()
    folder.write_result(JobResult(exit_code=3, steps=10, fingerprint="abc", error="it broke"))
    result = folder.result()
    assert result is not None
    assert (result.exit_code, result.steps, result.fingerprint, result.error) == (3, 10, "abc", "it broke")
    assert result.ended > 0


def test_ids_are_never_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter(["aaaa", "t1", "x", "aaaa", "t2", "x", "bbbb", "t3", "x"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(words))
    assert [new_job().id, new_job().id] == ["train-aaaa", "train-bbbb"]


def test_an_id_that_is_wanted_is_given_once() -> None:
    folder = JobFolder.create("train", ("x",), 4, id="job-7.1")
    assert (folder.id, folder.record().id) == ("job-7.1", "job-7.1")  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"There is a job job-7\.1 already"):
        JobFolder.create("other", ("y",), 2, id="job-7.1")
    assert [entry.name for entry in folder.path.parent.iterdir()] == ["job-7.1"], "nothing half made is left"
    assert folder.record().command == ("x",)  # type: ignore[union-attr]


@pytest.mark.parametrize("id", ["", ".hidden", "../x", "a/b", "-rf", "a b", "x" * 101, "a\n"])
def test_an_id_that_is_no_plain_name_is_refused(id: str) -> None:
    with pytest.raises(UsageError, match="cannot be the id of a job"):
        JobFolder.create("train", ("x",), 4, id=id)


def test_names_can_be_typed_and_are_no_paths() -> None:
    assert clean_name("../../etc/passwd") == "etc-passwd"
    assert clean_name("-rf") == "rf"
    assert clean_name("ünïcode name") == "n-code-name"
    assert clean_name("...") == "job"
    assert len(clean_name("x" * 500)) == 40


@pytest.mark.parametrize("job", ["", "..", "../jobs", ".new-x", "missing-1a2b"])
def test_only_jobs_are_opened(job: str) -> None:
    new_job()
    with pytest.raises(UsageError, match="There is no job"):
        JobFolder.open(job)


def test_paths_are_where_the_documents_say() -> None:
    folder = new_job()
    assert folder.journal.name == "journal.jsonl"
    assert folder.log(2, "err") == folder.path / "logs" / "worker-2.err"
    assert folder.rendezvous(3) == folder.path / "rendezvous-3"
    for worker, stream in ((10, "out"), (2, "err"), (2, "out")):
        folder.log(worker, "out" if stream == "out" else "err").touch()
    (folder.path / "logs" / "worker-x.out").touch()
    assert [(worker, stream) for worker, stream, _ in folder.logs()] == [(2, "out"), (2, "err"), (10, "out")]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_torn_or_strange_file_counts_as_missing(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = JobFolder(Path(place))
        whole = json.dumps(
            {"id": "a-1", "name": "a", "command": ["x"], "ests": 4, "started": 1.0, "cwd": "/", "token": "t"}
        ).encode()
        torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
        content = data.draw(st.one_of(st.just(torn), st.binary(max_size=50), st.sampled_from([
            b"[]", b"null", b"{}", b'{"id": 1}', whole.replace(b"4", b'"four"'), whole.replace(b'"t"', b"null"),
        ])))  # fmt: skip
        for file in (folder.job_file, folder.master_file, folder.result_file):
            file.write_bytes(content)
        assert folder.record() is None
        assert folder.master() is None
        assert folder.result() is None
        assert folder.state() == "dead"
        folder.job_file.write_bytes(whole)
        assert folder.record() is not None


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "f.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "f.json", {"a": object()})
    assert read_json(tmp_path / "f.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir() if path.name != "easyscale"] == ["f.json"]


def test_fields_of_a_later_version_are_left_out() -> None:
    folder = new_job()
    write_json(folder.result_file, {"exit_code": 1, "mood": "bad"})
    assert folder.result() == JobResult(exit_code=1)


# ---------------------------------------------------------------------------------------- states


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    with sleeper() as pid:
        started = process_start(pid)
        assert started is not None
        assert is_alive(pid, started)
        assert not is_alive(pid, "1@" + started.partition("@")[2])
    assert not is_alive(pid, started)
    assert not is_alive(0, "")
    assert not is_alive(-1, "")


def test_a_zombie_does_not_live() -> None:
    with subprocess.Popen((sys.executable, "-c", "")) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start(process.pid) is None


def test_states_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_job()
    assert folder.state() == "running", "its master is about to listen"
    monkeypatch.setattr(registry, "STARTING_SECONDS", 0.0)
    assert folder.state() == "dead", "it never did"
    claim_by_me(folder)
    assert folder.state() == "running"
    claim_by_the_dead(folder)
    assert folder.state() == "dead"
    with sleeper() as pid:
        folder.write_worker(0, 2**22 + 1)
        folder.write_worker(1, pid)
        assert folder.state() == "masterless"
        assert [worker.worker for worker in folder.live_workers()] == [1]
        folder.write_result(JobResult(exit_code=0))
        assert folder.state() == "ended"
        folder.result_file.unlink()
        folder.forget_worker(1)
        assert folder.state() == "dead"


def test_one_master_at_a_time() -> None:
    folder = new_job()
    code = f"""
from pathlib import Path
from easyscale.core.errors import UsageError
from easyscale.master.registry import JobFolder
try:
    with JobFolder(Path({str(folder.path)!r})).claim():
        print("mine")
except UsageError as error:
    print(error.what)
"""

    def other() -> str:
        return subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True).stdout.strip()

    with folder.claim():
        assert other() == f"The job {folder.id} has a master."
    assert other() == "mine"


# ---------------------------------------------------------------------------------------- tidying up


def end(folder: JobFolder, seconds_ago: float) -> JobFolder:
    folder.write_result(JobResult(exit_code=0, ended=time.time() - seconds_ago))
    return folder


def test_a_job_that_ended_stays_until_it_was_shown_and_is_old() -> None:
    old, young, running = end(new_job(), 100.0), end(new_job(), 1.0), new_job()
    keep = Keep(seconds=50.0)
    assert tidy(keep) == []
    for folder in (old, young, running):
        folder.mark_shown()
    assert tidy(keep) == [old.id]
    assert set(list_jobs()) == {young, running}
    assert not old.path.exists()


def test_only_the_newest_that_ended_stay() -> None:
    folders = [end(new_job(), 10.0 * n) for n in range(5)]
    for folder in folders:
        folder.mark_shown()
    assert set(tidy(Keep(newest=3))) == {folders[3].id, folders[4].id}


def test_clean_removes_all_that_is_over_and_nothing_else(runtime: Path) -> None:
    dead, ended, running = new_job(), end(new_job(), 0.0), new_job()
    claim_by_the_dead(dead)
    claim_by_me(running)
    assert set(clean()) == {dead.id, ended.id}
    assert list_jobs() == [running]


def test_what_a_killed_process_left_half_made_is_swept(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_directory()
    (jobs / ".new-abc").mkdir()
    (jobs / ".old-train-1a2b-ff").mkdir()
    assert list_jobs() == []
    assert tidy() == []
    assert len(list(jobs.iterdir())) == 2
    monkeypatch.setattr(registry, "STARTING_SECONDS", -1.0)
    tidy()
    assert list(jobs.iterdir()) == []


def test_jobs_are_listed_by_age() -> None:
    first, second = new_job("b"), new_job("a")
    assert list_jobs() == [first, second]
