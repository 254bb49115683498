"""The same six real jobs under two policies of the service: how long they take, how busy the devices are, which bits.

    python benchmarks/service_policies.py [--policies easyscale,fifo] [--epochs-scale 1.0]

A real `easyscale up` in a process, four devices of two types (places on the CPU, all equally fast), real masters and
workers. The pace of a step is a sleep in the training loop, so that processes on a busy machine do not slow each other
down more than they must. Jobs arrive at fixed times, and the last ones while the first still run. Times and held
devices are read from the service's log. Each job must end with the sha256 of `easyscale run --engine ddp`, under both
policies. Nobody asks for more than two devices: `fifo` gives a job all that it asks for, of one type, or nothing.
Writes benchmarks/results/service-policies.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from easyscale.service.chronicle import replay
from easyscale.service.records import Record
from easyscale.service.store import open_store
from service.real import Service, stock
from service.training import SCRIPT

RESULTS = Path(__file__).parent / "results" / "service-policies.json"
DEVICES = "v100:2,p100:2"
Row = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    name: str
    at: float  # seconds after the first
    ests: int
    epochs: int
    extra: tuple[str, ...] = ()


# A large job first, small ones behind it, then a large one again.
WISHES = (
    Wish("one", 0, 4, 20), Wish("two", 2, 2, 6), Wish("three", 4, 4, 8, ("--width", "24")), Wish("four", 6, 1, 2),
    Wish("five", 8, 2, 4, ("--seed", "7")), Wish("six", 30, 4, 8),
)  # fmt: skip


def arguments(wish: Wish, scale: float) -> list[str]:
    return ["--sleep", "0.1", "--epochs", str(max(1, round(wish.epochs * scale))), *wish.extra]


def run(policy: str, scale: float, folder: Path) -> Row:
    script = folder / "work" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    with Service(folder, DEVICES, policy=policy) as service:
        began, jobs = time.monotonic(), dict[str, str]()
        for wish in WISHES:
            time.sleep(max(0.0, began + wish.at - time.monotonic()))
            jobs[wish.name] = service.submit(
                script, arguments(wish, scale), name=wish.name, ests=wish.ests, max_workers=min(2, wish.ests)
            )  # fmt: skip
        views = {name: service.finished(job, 900.0) for name, job in jobs.items()}
        assert service.stop() == 0
    with closing(open_store(folder / "data", existing=True)) as store:
        records = list(store.records())
    decisions, different = replay(records)
    return {
        "policy": policy, **figures(records), "decisions": decisions, "different": len(different),
        "fingerprints": {name: view.fingerprint for name, view in views.items()},
        "jct": {name: round((view.ended or 0.0) - view.submitted, 1) for name, view in views.items()},
        "waited": {name: round((view.started or 0.0) - view.submitted, 1) for name, view in views.items()},
    }  # fmt: skip


def figures(records: Iterable[Record]) -> Row:
    """Completion times, makespan and device-seconds held of those there, from the first submission to the last end."""
    submitted, ended, starts, switches = dict[str, float](), dict[str, float](), 0, 0
    held, since, busy, devices = dict[str, int](), 0.0, 0.0, 0
    for record in records:
        busy += sum(held.values()) * (record.time - since)
        since = record.time
        devices += record.kind == "device-added"
        if record.job is None:
            continue
        if record.kind == "job-submitted":
            submitted[record.job] = record.time
        elif record.kind == "job-allocated":
            switches += 0 < held.get(record.job, 0) != len(record.body["devices"]) > 0
            held[record.job] = len(record.body["devices"])
        elif record.kind == "job-starting":
            starts += 1
        elif record.kind in ("job-finished", "job-failed", "job-stopped", "job-retried"):
            held.pop(record.job, None)
            if record.kind == "job-finished":
                ended[record.job] = record.time
    makespan = max(ended.values()) - min(submitted.values())
    times = [ended[job] - submitted[job] for job in submitted]
    return {
        "mean_jct": round(sum(times) / len(times), 1), "makespan": round(makespan, 1), "starts": starts,
        "utilization": round(busy / (devices * makespan), 3), "switches": switches,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default="easyscale,fifo")
    parser.add_argument("--epochs-scale", type=float, default=1.0)
    options = parser.parse_args()
    rows, load = [], [round(one, 1) for one in os.getloadavg()]
    with tempfile.TemporaryDirectory(prefix="easyscale-policies-") as name:
        folder = Path(name)
        for policy in options.policies.split(","):
            (folder / policy).mkdir()
            rows.append(run(policy, options.epochs_scale, folder / policy))
            show = {key: value for key, value in rows[-1].items() if key != "fingerprints"}
            print(json.dumps(show), flush=True)
        script = folder / options.policies.split(",")[0] / "work" / "train.py"
        expected = {
            wish.name: stock(script, wish.ests, arguments(wish, options.epochs_scale), os.environ) for wish in WISHES
        }
    for row in rows:
        row["bits"] = sum(row["fingerprints"][name] == print_of for name, print_of in expected.items())
        print(f"{row['policy']}: {row['bits']} of {len(expected)} jobs have the sha256 of stock DDP", flush=True)
    machine = {"cores": os.cpu_count(), "load_before": load, "load_after": [round(one, 1) for one in os.getloadavg()]}
    RESULTS.write_text(json.dumps({"machine": machine, "devices": DEVICES, "rows": rows}, indent=1) + "\n")
    assert all(row["bits"] == len(expected) and not row["different"] for row in rows)


if __name__ == "__main__":
    main()
