"""Checkpoints and losses: a worker that dies while it saves, and disks that are full, read-only or slow."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.core.spec import WorkerSpec
from easyscale.runtime.checkpoint import CheckpointStore, Snapshot
from faults.judge import Marks, Outcome, Strike, replace_at, run, stock, survive
from workloads import digest

R = "easyscale.runtime."
STORE = R + "checkpoint.store:"


def newest(folder: Path) -> Snapshot:
    found = CheckpointStore(folder, report=lambda *_: None).latest()
    assert found is not None
    return found


def resumed(folder: Path, split: tuple[int, ...] = (1, 3)) -> Outcome:
    """On another plan, from the newest checkpoint of a folder."""
    return run("pictures", split, checkpoint_dir=str(folder), resume="latest")


WHILE_SAVING = {
    "copying": Strike(worker=0, place=R + "state:snapshot_of", step=4),
    "copied": Strike(worker=0, place=R + "state:snapshot_of", step=4, after=True),
    "the contexts are there": Strike(worker=0, place=R + "saving:Saving._complete", step=4),
    "handed to the writer": Strike(worker=0, place=STORE + "CheckpointStore.save_in_background", step=4, after=True),
    "writing": Strike(worker=0, place=STORE + "write_folder", nth=2),
    "written": Strike(worker=0, place=STORE + "write_folder", nth=2, after=True),
    "renaming": Strike(worker=0, place=STORE + "CheckpointStore._put_in_place", nth=2),
    "renamed": Strike(worker=0, place=STORE + "CheckpointStore._put_in_place", nth=2, after=True),
    "deleting older ones": Strike(worker=0, place=STORE + "CheckpointStore._prune", nth=2),
    "a worker that does not save": Strike(worker=1, place=R + "saving:Saving.begin", step=4),
}


@pytest.mark.parametrize("moment", WHILE_SAVING)
def test_a_worker_dies_while_the_job_saves(tmp_path: Path, moment: str) -> None:
    """The second of four checkpoints. What lies in the folder afterwards is whole, and leads to the same end."""
    strike = Strike(**{**vars(WHILE_SAVING[moment]), "marks": Marks()})
    outcome = survive("pictures", (2, 2), [strike], checkpoint_dir=str(tmp_path), checkpoint_every=2, checkpoint_keep=2)
    assert newest(tmp_path).step == 8
    assert outcome.run.happened("checkpoint-saved")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".writing")]
    steps = sorted(path.name for path in tmp_path.glob("step-*"))
    assert len(steps) == 2, "of two that wait to be written, only the newer one is"
    shutil.rmtree(tmp_path / steps[1])
    begin, expected = newest(tmp_path).step, stock("pictures", 4)
    again = resumed(tmp_path).run
    assert (again.exit_code, again.fingerprint) == (0, expected["fingerprint"])
    assert again.state.losses == {int(step): row for step, row in expected["losses"].items() if int(step) >= begin}


# ---------------------------------------------------------------------------------------- the disk


def disk(action: Callable[[Path, Snapshot], None]) -> Callable[[WorkerSpec], None]:
    """Something happens whenever a checkpoint's files are written."""

    def around(original: Callable[..., int]) -> Callable[..., int]:
        def write(path: Path, snapshot: Snapshot) -> int:
            action(path, snapshot)
            return original(path, snapshot)

        return write

    return lambda spec: replace_at(STORE + "write_folder", around)


def test_the_disk_is_full_for_a_while(tmp_path: Path) -> None:
    """Training goes on, the next save works, and a worker that dies meanwhile changes nothing."""

    def full(path: Path, snapshot: Snapshot) -> None:
        if snapshot.step < 6:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    strike = Strike(worker=0, place="torch.optim:SGD.step", step=4)
    outcome = survive(
        "pictures", (2, 2), [strike], surround=disk(full), checkpoint_dir=str(tmp_path), checkpoint_every=2
    )
    told = outcome.run.happened("checkpoint-failed")
    assert told
    assert all("No space left on device" in text and "Training goes on" in text for text in told)
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-0000000006", "step-0000000008"]


def test_the_folder_cannot_be_written() -> None:
    """The kernel lets nobody make a folder there, not even root."""
    strike = Strike(worker=0, place="torch.optim:SGD.step", step=4)
    outcome = survive("pictures", (2, 2), [strike], checkpoint_dir="/proc/checkpoints", checkpoint_every=2)
    told = outcome.run.happened("checkpoint-failed")
    assert told
    assert all("Training goes on" in text for text in told)


@pytest.mark.parametrize("worker", [0, 1])
def test_the_disk_is_slow(tmp_path: Path, worker: int) -> None:
    """A save takes longer than several steps, and a worker dies meanwhile."""
    marks = Marks()

    def slow(_path: Path, snapshot: Snapshot) -> None:
        marks.raise_(snapshot.step)
        time.sleep(1.5)

    strike = Strike(worker=worker, place="torch.optim:SGD.step", step=5)
    survive(
        "pictures", (2, 2), [strike], surround=disk(slow), checkpoint_dir=str(tmp_path), checkpoint_every=2,
    )  # fmt: skip
    assert marks[2] == 1, "the first save had begun"
    assert newest(tmp_path).step == 8


def test_the_checkpoint_that_a_job_ends_with_is_the_judges_model(tmp_path: Path) -> None:
    survive("pictures", (2, 2), [Strike(worker=0, place="torch.optim:SGD.step", step=7)], checkpoint_dir=str(tmp_path))
    assert digest(newest(tmp_path).model) == stock("pictures", 4)["fingerprint"]
