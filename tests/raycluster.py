"""A real Ray cluster on this machine for tests: a head and nodes that have an address each, all of them loopback.

Each node is a raylet of its own with one device of a type that is a custom resource. It takes some ten seconds to
start, so there is one for a whole test session.
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
STORE_BYTES = 80 << 20  # the least that Ray takes


class RayCluster:
    """`nodes` by name; `add` and `remove` while jobs run."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._last = 1
        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1", **_settings()}
        )
        self.nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, **resources: int) -> str:
        """A node with these devices; returns its id. It has the label `name`."""
        self._last += 1
        node = self._cluster.add_node(
            num_cpus=1, node_ip_address=f"127.0.0.{self._last}", resources=resources, labels={"name": name},
            **_settings(),
        )  # fmt: skip
        self.nodes[name] = node
        return str(node.node_id)

    def remove(self, name: str) -> None:
        """As if its power was cut: no process of it says goodbye."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def shutdown(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _settings() -> dict[str, Any]:
    return {"include_dashboard": False, "object_store_memory": STORE_BYTES}


@contextmanager
def running_cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="es-ray-") as folder:
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        patch.setenv("RAY_TMPDIR", folder)  # short: the paths of sockets in there have a limit
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]))
        cluster = RayCluster()
        try:
            for name in ("one", "two", "three"):
                cluster.add(name, v100=1)
            yield cluster
        finally:
            cluster.shutdown()
