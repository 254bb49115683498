"""What a simulation assumes of the world: prices of a change, chance, and how closely it is watched."""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Devices die without notice, independently of each other, and come back repaired."""

    per_device_day: float
    repair_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Devices in use turn slow for a while. Their job's master measures it and moves ESTs away where that pays."""

    per_device_day: float
    slowdown: float = 2.0  # a local step takes so many times as long
    seconds: float = 1800.0  # mean; exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Prices are in seconds of the job that pays them.

    A live switch (the default): newcomers warm up while the others train, then all pause for `switch_seconds`.
    `restart_seconds`: every change ends the processes and starts others; nothing trains meanwhile.
    """

    switch_seconds: float = 1.0
    warm_up: float = 0.0  # of a newcomer, until it can join
    start_seconds: float | None = None  # of a start on no devices before; None: a warm-up and what a change costs
    restart_seconds: float | None = None
    checkpoint_seconds: float = 600.0  # what a failure without survivors (or any, with restarts) may lose, at most
    interval: float | None = None  # between two decisions; None: as the policy has it
    measured: bool = False  # the scheduler knows of a speed what the job's master has measured, not the truth
    noise: float = 0.03  # of measured steps, relative
    report_seconds: float = 30.0  # between two words of a master about its steps
    any_type: bool = False  # a D1 job may go on on another type than it began on: its bits change
    locality: bool = False  # machines are told apart, and a job that is spread over more of them is slower
    failures: Failures | None = None
    stragglers: Stragglers | None = None
    jitter: float | None = None  # arrivals move by up to so much, but not with seed 0; None: the mean gap between two
    seed: int = 0
    timeline_jobs: int = 150  # of which every allocation is kept for the report

    def __post_init__(self) -> None:
        for name in ("switch_seconds", "warm_up", "start_seconds", "restart_seconds", "checkpoint_seconds",
                     "interval", "jitter"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(
                    f"{name} is {value}.", "a price or an interval is a number of seconds, 0 or more.",
                    "correct it.",
                )  # fmt: skip

    @property
    def change_seconds(self) -> float:
        """The pause of a running job whose devices change."""
        return self.switch_seconds if self.restart_seconds is None else self.restart_seconds

    @property
    def first_seconds(self) -> float:
        return self.change_seconds if self.start_seconds is None else self.start_seconds
