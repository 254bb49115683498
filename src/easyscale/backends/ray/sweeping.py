"""Gives back devices that nobody uses: reservations whose keeper is gone, and whose master died before it noticed.

A reservation outlives the master that made it, as its worker has to. If the worker's node is lost while there is no
master, Ray even moves the reservation to another node. So each launcher looks around now and then, for all jobs.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable

import ray
import ray.exceptions
from ray.util.placement_group import remove_placement_group

from easyscale.backends.ray.cluster import NAMESPACE

# From a reservation to its keeper is much less than a second; who has none for so long will never have one.
LOOK_SECONDS = 30.0
_OURS = re.compile(r".+/worker-\d+/[0-9a-f]{8}")
_STATES = ("CREATED", "RESCHEDULING")  # one that waits for a device holds none


def unused(reservations: Iterable[tuple[str, str]], keepers: Iterable[str]) -> set[str]:
    """The names of our reservations (name, state) that have no keeper."""
    held = {name for name, state in reservations if state in _STATES and _OURS.fullmatch(name)}
    return held - set(keepers)


class Sweeper:
    """What is seen unused in two looks in a row is given back."""

    def __init__(self, seconds: float = LOOK_SECONDS) -> None:
        self._before: set[str] = set()
        self._over = threading.Event()
        self._seconds = seconds
        threading.Thread(target=self._run, name="ray sweeper", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            if not ray.is_initialized():
                return
            with contextlib.suppress(ray.exceptions.RayError, ValueError, RuntimeError):
                self.look()

    def look(self) -> None:
        table = ray.util.placement_group_table().values()
        actors = ray.util.list_named_actors(all_namespaces=True)
        keepers = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
        found = unused([(one["name"], one["state"]) for one in table], keepers)
        for name in found & self._before:
            remove_placement_group(ray.util.get_placement_group(name))
        self._before = found
