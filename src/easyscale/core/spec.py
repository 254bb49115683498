"""What a worker process is told when it starts, and how that crosses the process boundary.

The launcher writes a `WorkerSpec` as JSON into ONE environment variable; `runtime` reads it back
at `init()`. Nothing else of ours is read from the environment except `EASYSCALE_ESTS`, for scripts
that run without the launcher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from easyscale.core.cluster import Slot, slot_of_plain
from easyscale.core.errors import UsageError
from easyscale.core.observe import Observation
from easyscale.core.plan import Plan

WORKER_VARIABLE = "EASYSCALE_WORKER"
ESTS_VARIABLE = "EASYSCALE_ESTS"

Engine = Literal["est", "ddp"]
Level = Literal["D0", "D1", "D2"]


@dataclass(frozen=True)
class Target:
    """What a worker runs: a script, or a module as in `python -m`, with its arguments."""

    name: str
    args: tuple[str, ...] = ()
    module: bool = False

    def command(self) -> tuple[str, ...]:
        return (*(("--module",) if self.module else ()), self.name, *self.args)


@dataclass(frozen=True, kw_only=True)
class Control:
    """How a worker reaches its master, and the limits that both keep."""

    host: str
    port: int
    token: str
    # A JSON file with the host and port in force: a master that is started again may have another port.
    endpoint: str | None = None
    # The address on which this worker is reached by its peers.
    address: str = "127.0.0.1"
    beat_seconds: float = 0.5
    # Without a master for so long, a worker leaves (after a checkpoint, where there is a folder for it).
    orphan_seconds: float = 60.0
    # From SIGTERM to a worker until it must be gone.
    grace_seconds: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the operating system lets a worker, and each process that it starts, have. None: as much as there is."""

    memory: int | None = None  # bytes of address space; not with a GPU, for which CUDA maps far more than it uses
    files: int | None = None  # open at once
    processes: int | None = None  # of its user, threads included; not where that is root


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker's place in the job. Defaults are those of a script that runs without the launcher."""

    ests: int
    split: tuple[int, ...] = ()
    worker: int = 0
    # The place in `split`; None: the worker's number is its place. They differ once workers have come and gone.
    rank: int | None = None
    job: str = "local"
    engine: Engine = "est"
    # A file in the job's private directory through which the workers of one plan find each other.
    rendezvous: str | None = None
    # "auto": CUDA where there is one (worker w takes GPU w modulo their number), else the CPU. At D2 also several with
    # commas, one for each place of the plan in turn.
    device: str = "auto"
    # The device that it has to itself; it sees no other. None: as `device` says.
    slot: Slot | None = None
    # 1 as torchrun does: bits on a CPU depend on this number, so it must not follow the machine.
    threads: int = 1
    determinism: Level = "D1"
    # Seconds without an answer after which a peer counts as lost; 5 minutes covers slow first steps.
    timeout: float = 300.0
    checkpoint_dir: str | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = None
    checkpoint_keep: int = 3
    # None: start anew. "latest": the newest good checkpoint of checkpoint_dir. Else: a checkpoint's folder.
    resume: str | None = None
    # At this global step the workers leave their state in `handoff` and exit, for the next plan.
    stop_at: int | None = None
    handoff: str | None = None
    # The job ends after this many global steps, wherever the script stands.
    max_steps: int | None = None
    fingerprint_every: int | None = None
    # What to note down for a comparison with another run; None: nothing.
    observation: Observation | None = None
    # Limits of the operating system, which the launcher sets; None: none of ours.
    bounds: Bounds | None = None
    # An inherited pipe for messages to the launcher (JSON, one a line).
    events_fd: int | None = None
    # How to reach the job's master; None: a fixed plan, and no master to talk to.
    control: Control | None = None

    @property
    def plan(self) -> Plan:
        return Plan(self.split or (self.ests,))

    @property
    def place(self) -> int:
        """The rank in the plan that the worker is started for."""
        return self.worker if self.rank is None else self.rank

    @property
    def device_here(self) -> str:
        """This worker's entry of `device`."""
        kinds = self.device.split(",")
        return kinds[self.place % len(kinds)]

    @property
    def gpu_number(self) -> int:
        """How many places before this one ask for a GPU too."""
        kinds = self.device.split(",")
        return sum(kinds[place % len(kinds)] != "cpu" for place in range(self.place))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        known = {field.name for field in fields(cls)}
        try:
            raw: dict[str, Any] = json.loads(text)
            raw["split"] = tuple(raw.get("split", ()))
            if raw.get("observation") is not None:
                raw["observation"] = Observation.from_plain(raw["observation"])
            if raw.get("control") is not None:
                raw["control"] = Control(**raw["control"])
            if raw.get("bounds") is not None:
                raw["bounds"] = Bounds(**raw["bounds"])
            if raw.get("slot") is not None:
                raw["slot"] = slot_of_plain(raw["slot"])
            return cls(**{key: value for key, value in raw.items() if key in known})
        except (ValueError, TypeError, AttributeError) as problem:
            raise UsageError(
                f"The environment variable {WORKER_VARIABLE} does not describe a worker ({problem}).",
                "only the launcher writes it; something else changed it.",
                "unset it, or start the script with `easyscale run`.",
            ) from None


def spec_from_environment(environment: Mapping[str, str], ests: int | None) -> WorkerSpec:
    """The launcher's spec if there is one, else one worker with N from the call or the environment."""
    text = environment.get(WORKER_VARIABLE)
    if text:
        spec = WorkerSpec.from_json(text)
        if ests is not None and ests != spec.ests:
            raise UsageError(
                f"The script says es.init(ests={ests}), but the job was started with {spec.ests} ESTs.",
                "the number of ESTs decides the result, so the two must agree.",
                f"leave ests out of es.init(), or start the job with --ests {ests}.",
            )
        return spec
    if ests is None:
        raw = environment.get(ESTS_VARIABLE, "1")
        if not raw.isdigit() or int(raw) < 1:
            raise UsageError(
                f"{ESTS_VARIABLE}={raw!r} is not a number of ESTs.",
                "a job has one or more ESTs.",
                f"set {ESTS_VARIABLE} to a whole number of 1 or more, or pass es.init(ests=...).",
            )
        ests = int(raw)
    if ests < 1:
        raise UsageError(
            f"es.init(ests={ests}) is not a job.", "a job has one or more ESTs.", "pass 1 or more."
        )
    return WorkerSpec(ests=ests)
