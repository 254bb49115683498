"""One process of a job of steady.py: parts/train.py with something left out, and with an account of what costs.

    part.py MODEL STEPS FOLDER        WITHOUT=replication,undo in the environment

Writes what parts/train.py writes, and FOLDER/account-PID.json: microseconds a global step, of the training thread's
processor time and of the clock, in each place that only serves workers which come and go.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts import train

from easyscale.runtime.exchange import Exchange
from easyscale.runtime.turns import Turns
from easyscale.runtime.undo import Undo

PLACES = {
    "capture": (Turns, "capture"), "note": (Exchange, "note"), "start": (Exchange, "_start"),
    "hear": (Exchange, "hear"), "undo": (Undo, "keep"),
}  # fmt: skip
spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])


def account(name: str, owner: Any, method: str) -> None:
    original = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name][0] += time.thread_time() - cpu
            spent[name][1] += time.perf_counter() - wall

    setattr(owner, method, counted)


def main() -> None:
    without = os.environ.get("WITHOUT", "").split(",")
    if "replication" in without:
        Exchange._replicates = property(lambda self: False)  # type: ignore[assignment]
    if "undo" in without:
        Undo.keep = lambda self: None  # type: ignore[method-assign]
    for name, (owner, method) in PLACES.items():
        account(name, owner, method)
    train.main()
    steps = train.WARM_UP + train.WINDOWS * int(sys.argv[2])
    found = {name: [seconds / steps * 1e6 for seconds in both] for name, both in spent.items()}
    (Path(sys.argv[3]) / f"account-{os.getpid()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
