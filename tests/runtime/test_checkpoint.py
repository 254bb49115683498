"""Checkpoints survive crashes, full disks and rot: what is loaded is what was saved, or it is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

from easyscale.cli.export import export
from easyscale.core.errors import CheckpointError, UsageError
from easyscale.runtime.checkpoint import CheckpointStore, Snapshot, export_weights, folder, store, tensorfile

SOURCES = str(Path(folder.__file__).parents[3])  # for processes that tests start
FILES = ["model.safetensors", "shared.safetensors", "contexts.safetensors", "checkpoint.json"]


class Reports(list[tuple[str, str, int]]):
    """Remembers what it is told."""

    def __call__(self, what: str, sentence: str, step: int) -> None:
        self.append((what, sentence, step))

    def words(self) -> list[str]:
        return [what for what, _, _ in self]


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def kept(tmp_path: Path, reports: Reports) -> CheckpointStore:
    return CheckpointStore(tmp_path / "job", report=reports)


def snapshot(step: int) -> Snapshot:
    weight = torch.arange(6.0).reshape(2, 3) + step
    return Snapshot(
        step=step,
        record={"ests": 2, "level": "D1", "buckets": [[0, 1]]},
        model={
            "z.weight": weight,
            "a.tied": weight,
            "conv": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "count": torch.tensor(step),
            "none": torch.empty(0),
        },
        shared={"epoch": 1, "optimizers": [{"state": {0: {"momentum": torch.full((2, 3), 0.5)}}, "lr": float("inf")}]},
        contexts=[{"rng": torch.arange(4), "cursor": (step, v)} for v in range(2)],
    )


def assert_same(a: Snapshot | None, b: Snapshot) -> None:
    assert a is not None
    assert (a.step, a.record, list(a.model)) == (b.step, b.record, list(b.model))
    for name, value in b.model.items():
        assert a.model[name].dtype == value.dtype
        assert a.model[name].stride() == value.stride()
        assert torch.equal(a.model[name], value)
    assert repr((a.shared, a.contexts)) == repr((b.shared, b.contexts))


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_snapshot_comes_back_as_it_was(kept: CheckpointStore, reports: Reports) -> None:
    saved = snapshot(120)
    path = kept.save(saved)
    assert path.name == "step-0000000120"
    assert names(path) == sorted(FILES)
    assert_same(CheckpointStore.load(path), saved)
    assert_same(kept.latest(), saved)
    assert reports.words() == ["checkpoint-saved"]


def test_the_model_file_is_a_plain_state_dict_for_the_safetensors_library(kept: CheckpointStore) -> None:
    saved = snapshot(1)
    weights = load_file(kept.save(saved) / "model.safetensors")
    assert set(weights) == set(saved.model)
    assert all(torch.equal(weights[name], saved.model[name]) for name in weights)


def test_extra_state_and_exotic_dtypes_of_modules_come_back_in_their_place(kept: CheckpointStore) -> None:
    model = {
        "_extra_state": {"amax": [1.0]},
        "w": torch.ones(2),
        "c": torch.ones(2, dtype=torch.complex128),
        "__metadata__": torch.ones(1),
    }
    path = kept.save(Snapshot(1, {}, model, None, []))
    back = CheckpointStore.load(path).model
    assert list(back) == list(model)
    assert repr(back) == repr(model)
    assert set(load_file(path / "model.safetensors")) == {"w"}
    with pytest.raises(CheckpointError, match="_extra_state, c"):
        export_weights(path, path.parent / "w.safetensors")


def test_tensors_larger_than_a_piece_come_back(kept: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "PIECE", 7)
    saved = snapshot(3)
    kept.save(saved)
    assert_same(kept.latest(), saved)


def test_an_empty_or_absent_folder_has_no_checkpoint(kept: CheckpointStore, tmp_path: Path) -> None:
    assert kept.latest() is None
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "notes.txt").write_text("step-1")
    assert kept.latest() is None


def test_the_last_k_are_kept(tmp_path: Path, reports: Reports) -> None:
    kept = CheckpointStore(tmp_path, keep=2, report=reports)
    for step in (5, 10, 15, 20):
        kept.save(snapshot(step))
    assert names(tmp_path) == ["step-0000000015", "step-0000000020"]
    with pytest.raises(UsageError):
        CheckpointStore(tmp_path, keep=0, report=reports)


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path, reports: Reports) -> None:
    for step in (1, 2, 3):
        CheckpointStore(tmp_path, keep=9, report=reports).save(snapshot(step))
    (tmp_path / "step-0000000003" / "shared.safetensors").unlink()
    CheckpointStore(tmp_path, keep=2, report=reports).save(snapshot(4))
    assert names(tmp_path) == ["step-0000000002", "step-0000000003", "step-0000000004"]


def test_a_checkpoint_of_an_earlier_step_is_not_deleted_by_its_own_save(tmp_path: Path, reports: Reports) -> None:
    kept = CheckpointStore(tmp_path, keep=1, report=reports)
    kept.save(snapshot(9))
    kept.save(snapshot(4))
    assert names(tmp_path) == ["step-0000000004", "step-0000000009"]


def test_saving_a_step_again_replaces_it(kept: CheckpointStore, tmp_path: Path) -> None:
    kept.save(snapshot(7))
    again = snapshot(7)
    again.shared["epoch"] = 2
    kept.save(again)
    assert_same(kept.latest(), again)
    assert names(tmp_path / "job") == ["step-0000000007"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_noticed_and_the_previous_checkpoint_used(
    kept: CheckpointStore, reports: Reports, name: str, part: float
) -> None:
    previous = snapshot(1)
    kept.save(previous)
    file = kept.save(snapshot(2)) / name
    os.truncate(file, int(part * file.stat().st_size))
    assert_same(kept.latest(), previous)
    assert reports.words() == ["checkpoint-saved", "checkpoint-saved", "checkpoint-damaged"]
    assert "step-0000000002" in reports[-1][1]
    assert reports[-1][2] == 2


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed_and_the_previous_checkpoint_used(
    kept: CheckpointStore, reports: Reports, name: str
) -> None:
    previous = snapshot(1)
    kept.save(previous)
    (kept.save(snapshot(2)) / name).unlink()
    assert_same(kept.latest(), previous)
    assert reports.words()[-1] == "checkpoint-damaged"


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_in_any_file_is_noticed(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = tmp_path / "step-0000000002"
    if not path.exists():
        CheckpointStore(tmp_path, report=Reports()).save(snapshot(2))
    good = (path / name).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    (path / name).write_bytes(bad)
    try:
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore.load(path)
        assert caught.value.why
        assert caught.value.now
    finally:
        (path / name).write_bytes(good)
    CheckpointStore.load(path)


@given(garbage=st.one_of(st.binary(max_size=40), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_of_garbage_is_a_checkpoint_error(tmp_path: Path, garbage: bytes | str) -> None:
    raw = garbage if isinstance(garbage, bytes) else garbage.encode()
    (tmp_path / "checkpoint.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointStore.load(tmp_path)


def test_a_deeply_nested_manifest_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_bytes(b"[" * 100_000)
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointStore.load(tmp_path)


def rewrite_manifest(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "checkpoint.json").read_bytes()) | changes
    del manifest["sha256"]
    manifest["sha256"] = folder._digest(manifest)
    (path / "checkpoint.json").write_bytes(folder._render(manifest))


def test_another_format_version_is_refused_and_not_taken_for_damage(kept: CheckpointStore, reports: Reports) -> None:
    kept.save(snapshot(1))
    path = kept.save(snapshot(2))
    rewrite_manifest(path, format=99)
    for act in (kept.latest, lambda: CheckpointStore.load(path)):
        with pytest.raises(CheckpointError, match="format 99") as caught:
            act()
        assert "version" in caught.value.now
    assert "checkpoint-damaged" not in reports.words()


@pytest.mark.parametrize("changes", [{"files": {}}, {"structures": {"../x": None}}, {"model": [["absent", [1]]]}])
def test_a_manifest_that_contradicts_its_files_is_damage(kept: CheckpointStore, changes: dict[str, Any]) -> None:
    path = kept.save(snapshot(1))
    rewrite_manifest(path, **changes)
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointStore.load(path)


def test_a_tensor_file_that_lies_about_its_content_is_damage(tmp_path: Path) -> None:
    facts = tensorfile.write_tensors(tmp_path / "good", {"x": torch.ones(4)})
    assert torch.equal(tensorfile.read_tensors(tmp_path / "good", facts)["x"], torch.ones(4))
    for number, (old, new) in enumerate([(b"[0,16]", b"[0,12]"), (b"[4]", b"[9]"), (b"F32", b"F64"), (b"[4]", b"-44")]):
        raw = (tmp_path / "good").read_bytes()
        assert old in raw
        lying = tensorfile.write_hashed(tmp_path / str(number), [raw.replace(old, new)])
        with pytest.raises((ValueError, TypeError)):
            tensorfile.read_tensors(tmp_path / str(number), lying)


def test_all_damaged_is_an_error_not_a_fresh_start(kept: CheckpointStore, reports: Reports) -> None:
    for step in (1, 2):
        (kept.save(snapshot(step)) / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="None of the 2 checkpoints"):
        kept.latest()
    assert reports.words()[2:] == ["checkpoint-damaged"] * 2


def test_loading_what_is_no_checkpoint_says_what_to_pass(kept: CheckpointStore, tmp_path: Path) -> None:
    kept.save(snapshot(1))
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "absent", tmp_path / "job", file):
        with pytest.raises(CheckpointError, match="no checkpoint") as caught:
            CheckpointStore.load(path)
        assert "step-" in caught.value.now


def test_state_that_needs_pickle_is_refused_by_its_path(kept: CheckpointStore, tmp_path: Path) -> None:
    for refused, where in (
        (Snapshot(1, {}, {}, {"registered": {"ema": print}}, []), "`registered.ema`"),
        (Snapshot(1, {}, {}, None, [{}, {"registered": print}]), "`contexts.1.registered`"),
        (Snapshot(1, {}, {"x": print}, None, []), "`model.x`"),
        (Snapshot(1, {}, {"w": torch.ones(2).to_sparse()}, None, []), "`model.w`"),
        (Snapshot(1, {"x": {1, 2}}, {}, None, []), "record"),
    ):
        with pytest.raises(CheckpointError, match=where):
            kept.save(refused)
    assert names(tmp_path / "job") == []


class Fault:
    """Breaks one call of one function of `os`, or of a file's write, and counts those before it."""

    def __init__(self, real: Callable[..., Any], at: int, code: int) -> None:
        self.real, self.left, self.code = real, at, code

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.code, os.strerror(self.code))
        return self.real(*args, **named)


@pytest.mark.parametrize("step", [1, 2], ids=["replacing", "new"])
@pytest.mark.parametrize(("where", "calls"), [("fsync", 6), ("rename", 2), ("mkdir", 1), ("write_hashed", 4)], ids=str)
def test_a_full_disk_at_any_stage_is_reported_and_harms_nothing(
    kept: CheckpointStore,
    reports: Reports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    calls: int,
    step: int,
) -> None:
    before = snapshot(1)
    kept.save(before)
    reports.clear()
    for at in range(calls):
        with monkeypatch.context() as patch:
            if where == "write_hashed":
                patch.setattr(tensorfile, where, fault := Fault(tensorfile.write_hashed, at, errno.ENOSPC))
                patch.setattr(folder, where, fault)
            else:
                patch.setattr(os, where, Fault(getattr(os, where), at, errno.ENOSPC))
            kept.save_in_background(snapshot(step))
            kept.wait()
        if where == "rename" and step == 2 and at > 0:
            assert reports.words() == ["checkpoint-saved"]  # a new step needs one rename only
            break
        assert reports.words() == ["checkpoint-failed"]
        assert "No space left" in reports[0][1]
        assert "free some space" in reports[0][1]
        assert "Training goes on" in reports[0][1]
        found = kept.latest()
        assert found is not None
        if where != "fsync" or at < 5:  # the last fsync is after the rename: the new one is there, if not durable
            assert_same(found, before)
        assert not [name for name in names(tmp_path / "job") if name.startswith(".writing")]
        reports.clear()
    kept.save(snapshot(3))
    assert names(tmp_path / "job")[-1] == "step-0000000003"
    assert not [name for name in names(tmp_path / "job") if name.startswith(".")]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_blocking_save_raises_what_went_wrong(
    kept: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", Fault(os.fsync, 0, code))
    with pytest.raises(CheckpointError) as caught:
        kept.save(snapshot(1))
    assert os.strerror(code) in caught.value.why
    assert "another checkpoint folder" in caught.value.now


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path, reports: Reports) -> None:
    (tmp_path / "file").touch()
    kept = CheckpointStore(tmp_path / "file" / "job", report=reports)
    kept.save_in_background(snapshot(1))
    kept.wait()
    assert reports.words() == ["checkpoint-failed"]


def test_a_real_write_limit_is_reported_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    script = """
import resource, sys, torch
from pathlib import Path
from easyscale.runtime.checkpoint import CheckpointStore, Snapshot
kept = CheckpointStore(Path(sys.argv[1]), report=lambda what, sentence, step: print(what, step, sentence))
kept.save(Snapshot(1, {}, {"w": torch.ones(8)}, None, []))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
kept.save_in_background(Snapshot(2, {}, {"w": torch.ones(100_000)}, None, []))
kept.wait()
print(kept.latest().step)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    saved, failed, step = ran.stdout.splitlines()
    assert saved.startswith("checkpoint-saved 1")
    assert failed.startswith("checkpoint-failed 2")
    assert "File too large" in failed
    assert step == "1"
    assert names(tmp_path) == ["step-0000000001"]


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("step", [2, 3], ids=["replacing", "new"])
def test_a_crash_at_any_moment_leaves_a_good_checkpoint(
    tmp_path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch, keep: int, step: int
) -> None:
    kept = CheckpointStore(tmp_path / "job", keep=keep, report=reports)
    for earlier in (1, 2):
        kept.save(snapshot(earlier))
    moments: list[Path] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "mkdir", "unlink", "rmdir")}

    def photograph() -> None:
        moments.append(tmp_path / f"crash-{len(moments)}")
        with monkeypatch.context() as patch:
            for name, function in real.items():
                patch.setattr(os, name, function)
            shutil.copytree(tmp_path / "job", moments[-1])

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            photograph()
            result = function(*args, **named)
            photograph()
            return result

        return call

    with monkeypatch.context() as patch:
        for name, function in real.items():
            patch.setattr(os, name, watched(function))
        kept.save(snapshot(step))
    assert len(moments) >= 20
    for moment in moments:
        found = CheckpointStore(moment, keep=keep, report=reports).latest()
        assert found is not None
        assert found.step in (2, step)
        CheckpointStore(moment, keep=keep, report=reports).save(snapshot(9))
        left = names(moment)
        assert "step-0000000009" in left
        assert not [name for name in left if name.startswith(".")]
    assert "checkpoint-damaged" not in reports.words()


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(kept: CheckpointStore, tmp_path: Path) -> None:
    job = tmp_path / "job"
    host, dead = store._host(), 2**22 + 1  # above the largest process id of Linux
    (job / f".writing-step-0000000001-{host}-{dead}").mkdir(parents=True)
    (job / f".trash-step-0000000001-{host}-{dead}").mkdir()
    (job / f".writing-step-0000000001-{host}-{os.getpid()}").mkdir()
    (job / f".writing-step-0000000001-{host}-{os.getppid()}").mkdir()
    (job / ".writing-step-0000000001-elsewhere-1").mkdir()
    abandoned = job / ".writing-step-0000000002-elsewhere-1"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    (job / ".mine").mkdir()
    kept.save(snapshot(3))
    assert names(job) == sorted(
        [
            f".writing-step-0000000001-{host}-{os.getppid()}",
            ".writing-step-0000000001-elsewhere-1",
            ".mine",
            "step-0000000003",
        ]
    )


def test_a_checkpoint_whose_successor_never_came_is_found_and_put_back(
    kept: CheckpointStore, tmp_path: Path, reports: Reports
) -> None:
    saved = snapshot(1)
    path = kept.save(saved)
    path.rename(path.with_name(f".replaced-{path.name}-{store._host()}-{2**22 + 1}"))
    assert_same(kept.latest(), saved)
    kept.save(snapshot(2))
    assert names(tmp_path / "job") == ["step-0000000001", "step-0000000002"]
    assert_same(CheckpointStore.load(path), saved)


def test_background_saves_never_wait_and_the_newest_is_always_written(
    kept: CheckpointStore, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def slow(path: Path, what: Snapshot) -> int:
        writing.set()
        assert go_on.wait(60)
        return folder.write_folder(path, what)

    monkeypatch.setattr(store, "write_folder", slow)
    kept.save_in_background(snapshot(1))
    assert writing.wait(60)
    for step in (2, 3, 4):  # while the first is being written: only the last of these is worth writing
        kept.save_in_background(snapshot(step))
    assert reports == []
    go_on.set()
    kept.wait()
    kept.wait()
    assert [(what, step) for what, _, step in reports] == [("checkpoint-saved", 1), ("checkpoint-saved", 4)]
    newest = kept.latest()
    assert newest is not None
    assert newest.step == 4
    kept.save_in_background(snapshot(5))
    kept.wait()
    assert reports[-1][2] == 5


def test_latest_waits_for_what_is_being_written(kept: CheckpointStore) -> None:
    kept.save_in_background(snapshot(1))
    kept.save_in_background(snapshot(2))
    newest = kept.latest()
    assert newest is not None
    assert newest.step == 2


def test_a_failure_in_the_background_does_not_stop_the_next_save(
    kept: CheckpointStore, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, what: Snapshot) -> int:
        raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_folder", fail)
        kept.save_in_background(snapshot(1))
        kept.wait()
    kept.save_in_background(Snapshot(2, {}, {}, {"a": print}, []))
    kept.wait()
    kept.save_in_background(snapshot(3))
    kept.wait()
    assert reports.words() == ["checkpoint-failed", "checkpoint-failed", "checkpoint-saved"]
    assert "MemoryError" in reports[0][1]
    assert "`a`" in reports[1][1]


def test_a_listener_that_fails_does_not_stop_the_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(what: str, sentence: str, step: int) -> None:
        raise BrokenPipeError

    kept = CheckpointStore(tmp_path, report=broken)
    for step in (1, 2):
        kept.save_in_background(snapshot(step))
        kept.wait()
    assert names(tmp_path) == ["step-0000000001", "step-0000000002"]
    assert "nobody could be told" in caplog.text


def test_where_no_thread_can_start_the_save_still_happens(
    kept: CheckpointStore, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    kept.save_in_background(snapshot(1))
    kept.wait()
    assert reports.words() == ["checkpoint-saved"]


def test_what_cannot_be_deleted_is_mentioned_and_the_save_counts(
    tmp_path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = CheckpointStore(tmp_path, keep=1, report=reports)
    kept.save(snapshot(1))
    monkeypatch.setattr(os, "rename", Fault(os.rename, 1, errno.EACCES))
    kept.save(snapshot(2))
    assert reports.words() == ["checkpoint-saved", "checkpoint-saved"]
    assert "could not be deleted" in reports[-1][1]


def test_export_takes_a_checkpoint_or_the_newest_good_one_of_a_folder(
    kept: CheckpointStore, tmp_path: Path, reports: Reports
) -> None:
    older, newer = snapshot(1), snapshot(2)
    kept.save(older)
    path = kept.save(newer)
    target = tmp_path / "weights.safetensors"
    for source in (path, tmp_path / "job"):
        export_weights(source, target, report=reports)
        assert torch.equal(load_file(target)["z.weight"], newer.model["z.weight"])
    os.truncate(path / "shared.safetensors", 3)
    export_weights(tmp_path / "job", target, report=reports)
    assert torch.equal(load_file(target)["z.weight"], older.model["z.weight"])
    assert reports.words()[-1] == "checkpoint-damaged"
    assert names(tmp_path) == ["job", "weights.safetensors"]


def test_a_failed_export_leaves_the_target_as_it_was(
    kept: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.save(snapshot(1))
    target = tmp_path / "weights.safetensors"
    target.write_text("precious")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Fault(os.fsync, 0, errno.ENOSPC))
        with pytest.raises(CheckpointError, match="No space left"):
            export_weights(path, target)
    for source, bad in ((path, tmp_path), (path, tmp_path / "absent" / "w"), (tmp_path / "absent", target)):
        with pytest.raises(CheckpointError):
            export_weights(source, bad)
    assert target.read_text() == "precious"
    assert names(tmp_path) == ["job", "weights.safetensors"]


def test_the_export_command_writes_the_file_and_lets_our_errors_through(kept: CheckpointStore, tmp_path: Path) -> None:
    path = kept.save(snapshot(1))
    app = typer.Typer()
    app.command()(export)
    target = tmp_path / "weights.safetensors"
    result = CliRunner().invoke(app, [str(path), str(target)])
    assert result.exit_code == 0, result.output
    assert "z.weight" in load_file(target)
    assert isinstance(CliRunner().invoke(app, [str(tmp_path), str(target)]).exception, CheckpointError)


def test_the_export_command_loads_without_torch() -> None:
    code = "import sys, easyscale.cli.export; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCES}, check=True, timeout=120)
