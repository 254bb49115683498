"""`easyscale replay`: steps of a job run again from a checkpoint in other surroundings, and compared to the bit.

The job runs once at each level, under AVX2. Replays run under another instruction set, with other threads and workers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.core.errors import EasyScaleError
from easyscale.master import replay as replaying
from easyscale.master.replay import Original, Point, Replay, Row, open_original, points_of
from easyscale.runtime.checkpoint import folder as checkpoint

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=3)
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(60, 3, 8, 8, generator=g), torch.randint(5, (60,), generator=g))
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 5)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=5, shuffle=True))
for _ in es.epochs(1):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FIRST, SECOND = "step-0000000002", "step-0000000004"  # of 6 steps; the last checkpoint is of step 6


def easyscale(*args: str, cwd: Path, capability: str) -> subprocess.CompletedProcess[str]:
    (cwd / "runtime").mkdir(mode=0o700, exist_ok=True)
    environment = {
        **os.environ, "XDG_RUNTIME_DIR": str(cwd / "runtime"), "ATEN_CPU_CAPABILITY": capability, "COLUMNS": "80",
    }  # fmt: skip
    return subprocess.run(
        (sys.executable, "-m", "easyscale", *args), capture_output=True, text=True, cwd=cwd, check=False, timeout=120,
        env=environment,
    )  # fmt: skip


def job(folder: Path, level: str) -> Path:
    """A small job under AVX2 in `folder`: its checkpoints are in `checkpoints`, its report is `report.json`."""
    (folder / "train.py").write_text(SCRIPT)
    done = easyscale(
        "run", "-q", "--ests", "2", "--workers", "1", "--device", "cpu", "--determinism", level, "--fingerprint-every",
        "1", "--checkpoint-dir", "checkpoints", "--checkpoint-every", "2", "--report", "report.json", "train.py",
        cwd=folder, capability="avx2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "runtime")  # the job's journal: replays are to need no more than the checkpoints
    return folder


@pytest.fixture(scope="module")
def at_d2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("d2"), "D2")


@pytest.fixture(scope="module")
def at_d1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("d1"), "D1")


@pytest.fixture
def copied(at_d2: Path, tmp_path: Path) -> Path:
    """The D2 job's files, to be changed."""
    shutil.copytree(at_d2, tmp_path / "copy")
    return tmp_path / "copy"


def with_record(path: Path, **facts: Any) -> None:
    """Change what a checkpoint says of its job, as if it had been written so."""
    manifest = json.loads((path / "checkpoint.json").read_bytes())
    del manifest["sha256"]
    manifest["record"] |= facts
    manifest["sha256"] = checkpoint._digest(manifest)
    (path / "checkpoint.json").write_bytes(checkpoint._render(manifest))


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder, when it was changed, and its size."""
    return {
        str(one.relative_to(folder)): (one.stat().st_mtime_ns, one.stat().st_size)
        for one in [folder, *folder.rglob("*")]
    }


# ---------------------------------------------------------------------------------------- the same bits


@pytest.mark.slow
def test_a_d2_job_is_replayed_with_the_same_bits_in_other_surroundings(at_d2: Path) -> None:
    (at_d2 / "runtime").mkdir(mode=0o700, exist_ok=True)
    before = listing(at_d2 / "checkpoints")
    beside = sorted(one.name for one in at_d2.iterdir())
    done = easyscale(
        "replay", "checkpoints", "--threads", "2", "--workers", "2", "--json", cwd=at_d2, capability="default"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["same"], facts["compared"], facts["first_difference"]) == (True, 4, None)
    assert (facts["step"], facts["level"], facts["ests"]) == (2, "D2", 2)
    assert facts["script"] == {"name": "train.py", "args": [], "module": False}
    recorded = json.loads((at_d2 / "report.json").read_text())["step_fingerprints"]
    assert {str(row["step"]): row["replayed"] for row in facts["steps"]} == {s: recorded[s] for s in "3456"}
    assert len(set(recorded.values())) == 6  # the model changes in each step
    assert listing(at_d2 / "checkpoints") == before
    assert sorted(one.name for one in at_d2.iterdir()) == beside


@pytest.mark.slow
def test_a_checkpoint_of_a_gpu_is_replayed_on_the_cpu_at_d2(copied: Path) -> None:
    for path in (copied / "checkpoints").glob("step-*"):
        with_record(path, device="NVIDIA H200", cuda="13.0", cudnn=91300, threads=16)
    done = easyscale("replay", f"checkpoints/{SECOND}", "--steps", "1", cwd=copied, capability="default")
    assert done.returncode == 0, done.stderr
    assert "level D2, from NVIDIA H200; 1 steps on cpu" in done.stderr
    assert "Same bits in 1 steps on cpu as on NVIDIA H200." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


# ---------------------------------------------------------------------------------------- differences


@pytest.mark.slow
def test_other_bits_are_a_difference_and_a_changed_script_is_told(copied: Path) -> None:
    text = (copied / "train.py").read_text()
    (copied / "train.py").write_text(text.replace("y).backward()", "y).mul(1.5).backward()"))
    done = easyscale("replay", f"checkpoints/{SECOND}", "--", "train.py", cwd=copied, capability="default")
    assert done.returncode == 1, done.stderr
    assert "Differs from step 5 on." in done.stdout
    assert "see that script, arguments and data are the original's" in done.stdout
    assert "The script is not the one that wrote the checkpoint: it has changed." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told", "advice"),
    [
        ({}, "Same bits in 4 steps", ""),
        ({4}, "Differs in step 4.", "later steps agree"),
        ({3, 5}, "Differs in steps 3, 5.", "later steps agree"),
        ({5, 6}, "Differs from step 5 on.", "steps before it agree: look at what step 5 alone does"),
        ({3, 4, 5, 6}, "Differs from step 3 on.", "see that script, arguments and data"),
    ],
)
def test_wrong_fingerprints_of_the_original_are_found_by_step(
    at_d2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: set[int], told: str, advice: str
) -> None:
    """The replay itself is as the job was; what the report says of it is not."""
    report = json.loads((at_d2 / "report.json").read_text())
    true = {int(step): sha for step, sha in report["step_fingerprints"].items()}
    report["step_fingerprints"] |= {str(step): "0" * 64 for step in wrong}
    (tmp_path / "report.json").write_text(json.dumps(report))

    def as_it_was(original: Original, points: dict[int, Point], steps: int, *_: Any) -> Replay:
        first = original.step + 1
        rows = [Row(step=step, original=points.get(step), replayed=true[step]) for step in range(first, first + steps)]
        return Replay(original=original, rows=tuple(rows), asked=steps, seconds=1.0)

    monkeypatch.setattr(replaying, "replay", as_it_was)
    monkeypatch.setattr(replaying, "_models", lambda paths: [None] * len(paths))  # they would need torch, and agree
    monkeypatch.setenv("COLUMNS", "120")
    done = CliRunner().invoke(app, ["replay", str(at_d2 / "checkpoints"), "--report", str(tmp_path / "report.json")])
    assert done.exit_code == (1 if wrong else 0), done.output
    assert told in done.output
    assert advice in done.output
    assert f"Step {min(wrong, default=3)} has another sha256" in done.output or not wrong


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.slow
def test_a_d1_checkpoint_is_refused_under_another_instruction_set(at_d1: Path) -> None:
    done = easyscale("replay", "checkpoints", "--steps", "1", cwd=at_d1, capability="default")
    assert done.returncode == 2
    assert "the steps could not be replayed: Level D1 cannot be kept" in done.stderr
    assert "CPU instruction set" in done.stderr
    assert "now:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_d1_checkpoint_of_a_gpu_is_refused_on_the_cpu(at_d1: Path, tmp_path: Path) -> None:
    shutil.copytree(at_d1, tmp_path / "copy")
    path = tmp_path / "copy" / "checkpoints" / FIRST
    with_record(path, device="NVIDIA H200")
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert isinstance(done.exception, EasyScaleError)
    assert "cannot be replayed on cpu" in str(done.exception)
    assert "NVIDIA H200" in str(done.exception)
    assert "--determinism D2" in str(done.exception)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_told(copied: Path) -> None:
    weights = copied / "checkpoints" / FIRST / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    done = easyscale("replay", f"checkpoints/{FIRST}", "--steps", "1", cwd=copied, capability="default")
    assert done.returncode == 2
    assert "is damaged or cannot be read" in done.stderr
    assert "model.safetensors has another sha256" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_damaged_later_checkpoints_and_those_of_other_runs_are_passed_by(copied: Path) -> None:
    folder = copied / "checkpoints"
    with_record(folder / SECOND, seed=4)
    weights = folder / "step-0000000006" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    points, notes = points_of(open_original(folder / FIRST), None)
    assert sorted(points) == [3, 4, 5, 6]  # as the last one's manifest has noted them
    assert notes == (
        f"{SECOND} is a checkpoint of another run and was passed by.", "step-0000000006 is damaged and was passed by.",
    )  # fmt: skip


@pytest.mark.slow
def test_what_cannot_be_replayed_is_refused_with_what_to_do(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    last = copied / "checkpoints" / "step-0000000006"

    def refused(*args: str) -> str:
        done = CliRunner().invoke(app, ["replay", *args])
        assert isinstance(done.exception, EasyScaleError), done.output
        assert "now:" in str(done.exception)
        return str(done.exception)

    told = refused(str(last))
    assert "There is no fingerprint of step 7 to compare with" in told
    assert "--report FILE" in told
    assert "There is no checkpoint at nowhere" in refused("nowhere")
    assert "--workers 3 are more than the job has ESTs (2)" in refused(str(last), "--workers", "3")
    assert "--timeout 0 is not a time" in refused(str(last), "--timeout", "0")
    assert "is not a report" in refused(str(last), "--report", str(last / "checkpoint.json"))
    other = json.loads((copied / "report.json").read_text()) | {"ests": 8}
    Path("other.json").write_text(json.dumps(other))
    assert "is the report of another job" in refused(str(last), "--report", "other.json")
    with_record(last, target={"name": "moved.py", "args": [], "module": False, "cwd": str(copied), "sha256": None})
    told = refused(str(last))
    assert "There is no script moved.py" in told
    assert "-- SCRIPT ARGS" in told
    with_record(last, target=None)
    assert "does not say which script wrote it" in refused(str(last))
    with_record(last, level="D7")
    assert "does not say which job it belongs to" in refused(str(last))
    (last / "checkpoint.json").write_text("{")
    assert "There is no checkpoint at" in refused(str(last))
