"""Shared by all tests: what needs a GPU is left out where there is none."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from raycluster import RayCluster, running_cluster

ROOT = Path(__file__).parents[1]

# A shell that starts the tests in the background has them ignore SIGINT; the tests of signals need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests try the same examples each time, so that a run can be repeated; with this variable new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("default" if os.environ.get("EASYSCALE_EXPLORE") else "repeatable")


@pytest.fixture
def heeds_hangups() -> Iterator[None]:
    """`nohup` has the tests, and all that they start, ignore SIGHUP: not while a test sends it."""
    former = signal.getsignal(signal.SIGHUP)
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.fixture(autouse=True, scope="session")
def _own_runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of the tests are not to be seen by `easyscale ps` of whoever runs them."""
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))  # nor a service that they use
        for name in ("EASYSCALE_SERVER", "EASYSCALE_TOKEN", "EASYSCALE_CACERT", "EASYSCALE_STORE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Started by the first test that asks for it."""
    with running_cluster() as cluster:
        yield cluster


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]


class _Together(LoadFileScheduling):
    """A file's tests run in one process, and so do those of the Ray cluster: what they share (reference runs,
    interpreted kernels, the cluster) is made once."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "the Ray cluster" if _asks_for_ray(file) else file


@functools.cache
def _asks_for_ray(file: str) -> bool:
    return "ray_cluster" in (ROOT / file).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Together | None:
    """Not `loadgroup` and marks: pytest 9.2 has no place any more where xdist 3.8 would write the groups."""
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None
