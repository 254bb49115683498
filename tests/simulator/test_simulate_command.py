"""`easyscale simulate`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.core.errors import UsageError

TRACE = """name,submit,devices,duration
a,0,2,100
b,10,1,50
c,20,4,200
d,30,1,10
"""


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "jobs.csv"
    file.write_text(TRACE)
    return file


def run(*arguments: object):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], catch_exceptions=False)


def test_a_table_json_and_a_report_come_out(trace, tmp_path):
    out = tmp_path / "out"
    result = run("--trace", trace, "--cluster", "v100:4", "--policy", "fifo,backfill", "--seeds", 2, "--processes", 1,
                 "--out", out, "-q")  # fmt: skip
    assert result.exit_code == 0
    assert "fifo" in result.stdout
    assert "makespan" in result.stdout
    facts = json.loads((out / "result.json").read_text())
    assert set(facts["policies"]) == {"fifo", "backfill"}
    assert set(facts["policies"]["fifo"]["seeds"]) == {"0", "1"}
    assert facts["policies"]["fifo"]["figures"]["jct"]["mean"] > 0
    assert facts["policies"]["fifo"]["figures"]["fairness_median"]["mean"] > 0
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert str(tmp_path) not in (out / "result.json").read_text()  # no path of this machine


def test_the_table_fits_the_terminal(trace):
    for columns in (80, 120):
        result = CliRunner(env={"COLUMNS": str(columns)}).invoke(
            app, ["simulate", "--trace", str(trace), "--cluster", "v100:4", "--policy", "fifo,backfill", "-q",
                  "--processes", "1", "--seeds", "2"],
        )  # fmt: skip
        table = [line for line in result.stdout.splitlines() if line.startswith((" fifo", "fifo", " policy", "policy"))]
        assert all(len(line) <= columns for line in table)
        assert "…" not in result.stdout


def test_an_option_of_one_policy_is_its_own(trace, tmp_path):
    file = tmp_path / "r.json"
    run("--trace", trace, "--cluster", "v100:4", "--policy", "fifo,backfill", "--set", "backfill.restart-cost=500",
        "--processes", 1, "--json", file, "-q")  # fmt: skip
    found = json.loads(file.read_text())["policies"]
    assert found["backfill"]["figures"]["jct"]["mean"] > found["fifo"]["figures"]["jct"]["mean"]


@pytest.mark.slow
def test_processes_give_the_same_figures(trace, tmp_path):
    """In a process of its own: workers are spawned, and find their main module there."""
    answers = []
    for processes in ("1", "2"):
        file = tmp_path / f"{processes}.json"
        subprocess.run(
            [sys.executable, "-m", "easyscale", "simulate", "--trace", str(trace), "--cluster", "v100:4", "--policy",
             "fifo,backfill", "--seeds", "2", "--processes", processes, "--json", str(file)],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        answers.append({name: of["seeds"] for name, of in json.loads(file.read_text())["policies"].items()})
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "fif"], ["fif", "fifo"]),
        (["--policy", "fifo", "--trace", "nowhere.csv"], ["nowhere.csv"]),
        (["--policy", "fifo,fifo"], ["twice"]),
        (["--policy", "fifo", "--cluster", "v100"], ["TYPE:COUNT"]),
        (["--policy", "fifo", "--cluster", "v100:2"], ["wait for ever", "line 4", "--misfits"]),
        (["--policy", "fifo", "--set", "srtf.interval=3"], ["no policy of this run"]),
        (["--policy", "fifo", "--set", "fifo.nonsense=3"], ["does not take"]),
        (["--policy", "fifo", "--set", "fifo"], ["has no value"]),
        (["--policy", "fifo", "--json", "/nowhere/at/all.json"], ["cannot be written"]),
        (["--policy", "fifo", "--switch-cost", "-1"], ["switch_seconds"]),
        (["--policy", "fifo", "--comings", "nowhere.csv"], ["nowhere.csv"]),
    ],
)
def test_what_cannot_be_is_told_in_three_parts(trace, arguments, words):
    given = ["--trace", trace, "--cluster", "v100:4", "--processes", 1, "-q", *arguments]
    with pytest.raises(UsageError) as refused:
        run(*given)
    assert refused.value.why
    assert refused.value.now
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--comings", "time_s,type,change\n5,v100,1\n9,a100,1\n", ":3"),
        ("--comings", "time_s,type,change\n-5,v100,1\n", ":2"),
        ("--comings", "when,what\n", "time_s"),
        ("--demand", "time_s,type,devices\n0,v100,9\n", ":2"),
        ("--demand", "time_s,type,devices\nnoon,v100,1\n", "noon"),
    ],
)
def test_files_about_devices_are_checked_line_by_line(trace, tmp_path, flag, text, words):
    file = tmp_path / "devices.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        run("--trace", trace, "--cluster", "v100:4", "--policy", "fifo", "--serving", "v100:4", flag, file, "-q")


def test_the_command_is_listed_without_loading_numpy_or_torch():
    code = "import sys; import easyscale.cli.main; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
