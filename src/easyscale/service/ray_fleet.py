"""Masters and workers of jobs on a Ray cluster: folders stay with the service, workers go to their device's node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from easyscale.backends.ray.cluster import connect, devices, here
from easyscale.backends.ray.demand import Demand
from easyscale.backends.ray.masters import RayMasters
from easyscale.backends.ray.process import RayProcess
from easyscale.core.cluster import Devices
from easyscale.service.devices import Found
from easyscale.service.fleet import LocalFleet
from easyscale.service.ports import Launch


class RayFleet(LocalFleet):
    """Masters run on the service's own node, where their folders are; workers on the node of their device."""

    name = "ray"

    def __init__(self, data: Path, address: str = "auto", environment: Mapping[str, str] | None = None) -> None:
        super().__init__(data, environment)
        self._address = connect(address)
        self._masters, self._demand = RayMasters(self._address), Demand()
        self._processes: dict[str, RayProcess] = {}

    def stock(self) -> list[Found]:
        """The devices of the nodes that live now."""
        return [Found(slot) for slot in devices(self._address)]

    def want(self, held: Devices, more: Devices) -> None:
        """Ray's autoscaler hears what jobs could use beside what they hold."""
        self._demand.want(held, more)

    def close(self) -> None:
        self._demand.withdraw()
        for process in self._processes.values():
            process.close()
        super().close()

    def _keeps(self, name: str) -> bool:
        """Ray's settings must agree on all sides. A token is read from Ray's file, not from the environment."""
        return super()._keeps(name) or (name.startswith("RAY_") and "TOKEN" not in name)

    def _flags(self, launch: Launch) -> list[str]:
        return [*super()._flags(launch), "--backend", "ray", "--ray-address", self._address]

    def _spawn(self, folder: Path, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        log = folder / "logs" / "master.log"
        self._processes[folder.name] = self._masters.start(folder.name, command, environment, cwd, log, here())

    def _knows(self, name: str) -> bool:
        return name in self._processes

    def _ended(self, name: str) -> int | None:
        process = self._processes.get(name)
        if process is None or not process.gone():
            return None
        return 1 if process.code is None else process.code
