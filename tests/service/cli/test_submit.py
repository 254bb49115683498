"""easyscale submit: from a file or from flags, checked before anything is sent; one job however often it is sent."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.errors import EasyScaleError
from easyscale.service import connection
from easyscale.service.errors import ForbiddenError
from service.cli.conftest import Cluster, Relay, done, easyscale, refused


@pytest.fixture
def work(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = home / "work"
    (work / "sub").mkdir(parents=True)
    for name in ("train.py", "sub/eval.py"):
        (work / name).write_text("print(1)\n")
    monkeypatch.chdir(work)
    return work


def dry(*args: str) -> Any:
    return json.loads(done("submit", "--dry-run", *args).stdout)


# ---------------------------------------------------------------------------------------- what is sent


def test_flags_and_a_script_become_a_job(login: Cluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = done(
        "submit", "--ests", "8", "--max-workers", "6", "--min-workers", "2", "--types", "v100, p100", "--priority", "3",
        "--team", "vision", "--name", "mine", "--env", "A=1", "--env", "B=x=y", "--env", "WANDB_MODE",
        "--python", "../py/bin/python", "--steps", "100", "--max-steps", "90", "--retries", "2", "--deadline", "2h",
        "--determinism", "D2", "--checkpoint-dir", "ckpt", "--checkpoint-every", "10", "--memory-gb", "2.5",
        "--threads", "2", "--", "train.py", "--lr", "0.1", "-x",
    )  # fmt: skip
    job = result.stdout.strip()
    spec = login.desk.job(job).spec
    assert (spec.script, spec.args) == ("train.py", ["--lr", "0.1", "-x"])
    assert (spec.ests, spec.min_workers, spec.max_workers, spec.types) == (8, 2, 6, ["v100", "p100"])
    assert spec.env == {"A": "1", "B": "x=y", "WANDB_MODE": "offline"}
    assert spec.python == str(work.parent / "py/bin/python")
    assert spec.checkpoint_dir == str(work / "ckpt")
    assert (spec.workdir, spec.snapshot) == (str(work), None)  # the service is on this machine
    assert (spec.name, spec.team, spec.determinism, spec.retries) == ("mine", "vision", "D2", 2)
    assert (spec.steps, spec.max_steps, spec.checkpoint_every, spec.memory_gb) == (100, 90, 10, 2.5)
    assert spec.deadline is not None
    assert f"{job} waits: " in result.stderr


def test_a_file_becomes_a_job_and_flags_count_more(login: Cluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("script: train.py", "ests: 4", "args: [--lr, 0.1]", "checkpoint_dir: ckpt", "python: py/bin/python")
    (work / "job.yaml").write_text("\n".join((*lines, "env: {A: 1, B: 2}")))
    monkeypatch.chdir(work.parent)
    plain = dry("work/job.yaml", "--ests", "2", "--env", "B=3", "--", "--lr", "0.2")
    assert plain == {
        "name": "train", "script": "train.py", "args": ["--lr", "0.2"], "workdir": str(work), "ests": 2,
        "checkpoint_dir": str(work / "ckpt"), "python": str(work / "py/bin/python"), "env": {"A": "1", "B": "3"},
    }  # fmt: skip
    job = done("submit", "work/job.yaml").stdout.strip()
    assert login.desk.job(job).spec.args == ["--lr", "0.1"]


def test_documents_and_arrays_are_several_jobs(login: Cluster, work: Path) -> None:
    (work / "jobs.yml").write_text("script: train.py\nests: 4\n---\nmodule: sub.eval\nests: 2\narray: 3\n")
    ids = done("submit", "jobs.yml", "--key", "k").stdout.split()
    assert len(set(ids)) == 4
    assert [login.desk.job(job).name for job in ids] == ["train", "eval", "eval", "eval"]
    again = easyscale("submit", "jobs.yml", "--key", "k")
    assert again.stdout.split() == ids
    assert "used before" in again.stderr
    told = json.loads(done("submit", "jobs.yml", "--key", "k", "--json").stdout)
    assert told == {"jobs": ids, "new": False}


def test_a_module_is_named_by_its_last_part(work: Path) -> None:
    plain = dry("--ests", "1", "-m", "package.train_all", "--", "--fast")
    assert (plain["module"], plain["name"], plain["args"]) == ("package.train_all", "train_all", ["--fast"])


def test_a_script_may_lie_deeper_but_not_outside(work: Path) -> None:
    assert dry("--ests", "1", "sub/eval.py")["script"] == "sub/eval.py"
    assert dry("--ests", "1", str(work / "train.py"))["script"] == "train.py"
    inside = dry("--ests", "1", "--workdir", "sub", "sub/eval.py")
    assert (inside["script"], inside["workdir"]) == ("eval.py", str(work / "sub"))
    outside = refused("submit", "--dry-run", "--ests", "1", "--workdir", "sub", "train.py")
    assert "not in the working directory" in outside.what


def test_names_come_from_scripts_with_odd_names(work: Path) -> None:
    (work / "-ü my.train.py").write_text("")
    assert dry("--ests", "1", "--", "-ü my.train.py")["name"] == "my.train"


def test_a_snapshot_is_uploaded_once_and_named(login: Cluster, work: Path) -> None:
    text = "script: {}\nests: 1\nsnapshot: true\n"
    (work / "job.yaml").write_text(f"{text.format('train.py')}---\n{text.format('sub/eval.py')}")
    ids = done("submit", "job.yaml").stdout.split()
    specs = [login.desk.job(job).spec for job in ids]
    assert specs[0].snapshot == specs[1].snapshot is not None
    assert specs[0].workdir is None
    (name,) = login.desk.snapshots
    with tarfile.open(fileobj=BytesIO(login.desk.snapshots[name])) as tar:
        assert tar.getnames() == ["job.yaml", "sub", "sub/eval.py", "train.py"]
    result = done("submit", "job.yaml", "--dry-run")
    assert [one["snapshot"] for one in json.loads(result.stdout)] == [name, name]
    assert "3 files" in result.stderr
    assert "snapshot" not in dry("job.yaml", "--path")[0]


def test_a_service_elsewhere_gets_a_copy_by_default(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_SERVER", "https://cluster.example.org")
    assert dry("--ests", "1", "train.py")["snapshot"]
    there = dry("--ests", "1", "--path", "--workdir", "/srv/work", "train.py")
    assert (there["workdir"], there["script"]) == ("/srv/work", "train.py")  # not looked for here
    (work / "job.yaml").write_text("script: train.py\nests: 1\ncheckpoint_dir: c\n")
    assert "line 3: checkpoint_dir is c, which is relative" in refused("submit", "--dry-run", "job.yaml").what
    assert "--path needs" in refused("submit", "--dry-run", "--path", "--ests", "1", "train.py").what


def test_an_uploaded_snapshot_can_be_named_again(login: Cluster, work: Path) -> None:
    (work / "job.yaml").write_text(f"script: not-here.py\nests: 1\nsnapshot: {'a' * 64}\n")
    assert login.desk.job(done("submit", "job.yaml").stdout.strip()).spec.snapshot == "a" * 64


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("none.yaml",), "cannot be read"),
        (("--ests", "1", "none.py"), "there is no script none.py"),
        (("--ests", "1", "--workdir", "none", "train.py"), "There is no folder"),
        (("train.py",), "`ests` is missing"),
        (("--ests", "0", "train.py"), "--ests: `ests` is 0"),
        (("--ests", "4", "--min-workers", "8", "train.py"), "min_workers 8 is more"),
        (("--ests", "4", "--types", "v100,", "train.py"), "--types: `types.1`"),
        (("--ests", "4", "--env", "NOT_SET_ANYWHERE", "train.py"), "has no value"),
        (("--ests", "4", "--deadline", "soon", "train.py"), "--deadline soon"),
        (("--ests", "4", "--array", "1001", "train.py"), "--array: `array`"),
        (("--ests", "4", "--name", "a b", "train.py"), "--name: `name`"),
        (("job.yaml", "other.yaml"), "stands after"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    login: Cluster, work: Path, args: tuple[str, ...], said: str
) -> None:
    (work / "job.yaml").write_text("script: train.py\nests: 1\n")
    before = login.desk.records(0, 1).last
    assert said in refused("submit", *args).what
    assert login.desk.records(0, 1).last == before


def test_one_wrong_document_stops_them_all(login: Cluster, work: Path) -> None:
    (work / "job.yaml").write_text("script: train.py\nests: 1\n---\nscript: train.py\nests: no\n")
    before = login.desk.records(0, 1).last
    assert "line 5" in refused("submit", "job.yaml").what
    assert login.desk.records(0, 1).last == before


def test_without_a_service_it_is_said_what_to_do(work: Path) -> None:
    error = refused("submit", "--ests", "1", "train.py")
    assert "No service is known" in error.what
    assert "easyscale up" in error.now
    assert dry("--ests", "1", "train.py")["ests"] == 1  # which needs none


def test_the_service_refuses_another_team_and_a_viewer(cluster: Cluster, work: Path) -> None:
    for user, team in (("ann", "speech"), ("vic", "vision")):
        connection.save(connection.Connection(url=cluster.url, token=cluster.tokens[user]))
        refused("submit", "--ests", "1", "--team", team, "train.py", kind=ForbiddenError)


def test_a_link_that_leaves_the_folder_is_refused(login: Cluster, work: Path) -> None:
    (work / "data").symlink_to("/etc")
    assert "leads out" in refused("submit", "--snapshot", "--ests", "1", "train.py").what
    assert not login.desk.snapshots


# ---------------------------------------------------------------------------------------- what is lost on the way


def test_a_lost_answer_gives_one_job(cluster: Cluster, relay: Relay, work: Path) -> None:
    connection.save(connection.Connection(url=relay.url, token=cluster.tokens["ann"]))
    total = cluster.desk.jobs(_all()).total
    relay.lose_answers = 1
    job = done("submit", "--ests", "1", "--name", "once", "train.py").stdout.strip()
    assert cluster.desk.jobs(_all()).total == total + 1
    assert cluster.desk.job(job).name == "once"


def _all() -> Any:
    from easyscale.service.ports import JobQuery

    return JobQuery()


def test_wait_ends_with_the_jobs_exit_code(login: Cluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = login.desk.submit

    def ends(state: str) -> None:
        def submitted(*args: Any) -> Any:
            found = submit(*args)
            for job in found.jobs:
                login.desk.put(job, state, step=5)  # type: ignore[arg-type]
            return found

        monkeypatch.setattr(login.desk, "submit", submitted)

    ends("finished")
    assert easyscale("submit", "--wait", "--ests", "1", "train.py").exit_code == 0
    ends("failed")
    failed = easyscale("submit", "--wait", "--ests", "1", "--array", "2", "train.py")
    assert failed.exit_code == 1
    assert "is failed. ValueError" in failed.stderr


def test_a_service_that_is_away_is_told(work: Path) -> None:
    connection.save(connection.Connection(url="http://127.0.0.1:9", token="est_secret"))
    error = refused("submit", "--ests", "1", "train.py", kind=EasyScaleError)
    assert "does not answer" in error.what
    assert "est_secret" not in str(error)
