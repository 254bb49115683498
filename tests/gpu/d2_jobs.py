"""D2 jobs on a GPU and a CPU at once, through the command and through the master, each in processes of its own.

`python tests/gpu/d2_jobs.py in-flight DEVICES` is a program: workers are forked from it, and a fork of a process that
has used a GPU cannot use it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]

SCRIPT = ROOT / "benchmarks" / "zoo" / "train.py"
MODEL = ("--model", "neumf", "--size", "small", "--steps", "12")
SECONDS = 540
AT_ONCE = 4  # jobs
PATIENCE = 240.0  # of a worker with another: on a fresh machine the first step on a GPU compiles all its kernels


def command(folder: Path, *flags: str) -> dict[str, Any]:
    """`easyscale run` at D2 with 4 ESTs; its report."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    level = ("--ests", "4", "--determinism", "D2")
    done = subprocess.run(
        [sys.executable, "-m", "easyscale", "run", *level, "--report", str(report), *flags, str(SCRIPT), *MODEL],
        env={**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(flags)}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def plans(gpu: str) -> dict[str, str]:
    """The final fingerprint of each way to run the job. `gpu` is "cuda", or "cpu" for a try without one."""
    ways: dict[str, tuple[str, ...]] = {
        "all on the CPU": ("--workers", "2", "--device", "cpu"),
        "all on the GPU": ("--workers", "2", "--device", gpu),
        "GPU and CPU": ("--workers", "2", "--device", f"{gpu},cpu"),
        "CPU and GPU, uneven": ("--split", "3,1", "--device", f"cpu,{gpu}"),
        "GPU, GPU and CPU, GPU": ("--schedule", "0:1,4:2,8:1", "--device", f"{gpu},cpu"),
        "CPU, CPU and GPU, CPU": ("--schedule", "0:1,4:2,8:1", "--device", f"cpu,{gpu}"),
        "stock DDP on the GPU": ("--engine", "ddp", "--device", gpu),
        "stock DDP on the CPU": ("--engine", "ddp", "--device", "cpu"),
    }

    def of(flags: tuple[str, ...]) -> str:
        with tempfile.TemporaryDirectory() as name:
            return str(command(Path(name), *flags)["fingerprint"])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(ways, pool.map(of, ways.values()), strict=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = ("--checkpoint-dir", str(folder / "kept"), "--checkpoint-every", "4", "--workers", "2")
        command(folder, *kept, "--device", gpu, "--max-steps", "4")
        command(folder, *kept, "--device", "cpu", "--max-steps", "8", "--resume", "latest")
        moved = command(folder, *kept, "--device", gpu, "--resume", "latest")
        found["checkpoints: GPU, CPU, GPU"] = moved["fingerprint"]
    return found


def in_flight(devices: str) -> dict[str, Any]:
    """The GPU's worker is killed, the CPU's goes on alone, and a GPU joins again later; beside it the same job at rest.

    Worker 0 sits at the first place, so on the first device. After its death worker 1 is alone. With three workers from
    step 6 on, the third place has the first device again.
    """
    from easyscale.core.plan import parse_schedule
    from elasticity import Fault, run_with_master
    from workloads import CNN, with_easyscale

    train = with_easyscale(replace(CNN, epochs=4, device="cpu"))
    still = run_with_master(train, (2, 2), device="cpu", determinism="D2")
    killed = Fault(worker=0, step=2, place="torch.optim:SGD.step")
    moved = run_with_master(
        train, parse_schedule("0:2,6:3", 4), faults=[killed], device=devices, determinism="D2", timeout=PATIENCE
    )
    return {
        "still": still.fingerprint, "moved": moved.fingerprint, "error": moved.error or still.error,
        "plans": [list(plan.split) for _, plan in moved.state.plans], "lost": len(moved.happened("worker-lost")),
    }  # fmt: skip


def in_flight_apart(gpu: str) -> dict[str, Any]:
    """`in_flight` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "in-flight", f"{gpu},cpu"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(in_flight(sys.argv[2])))
