"""How long the planner thinks: the best assignment of ESTs, speeds as policies ask for them, one step of a job's mind.

    python benchmarks/planner.py [--small]

Each row is many random jobs and clusters, each solved for the first time (nothing remembered): the median and the
slowest of them, in processor time, because the machine may be busy with other things. The bar is 1 ms at 64 ESTs on 64
devices of 4 types.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

from easyscale.core.cluster import Needs
from easyscale.planner import assignment
from easyscale.planner.facts import Device, Granted, Stepped, Switched
from easyscale.planner.mind import Mind
from easyscale.planner.model import EstSpeed, Reduction

RESULTS = Path(__file__).parent / "results"
SIZES = ((8, 8, 2), (16, 64, 4), (64, 64, 1), (64, 64, 4), (64, 256, 4), (256, 256, 4), (1024, 1024, 4), (64, 64, 64))
Job = Callable[[], object]


def reduction(chance: random.Random) -> Reduction:
    return Reduction(
        base=chance.uniform(0, 0.02), per_worker=10 ** chance.uniform(-6, -2), bytes=10 ** chance.uniform(6, 10),
        seconds_per_byte=10 ** chance.uniform(-11, -9), across_nodes=chance.choice([1.0, 2.0, 8.0]),
    )  # fmt: skip


def assigning(ests: int, devices: int, types: int, talk: bool, chance: random.Random) -> Job:
    kinds = [f"type{i}" for i in range(types)]
    held = dict.fromkeys(kinds, devices // types)
    seconds = {kind: chance.uniform(0.05, 0.8) for kind in kinds}
    cost = reduction(chance) if talk else None
    assignment.row_of_seconds.cache_clear()
    return lambda: assignment.assign_types(ests, held, seconds, cost)


def making(chance: random.Random) -> Job:
    seconds, cost = {"a": chance.uniform(0.05, 0.8)}, reduction(chance)
    return lambda: EstSpeed(64, seconds, cost)


def asking(again: bool, chance: random.Random) -> Job:
    speed = EstSpeed(64, {"a": chance.uniform(0.05, 0.8)}, reduction(chance))
    if again:
        speed.rate({"a": 1})
    return lambda: speed.rate({"a": 7})


def drawing(chance: random.Random) -> Job:
    speed = EstSpeed(64, {"a": chance.uniform(0.05, 0.8)}, reduction(chance))
    return lambda: speed.rates("a", 64)


def minding(chance: random.Random) -> Job:
    mind = Mind(Needs(ests=64, level="D2"))
    devices = tuple(Device(str(i), ("v100", "t4")[i % 2], f"n{i // 8}") for i in range(16))
    mind.take(Granted(devices), 0.0)
    mind.take(Switched(dict.fromkeys(map(str, range(16)), 4), 1.0), 0.0)

    def step() -> object:
        return mind.take(Stepped({str(i): chance.uniform(0.9, 1.1) for i in range(16)}, 1.2), 0.0)

    for _ in range(20):
        step()
    return step


def measure(what: str, make: Callable[[random.Random], Job], rounds: int, **more: Any) -> dict[str, Any]:
    chance = random.Random(what)
    times = []
    for _ in range(rounds):
        job = make(chance)
        start = thread_time()
        job()
        times.append(thread_time() - start)
    row = {"what": what, **more, "median_us": median(times) * 1e6, "slowest_us": max(times) * 1e6, "rounds": rounds}
    print(f"{what:66} {row['median_us']:10.1f} us {row['slowest_us']:10.1f} us", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rounds")
    rounds = 30 if parser.parse_args().small else 300
    print(f"{'':66} {'median':>13} {'slowest':>13}")
    rows = []
    for ests, devices, types in SIZES:
        for talk in (False, True):
            name = f"{ests} ESTs on {devices} devices of {types} types, " + ("communication" if talk else "none")

            def make(
                chance: random.Random, size: tuple[int, int, int] = (ests, devices, types), talk: bool = talk
            ) -> Job:
                return assigning(*size, talk, chance)

            rows.append(measure(name, make, rounds, ests=ests, devices=devices, types=types, communication=talk))
    rows.append(measure("make a speed", making, rounds))
    rows.append(measure("ask it about one type for the first time (64 ESTs)", lambda c: asking(False, c), rounds))
    rows.append(measure("ask it again", lambda c: asking(True, c), rounds))
    rows.append(measure("its curve for 1..64 devices of a type", drawing, rounds))
    rows.append(measure("one step of a mind: 64 ESTs, 16 devices, 2 types", minding, rounds))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "planner.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
