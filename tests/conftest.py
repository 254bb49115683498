"""Shared by all tests: what needs a GPU is left out where there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from raycluster import RayCluster, running_cluster

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
    _keep_together(items)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]


def _keep_together(items: list[pytest.Item]) -> None:
    """Under `--dist loadgroup` a file's tests run in one process, and so do those of the Ray cluster: what they share
    (reference runs, interpreted kernels, the cluster) is made once."""
    for item in items:
        shared = "ray_cluster" if "ray_cluster" in getattr(item, "fixturenames", ()) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(shared))
