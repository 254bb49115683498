"""What workers tell the launcher: one JSON object a line on an inherited pipe, `kind` first.

`decode` returns None for anything that is not a message of ours: such a line is dropped, never fatal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MAX_LINE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The worker has joined its group and loaded its state."""

    worker: int
    pid: int
    step: int
    seconds: float  # from process start to here
    device: str = ""  # "cpu", or the name of the GPU; "": nobody said
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """What the ESTs of one worker logged in one global step. `metrics[name][i]` belongs to `ests[i]`."""

    worker: int
    step: int  # global step, from 0
    epoch: int
    ests: list[int]
    metrics: dict[str, list[float | None]]
    samples: int  # samples of this worker's mini-batches, 0 where the batch has no obvious size
    time: float  # wall clock, seconds since the epoch, at the end of the step
    local: float = 0.0  # seconds of its own local steps, without waiting for peers; 0: not measured
    total: int | None = None  # global steps of the whole job, where the worker can tell
    kind: Literal["step"] = "step"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """sha256 of the model after `step` global steps were completed."""

    step: int
    sha: str
    kind: Literal["fingerprint"] = "fingerprint"


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Digests of what EST `est` saw and left in global step `step` (from 0): equal in two runs whose bits are equal."""

    worker: int
    step: int
    est: int
    digests: dict[str, str]
    kind: Literal["witness"] = "witness"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a person should know, as one sentence. `what` is a stable word for programs:
    checkpoint-saved, checkpoint-failed, checkpoint-damaged, nonfinite, resumed, refused, ..."""

    worker: int
    step: int
    what: str
    text: str
    kind: Literal["event"] = "event"


@dataclass(frozen=True, kw_only=True)
class HandedOver:
    """The state after `step` completed global steps lies in the hand-off folder. Every worker says so as
    it leaves, with the sums that would else go with it (`Done` carries them at the end of the script)."""

    step: int
    worker: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    kind: Literal["handed-over"] = "handed-over"


@dataclass(frozen=True, kw_only=True)
class Done:
    """The script returned. `fingerprint` is set by the worker that holds EST 0."""

    worker: int
    steps: int
    fingerprint: str | None
    timings: dict[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    kind: Literal["done"] = "done"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The worker stops. `text` is what to show: ours without a traceback, the user's with theirs.

    `lost_peer`: it stops only because a peer did; the launcher then looks for the cause at the peer. `oom`: its device
    has too little memory, so another worker may do better. `est`: whose local step it was, if it was in one."""

    worker: int
    step: int
    ours: bool
    text: str
    lost_peer: bool = False
    oom: bool = False
    est: int | None = None
    kind: Literal["failed"] = "failed"


Message = Ready | StepDone | Fingerprint | Witness | Event | HandedOver | Done | Failed
_KINDS: dict[str, type[Any]] = {
    "ready": Ready, "step": StepDone, "fingerprint": Fingerprint, "witness": Witness, "event": Event,
    "handed-over": HandedOver, "done": Done, "failed": Failed,
}  # fmt: skip


def encode(message: Message) -> bytes:
    return json.dumps(asdict(message), separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    if len(line) > MAX_LINE:
        return None
    try:
        raw = json.loads(line)
        return _KINDS[raw["kind"]](**raw)  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError):
        return None
