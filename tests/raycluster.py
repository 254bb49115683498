"""A real Ray cluster on this machine for tests: a head and nodes that have an address each, all of them loopback.

Each node is a raylet of its own with one device of a type that is a custom resource. It takes some ten seconds to
start, so there is one for a whole test session (under `-n 2` one for each process that has such tests).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1] / "src"
SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's own future default; without it Ray warns
}
os.environ.update(SURROUNDINGS)  # now: Ray reads them when it is imported, and a driver must agree with its cluster
STORE_BYTES = 80 << 20  # the least that Ray takes
NODES = ("one", "two", "three")
NOTICE_SECONDS = 120.0  # within which Ray calls a node dead that is gone; some 15 on an idle machine


class RayCluster:
    """`nodes` by name; `add` and `remove` while jobs run."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._last, self._folder = 1, folder
        self.nodes: dict[str, Any] = {}
        with self._surrounded():
            self._cluster = Cluster(
                initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1", **_settings()}
            )

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, **resources: int) -> str:
        """A node with these devices; returns its id. It has the label `name`."""
        self._last += 1
        with self._surrounded():
            node = self._cluster.add_node(
                num_cpus=1, node_ip_address=f"127.0.0.{self._last}", resources=resources, labels={"name": name},
                **_settings(),
            )  # fmt: skip
        self.nodes[name] = node
        return self.id_of(name)

    def remove(self, name: str) -> None:
        """As if its power was cut: no process of it says goodbye."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def restore(self) -> None:
        """The nodes that all tests count on, and no others: the next job would count on a device of a dead one too."""
        for name in [name for name in self.nodes if name not in NODES]:
            self.remove(name)
        for name in [name for name in NODES if name not in self.nodes]:
            self.add(name, v100=1)
        self._cluster.wait_for_nodes(NOTICE_SECONDS)

    def id_of(self, name: str) -> str:
        return str(self.nodes[name].node_id)

    def name_of(self, node: str) -> str:
        return next(name for name in self.nodes if self.id_of(name) == node)

    def shutdown(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    @contextmanager
    def _surrounded(self) -> Iterator[None]:
        """What nodes inherit: our source, and a place for their files with a short name, as sockets need it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_TMPDIR", self._folder)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]))
            yield


def _settings() -> dict[str, Any]:
    return {"include_dashboard": False, "object_store_memory": STORE_BYTES}


@contextmanager
def running_cluster() -> Iterator[RayCluster]:
    """A head and three nodes with a v100 each."""
    with tempfile.TemporaryDirectory(prefix="es-ray-") as folder:
        cluster = RayCluster(folder)
        try:
            cluster.restore()
            yield cluster
        finally:
            cluster.shutdown()
