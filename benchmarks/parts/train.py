"""One process of a measured job: with EasyScale's five lines, or by hand with stock DDP. Started by `jobs.py`.

    train.py MODEL STEPS FOLDER

Writes FOLDER/WORKER.json: milliseconds a global step in each window, and the memory in use.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from parts.workload import Batches, Workload, bare_steps, build, est_steps, resident_mib, sgd, wait

WARM_UP = 3
WINDOWS = 3


def main() -> None:
    name, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if "STOCK_RANK" in os.environ:
        stock(name, steps, folder)
    else:
        with_easyscale(name, steps, folder)


def with_easyscale(name: str, steps: int, folder: Path) -> None:
    import easyscale as es

    es.init(seed=0, staging=os.environ.get("STAGING", "auto"))  # type: ignore[arg-type]
    device, first = es.device(), es.rank()
    split = [int(count) for count in os.environ["SPLIT"].split(",")]
    worker = [sum(split[:w]) for w in range(len(split))].index(first)
    model, x, y = placed(name, device)
    loader = DataLoader(Batches(x, y, (WARM_UP + WINDOWS * steps) * sum(split)), batch_size=None)
    model, optimizer, loader = es.prepare(model, sgd(model), loader)
    turns = est_steps(model, optimizer, loader)
    measure(device, steps, folder / f"{worker}.json", lambda: [next(turns) for _ in range(split[worker])])
    for _ in turns:
        raise AssertionError("the loader is longer than the measured steps")


def stock(name: str, steps: int, folder: Path) -> None:
    """Nothing of EasyScale's but the settings of its level: deterministic algorithms, one thread."""
    from easyscale.numerics.record import apply_level

    apply_level("D1", 1)
    rank, ranks = int(os.environ["STOCK_RANK"]), int(os.environ["STOCK_RANKS"])
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model, x, y = placed(name, device)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    body = bare_steps(ddp, sgd(model), x, y, 1)
    measure(device, steps, folder / f"{rank}.json", lambda: next(body))
    dist.destroy_process_group()


def placed(name: str, device: torch.device) -> Workload:
    model, x, y = build(name)
    return model.to(device), x.to(device), y.to(device)


def measure(device: torch.device, steps: int, path: Path, step: Callable[[], Any]) -> None:
    for _ in range(WARM_UP):
        step()
    windows, processor = [], []
    for _ in range(WINDOWS):
        wait(device)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        wait(device)
        windows.append((time.perf_counter() - wall) / steps * 1e3)
        processor.append((time.process_time() - cpu) / steps * 1e3)
        if len(windows) == WINDOWS - 1:  # all processes of the job are still there
            memory = memory_in_use(device)
    path.write_text(json.dumps({"windows_ms": windows, "cpu_ms": processor, **memory}))


def memory_in_use(device: torch.device) -> dict[str, float]:
    """The device's is that of all processes on it, contexts included; the host's is this process's own."""
    found = {"host_mib": resident_mib(), "device_mib": 0.0, "peak_mib": 0.0}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found["device_mib"] = (total - free) / 2**20
        found["peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found


if __name__ == "__main__":
    main()
