"""The best few ways for a job to grow or to shrink, as data for whoever shares the cluster.

A D1 job stays on its type: more of it, or, as long as it holds nothing, any one type. A D2 job takes more of one type
or of several. Proposals that another beats (faster with no more devices) are left out; the rest are sorted as EasyScale
(SC'23) does: most speed-up per device first, of equals the larger one. The fastest is always among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from easyscale.core.cluster import DeviceKind, Devices, Needs, key, minus, plus, total
from easyscale.planner.speed import Speed

FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """`devices`: all that the job would hold; `change`: more (positive) or fewer (negative) of each type."""

    devices: Mapping[str, int]
    change: Mapping[str, int]
    rate: float  # global steps a second
    throughput: float  # mini-batches a second
    speedup: float  # against now; against one device of the best type where the job holds none
    per_device: float  # speed-up gained (or lost) for each device of the change
    waste: float  # mini-batches a second that the devices could do and do not
    sure: float  # of the least known type among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The job as proposals see it. `bound`: the type that a D1 job has trained on. `limit`: no more for now."""

    needs: Needs
    speed: Speed
    batch_seconds: Mapping[str, float]
    sure: Callable[[str], float] = lambda kind: 1.0
    bound: str | None = None
    limit: int | None = None

    def allows(self, kind: str, kinds: Mapping[str, DeviceKind]) -> bool:
        room = kinds[kind].memory_gb if kind in kinds else float("inf")
        return self.needs.allows(kind) and room >= self.needs.memory_gb and kind in self.batch_seconds

    def most(self) -> int:
        return self.needs.most if self.limit is None else min(self.needs.most, self.limit)

    def proposal(self, held: Devices, devices: Devices, base: float) -> Proposal:
        rate = self.speed.rate(devices)
        change = minus(devices, held)
        throughput = rate * self.needs.ests
        gained = rate / base - 1.0 if held else rate / base
        return Proposal(
            devices=dict(key(devices)), change=change, rate=rate, throughput=throughput, speedup=rate / base,
            per_device=gained / sum(map(abs, change.values())),
            waste=max(0.0, sum(n / self.batch_seconds[kind] for kind, n in devices.items()) - throughput),
            sure=min(map(self.sure, devices), default=1.0),
        )  # fmt: skip


def grow(
    asker: Asker, held: Devices, free: Devices, kinds: Mapping[str, DeviceKind] | None = None, few: int = FEW
) -> list[Proposal]:
    """The best ways to use some of the free devices as well; empty where none makes the job faster."""
    kinds, needs, held = kinds or {}, asker.needs, dict(key(held))
    usable = {kind: count for kind, count in key(free) if asker.allows(kind, kinds)}
    if needs.level != "D2":
        home = next(iter(held), asker.bound)
        usable = {kind: count for kind, count in usable.items() if home in (None, kind)}
    room = asker.most() - total(held)
    if room < 1 or not usable:
        return []
    now = asker.speed.rate(held) if held else 0.0
    base = now or max(asker.speed.rate({kind: 1}) for kind in usable)
    found = [{kind: n} for kind, count in usable.items() for n in range(1, min(count, room) + 1)]
    if needs.level == "D2" and len(usable) > 1:
        found += _step_by_step(asker, held, usable, room)
    least = max(needs.least - total(held), 1)
    fitting = (change for change in found if total(change) >= least)
    offers = (asker.proposal(held, plus(held, change), base) for change in fitting)
    return _best([offer for offer in offers if offer.rate > now], few)


def shrink(asker: Asker, held: Devices, few: int = FEW) -> list[Proposal]:
    """The ways to give devices back that cost least; `speedup` is below 1 by what is lost, `per_device` negative."""
    held, needs = dict(key(held)), asker.needs
    room = total(held) - needs.least
    now = asker.speed.rate(held) if held else 0.0
    if room < 1 or not now or needs.gang is not None:
        return []
    found = [{kind: n} for kind, count in held.items() for n in range(1, min(count, room) + 1)]
    if len(held) > 1:
        found += _step_back(asker, held, room)
    offers = [asker.proposal(held, left, now) for change in found if (left := minus(held, change))]
    return _best([offer for offer in offers if offer.rate > 0], few)


def _step_by_step(asker: Asker, held: Devices, usable: Devices, room: int) -> list[dict[str, int]]:
    """Mixes: again and again the device that helps most; where none helps alone, the fastest that is left."""
    found, change = [], dict[str, int]()
    for _ in range(min(room, total(usable))):
        left = minus(usable, change)
        kind = max(left, key=lambda k: (asker.speed.rate(plus(held, plus(change, {k: 1}))), -asker.batch_seconds[k], k))
        change = plus(change, {kind: 1})
        found.append(change)
    return [change for change in found if len(change) > 1]


def _step_back(asker: Asker, held: Devices, room: int) -> list[dict[str, int]]:
    """Again and again the device that is missed least; of equals, the slowest."""
    found, left = [], dict(held)
    for _ in range(room):
        kind = max(left, key=lambda k: (asker.speed.rate(minus(left, {k: 1})), asker.batch_seconds[k], k))
        left = minus(left, {kind: 1})
        found.append(minus(held, left))
    return [change for change in found if len(change) > 1]


def _best(offers: Iterable[Proposal], few: int) -> list[Proposal]:
    by_size = sorted(offers, key=lambda offer: (total(offer.devices), -offer.rate, key(offer.devices)))
    front: list[Proposal] = []
    for offer in by_size:
        if not front or offer.rate > front[-1].rate:
            front.append(offer)
    ranked = sorted(front, key=lambda offer: (-offer.per_device, -total(offer.devices), key(offer.devices)))
    chosen = ranked[:few]
    if front and front[-1] not in chosen:
        chosen[-1] = front[-1]
    return chosen
