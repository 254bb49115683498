"""`easyscale trace`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.core.errors import UsageError

HEADER = "job_id,cluster,submit_s,duration_s,num_gpu\n"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["trace", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = "".join(f"j{i},vc{i % 2},{i * 600},{300 + 60 * (i % 7)},{(1, 1, 4, 8)[i % 4]}\n" for i in range(400))
    path.write_text(HEADER + rows)
    return path


def test_describe_prints_a_table_or_json(trace: Path) -> None:
    assert "400 jobs" in run("describe", str(trace))
    study = json.loads(run("describe", str(trace), "--json", "--cluster", "v100:8", "--quotas"))
    assert study["jobs"] == 400
    assert study["queueing"] == "replayed"
    assert 0 < study["utilization"] < 1
    assert study["causes"]["fair_share"] + study["causes"]["fragmentation"] == pytest.approx(1.0)


def test_describe_takes_some_tenants_and_leaves_out_bad_rows(trace: Path) -> None:
    trace.write_text(trace.read_text() + "bad,vc0,1,1,0\n")
    with pytest.raises(UsageError, match="line 402"):
        run("describe", str(trace))
    out = run("describe", str(trace), "--skip-bad", "--tenants", "vc0")
    assert "200 jobs" in out
    assert "left out: 1 rows" in out


def test_options_of_the_reader_are_passed_on(trace: Path) -> None:
    study = json.loads(run("describe", str(trace), "--json", "--read", "kind=t4", "--read", "skip-bad=yes"))
    assert study["jobs"] == 400
    with pytest.raises(UsageError, match="has no value"):
        run("describe", str(trace), "--read", "kind")


def test_jobs_that_ask_for_more_than_the_cluster_has_are_told(trace: Path) -> None:
    assert "100 jobs ask for more than this cluster has" in run("describe", str(trace), "--cluster", "v100:4")
    trace.write_text(HEADER + "a,,0,10,64\n")
    with pytest.raises(UsageError, match="No job of t can run on v100:4"):
        run("describe", str(trace), "--cluster", "v100:4")


def test_describe_writes_plots(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("describe", str(trace), "--plots", str(tmp_path / "plots"))
    assert len(list((tmp_path / "plots").glob("*.png"))) == 4


def test_plots_without_matplotlib_say_which_extra_has_it(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"easyscale-torch\[demo\]"):
        run("describe", str(trace), "--plots", "plots")


def test_a_trace_can_be_fitted_generated_and_described_again(trace: Path, tmp_path: Path) -> None:
    spec, made = tmp_path / "spec.yaml", tmp_path / "made.csv"
    assert "6.0 an hour" in run("fit", str(trace), "-o", str(spec))
    assert "1,000 jobs" in run("generate", "--spec", str(spec), "--jobs", "1000", "--seed", "7", "-o", str(made))
    assert "1,000 jobs" in run("describe", str(made))
    again = tmp_path / "again.csv"
    run("generate", "--spec", str(spec), "--jobs", "1000", "--seed", "7", "-o", str(again))
    assert made.read_bytes() == again.read_bytes()


def test_help_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from easyscale.cli.main import app\n"
        "assert CliRunner().invoke(app, ['trace', 'describe', '--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'scipy', 'yaml') if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
