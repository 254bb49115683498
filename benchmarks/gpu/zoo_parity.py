"""The eight published models at full size on one GPU: stock DDP over Gloo against ESTs on every kind of plan.

    python benchmarks/gpu/zoo_parity.py --results RESULTS_FOLDER --page docs/parity-models.md
    python benchmarks/gpu/zoo_parity.py --device cpu --small --only neumf,vgg19        # a try without a GPU

For each model: hand-written DDP with 4 processes on the one GPU, then EasyScale with 1, 2, 3 (uneven) and 4 workers and
through the published schedule 4 -> 2 -> 3 workers. The final sha256 and each loss of each EST at each step must be
equal. Results and page are written after each model, on top of what the folder already has; a model that fails is
shown and does not stop the others. Where bits differ, stock DDP runs once more, to see whether it agrees with itself.

Workers are forked from this process, which must not touch the GPU: CUDA does not survive a fork. So it does not even
import transformers, which looks for an accelerator when it is imported.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not spoil it for forked workers

# ruff: noqa: E402  the lines above come first
import torch
from benchmarks.gpu.zoo_page import page
from benchmarks.zoo import MODELS, Size
from benchmarks.zoo.stock import train as by_hand
from benchmarks.zoo.train import train

import cluster

Result = dict[str, Any]
Task = Callable[[], Result]
KEPT = ("fingerprint", "losses", "parameters", "peak_mib", "seconds", "error")  # of a run's result
PLANS: dict[str, tuple[int, ...]] = {"1": (4,), "2": (2, 2), "3": (2, 1, 1), "4": (1, 1, 1, 1)}
STAGES: tuple[tuple[int, ...], ...] = ((1, 1, 1, 1), (2, 2), (2, 1, 1))
# Multiples of 6: two epochs, three stages. Fewer for models with much to send over the one machine's loopback.
STEPS = {"vgg19": 6, "yolov3": 6, "bert": 6, "electra": 6}
MOST_STEPS = 12
PEER_SECONDS = 120.0  # a first step on a busy GPU is slow
TASK_SECONDS = 200.0  # a run that takes longer hangs


# ---------------------------------------------------------------------------------------- one run


def stock(name: str, size: Size, steps: int, device: str) -> Result:
    return cluster.run_stock(partial(by_hand, MODELS[name], size, steps, device), 4)


def on_plan(name: str, size: Size, steps: int, device: str, split: tuple[int, ...], **spec: Any) -> Result:
    def body() -> Result:
        train(MODELS[name], size, steps)
        return {"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20)} if device == "cuda" else {}

    return cluster.run_job(body, split, device=device, **spec)


def through_stages(name: str, size: Size, steps: int, device: str) -> Result:
    """Each stage hands its state over to the next one's new workers."""
    losses: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=roomy_folder()) as folder:
        before = None
        for i, split in enumerate(STAGES):
            handoff = f"{folder}/{i}"
            stop = stops(steps)[i] if i + 1 < len(STAGES) else None
            result = on_plan(name, size, steps, device, split, stop_at=stop, handoff=handoff, resume=before)
            losses |= result["losses"]
            before = handoff
    return {**result, "losses": losses}


def stops(steps: int) -> list[int]:
    """The global steps at which the plan changes."""
    return [steps // 3, 2 * steps // 3]


def roomy_folder() -> str | None:
    """Memory for the state of a large model, where there is plenty of it; else the temporary directory."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 16 * 2**30 else None


# ---------------------------------------------------------------------------------------- several runs at a time


def in_lanes(tasks: dict[str, Task], lanes: int, tell: Callable[[str, Result], None]) -> dict[str, Result]:
    """Run each task in a process of its own, at most `lanes` at a time. A task that fails or hangs has an "error"."""
    context = multiprocessing.get_context("fork")
    waiting, running, results = list(tasks.items()), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < lanes:
                label, task = waiting.pop(0)
                process = context.Process(target=run_task, args=(task, f"{folder}/{label}"))
                process.start()
                running[process.sentinel] = (label, process, time.monotonic())
            ended = set(wait(list(running), timeout=1.0))
            for sentinel, (label, process, began) in list(running.items()):
                seconds = time.monotonic() - began
                if sentinel not in ended and seconds > TASK_SECONDS:
                    os.killpg(process.pid, signal.SIGKILL)  # its own group: the runner and its workers
                elif sentinel not in ended:
                    continue
                process.join()
                answer = Path(f"{folder}/{label}")
                known = answer.exists()
                result = json.loads(answer.read_text()) if known else {"error": "it died, or hung and was ended"}
                results[label] = {**result, "seconds": round(seconds, 1)}
                tell(label, results[label])
                del running[sentinel]
    return {label: results[label] for label in tasks}


def run_task(task: Task, answer: str) -> None:
    os.setpgid(0, 0)
    try:
        result = task()
    except BaseException as problem:
        result = {"error": "".join(traceback.format_exception(problem))[-4000:]}
    Path(answer + ".part").write_text(json.dumps(result))
    Path(answer + ".part").rename(answer)


# ---------------------------------------------------------------------------------------- one model


def examine(name: str, size: Size, steps: int, device: str, lanes: int, say: Callable[[str], None]) -> Result:
    began = time.monotonic()
    job = (name, size, steps, device)
    # The longest first.
    tasks: dict[str, Task] = {"schedule": partial(through_stages, *job), "stock": partial(stock, *job)}
    tasks |= {label: partial(on_plan, *job, PLANS[label]) for label in ("4", "3", "2", "1")}

    def tell(label: str, result: Result) -> None:
        what = result.get("fingerprint", "")[:12] or "FAILED: " + result["error"]
        memory = f", {result['peak_mib']} MiB of the GPU in worker 0" if "peak_mib" in result else ""
        say(f"{name}, {label}: {what} after {result['seconds']} s{memory}")

    results = in_lanes(tasks, lanes, tell)
    runs = {label: {key: run[key] for key in KEPT if key in run} for label, run in results.items()}
    for label, result in runs.items():
        if label != "stock":
            result["verdict"] = verdict(result, runs["stock"])
    work = MODELS[name]
    found: Result = {
        "title": work.title, "batch": work.batch_of(size), "parameters": runs["stock"].get("parameters", 0),
        "steps": steps, "stops": stops(steps), "runs": runs,
    }  # fmt: skip
    if any(result.get("verdict") == "different" for result in runs.values()):
        again = in_lanes({"stock again": partial(stock, *job)}, 1, tell)["stock again"]
        found["stock_agrees_with_itself"] = verdict(again, runs["stock"]) == "same"
        say(f"{name}: bits differ; stock DDP agrees with itself: {found['stock_agrees_with_itself']}")
    found["seconds"] = round(time.monotonic() - began, 1)
    found["good"] = all(result.get("verdict", "same") == "same" for result in runs.values())
    return found


def verdict(result: Result, expected: Result) -> str:
    """`same`: the sha256, and each loss of each EST at each step."""
    if "error" in result or "error" in expected:
        return "failed"
    equal = result["fingerprint"] == expected["fingerprint"] and by_step(result) == by_step(expected)
    return "same" if equal else "different"


def by_step(result: Result) -> list[list[float]]:
    return [row for _, row in sorted(result["losses"].items(), key=lambda item: int(item[0]))]


# ---------------------------------------------------------------------------------------- all


def machine(device: str) -> Result:
    """What the results belong to. Runs in a forked process, and so shows that those can use the GPU."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})",
        "cuda": torch.version.cuda, "torch": torch.__version__, "torchvision": version("torchvision"),
        "transformers": version("transformers"), "python": platform.python_version(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=None, help="folder for zoo_parity.json")
    parser.add_argument("--page", type=Path, default=None, help="Markdown file to write")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="the small models of the tests")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    parser.add_argument("--steps", type=int, default=None, help="a multiple of 6; default: 12, heavy models 6")
    parser.add_argument("--lanes", type=int, default=3, help="runs at a time; each has up to 4 processes")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"no such models: {', '.join(unknown)}")
    if chosen.steps is not None and (chosen.steps < 6 or chosen.steps % 6):
        parser.error("--steps must be a multiple of 6: two epochs, three stages")
    return measure(chosen, names)


def measure(chosen: argparse.Namespace, names: list[str]) -> int:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    size: Size = "small" if chosen.small else "full"
    prepare_process()
    probe = in_lanes({"machine": partial(machine, chosen.device)}, 1, lambda *_: None)["machine"]
    if "error" in probe:
        say(probe["error"])
        return 1
    del probe["seconds"]
    say(json.dumps(probe))
    store = chosen.results / "zoo_parity.json" if chosen.results else None
    everything: Result = json.loads(store.read_text()) if store is not None and store.exists() else {}
    if everything.get("machine") != probe or everything.get("size") != size:
        everything = {"machine": probe, "size": size, "models": {}}
    for name in names:
        found = examine(name, size, chosen.steps or STEPS.get(name, MOST_STEPS), chosen.device, chosen.lanes, say)
        cells = ", ".join(f"{label}: {run['verdict']}" for label, run in found["runs"].items() if "verdict" in run)
        say(f"{name}: {cells} ({found['seconds']} s)")
        everything["models"][name] = found
        everything["models"] = {known: everything["models"][known] for known in MODELS if known in everything["models"]}
        if store is not None:
            write(store, json.dumps(everything, indent=1) + "\n")
        if chosen.page is not None:
            write(chosen.page, page(everything))
    print(page(everything), flush=True)
    return 0 if all(everything["models"][name]["good"] for name in names) else 1


def prepare_process() -> None:
    torch.set_num_threads(1)  # a pool of threads would not survive the forks
    torch.backends.cudnn.allow_tf32 = False  # plain fp32 in convolutions too, for stock DDP and ESTs alike
    cluster.TIMEOUT = PEER_SECONDS


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
