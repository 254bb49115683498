"""Jobs that are measured from outside, as a user would start, change and stop them; and when their steps were done."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from easyscale.client import Address, JobClient, UnreachableError
from easyscale.core.requests import JobStatus
from easyscale.master.registry import list_jobs

HERE = Path(__file__).parent
ESTS = 4
LONGEST = 300.0  # seconds for anything to happen
SOURCE = HERE.parent.parent / "src"
Times = list[tuple[int, float, str]]  # step, when it was done, on which plan


@contextlib.contextmanager
def own_registry() -> Iterator[Path]:
    """A folder for everything, and no other jobs to be found."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        os.environ["PYTHONPATH"] = f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"
        yield Path(folder)


class EasyScaleJob:
    """`easyscale run` with 4 ESTs. Steps and their times are in FOLDER/metrics, also across a resume."""

    def __init__(self, model: str, workers: int, folder: Path, *flags: str) -> None:
        self.folder, self._log = folder, folder / "log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "easyscale", "run", "--ests", str(ESTS), "--workers", str(workers),
                 "--metrics-dir", str(folder / "metrics"), "--report", str(folder / "report.json"), *flags,
                 str(HERE / "train.py"), model],
                stdout=log, stderr=log,
            )  # fmt: skip
        self.client = JobClient("the measured job", self._address)

    def _address(self) -> Address | None:
        for job in list_jobs():
            record, master = job.record(), job.master()
            if record is not None and master is not None and master.pid == self.process.pid:
                return Address(host=master.host, port=master.port, token=record.token)
        return None

    def until(self, true: Callable[[JobStatus], bool]) -> JobStatus:
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends and self.process.poll() is None:
            with contextlib.suppress(UnreachableError):
                status = self.client.status(events=0)
                if true(status):
                    return status
            time.sleep(0.02)
        raise SystemExit(f"the job did not get there:\n{self._log.read_text()[-3000:]}")

    def train(self, steps: int, workers: int) -> JobStatus:
        """Until so many more steps were done by so many workers, with no wish open."""

        def calm(status: JobStatus) -> bool:
            return status.state == "training" and status.wanted is None and len(status.seats) == workers

        step = self.until(calm).step
        return self.until(lambda status: calm(status) and status.step >= step + steps)

    def stop(self) -> None:
        """With a checkpoint, where it has a folder for it."""
        self.client.stop()
        self.process.wait(LONGEST)

    def times(self) -> Times:
        lines = map(json.loads, (self.folder / "metrics" / "metrics.jsonl").read_text().splitlines())
        return [(line["step"], line["time"], line["plan"]) for line in lines]

    def report(self) -> dict[str, object]:
        report: dict[str, object] = json.loads((self.folder / "report.json").read_text())
        return report


class TorchrunJob:
    """The hand-written script under `torchrun`, in FOLDER."""

    def __init__(self, model: str, workers: int, folder: Path) -> None:
        self.folder, self._log = folder, folder / "log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers),
                 str(HERE / "stock.py"), model, str(folder)],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
            )  # fmt: skip

    def train(self, steps: int) -> None:
        before, ends = len(self.times()), time.monotonic() + LONGEST
        while len(self.times()) < before + steps:
            if self.process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"torchrun did not get there:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LONGEST)

    def times(self) -> Times:
        path = self.folder / "times"
        if not path.exists():
            return []
        rows = [line.split() for line in path.read_text().splitlines()]
        return [(int(row[0]), float(row[1]), row[2]) for row in rows if len(row) == 3]
