"""What a worker tells the outside: logged metrics, events, fingerprints.

Metrics never make the host wait for the device: values on a GPU are copied to pinned memory behind the step that made
them and read when the copy is done, some steps later. Without a launcher, events go to stderr and metrics nowhere.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from easyscale.core.errors import NonFiniteError, UsageError
from easyscale.core.messages import Event, Fingerprint, Message, StepDone, encode
from easyscale.core.spec import WorkerSpec
from easyscale.runtime.control import Line
from easyscale.runtime.pace import Span

OnNonFinite = Literal["warn", "stop"]
# Steps whose values may wait on the device before we ask for them. Small: a loss that turns NaN is seen soon.
MOST_PENDING = 64
MOST_FINGERPRINTS = 256


@dataclass(slots=True)
class _Pending:
    step: int
    epoch: int
    names: list[tuple[int, str]]
    values: torch.Tensor | list[float]
    copied: Any  # a CUDA event, or None
    samples: int
    time: float
    ests: list[int]
    local: Span | None

    def is_there(self) -> bool:
        """The device has come to the end of it."""
        return (self.copied is None or self.copied.query()) and (self.local is None or self.local.is_over())


class Journal:
    """Messages of one worker, in order, to its master, or on the pipe that the launcher gave it."""

    def __init__(self, spec: WorkerSpec, on_nonfinite: OnNonFinite, line: Line | None = None) -> None:
        self._worker, self._fd, self._line = spec.worker, spec.events_fd, line
        self._on_nonfinite = on_nonfinite
        self._now: dict[tuple[int, str], torch.Tensor | float] = {}
        self._pending: deque[_Pending] = deque()
        self._warned = False
        self.total: int | None = None  # global steps of the job, once it is known
        self.fingerprints: dict[int, str] = {}  # the newest that this worker has told; checkpoints keep them

    def tell(self, message: Message) -> None:
        if self._line is not None:
            self._line.tell(message)
            return
        if self._fd is None:
            if isinstance(message, Event):
                print(f"easyscale: {message.text}", file=sys.stderr, flush=True)
            return
        data = memoryview(encode(message))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:  # the launcher is gone; its end is noticed elsewhere
            self._fd = None

    def event(self, what: str, text: str, step: int) -> None:
        self.tell(Event(worker=self._worker, step=step, what=what, text=text))

    def fingerprint(self, step: int, sha: str) -> None:
        self.fingerprints[step] = sha
        if len(self.fingerprints) > MOST_FINGERPRINTS:
            del self.fingerprints[next(iter(self.fingerprints))]
        self.tell(Fingerprint(step=step, sha=sha))

    def log(self, est: int, values: Mapping[str, Any]) -> None:
        """Keep a value of the current local step; the last one of a name counts."""
        for name, value in values.items():
            try:  # a copy: the script may go on to change the tensor
                number = value.detach().clone().reshape(()) if isinstance(value, torch.Tensor) else float(value)
            except (TypeError, ValueError, RuntimeError):
                raise UsageError(
                    f"es.log({name}=...) got {_shown(value)}.",
                    "metrics are single numbers.",
                    "log a number or a tensor with one element, such as loss.mean().",
                ) from None
            self._now[est, name] = number

    def step_done(self, step: int, epoch: int, samples: int, ests: list[int], local: Span | None = None) -> None:
        """A global step is complete in which this worker ran these ESTs; `local`: their local steps."""
        names = [key for key in self._now if key[0] in ests]
        values = [self._now.pop(key) for key in names]
        on_device = [v for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"]
        copied = None
        stored: torch.Tensor | list[float]
        if on_device:
            device = on_device[0].device
            stacked = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=device).reshape(()) for v in values])
            stored = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
            stored.copy_(stacked, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        else:
            stored = [float(v) for v in values]
        self._pending.append(_Pending(step, epoch, names, stored, copied, samples, time.time(), sorted(ests), local))
        self.flush(force=len(self._pending) > MOST_PENDING)

    def flush(self, force: bool = False) -> None:
        """Send what is ready; with `force`, wait for the rest."""
        while self._pending:
            first = self._pending[0]
            if not force and not first.is_there():
                return
            if first.copied is not None:
                first.copied.synchronize()
            self._pending.popleft()
            self._send(first)

    def _send(self, pending: _Pending) -> None:
        values = pending.values if isinstance(pending.values, list) else pending.values.tolist()
        metrics: dict[str, list[float | None]] = {}
        for (est, name), value in zip(pending.names, values, strict=True):
            row = metrics.setdefault(name, [None] * len(pending.ests))
            row[pending.ests.index(est)] = value
        self.tell(
            StepDone(
                worker=self._worker, step=pending.step, epoch=pending.epoch, ests=pending.ests, metrics=metrics,
                samples=pending.samples, time=pending.time,
                local=pending.local.seconds() if pending.local is not None else 0.0, total=self.total,
            )
        )  # fmt: skip
        for (est, name), value in zip(pending.names, values, strict=True):
            if not math.isfinite(value):
                self._non_finite(est, name, value, pending.step)

    def _non_finite(self, est: int, name: str, value: float, step: int) -> None:
        what = f"{name} of EST {est} is {value} at global step {step}."
        if self._on_nonfinite == "stop":
            raise NonFiniteError(
                what,
                "the script asked to stop at a value that is not finite: es.init(on_nonfinite='stop').",
                "lower the learning rate, look at that EST's batch, or use on_nonfinite='warn' to go on.",
            )
        if not self._warned:
            self._warned = True
            self.event("nonfinite", f"{what} Training goes on (es.init(on_nonfinite='stop') would stop it).", step)


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
