"""The real command, end to end: `python -m easyscale run` with real workers and a script in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from easyscale.numerics.fingerprint import fingerprint

pytestmark = pytest.mark.slow

SECONDS = 120
# Ten global steps of 4 ESTs in two epochs. What it does besides training is told by the environment variable TRICK.
SCRIPT = '''
import json, os, sys, time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import easyscale as es
from easyscale.runtime.api import engine

TRICK, _, WHERE = os.environ.get("TRICK", "").partition(":")


class Data(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(80, 6, generator=g), torch.randint(3, (80,), generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        note_pid()
        if TRICK == "bad-sample" and i == 71:
            parse("71")
        return self.x[i] + 0.1 * torch.randn(6), self.y[i]


def note_pid():
    if Path("pids").is_dir():
        Path("pids", str(os.getpid())).touch()


def parse(text):
    try:
        {}[text]
    except KeyError as problem:
        raise ValueError(f"sample {text} is broken") from problem


def wait_for_stop():
    """Returns when this worker was told to stop, so that no test has to guess how long that takes."""
    print("waiting", os.getpid())
    while not engine().exchange.is_stopping():
        time.sleep(0.01)


note_pid()
es.init(seed=3, checkpoint_dir=os.environ.get("CHECKPOINTS"), resume="auto" if "CHECKPOINTS" in os.environ else None)
model = nn.Sequential(
    nn.Linear(6, 16), nn.BatchNorm1d(16) if TRICK != "sync-bn" else nn.SyncBatchNorm(16), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(16, 3),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=1 if TRICK == "wait-to-die" else 0)
model, optimizer, loader = es.prepare(model, optimizer, loader)
if es.is_main():
    print("arguments", json.dumps(sys.argv[1:]))
    print("a warning", file=sys.stderr)

waits = 3 if TRICK == "wait-to-die" else es.rank()  # the EST that waits; by default the first of each worker
for epoch in es.epochs(2):
    for x, y in loader:
        mine = TRICK != "wait-to-die" or engine().spec.worker == 1
        if WHERE == f"{epoch}.{loader.batch_index}" and es.rank() == waits and mine:
            wait_for_stop()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss, rank=es.rank())

if TRICK == "exit-7":
    sys.exit(7)
if es.is_main():
    print("entries", *model.state_dict())
    print("fingerprint", es.fingerprint(model))
'''


@contextmanager
def started(folder: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A command in the folder; killed if the test leaves it running."""
    process = subprocess.Popen(
        (sys.executable, *command),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.stdout, self.stderr = process.communicate(timeout=SECONDS)
        self.code = process.returncode

    def said(self, word: str) -> str:
        """The rest of the script's line that begins with this word, without its prefix. It was said once."""
        found = re.findall(rf"^(?:\[[^]]*\] )?{word} (.*)$", self.stdout, re.MULTILINE)
        assert len(found) == 1, self.stdout + self.stderr
        return str(found[0])


def easyscale(folder: Path, *args: str, **environment: str) -> Ended:
    with started(folder, "-m", "easyscale", *args, **environment) as process:
        return Ended(process)


def good(ended: Ended) -> Ended:
    assert ended.code == 0, ended.stdout + ended.stderr
    return ended


def report_of(folder: Path, name: str = "report.json") -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / name).read_text())
    return report


def assert_same_training(report: Mapping[str, Any], reference: Mapping[str, Any]) -> None:
    assert report["fingerprint"] == reference["fingerprint"]
    assert report["losses"] == reference["losses"]
    assert report["ests"] == 4
    assert report["steps"] == 10


def is_running(pid: int) -> bool:
    """A zombie whose parent does not look is not running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of stock DDP."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "train.py").write_text(SCRIPT)
    flags = ("--ests", "4", "--engine", "ddp", "--report", "report.json", "--fingerprint-every", "3")
    ended = good(easyscale(folder, "run", *flags, "train.py"))
    report = report_of(folder)
    assert ended.said("fingerprint") == report["fingerprint"]
    assert "[rank 0] fingerprint" in ended.stdout
    assert report["steps"] == 10
    assert list(report["losses"]) == [str(step) for step in range(10)]
    assert all(len(row) == 4 and None not in row for row in report["losses"].values())
    assert list(report["step_fingerprints"]) == ["3", "6", "9"]
    return report


def test_two_workers_leave_stock_ddps_bits_in_report_metrics_checkpoints_and_export(
    stock: dict[str, Any], tmp_path: Path
) -> None:
    ended = good(
        easyscale(
            tmp_path, "run", "--ests", "4", "--workers", "2", "--report", "report.json", "--fingerprint-every", "3",
            "--checkpoint-dir", "checkpoints", "--checkpoint-every", "4", "--metrics-dir", "metrics", "train.py",
        )
    )  # fmt: skip
    report = report_of(tmp_path)
    assert_same_training(report, stock)
    assert ended.said("fingerprint") == stock["fingerprint"]
    assert report["step_fingerprints"] == stock["step_fingerprints"]
    assert report["plans"] == [{"step": 0, "split": [2, 2]}]
    assert report["bytes_sent"] > 0

    # Each line of the script wears its worker's label and stays on its stream; ours go to stderr.
    assert all(line.startswith("[worker 0 · EST 0-1] ") for line in ended.stdout.splitlines())
    assert "[worker 0 · EST 0-1] a warning" in ended.stderr.splitlines()
    assert f"done: 10 global steps in {report['timings']['total']:.1f} s" in ended.stderr

    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(10))
    assert [line["epoch"] for line in lines] == [0] * 5 + [1] * 5
    assert [line["metrics"]["loss"] for line in lines] == list(stock["losses"].values())
    assert [line["metrics"]["rank"] for line in lines] == [[0, 1, 2, 3]] * 10
    (board,) = (tmp_path / "metrics").glob("events.out.tfevents.*")
    assert b"loss/mean" in board.read_bytes()
    assert b"loss/est3" in board.read_bytes()

    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert saved == ["step-0000000004", "step-0000000008", "step-0000000010"]
    good(easyscale(tmp_path, "export", "checkpoints", "weights.safetensors"))
    weights = load_file(tmp_path / "weights.safetensors")
    names = ended.said("entries").split()
    assert set(weights) == set(names)
    assert fingerprint(OrderedDict((name, weights[name]) for name in names)) == stock["fingerprint"]


def test_a_module_on_an_uneven_split_gets_its_arguments_untouched(stock: dict[str, Any], tmp_path: Path) -> None:
    package = tmp_path / "jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "train.py").rename(package / "train.py")
    args = ["--help", "-h", "--version", "--ests", "9", "--", "-m", "", "two words", "--", "--quiet"]
    flags = ("--ests", "4", "--split", "2,1,1", "--report", "report.json", "-q")
    ended = good(easyscale(tmp_path, "run", *flags, "-m", "jobs.train", *args))
    assert json.loads(ended.said("arguments")) == args
    report = report_of(tmp_path)
    assert_same_training(report, stock)
    assert report["plans"] == [{"step": 0, "split": [2, 1, 1]}]
    assert ended.stderr == "[worker 0 · EST 0-1] a warning\n"  # quiet


def test_a_script_without_the_launcher_has_the_same_bits(stock: dict[str, Any], tmp_path: Path) -> None:
    with started(tmp_path, "train.py", "--help", EASYSCALE_ESTS="4") as process:
        ended = good(Ended(process))
    assert ended.said("fingerprint") == stock["fingerprint"]
    assert json.loads(ended.said("arguments")) == ["--help"]


def test_a_schedule_of_four_plans_in_one_run_ends_with_stock_ddps_bits(stock: dict[str, Any], tmp_path: Path) -> None:
    flags = ("--ests", "4", "--schedule", "0:4,3:2,5:1,7:2+1+1", "--fingerprint-every", "3", "--report", "report.json")
    ended = good(easyscale(tmp_path, "run", *flags, "train.py"))
    report = report_of(tmp_path)
    assert_same_training(report, stock)
    assert report["step_fingerprints"] == stock["step_fingerprints"]
    assert report["plans"] == [
        {"step": 0, "split": [1, 1, 1, 1]},
        {"step": 3, "split": [2, 2]},
        {"step": 5, "split": [4]},
        {"step": 7, "split": [2, 1, 1]},
    ]
    told = [(event["what"], event["step"]) for event in report["events"]]
    assert [one for one in told if one[0] == "plan"] == [("plan", 0), ("plan", 3), ("plan", 5), ("plan", 7)]
    assert [what for what, _ in told if what != "plan"] == ["worker-left"] * 3
    assert [switch["step"] for switch in report["timings"]["switches"]] == [3, 5, 7]
    for event in report["events"]:
        assert event["text"] in ended.stderr


def test_a_stopped_job_goes_on_with_other_workers_and_ends_with_the_same_bits(
    stock: dict[str, Any], tmp_path: Path
) -> None:
    """Two workers, then the script alone, both stopped by SIGTERM in the middle of an epoch, then three and one."""
    flags = ("--ests", "4", "--checkpoint-dir", "checkpoints", "--metrics-dir", "metrics")
    command = ("-m", "easyscale", "run", *flags, "--workers", "2", "--report", "first.json", "train.py")
    with started(tmp_path, *command, TRICK="wait:0.2") as process:
        workers = {next_that_waits(process), next_that_waits(process)}
        process.send_signal(signal.SIGTERM)
        ended = Ended(process)
    assert ended.code == 128 + signal.SIGTERM, ended.stderr
    assert "Traceback" not in ended.stderr
    first = report_of(tmp_path, "first.json")
    assert first["steps"] in (3, 4)  # the step in which the signal came, or the one on which the workers agreed
    assert first["fingerprint"] is None
    assert "SIGTERM" in first["error"]
    assert not any(is_running(pid) for pid in workers)
    assert [event["step"] for event in first["events"] if event["what"] == "checkpoint-saved"] == [first["steps"]]

    alone = {"EASYSCALE_ESTS": "4", "CHECKPOINTS": "checkpoints"}
    with started(tmp_path, "train.py", TRICK="wait:1.1", **alone) as process:
        assert next_that_waits(process) == process.pid
        process.send_signal(signal.SIGTERM)
        ended = Ended(process)
    assert ended.code == 128 + signal.SIGTERM, ended.stderr
    assert "Traceback" not in ended.stderr

    good(
        easyscale(
            tmp_path, "run", *flags, "--split", "3,1", "--resume", "latest", "--report", "last.json", "train.py"
        )
    )  # fmt: skip
    last = report_of(tmp_path, "last.json")
    (begins,) = [event["step"] for event in last["events"] if event["what"] == "resumed"]
    assert begins in (7, 8)
    assert last["plans"] == [{"step": begins, "split": [3, 1]}]
    assert last["fingerprint"] == stock["fingerprint"]
    assert last["steps"] == 10
    losses = {**first["losses"], **last["losses"]}
    assert losses == {step: stock["losses"][step] for step in losses}
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(first["steps"]), *range(begins, 10)]


def next_that_waits(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    while "waiting" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    return int(line.split()[-1])


def test_a_killed_worker_is_told_in_a_sentence_the_bits_stay_and_no_process_does(tmp_path: Path) -> None:
    flags = ("--ests", "4", "--engine", "ddp", "--report", "report.json", "--fingerprint-every", "3")
    good(easyscale(tmp_path, "run", *flags, "train.py", TRICK="wait-to-die:nowhere"))  # it has loader processes
    stock = report_of(tmp_path)
    (tmp_path / "pids").mkdir()
    flags = ("--ests", "4", "--workers", "2", "--report", "report.json", "--fingerprint-every", "3")
    with started(tmp_path, "-m", "easyscale", "run", *flags, "train.py", TRICK="wait-to-die:0.2") as process:
        os.kill(next_that_waits(process), signal.SIGKILL)
        ended = Ended(process)
    assert ended.code == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    lost = r"worker 1 \(pid \d+\) was killed by signal 9 during step 2; its ESTs 2-3 continue on worker 0; 0 steps lost"
    assert len(re.findall(lost, ended.stderr)) == 1
    report = report_of(tmp_path)
    assert_same_training(report, stock)
    assert report["lost_steps"] == 0
    assert report["step_fingerprints"] == stock["step_fingerprints"]
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(pids) >= 4  # each worker has a loader process
    assert not any(is_running(pid) for pid in pids)


def test_the_scripts_exit_code_is_the_commands(tmp_path: Path) -> None:
    ended = easyscale(tmp_path, "run", "--ests", "4", "--workers", "2", "train.py", TRICK="exit-7")
    assert ended.code == 7
    assert "Traceback" not in ended.stderr


def test_a_users_exception_is_shown_whole_once_and_without_our_frames(tmp_path: Path) -> None:
    flags = ("--ests", "4", "--workers", "2", "--report", "report.json")
    ended = easyscale(tmp_path, "run", *flags, "train.py", TRICK="bad-sample")
    assert ended.code == 1
    assert "failed:\nTraceback (most recent call last):\n" in ended.stderr
    shown = ended.stderr[ended.stderr.index("Traceback") :]
    assert shown.count("ValueError: sample 71 is broken") == 1
    assert shown.count("KeyError: '71'") == 1
    assert shown.count("Traceback") == 2  # the exception and its cause
    assert shown.count("The above exception was the direct cause of the following exception") == 1
    for line in ("for x, y in loader:", 'parse("71")', "{}[text]", "raise ValueError"):
        assert line in shown
    assert shown.rstrip().endswith("ValueError: sample 71 is broken")
    for frame in ("easyscale/", "runpy", "WorkerLostError"):
        assert frame not in ended.stderr
    report = report_of(tmp_path)
    assert "ValueError: sample 71 is broken" in report["error"]
    assert report["fingerprint"] is None


def test_an_error_of_ours_in_a_worker_has_three_parts_and_no_traceback(tmp_path: Path) -> None:
    ended = easyscale(tmp_path, "run", "--ests", "4", "--workers", "2", "train.py", TRICK="sync-bn")
    assert ended.code == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("error: UnsupportedError: The model has a SyncBatchNorm (1).\n  why: ") == 1
    assert ended.stderr.count("\n  now: use BatchNorm, GroupNorm or LayerNorm") == 1
    assert "model, optimizer, loader = es.prepare(model, optimizer, loader)" in ended.stderr  # where


REFUSED = {
    "--workers 5 train.py": "5 workers were asked for, but the job has only 4 ESTs",
    "--split 2,1 train.py": "--split 2,1 gives 3 ESTs, but the job has 4",
    "missing.py": "There is no script missing.py",
    "--schedule 0:4,3 train.py": "--schedule has an entry '3'",
    "--schedule 0:4,3:5 train.py": "5 workers were asked for",
    "--schedule 2:4 train.py": "The schedule's steps are [2]",
    "--engine ddp --workers 4 train.py": "--workers does not go with --engine ddp",
    "--device cuda,cpu train.py": "--device cuda,cpu does not go with --determinism D1",
    "--checkpoint-dir empty --resume latest train.py": "There is no checkpoint in",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_work_is_refused_before_any_process_starts(flags: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pids").mkdir()
    ended = easyscale(tmp_path, "run", "--ests", "4", *flags.split())
    assert ended.code == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: {REFUSED[flags]}")
    assert re.search(r"\n  why: .+\n  now: .+\n$", ended.stderr)
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "pids").iterdir())
