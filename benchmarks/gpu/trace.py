"""What the GPU does in one global step of k ESTs, and of the bare loop over the same mini-batches: gaps between ESTs.

    python benchmarks/gpu/trace.py [--model bert-base] [--ests 4] [--staging host]

A torch.profiler trace, cut down to intervals in lanes (compute stream, copies in and out, sums beside it, host) and
written to results/trace-MODEL-K-STAGING.json; `report.py` draws it. The number that counts is the time in which the
compute stream stands still at the border of two ESTs, against the same border in the bare loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent.parent))
from parts.workload import RESULTS, Batches, build, est_steps, sgd, wait

STEPS = 4  # profiled
JOIN_US = 5.0  # intervals closer than this are drawn as one
Interval = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--ests", type=int, default=4)
    parser.add_argument("--staging", default="host")
    chosen = parser.parse_args()
    found = measure(chosen.model, chosen.ests, chosen.staging)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"trace-{chosen.model}-{chosen.ests}-{chosen.staging}.json"
    path.write_text(json.dumps(found) + "\n")
    for loop in ("ests", "bare"):
        numbers = found[loop]
        print(
            f"{chosen.model} k={chosen.ests} {chosen.staging:6} {loop:4}: step {numbers['step_us'] / 1e3:.2f} ms, "
            f"compute stream idle {numbers['idle_us'] / 1e3:.2f} ms ({numbers['idle_share']:.2%}), "
            f"largest gap {numbers['largest_gap_us']:.0f} us, "
            f"at borders {[round(gap) for gap in numbers['border_gaps_us']]} us, "
            f"host ahead by {[round(us / 1e3, 1) for us in numbers['host_ahead_us']]} ms"
        )


def measure(name: str, ests: int, staging: str) -> dict[str, Any]:
    import easyscale as es

    es.init(seed=0, ests=ests, staging=staging)  # type: ignore[arg-type]
    device = es.device()
    model, x, y = build(name)
    x, y = x.to(device), y.to(device)
    model.to(device)
    model, optimizer, loader = es.prepare(model, sgd(model), DataLoader(Batches(x, y), batch_size=None))
    turns = est_steps(model, optimizer, loader)
    bare_model = build(name)[0].to(device)
    bare_optimizer = sgd(bare_model)

    def ests_step() -> None:
        for _ in range(ests):
            mark()
            next(turns)

    def bare_step() -> None:
        for turn in range(ests):
            mark()
            torch.nn.functional.cross_entropy(bare_model(x), y).backward()
            if turn == ests - 1:
                bare_optimizer.step()
                bare_optimizer.zero_grad()

    return {
        "model": name, "k": ests, "staging": staging, "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__, "ests": traced(device, ests, ests_step), "bare": traced(device, ests, bare_step),
    }  # fmt: skip


def mark() -> None:
    """A kernel of one cycle on the compute stream: where a turn begins, on the host and on the GPU."""
    torch.cuda._sleep(1)


def traced(device: torch.device, ests: int, step: Callable[[], None]) -> dict[str, Any]:
    """Profile after a warm-up. Only the GPU's side is recorded: recording the host's operators would slow it."""
    for _ in range(4):
        step()
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        mark()
        wait(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return describe(json.loads(path.read_text())["traceEvents"], ests)


def describe(events: list[dict[str, Any]], ests: int) -> dict[str, Any]:
    """The last step but one: the host is ahead in it as in a long run, and a step follows it."""
    spans = [event for event in events if event.get("ph") == "X"]
    launches = {e["args"]["correlation"]: e for e in spans if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    work = [e for e in spans if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    marks = sorted((e for e in work if "spin_kernel" in e["name"]), key=lambda e: e["ts"])
    assert len(marks) == STEPS * ests + 1
    first = (STEPS - 2) * ests
    begins = [mark["ts"] for mark in marks[first : first + ests + 1]]
    start, end = begins[0], begins[-1]
    lanes: dict[str, list[Interval]] = {}
    compute = marks[0]["args"]["stream"]
    for event in work:
        if "spin_kernel" not in event["name"] and start <= event["ts"] < end:
            lanes.setdefault(lane_of(event, compute), []).append((event["ts"], event["ts"] + event["dur"]))
    launched = [launches[mark["args"]["correlation"]]["ts"] for mark in marks[first : first + ests + 1]]
    lanes["host"] = [(e["ts"], e["ts"] + e["dur"]) for e in launches.values() if launched[0] <= e["ts"] < launched[-1]]
    busy = [*merge(lanes["compute"], 0.0), (end, end)]
    gaps = [(a[1], b[0]) for a, b in itertools.pairwise(busy) if b[0] > a[1]]
    return {
        "step_us": end - start,
        "idle_us": sum(b - a for a, b in gaps),
        "idle_share": sum(b - a for a, b in gaps) / (end - start),
        "largest_gap_us": max((b - a for a, b in gaps), default=0.0),
        # The gap in which the mark of a turn lies, and those that touch it.
        "border_gaps_us": [max((b - a for a, b in gaps if a - 20 <= at <= b + 20), default=0.0) for at in begins[1:-1]],
        "host_ahead_us": [mark - at for mark, at in zip(begins, launched, strict=True)],
        "turns": [round(at - start, 1) for at in begins],
        "host_turns": [round(at - start, 1) for at in launched],
        "lanes": {
            lane: [[round(a - start, 1), round(b - start, 1)] for a, b in merge(found, JOIN_US)]
            for lane, found in lanes.items()
        },
    }


def lane_of(event: dict[str, Any], compute: int) -> str:
    if event["args"]["stream"] == compute:
        return "compute"
    if event["cat"] == "gpu_memcpy":
        return "to host" if "DtoH" in event["name"] else "to device" if "HtoD" in event["name"] else "sums"
    return "sums"


def merge(found: list[Interval], join: float) -> list[Interval]:
    merged: list[list[float]] = []
    for a, b in sorted(found):
        if merged and a - merged[-1][1] <= join:
            merged[-1][1] = max(merged[-1][1], b)
        else:
            merged.append([a, b])
    return [(a, b) for a, b in merged]


if __name__ == "__main__":
    main()
