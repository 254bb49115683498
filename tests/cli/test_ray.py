"""What can be wrong about `--backend ray`, told before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.cli.ray import RayWish, parse_labels, wish_of
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.master.registry import list_jobs
from raycluster import RayCluster


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def refused(*flags: str) -> EasyScaleError:
    before = len(list_jobs())
    result = CliRunner().invoke(app, ["run", "--ests", "2", *flags, "train.py"])
    assert isinstance(result.exception, EasyScaleError), result.output
    assert result.exception.why
    assert result.exception.now
    assert len(list_jobs()) == before, "nothing is left of a job that was refused"
    return result.exception


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--types", "v100"), "--types was given without --backend ray"),
        (("--ray-address", "auto"), "--ray-address was given without --backend ray"),
        (("--ray-wait",), "--ray-wait was given without --backend ray"),
        (("--backend", "ray", "--engine", "ddp"), "--backend ray does not go with --engine ddp"),
        (("--backend", "ray", "--ray-address", "here"), "'here' is not the address of a Ray cluster"),
        (("--backend", "ray", "--ray-address", "ray://x:10001"), "is an address of the Ray Client"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: tuple[str, ...], words: str) -> None:
    assert words in refused(*flags).what


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = refused("--backend", "ray", "--ray-address", f"127.0.0.1:{port}")
    assert error.what == f"The Ray cluster at 127.0.0.1:{port} cannot be reached."
    assert error.why == "Connection refused"
    assert "ray start --head" in error.now


def test_something_else_that_listens_there_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: what waits for the answer stays until the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
from easyscale.backends.ray import cluster
from easyscale.core.errors import EasyScaleError
cluster.INIT_SECONDS = 2.0
try:
    cluster.connect("127.0.0.1:{server.getsockname()[1]}")
except EasyScaleError as error:
    print(error.what, error.why, flush=True)
import os
os._exit(0)
"""
        done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=120)
    assert "cannot be reached" in done.stdout
    assert "it is no Ray head node, or RAY_AUTH_MODE" in done.stdout


def test_without_ray_the_extra_is_named() -> None:
    """In a process of its own: threads of other tests may be using Ray in this one."""
    code = """
import sys
sys.modules["ray"] = None
from easyscale.cli.main import main
main()
"""
    flags = ("run", "--ests", "2", "--backend", "ray", "train.py")
    command = (sys.executable, "-c", code, *flags)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "Ray is not installed." in said
    assert "easyscale-torch[ray]" in said
    assert "Traceback" not in said


def test_labels_are_names_and_values() -> None:
    assert parse_labels(None) == {}
    assert parse_labels("zone=a, disk=ssd") == {"zone": "a", "disk": "ssd"}
    for text in ("zone", "=a", "zone=", "a=b,,"):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            parse_labels(text)


def test_the_next_master_reads_from_the_record_where_the_workers_are() -> None:
    wish = RayWish(address="10.0.0.1:6379", types=("v100", "t4"), labels={"zone": "a"})
    assert RayWish.of(wish.settings()) == wish
    assert RayWish.of({}) is None
    assert wish_of("local", "est", None, None, None, wait=False) is None


@pytest.mark.slow
def test_a_type_that_no_node_has_is_refused_unless_one_may_come(ray_cluster: RayCluster) -> None:
    error = refused("--backend", "ray", "--ray-address", ray_cluster.address, "--types", "h100")
    assert error.what == "No node of the Ray cluster has a device of type h100."
    assert "v100:" in error.why
    wish = wish_of("ray", "est", ray_cluster.address, "h100", None, wait=True)
    assert wish is not None
    assert wish.types == ("h100",)
