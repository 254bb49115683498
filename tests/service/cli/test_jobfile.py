"""job.yaml: every mistake with its line and what is near; values as they were written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest

from easyscale.core.errors import UsageError
from easyscale.service.jobfile import KEYS, Draft, deadline, parse_jobs, read_jobs
from easyscale.service.models import JobLimits, JobSpec

EVERY_KEY = """
name: digits
script: train.py
args: [--lr, 1.10, --flag, yes, 010]
workdir: /srv/work
python: /opt/py/bin/python
env:
  OMP_NUM_THREADS: 4
  FLAG: yes
  TEXT: "a: b # c"
ests: 8
min_workers: 2
max_workers: 4
gang: false
types: [v100, p100]
memory_gb: 1.5
determinism: D2
threads: 2
priority: -5
team: vision
deadline: 2030-01-31T18:00:00+00:00
steps: 1000
max_steps: 900
checkpoint_dir: /srv/checkpoints
checkpoint_every: 100
checkpoint_seconds: 1e2
retries: 3
array: 5
limits:
  log_mb: 8
  processes: 64
  memory_gb: 16
  open_files: 1024
"""


def draft(text: str) -> Draft:
    (found,) = parse_jobs(dedent(text).lstrip("\n"), "job.yaml", Path("/folder"))
    return found


def check_all(text: str) -> None:
    for one in parse_jobs(dedent(text).lstrip("\n"), "job.yaml", Path("/folder")):
        one.values.setdefault("name", "x")
        one.values.setdefault("workdir", "/w")
        one.check()


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as error:
        check_all(text)
    assert error.value.why
    assert error.value.now
    return error.value


def test_every_key_of_a_job_can_be_written() -> None:
    spec = draft(EVERY_KEY).check()
    assert isinstance(spec, JobSpec)
    assert spec.args == ["--lr", "1.10", "--flag", "yes", "010"]  # as written, not as YAML would read it
    assert spec.env == {"OMP_NUM_THREADS": "4", "FLAG": "yes", "TEXT": "a: b # c"}
    assert spec.deadline == datetime(2030, 1, 31, 18, tzinfo=UTC)
    assert spec.checkpoint_seconds == 100.0
    assert spec.limits.processes == 64
    assert set(draft(EVERY_KEY).values) == set(KEYS) - {"module", "snapshot"}


def test_lists_can_be_written_as_text() -> None:
    found = draft("args: --name 'two words' --lr 0.1\ntypes: v100, p100\nscript: 7\nname: 12").values
    assert found["args"] == ["--name", "two words", "--lr", "0.1"]
    assert found["types"] == ["v100", "p100"]
    assert (found["script"], found["name"]) == ("7", "12")


def test_snapshot_is_a_wish_or_a_sha256() -> None:
    assert draft("snapshot: true").snapshot is True
    assert draft("snapshot: False").snapshot is False
    assert draft(f"snapshot: {'a' * 64}").values["snapshot"] == "a" * 64
    assert draft("ests: 1").snapshot is None


def test_empty_values_are_left_out() -> None:
    assert draft("ests: 4\nteam:\nenv:\nlimits: ~\nargs: null\ntypes:\ndeadline:").values == {"ests": 4}


def test_several_documents_are_several_jobs_and_empty_ones_none() -> None:
    jobs = parse_jobs("ests: 1\n---\nests: 2\n---\n# nothing\n---\n", "job.yaml", Path("/"))
    assert [one.values["ests"] for one in jobs] == [1, 2]
    assert jobs[1].place("ests") == "line 3"


@pytest.mark.parametrize(
    ("text", "line", "said", "now"),
    [
        ("ests: 4\nmax_worker: 8", 2, "no key `max_worker`", "`max_workers`"),
        ("ests: 4\nmin-workers: 8", 2, "no key `min-workers`", "`min_workers`"),
        ("colour: red\nests: 4", 1, "no key `colour`", "the keys are"),
        ("ests: 4\nests: 5", 2, "comes twice", "line 1"),
        ("limits:\n  memory: 5", 2, "no key `memory`", "`memory_gb`"),
        ("script: a\nests: four", 2, '"four", not a whole number', "without quotes"),
        ('script: a\nests: "4"', 2, "not a whole number", "without quotes"),
        ("script: a\nests: 4.5", 2, "not a whole number", "point"),
        ("script: a\nests: true", 2, "not a whole number", "number"),
        ("script: a\nests: 0", 2, "greater than or equal to 1", "fits"),
        ("script: a\nests: [4]", 2, "one value", "`ests: VALUE`"),
        ("script: a\nests: 4\ngang: maybe", 3, "neither true nor false", "true or false"),
        ("script: a\nests: 4\nmemory_gb: lots", 3, "not a number", "number"),
        ("script: a\nests: 4\ndeterminism: D3", 3, "'D0', 'D1' or 'D2'", "fits"),
        ("script: a\nests: 4\nname: a b", 3, '"a b"', "letters"),
        ("script: a\nests: 4\ntypes:\n- v100\n- a b", 5, '"a b"', "letters"),
        ("script: a\nests: 4\ntypes: {v100: 2}", 3, "is a list", "types: [v100, p100]"),
        ("script: a\nests: 4\nargs:\n- [1]", 4, "plain values", "args:"),
        ("script: a\nests: 4\nargs: \"it's\"", 3, "as a shell", "quotes"),
        ("script: a\nests: 4\nenv: [A]", 3, "`key: value`", "`key: value`"),
        ("script: a\nests: 4\nenv:\n  A:", 4, "`env.A` has no value", "A:"),
        ("script: a\nests: 4\nenv:\n  A-B: x", 4, "which it cannot be", "letters"),
        ("script: a\nests: 4\ndeadline: soon", 3, "no time", "2030-01-31"),
        ("script: a\nests: 4\nsnapshot: abc", 3, "which it cannot be", "true, false"),
        ("script: a\nests: 4\nsnapshot: [1]", 3, "true, false or a sha256", "snapshot: true"),
        ("script: a\nests: 4\nlimits:\n  processes: 2", 4, "greater than or equal to 8", "fits"),
        ("script: a\nests: 4\n? [1]\n: 2", 3, "plain word", "key: value"),
        ("- a list", 1, "`key: value` lines", "key: value"),
        ("ests: 4\nscript: 'a", 2, "no YAML", "quotes"),
        ("ests: 4\n\tscript: a", 2, "no YAML", "key: value"),
    ],
)
def test_a_mistake_is_shown_with_its_line(text: str, line: int, said: str, now: str) -> None:
    error = refused(text)
    assert error.what.startswith(f"job.yaml, line {line}: ")
    assert said in error.what
    assert now in error.now


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("script: a", "`ests` is missing"),
        ("ests: 4", "exactly one of script and module"),
        ("ests: 4\nscript: a\nmodule: b", "exactly one of script and module"),
        ("ests: 4\nscript: a\nmin_workers: 5", "min_workers 5 is more than the 4"),
        (f"ests: 4\nscript: a\nworkdir: /a\nsnapshot: {'a' * 64}", "exactly one of workdir and snapshot"),
    ],
)
def test_what_does_not_fit_together_is_told(text: str, said: str) -> None:
    assert said in refused(text).what


def test_all_mistakes_are_told_at_once() -> None:
    error = refused("scrip: a\nest: 4\nargs: {}\n")
    assert "3 mistakes" in error.what
    assert [f"line {n}" in error.why for n in (1, 2, 3)] == [True] * 3
    assert "`script`" in error.now
    many = refused("\n".join(f"k{n}: 1" for n in range(20)))
    assert "12 more" in many.why


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    for name, data, said in (
        ("empty.yaml", b"", "holds no job"), ("comment.yaml", b"# nothing\n", "holds no job"),
        ("binary.yaml", b"\xff\xfe\x00", "no text"), ("huge.yaml", b"#" * (1 << 20) + b"##", "too large"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=said):
            read_jobs(tmp_path / name)
    for missing in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read") as error:
            read_jobs(missing)
        assert error.value.now


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    text = "script: !!python/object/apply:os.system ['touch owned']\nests: 1"
    assert "one value" in refused(text).what
    recursive = "args: &a [*a]\nests: 1\nscript: a"
    assert "plain values" in refused(recursive).what


def test_a_deadline_is_a_moment_or_so_long_from_now() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert deadline("90m", now) == "2030-01-01T01:30:00+00:00"
    assert deadline("1.5h", now) == "2030-01-01T01:30:00+00:00"
    assert deadline("2d", now) == "2030-01-03T00:00:00+00:00"
    assert datetime.fromisoformat(deadline("2030-01-01 10:00") or "").tzinfo is not None
    assert deadline("tomorrow") is None
    assert deadline("") is None


def test_a_flag_is_named_where_it_is_wrong() -> None:
    found = draft("script: a\nests: 4\nname: x\nworkdir: /w")
    found.say("ests", 0, "--ests")
    with pytest.raises(UsageError, match=r"job.yaml, --ests: `ests` is 0"):
        found.check()


ROOT = Path(__file__).parents[3]


def test_the_guide_has_every_key() -> None:
    guide = (ROOT / "docs" / "howto" / "submit.md").read_text()
    for key in (*KEYS, *JobLimits.model_fields):
        assert f"`{key}`" in guide, key


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/job*.yaml")), ids=lambda path: path.parent.name)
def test_the_examples_are_jobs(path: Path) -> None:
    for one in read_jobs(path):
        one.values["workdir"] = str(path.parent)
        spec = one.check()
        assert (path.parent / (spec.script or "")).is_file()
