"""`easyscale scan`: levels, shares and times of operators, advice, exit codes, and what is told of mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.cli.scan import _show, ests_of, folded, grouped
from easyscale.core.errors import EasyScaleError
from easyscale.core.spec import Target
from easyscale.core.verdict import Verdict
from easyscale.master import scan as scanning
from easyscale.master.scan import Family, Operator, Scan
from easyscale.master.verdicts import find_verdict, read_verdict
from easyscale.planner.advice import advise

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init({init})
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(96, 3, 8, 8, generator=g), torch.randint(5, (96,), generator=g))


class Odd(nn.Module):
    def forward(self, x):
        return {odd}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.odd = nn.Sequential(Odd())

    def forward(self, x):
        return self.odd(self.head(F.relu(self.norm(self.stem(x))).mean((2, 3))))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=8))
for _ in es.epochs(1):
    for x, y in loader:
        {before}
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def script(folder: Path, name: str, *, init: str = "seed=3", odd: str = "x", before: str = "pass") -> Path:
    path = folder / name
    path.write_text(SCRIPT.format(init=init, odd=odd, before=before))
    return path


def easyscale(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "runtime").mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(cwd / "runtime"), "COLUMNS": "80"}
    return subprocess.run(
        (sys.executable, "-m", "easyscale", *args), capture_output=True, text=True, cwd=cwd, check=False, timeout=120,
        env=environment,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- a script that is all D2


@pytest.fixture(scope="module")
def all_d2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A scan of a CNN that says `determinism` and `ests` itself: its folder, and what --json printed."""
    folder = tmp_path_factory.mktemp("scan")
    script(folder, "cnn.py", init='seed=3, ests=2, determinism="d2"')
    done = easyscale("scan", "--json", "--write", "verdict.json", "cnn.py", cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return folder, json.loads(done.stdout)


def scan_of(facts: dict[str, Any]) -> Scan:
    """As the command had it before it printed it."""
    return Scan(
        ests=facts["ests"], machine=facts["machine"], kernels=facts["kernels"],
        operators=tuple(Operator(**one) for one in facts["operators"]),
        families=tuple(Family(**{k: v for k, v in one.items() if k != "ratio"}) for one in facts["families"]),
        d1_seconds=facts["seconds"]["D1"], d2_seconds=facts["seconds"]["D2"],
        verdict=Verdict.of_plain(facts["verdict"]), notes=tuple(facts["notes"]),
    )  # fmt: skip


@pytest.mark.slow
def test_every_operator_of_a_cnn_is_at_d2_and_both_levels_are_timed(all_d2: tuple[Path, dict[str, Any]]) -> None:
    _, facts = all_d2
    assert {one["level"] for one in facts["operators"]} == {"D2"}
    assert facts["ests"] == 2  # as the script says
    assert facts["seconds"]["D1"] > 0
    assert facts["verdict"]["mixes"]
    assert facts["verdict"]["slowdown"] == facts["seconds"]["D2"] / facts["seconds"]["D1"]
    assert sum(one["share"] for one in facts["operators"]) == pytest.approx(1.0)
    assert sum(one["share"] for one in facts["families"]) == pytest.approx(1.0)
    assert {"convolutions", "norms", "losses", "softmax", "products"} <= {one["name"] for one in facts["families"]}
    places = {(one["module"], one["kind"], one["operator"], one["phase"]) for one in facts["operators"]}
    assert ("stem", "Conv2d", "convolution", "forward") in places
    assert ("stem", "Conv2d", "convolution_backward", "backward") in places
    assert any(module == "SGD" and phase == "update" for module, _, _, phase in places)
    (stem,) = [one for one in facts["operators"] if one["operator"] == "convolution"]
    assert stem["calls"] == 2  # one for each EST
    assert stem["line"] == "cnn.py:26"
    assert stem["d2_seconds"] > 0


@pytest.mark.slow
def test_the_written_verdict_is_the_printed_one_and_the_kept_one(
    all_d2: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts = all_d2
    verdict = Verdict.of_plain(facts["verdict"])
    assert read_verdict(folder / "verdict.json") == verdict
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.chdir(folder)
    assert find_verdict(Target("cnn.py")) == verdict
    assert find_verdict(Target("cnn.py", ("--other",))) is None
    changed = Path("cnn.py").read_text() + "\n"
    Path("changed.py").write_text(changed)
    assert find_verdict(Target("changed.py")) is None


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_the_terminal(
    all_d2: tuple[Path, dict[str, Any]], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = scan_of(all_d2[1])
    long = replace(found.operators[0], module="encoder.layer.3.attention.intermediate.activation", share=0.3)
    found = replace(found, operators=(long, *found.operators))
    _show(Target("cnn.py"), found, advise(found.verdict), all_rows=True)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "intermediate." in shown  # not torn apart
    assert "native_batch_norm_" in shown
    assert "Whole step:" in shown


@pytest.mark.slow
def test_the_exit_code_follows_the_limit_and_the_cluster(
    all_d2: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts = all_d2
    monkeypatch.chdir(folder)
    found = replace(scan_of(facts), verdict=Verdict(mixes=True, slowdown=1.4, device="cpu"))
    monkeypatch.setattr(scanning.Scanning, "run", lambda self: found)

    def code(*options: str) -> int:
        return CliRunner().invoke(app, ["scan", "-q", *options, "cnn.py"]).exit_code

    assert code() == 0
    assert code("--limit", "1.3") == 1
    assert code("--ests", "12", "--cluster", "v100:4,t4:8") == 0
    monkeypatch.setattr(
        scanning.Scanning, "run", lambda self: replace(found, verdict=replace(found.verdict, slowdown=5.0))
    )
    assert code() == 1
    assert code("--limit", "6") == 0
    assert code("--limit", "6", "--ests", "12", "--cluster", "v100:4,t4:8") == 1


# ---------------------------------------------------------------------------------------- scripts that are not


@pytest.mark.slow
def test_an_operator_without_a_d2_form_is_named_with_module_and_line(tmp_path: Path) -> None:
    script(tmp_path, "inverse.py", odd="x @ torch.linalg.inv(torch.eye(5) + 0 * x.mean())")
    done = easyscale("scan", "inverse.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("D1:"))
    assert line.startswith("D1: linalg_inv_ex in odd.0 (Odd), inverse.py:16: ")
    assert "no D2 form" in line
    assert "D2/D1" not in done.stdout  # D2 was not run
    assert "Advice: one device type. No D2 form: linalg_inv_ex." in done.stdout
    assert "scan: " in done.stderr


@pytest.mark.slow
def test_nondeterministic_and_foreign_operators_are_at_d0(tmp_path: Path) -> None:
    path = script(
        tmp_path, "odd.py",
        odd="torch.ops.shop.double(torch.put(x, torch.tensor([0]), torch.ones(1)).detach()) + x",
        init='seed=3); library = torch.library.Library("shop", "DEF"); library.define("double(Tensor x) -> Tensor"); '
        'library.impl("double", lambda x: 2 * x, "CPU"',
    )  # fmt: skip
    done = easyscale("scan", "--json", path.name, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    at_d0 = {one["operator"]: one for one in facts["operators"] if one["level"] == "D0"}
    assert set(at_d0) == {"put", "shop.double"}
    assert (at_d0["put"]["module"], at_d0["put"]["line"]) == ("odd.0", "odd.py:16")
    assert facts["verdict"]["nondeterministic"] == ["put"]  # of an extension nobody knows
    assert set(facts["verdict"]["missing"]) == {"put", "shop.double"}
    assert (facts["advice"]["level"], facts["advice"]["words"]) == (None, "replace an operator")
    assert any("shop.double" in note and "easyscale verify" in note for note in facts["notes"])
    assert facts["seconds"]["D1"] > 0
    assert facts["seconds"]["D2"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("print('hello')", "ran no global step", "the loop over a loader that es.prepare()"),
        ("raise ValueError('my data is gone')", "failed, so it could not be scanned", "ValueError: my data is gone"),
    ],
)
def test_a_script_that_cannot_be_scanned_is_told_why(tmp_path: Path, text: str, what: str, why: str) -> None:
    (tmp_path / "train.py").write_text(text)
    done = easyscale("scan", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr
    assert why in done.stderr
    assert "easyscale/" not in done.stderr  # no frames of ours
    assert done.stdout == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_scan_and_its_worker(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "began")
    script(tmp_path, "train.py", before="open('began', 'w').close(); import time; time.sleep(0.1)")
    job = subprocess.Popen(
        (sys.executable, "-m", "easyscale", "scan", "--steps", "1000", "train.py"), cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    fifo = os.open(tmp_path / "began", os.O_RDONLY)  # returns once the worker is in its loop, and lets it go on
    os.killpg(job.pid, signal.SIGINT)
    out, err = job.communicate(timeout=60)
    os.close(fifo)
    assert job.returncode == 130
    assert "scan: stopped; no verdict was kept" in err
    assert "Traceback" not in err
    assert out == ""
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


# ---------------------------------------------------------------------------------------- without a run


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--limit", "0"], "--limit 0 is not a factor"),
        (["--limit", "nan"], "--limit nan is not a factor"),
        (["--cluster", "v100:x"], "does not describe devices"),
        (["--timeout", "0"], "--timeout 0 is not a time"),
        (["--write", "no/such/folder/v.json"], "such as --write report.json"),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(
    options: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('it was started')")
    done = CliRunner().invoke(app, ["scan", *options, "train.py"])
    assert isinstance(done.exception, EasyScaleError)
    assert what in str(done.exception)
    assert "now:" in str(done.exception)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["scan", "train.py"])
    assert "There is no script train.py" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "ests"),
    [
        ("es.init(seed=0, ests=6)", 6),
        ("from easyscale import init\ninit(ests=3)", 3),
        ("es.init()", 1),
        ("es.init(ests=N)", 1),
        ("other(ests=5)", 1),
        ("def broken(:", 1),
    ],
)
def test_ests_are_read_from_the_script(text: str, ests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EASYSCALE_ESTS", raising=False)
    (tmp_path / "train.py").write_text(text)
    assert ests_of(str(tmp_path / "train.py")) == ests


def operator(module: str, kind: str, name: str = "mm", **more: Any) -> Operator:
    facts = {"phase": "forward", "level": "D2", "family": "products", "why": "", "line": "", "calls": 1, "seconds": 1.0}
    return Operator(module=module, kind=kind, operator=name, share=0.1, **{**facts, **more})


def test_modules_that_differ_in_numbers_alone_are_one_row_if_they_are_of_one_class() -> None:
    rows = grouped(
        (
            operator("layers.0.norm", "LayerNorm", d2_seconds=2.0),
            operator("layers.11.norm", "LayerNorm", d2_seconds=3.0),
            operator("0", "Linear"), operator("1", "Whiten"), operator("2", "Linear", "mm.out"),
            operator("conv2d1", "Conv2d"),
        )
    )  # fmt: skip
    assert {row.module: row.calls for row in rows} == {
        "layers.*.norm": 2, "* (Linear)": 2, "* (Whiten)": 1, "conv2d1": 1,
    }  # fmt: skip
    (norm,) = [row for row in rows if row.module == "layers.*.norm"]
    assert (norm.seconds, norm.d2_seconds, norm.share) == (2.0, 5.0, 0.2)


def test_all_rows_keep_their_modules_and_overloads() -> None:
    rows = grouped((operator("0", "Linear"), operator("2", "Linear", "mm.out")), whole=True)
    assert {(row.module, row.operator) for row in rows} == {("0 (Linear)", "mm"), ("2 (Linear)", "mm.out")}


def test_long_names_are_folded_at_their_marks() -> None:
    assert folded("encoder.layer.*.attention.self", 16, ".") == "encoder.layer.*.\nattention.self"
    assert folded("short", 16, ".") == "short"
    assert folded("without_any_mark_of_that_kind", 10, ".").replace("\n", "") == "without_any_mark_of_that_kind"
