"""Starts the workers of an elastic job on a Ray cluster, one reservation and one keeper each, and finds them again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray
import ray.exceptions

from easyscale.backends.ray.cluster import Ask, ask_for, ask_for_slot, connect, default_kind
from easyscale.backends.ray.keeper import Errand, luggage
from easyscale.backends.ray.process import LINGER_SECONDS, SCHEME, RayProcess
from easyscale.backends.ray.sweeping import Sweeper
from easyscale.core.spec import Target, WorkerSpec


class RayLauncher:
    """`types`: the device types that workers may use, the best first; the first one that has a free device is kept for
    the whole job, because a job at D1 uses one type. A spec with a slot goes to that slot.

    `command`: in place of the worker's own, with the target behind it. `labels`: of the nodes that may be used.
    """

    def __init__(
        self,
        job: str,
        environment: Mapping[str, str],
        *,
        address: str = "auto",
        types: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self._address = connect(address)
        self._job, self._environment = job, luggage(environment)
        self._types, self._labels = tuple(types), dict(labels or {})
        self._command = list(command) if command is not None else None
        self._linger = linger
        self._kind: str | None = None
        self._sweeper = Sweeper()

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> RayProcess:
        """Returns at once; the worker runs when a device is free. Until then it lives, and can be killed."""
        name = f"{self._job}/worker-{spec.worker}/{secrets.token_hex(4)}"
        worker = RayProcess(name, self._address, (out, err))
        try:
            ask = self._ask(spec)
        except ray.exceptions.RayError as problem:
            raise OSError(f"the Ray cluster does not answer: {problem}") from problem
        errand = Errand(
            command=[*(self._command or ()), *target.command()],
            whole=self._command is not None,
            environment=self._environment,
            cwd=os.getcwd(),
            spec=spec.to_json(),
            visible=ask.visible,
            memo=self._memo(spec, ask, out, err),
        )
        worker.make(ask, errand, linger=self._linger)
        return worker

    def attach(self, pid: int, started: str) -> RayProcess | None:
        """A worker that an earlier master started; None: it has ended. Its pid says nothing here."""
        worker = find(started)
        if worker is not None and self._kind is None:
            self._kind = worker.facts["memo"].get("kind")
        return worker

    def _memo(self, spec: WorkerSpec, ask: Ask, out: Path, err: Path) -> dict[str, str]:
        memo = {"kind": ask.kind, "out": str(out.absolute()), "err": str(err.absolute())}
        if spec.control is not None and spec.control.endpoint is not None:
            memo["endpoint"] = spec.control.endpoint
        return memo

    def _ask(self, spec: WorkerSpec) -> Ask:
        if spec.slot is not None:
            return ask_for_slot(spec.slot, self._labels)
        if self._kind is None:
            self._kind = self._choose(spec)
        return ask_for(self._kind, self._labels)

    def _choose(self, spec: WorkerSpec) -> str:
        if not self._types:
            return "cpu" if spec.device == "cpu" else default_kind()
        free = ray.available_resources() if len(self._types) > 1 else {}
        for kind in self._types:
            if all(free.get(name, 0.0) >= amount for name, amount in ask_for(kind).bundle.items()):
                return kind
        return self._types[0]


def find(started: str, *, watch: bool = True) -> RayProcess | None:
    """A process by what its `started` said, in the cluster that this process is connected to."""
    address, slash, name = started.removeprefix(SCHEME).partition("/")
    if not started.startswith(SCHEME) or not slash:
        return None
    process = RayProcess(name, address, None)
    if not process.find(watch=watch):
        process.close()
        return None
    return process


def is_alive(started: str) -> bool:
    """Of whatever cluster it is in."""
    connect(started.removeprefix(SCHEME).partition("/")[0])
    process = find(started, watch=False)
    if process is not None:
        process.close()
    return process is not None


def kill(started: str) -> None:
    connect(started.removeprefix(SCHEME).partition("/")[0])
    process = find(started, watch=False)
    if process is not None:
        process.kill_unwatched()
        process.close()
