"""What a job holds, device by device, and how long a global step takes on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from easyscale.core.cluster import DeviceKind
from easyscale.planner.assignment import assign
from easyscale.planner.facts import Device
from easyscale.planner.profile import ENOUGH, Profile


@dataclass(frozen=True, slots=True)
class Best:
    """ESTs by device, of those that run any, and the seconds of a global step."""

    split: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Holding:
    """Devices as the profile knows them now. Both questions go to the same model, so their answers compare."""

    devices: tuple[Device, ...]
    profile: Profile
    kinds: Mapping[str, DeviceKind]
    fixed: bool = False  # each device must run an EST

    def best(self, ests: int, usable: Sequence[Device]) -> Best:
        if self.fixed:
            return self._best_of_all(ests, usable)
        reduction, nodes = self.profile.reduction(), self.machines([device.id for device in usable])
        speeds = [1.0 / self.profile.of_device(device.id, device.kind).seconds for device in usable]
        found = assign(ests, speeds, lambda workers: reduction(workers, min(nodes, workers)))
        split = {device.id: count for device, count in zip(usable, found.split, strict=True) if count}
        return Best(split, found.seconds)

    def _best_of_all(self, ests: int, usable: Sequence[Device]) -> Best:
        """One EST each; each further one goes where it is done first, so that the last is done as early as can be."""
        seconds = {device.id: self.profile.of_device(device.id, device.kind).seconds for device in usable}
        split = dict.fromkeys(seconds, 1)
        for _ in range(ests - len(split)):
            split[min(split, key=lambda device: (split[device] + 1) * seconds[device])] += 1
        return Best(split, self.seconds(split))

    def seconds(self, split: Mapping[str, int]) -> float:
        kinds = {device.id: device.kind for device in self.devices}
        local = max(count * self.profile.of_device(device, kinds[device]).seconds for device, count in split.items())
        return local + self.profile.reduction()(len(split), self.machines(split))

    def measured(self, split: Mapping[str, int]) -> bool:
        """Each device of the split has run long enough to be judged."""
        known = self.profile.devices
        return all(device in known and known[device][1].steps >= ENOUGH for device in split)

    def machines(self, ids: Collection[str]) -> int:
        """Of these devices; where machines have no names, as few as can hold them."""
        here = [device for device in self.devices if device.id in ids]
        names = {device.node for device in here}
        if "" not in names:
            return len(names)
        usual = DeviceKind(name="").per_node
        room = {kind: self.kinds[kind].per_node if kind in self.kinds else usual for kind in counts(here)}
        return sum(-(-count // room[kind]) for kind, count in counts(here).items())


def counts(devices: Sequence[Device]) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in devices:
        found[device.kind] = found.get(device.kind, 0) + 1
    return found
