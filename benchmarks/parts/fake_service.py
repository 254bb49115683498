"""The whole service in a process of its own, with masters that are numbers: for load without training.

    python benchmarks/parts/fake_service.py FOLDER

HTTP, store, scheduler and loop are the real ones. Every second it writes what its rounds took to FOLDER/samples.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from easyscale.core.cluster import Slot, parse_devices
from easyscale.service.devices import Found
from easyscale.service.http.app import make_app
from easyscale.service.http.server import listen, serve
from easyscale.service.http.settings import Settings
from easyscale.service.live import Live
from easyscale.service.metrics import Metrics
from easyscale.service.people import People
from easyscale.service.serve import settle
from easyscale.service.store import open_store
from easyscale.testing import FakeFleet

SECONDS = {"v100": 0.1, "p100": 0.16, "t4": 0.2}  # of a local step
NODE = 8  # devices in a machine
USERS, TOKENS = 10, 20  # a user may have 20 event streams


# ------------------------------------------------------------------------------------------ in the process


class Clocked:
    """Wall and processor time of calls, handed out once."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[float, float]]] = {}

    def wrap(self, name: str, do: Callable[[], Any], counts: Callable[[Any], bool] = lambda _: True) -> Any:
        def timed() -> Any:
            wall, processor = time.perf_counter(), time.thread_time()
            found = do()
            if counts(found):
                self.add(name, time.perf_counter() - wall, time.thread_time() - processor)
            return found

        return timed

    def add(self, name: str, wall: float, processor: float) -> None:
        self._found.setdefault(name, []).append((round(wall, 6), round(processor, 6)))

    def take(self) -> dict[str, list[tuple[float, float]]]:
        found, self._found = self._found, {}
        return found


def watch_garbage(clocked: Clocked) -> None:
    began = [0.0, 0.0]

    def seen(phase: str, facts: dict[str, int]) -> None:
        if facts["generation"] < 2:
            return
        if phase == "start":
            began[:] = time.perf_counter(), time.thread_time()
        else:
            clocked.add("garbage", time.perf_counter() - began[0], time.thread_time() - began[1])

    gc.callbacks.append(seen)


def write_samples(path: Path, clocked: Clocked, fleet: FakeFleet, stop: threading.Event) -> None:
    """Also how many devices were given to a run while another sat on them: a process that is killed says it here."""
    with path.open("a") as file:
        while True:
            last = stop.wait(1.0)
            file.write(json.dumps({"time": time.time(), "twice": len(fleet.twice), **clocked.take()}) + "\n")
            file.flush()
            if last:
                return


def devices_of(text: str) -> list[Found]:
    return [
        Found(Slot(id=f"{kind}-{n}", kind=kind, node=f"{kind}-node-{n // NODE}"), 16.0)
        for kind, count in parse_devices(text).items()
        for n in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--devices", default="v100:500,p100:250,t4:250")
    parser.add_argument("--policy", default="easyscale")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    folder, clocked, stop = options.folder, Clocked(), threading.Event()
    watch_garbage(clocked)
    with closing(open_store(folder)) as store, listen("127.0.0.1", options.port) as sock:
        store.claim()
        metrics, fleet = Metrics(), FakeFleet(time.time, folder / "runs", seconds=SECONDS, start=5.0)
        wall, processor = time.perf_counter(), time.process_time()
        live = Live(store, fleet, folder, policy=options.policy, version="load", metrics=metrics, keep=store.claim)
        fold = {"fold_s": time.perf_counter() - wall, "fold_cpu_s": time.process_time() - processor}
        live.book.decide = clocked.wrap("decision", live.book.decide, lambda changes: changes is not None)  # type: ignore[method-assign]
        live.round = clocked.wrap("round", live.round)  # type: ignore[method-assign]
        port = sock.getsockname()[1]
        app = make_app(live, People(store), Settings(port=port, spool=folder), metrics)
        settle()
        live.start(devices_of(options.devices))
        writer = threading.Thread(target=write_samples, args=(folder / "samples.jsonl", clocked, fleet, stop))
        writer.start()

        def ready(url: str) -> None:
            (folder / "here.json").write_text(json.dumps({"url": url, **fold}))

        try:
            serve(app, sock=sock, on_ready=ready)
        finally:
            live.close()
            stop.set()
            writer.join()


# ------------------------------------------------------------------------------------------ from outside


@dataclass
class FakeService:
    """The process, started, killed and looked at. `folder` is its data folder."""

    folder: Path
    devices: str = "v100:500,p100:250,t4:250"
    policy: str = "easyscale"
    tokens: list[str] = field(default_factory=list)
    url: str = ""
    fold: dict[str, float] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FakeService:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "work").mkdir()
        with closing(open_store(self.folder)) as store:
            people = People(store)
            people.first_admin("root")
            for n in range(USERS):
                people.add_team(f"team{n}", None, True)
                people.add_user(f"user{n}", f"team{n}", "admin")
                self.tokens += [people.add_token(f"user{n}", "load", None).token for _ in range(TOKENS)]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> float:
        """Seconds until it answered."""
        (self.folder / "here.json").unlink(missing_ok=True)
        port = self.url.rpartition(":")[2] or "0"
        began = time.perf_counter()
        with (self.folder / "service.log").open("ab") as out:
            self._process = subprocess.Popen(
                (sys.executable, __file__, str(self.folder), "--port", port, "--devices", self.devices,
                 "--policy", self.policy), stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        while True:
            assert self._process.poll() is None, self.said()
            with contextlib.suppress(OSError, ValueError, httpx.TransportError):
                here = json.loads((self.folder / "here.json").read_text())
                if httpx.get(f"{here['url']}/readyz", trust_env=False).status_code == 200:
                    break
            assert time.perf_counter() - began < 120, self.said()
            time.sleep(0.02)
        self.url, self.fold = here.pop("url"), here
        return time.perf_counter() - began

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> float:
        assert self._process is not None
        began = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0, self.said()
        return time.perf_counter() - began

    def said(self) -> str:
        return (self.folder / "service.log").read_text()[-4000:]

    # ------------------------------------------------------------------------------------ figures

    def use(self) -> dict[str, float]:
        """Memory, open files, threads and processor seconds of the process, as the system sees it."""
        assert self._process is not None
        proc = Path(f"/proc/{self._process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        times = (proc / "stat").read_text().rpartition(")")[2].split()
        return {
            "rss_mb": int(status["VmRSS"].split()[0]) / 1024, "files": len(list((proc / "fd").iterdir())),
            "threads": int(status["Threads"]), "cpu_s": (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        }  # fmt: skip

    def times(self, name: str, since: float = 0.0, until: float = float("inf")) -> list[tuple[float, float]]:
        """(wall, processor) seconds of each `round`, `decision` or `garbage` collection between two times."""
        return [tuple(one) for sample in self._samples(since, until) for one in sample.get(name, [])]

    def twice(self) -> int:
        """Devices that two runs sat on at once, in any of its lives."""
        return max((sample["twice"] for sample in self._samples(0.0, float("inf"))), default=0)

    def _samples(self, since: float, until: float) -> Iterator[dict[str, Any]]:
        for line in (self.folder / "samples.jsonl").read_text().splitlines():
            sample = json.loads(line)
            if since <= sample["time"] <= until + 1.0:
                yield sample


if __name__ == "__main__":
    main()
