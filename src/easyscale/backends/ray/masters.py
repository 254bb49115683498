"""The masters of jobs as processes on the cluster: started once each, found again by the job's id, by anyone.

A master works in its job's folder, so that folder must be the same on all nodes that may run it (or `node` names
the one that has it). It is told where it is kept, and writes that down: then each node can tell whether it lives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from easyscale.backends.lives import KEPT_VARIABLE
from easyscale.backends.ray.cluster import connect
from easyscale.backends.ray.keeper import Errand
from easyscale.backends.ray.process import RayProcess

START_SECONDS = 30.0  # for a process of Ray's on a node, and ours in it


class RayMasters:
    """Masters take no device: they mostly wait."""

    def __init__(self, address: str = "auto") -> None:
        self._address = connect(address)

    def start(
        self,
        job: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        log: Path,
        node: str | None = None,
    ) -> RayProcess:
        """The job's master, once it runs; the one that runs already, if there is one. `environment`: what is to be
        added to the node's own."""
        running = self.find(job)
        if running is not None:
            return running
        master = RayProcess(_name(job), self._address, None)
        kept = {KEPT_VARIABLE: master.started, "RAY_ADDRESS": self._address}
        errand = Errand(
            command=list(command), environment={**environment, **kept}, cwd=str(cwd), spec=None, log=str(log)
        )
        master.make(None, errand, node=node)
        deadline = time.monotonic() + START_SECONDS
        while not master.facts and not master.gone() and time.monotonic() < deadline:
            time.sleep(0.05)
        # Two who start it at once: the name goes to one of them.
        return master if master.facts else self.find(job) or master

    def find(self, job: str) -> RayProcess | None:
        """None: there is none, or it has ended."""
        master = RayProcess(_name(job), self._address, None)
        if master.find():
            return master
        master.close()
        return None


def _name(job: str) -> str:
    return f"{job}/master"
