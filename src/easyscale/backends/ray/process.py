"""A process on a node of the cluster, as seen from here: its life, its end, what it prints.

All talk with Ray is on a thread of its own, so that the master never waits for the cluster. A process counts as gone
when its keeper told its end, when Ray says that the keeper or its node is dead, or when the keeper cannot be reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from easyscale.backends.ray.cluster import NAMESPACE, Ask
from easyscale.backends.ray.keeper import Errand, Keeper

SCHEME = "ray:"
LISTEN_SECONDS = 1.0  # a keeper with nothing to tell answers after so long, so a living one is never silent
# A keeper that Ray cannot reach. Ray itself waits up to half a minute before it calls a silent node dead.
UNREACHABLE_SECONDS = 2.0
KILL_SECONDS = 5.0  # from the wish to kill until the keeper itself is killed
PATIENCE_SECONDS = 10.0  # without a free device, until that is said
FAREWELL_SECONDS = 10.0  # for the end of a process that was killed, when whoever killed it leaves
# After the end of its process a keeper waits so long for a master that wants to know it; the device is held meanwhile.
LINGER_SECONDS = 60.0
THREADS = 8  # calls that a keeper answers at once: each watcher waits in one


class Unreachable(Exception):
    """The keeper does not answer, and nobody can say whether it ever will."""


class RayProcess:
    """`make` one or `find` one; then it is an `ApartProcess`."""

    pid = 0  # a number of another machine would mean something else here

    def __init__(self, name: str, address: str, streams: tuple[Path, Path] | None) -> None:
        self.name, self.started = name, f"{SCHEME}{address}/{name}"
        self.code: int | None = None
        self.facts: dict[str, Any] = {}  # of its keeper, once it runs
        self._streams, self._places = streams, (0, 0)  # where what it prints goes; None: not to us
        self._keeper: Any = None  # the handle of an actor, once there is one
        self._group: PlacementGroup | None = None
        self._endpoint: Path | None = None
        self._gone = threading.Event()
        self._killed: float | None = None
        self._signals: list[int] = []
        self._lock = threading.Lock()
        self._left = False
        self.ended: int | None
        self._end_writer: int | None
        self.ended, self._end_writer = os.pipe()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ for the master

    def gone(self) -> bool:
        return self._gone.is_set()

    def signal(self, number: int) -> None:
        with self._lock:
            if self._gone.is_set():
                return
            self._signals.append(number)
            if self._keeper is not None:
                self._pass_on(self._keeper)

    def kill(self) -> None:
        if self._killed is None:
            self._killed = time.monotonic()
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """One that was killed is seen to its end, as far as that does not take long."""
        self._left = True
        if self._thread is not None and self._killed is not None:
            self._thread.join(FAREWELL_SECONDS)
        with self._lock:
            if self.ended is not None:
                os.close(self.ended)
                self.ended = None
            if self._thread is None:
                self._close_writer()

    # ------------------------------------------------------------------ beginnings

    def make(self, ask: Ask | None, errand: Errand, node: str | None = None, linger: float = LINGER_SECONDS) -> None:
        """Start it, on a device of its own (`ask`) or on a node."""
        for stream in self._streams or ():
            os.close(os.open(stream, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        self._begin(lambda: self._make(ask, errand, node, linger))

    def find(self, *, watch: bool = True) -> bool:
        """Whether it lives. Only one may `watch`: what it prints is then here, and nowhere else."""
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            self._group = ray.util.get_placement_group(self.name)
        try:
            self._keeper = ray.get_actor(self.name, namespace=NAMESPACE)
            self.facts = self._answer(lambda keeper: keeper.facts.remote())
        except (ValueError, Unreachable, ray.exceptions.RayError):
            self.facts = {}
        if not self.facts or self.facts["ended"]:
            self._clear_up()  # whoever made it died before it noticed, or before there was a keeper
        if not self.facts or self.facts["ended"] or self.facts["pid"] is None:  # about to begin: none of our business
            self._finish()
            return False
        self._remember(self.facts["memo"])
        if watch:
            self._begin(self._follow)
        return True

    def kill_unwatched(self) -> None:
        self._answer(lambda keeper: keeper.signal.remote(signal.SIGKILL))

    def _remember(self, memo: dict[str, str]) -> None:
        if "out" in memo:
            self._streams = (Path(memo["out"]), Path(memo["err"]))
        self._endpoint = Path(memo["endpoint"]) if "endpoint" in memo else None

    def _begin(self, life: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(life,), name=f"ray {self.name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ on the thread

    def _run(self, life: Callable[[], None]) -> None:
        try:
            life()
        except Unreachable:
            self._note("its node cannot be reached any more")
        except ray.exceptions.RayActorError as problem:
            if self._killed is None:
                self._note(f"Ray says: {_sentence(problem)}")
        except (ray.exceptions.RayError, ValueError, OSError) as problem:
            self._note(f"Ray says: {_sentence(problem)}")
        finally:
            if not self._left or self._killed is not None:
                self._clear_up()
            self._finish()

    def _make(self, ask: Ask | None, errand: Errand, node: str | None, linger: float) -> None:
        options: dict[str, Any] = {}
        if ask is not None:
            group = self._reserve(ask)
            if group is None:
                self.code = -signal.SIGKILL
                return
            resources = {name: amount for name, amount in ask.bundle.items() if name not in ("CPU", "GPU")}
            options = {
                "num_gpus": ask.bundle.get("GPU", 0),
                "resources": resources,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
            }
        elif node is not None:
            options = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        keeper: Any = ray.remote(Keeper).options(
            name=self.name, namespace=NAMESPACE, lifetime="detached", max_restarts=0, max_task_retries=0,
            max_concurrency=THREADS, num_cpus=0, **options,
        ).remote(linger)  # fmt: skip
        with self._lock:
            self._keeper = keeper
        self._remember(errand.get("memo", {}))
        self.facts = self._answer(lambda keeper: keeper.begin.remote(errand))
        if self.facts["refused"] is not None:
            self._note(f"it could not be started on the node at {self.facts['address']}: {self.facts['refused']}")
            return
        with self._lock:
            self._pass_on(keeper)  # what was wished before it ran
        self._follow()

    def _reserve(self, ask: Ask) -> PlacementGroup | None:
        """A bundle with the device, as soon as one is free. None: killed meanwhile."""
        self._group = group = placement_group(
            [dict(ask.bundle)], strategy="STRICT_PACK", name=self.name, lifetime="detached",
            bundle_label_selector=[dict(ask.labels)] if ask.labels else None,
        )  # fmt: skip
        began, told = time.monotonic(), False
        while not group.wait(LISTEN_SECONDS):
            if self._killed is not None or self._left:
                return None
            if not told and time.monotonic() - began > PATIENCE_SECONDS:
                told = True
                where = f" with {_labels(ask)}" if ask.labels else ""
                self._note(f"it waits for a device of type {ask.kind}{where}: none is free in the Ray cluster")
        return None if self._killed is not None else group

    def _follow(self) -> None:
        while not self._left or self._killed is not None:
            endpoint = self._read_endpoint()
            places = self._places
            news = self._answer(partial(_listen, places=places, endpoint=endpoint))
            for stream, data in zip(self._streams or (), news["streams"], strict=False):
                if data:
                    _append(stream, data)
            self._places = news["places"]
            if news["ended"]:
                self.code = news["code"]
                return

    def _answer(self, call: Callable[[Any], Any]) -> Any:
        """What the keeper says. A call that got lost on the way is made again: all of them may be made twice."""
        assert self._keeper is not None
        away: float | None = None
        waiting = call(self._keeper)
        while True:
            try:
                return ray.get(waiting, timeout=LISTEN_SECONDS)
            except ray.exceptions.GetTimeoutError:
                if self._killed is not None and time.monotonic() - self._killed > KILL_SECONDS:
                    raise Unreachable from None
            except ray.exceptions.ActorUnavailableError:
                away = time.monotonic() if away is None else away
                if time.monotonic() - away > UNREACHABLE_SECONDS:
                    raise Unreachable from None
                time.sleep(0.1)
                waiting = call(self._keeper)

    def _pass_on(self, keeper: Any) -> None:
        for number in self._signals:
            keeper.signal.remote(number)
        self._signals.clear()

    def _read_endpoint(self) -> str | None:
        if self._endpoint is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return self._endpoint.read_text()
        return None

    def _note(self, text: str) -> None:
        """A word of ours among what the process prints."""
        if self._streams is not None:
            with contextlib.suppress(OSError):
                _append(self._streams[1], f"[easyscale: {text}]\n".encode())

    # ------------------------------------------------------------------ the end

    def _clear_up(self) -> None:
        """The device is free for others. A keeper that is cut off dies when it can be reached again."""
        if self._keeper is not None:
            with contextlib.suppress(Exception):
                ray.kill(self._keeper)
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)

    def _finish(self) -> None:
        with self._lock:
            self._gone.set()
            self._close_writer()  # whoever waits for `ended` can read its end now

    def _close_writer(self) -> None:
        if self._end_writer is not None:
            os.close(self._end_writer)
            self._end_writer = None


def _listen(keeper: Any, places: tuple[int, int], endpoint: str | None) -> Any:
    return keeper.listen.remote(places, endpoint, LISTEN_SECONDS)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def _labels(ask: Ask) -> str:
    return ", ".join(f"{name}={value}" for name, value in ask.labels.items())


def _sentence(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[-1] if lines else type(problem).__name__
