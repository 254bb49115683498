"""A job in virtual time: what it has done, how fast it goes on, and what a change of devices costs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easyscale.core.cluster import Devices
from easyscale.simulator.options import Options
from easyscale.simulator.workload import Arrival

if TYPE_CHECKING:
    from easyscale.simulator.masters import Master

NEVER = float("inf")


class Run:
    """One active job. `done` is as of `since`, which lies ahead while the job pauses; then it goes on at `rate`.

    `version` changes whenever what was predicted of it no longer holds: predictions carry the number that they were
    made under, and a stale one is dropped when its time comes.
    """

    __slots__ = (
        "arrival", "batch", "begun", "changed", "contention", "device_seconds", "devices", "done", "held_since",
        "index", "later", "lost", "master", "paused", "rate", "saved", "since", "started", "switches", "version",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, index: int, time: float, contention: float) -> None:
        self.arrival = arrival
        self.index = index
        self.contention = contention  # the cluster's integral of it at submission
        self.devices: dict[str, int] = {}
        self.begun = time  # its submission, as jitter has it
        self.started = NEVER
        self.changed = -NEVER  # when its devices last changed
        self.batch = 1.0
        self.since = self.held_since = time
        self.done = self.saved = self.lost = self.rate = 0.0
        self.device_seconds = self.paused = 0.0
        self.switches = self.version = 0
        self.master: Master | None = None  # where masters are simulated
        self.later: tuple[float, float, float] | None = None  # after a warm-up: (time, since, rate) of the next stage

    def advance(self, now: float) -> None:
        """Progress until now."""
        if now >= self.since:
            self.done = min(self.arrival.work, self.done + (now - self.since) * self.rate)
            self.since = now

    def finish(self) -> float:
        """When it is done if nothing changes."""
        return self.since + (self.arrival.work - self.done) / self.rate if self.rate > 0 else NEVER

    def hold(self, devices: Devices, now: float) -> None:
        """Its devices are others from now on: what it had is booked."""
        held = sum(self.devices.values())
        self.device_seconds += held * (now - self.held_since)
        self.held_since = now
        self.devices = {kind: count for kind, count in devices.items() if count}

    def go_on(self, before: Devices, meanwhile: float, rate: float, now: float, options: Options) -> None:
        """After `advance` and `hold`: from now on at this rate, when the change is paid.

        `meanwhile`: the rate on the devices that it keeps, on which a live job trains until the newcomers are warm.
        """
        self.version += 1
        if self.later is not None:
            self.paused -= self.later[1] - self.later[0]
        self.later = None
        self.paused -= max(0.0, self.since - now)  # a pause that is cut short is not paid in full
        if not self.devices:
            self.rate, self.since = 0.0, now
            return
        price = options.change_seconds if before else options.first_seconds
        warm_up = options.warm_up and self._warm_up(before, options)
        if warm_up and meanwhile > 0:
            self.rate, self.since = meanwhile, now
            self.later = (now + warm_up, now + warm_up + price, rate)
            self.paused += price
        else:
            self.rate, self.since = rate, now + warm_up + price
            self.paused += warm_up + price

    def _warm_up(self, before: Devices, options: Options) -> float:
        newcomers = any(count > before.get(kind, 0) for kind, count in self.devices.items())
        told = options.restart_seconds if before else options.start_seconds  # a price that says it all
        return options.warm_up if newcomers and told is None and options.restart_seconds is None else 0.0

    def set_rate(self, rate: float, now: float, pause: float) -> None:
        """On the same devices, after `advance`: another split, or a device that is slower than it was."""
        self.version += 1
        if self.later is not None:
            self.later = (*self.later[:2], rate)
            return
        self.rate, self.since = rate, max(self.since, now) + pause
        self.paused += pause

    def next_stage(self) -> None:
        """The newcomers are warm: the pause, then all train."""
        assert self.later is not None
        time, since, rate = self.later
        self.advance(time)
        self.version += 1
        self.later, self.rate, self.since = None, rate, since

    def fall_back(self, done: float) -> None:
        """No worker lived through a failure: what was done since the last checkpoint is done again."""
        self.lost += self.done - done
        self.done = done
