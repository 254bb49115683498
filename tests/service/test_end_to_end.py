"""A service with real jobs: each ends with the bits that stock DDP gives it on its own, whatever happens around it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from easyscale.service.chronicle import replay
from easyscale.service.store import open_store
from service.real import Service, stock, until
from service.training import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def test_six_jobs_on_four_devices_of_two_types(tmp_path: Path, script: Path) -> None:
    """Arrivals, growth, a shrink for a newcomer, a device called back, a worker killed, the service killed."""
    pace = ["--sleep", "0.1", "--epochs"]
    wishes = {
        "one": (4, [*pace, "10"]), "two": (2, [*pace, "3"]), "three": (3, [*pace, "4", "--width", "24"]),
        "four": (1, [*pace, "1"]), "five": (2, [*pace, "3", "--seed", "7"]), "six": (4, [*pace, "3"]),
    }  # fmt: skip
    with Service(tmp_path) as service:
        jobs = {"one": service.submit(script, wishes["one"][1], name="one", ests=4)}
        first = service.until(jobs["one"], lambda view: view.step >= 2)
        assert len(first.held) == 2  # all devices of one type, and no other
        for name in ("two", "three", "four"):
            ests, args = wishes[name]
            jobs[name] = service.submit(script, args, name=name, ests=ests)
        until(lambda: service.client.cluster().running >= 3, 120, service.said)
        seat = next(one.id for one in service.client.cluster().devices if one.state == "held")
        service.client.call_back({}, [seat], within=30)
        until(lambda: state_of(service, seat) == "away", 60, service.said)
        service.kill()
        service.start()
        for name in ("five", "six"):
            ests, args = wishes[name]
            jobs[name] = service.submit(script, args, name=name, ests=ests)
        kill_a_worker(service)
        service.client.lend({}, [seat])
        views = {name: service.finished(job) for name, job in jobs.items()}
        assert len({device for view in views.values() for span in view.allocations for device in span.devices}) == 4
        assert service.stop() == 0
    for name, view in views.items():
        ests, args = wishes[name]
        assert view.fingerprint == stock(script, ests, args, service.environment), name
    with open_store(tmp_path / "data") as store:
        decisions, different = replay(store.records())
    assert decisions > 6
    assert not different


def state_of(service: Service, device: str) -> str:
    return next(one.state for one in service.client.cluster().devices if one.id == device)


def kill_a_worker(service: Service) -> None:
    """Of a job that trains, whether it has others or not."""
    found: list[int] = []

    def some() -> bool:
        for row in service.client.jobs(states=("running",)).jobs:
            workers = [*service.data.glob(f"runs/easyscale/jobs/{row.id}.*/workers/*.json")]
            found.extend(pid for file in workers if (pid := pid_of(file)) and Path(f"/proc/{pid}").exists())
        return bool(found)

    until(some, 120, service.said)
    os.kill(found[0], signal.SIGKILL)


def pid_of(file: Path) -> int:
    try:
        return int(json.loads(file.read_text())["pid"])
    except (OSError, ValueError):
        return 0
