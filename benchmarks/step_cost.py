"""What k ESTs on one device cost against the bare loop over the same k mini-batches, side by side in one process.

    python benchmarks/step_cost.py            # this machine's device; writes results/ and docs/benchmarks.md

The two loops take turns in windows, so that a busy machine slows both. "Bare" is forward and backward of k mini-batches
into the same gradients and one optimizer step: no ESTs, no sums. Each row runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).parent
WINDOWS = 5  # turns of each loop; the median counts


class Batches(Dataset[Any]):
    """Ready mini-batches, so that both loops pay nothing for data."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, count: int) -> None:
        self.x, self.y, self.count = x, y, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.x, self.y


def convnet() -> tuple[nn.Module, Any, Any]:
    """43 tensors of parameters, batch norm: about 50 ms a mini-batch on one core."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(10):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AvgPool2d(16), nn.Flatten(), nn.Linear(32, 10))
    return model, torch.randn(16, 3, 16, 16), torch.randint(10, (16,))


def encoder() -> tuple[nn.Module, Any, Any]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(4096, 10))
    return model, torch.randn(8, 32, 128), torch.randint(10, (8,))


def resnet50() -> tuple[nn.Module, Any, Any]:
    from torchvision.models import resnet50 as build

    model = build()
    model.avgpool = nn.AvgPool2d(7)  # the adaptive one has no deterministic backward on a GPU
    return model, torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))


def bert() -> tuple[nn.Module, Any, Any]:
    """BERT-base's encoder by its sizes, batch 8 of 384 tokens."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
    body = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(768 * 384, 2))
    return model, torch.randn(8, 384, 768), torch.randint(2, (8,))


MODELS: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "convnet": convnet, "encoder": encoder, "resnet50": resnet50, "bert-base": bert,
}  # fmt: skip


def measure(name: str, ests: int, staging: str, steps: int) -> dict[str, Any]:
    """One row: seconds per global step of both loops, and the memory that each needs."""
    import easyscale as es

    es.init(seed=0, ests=ests, staging=staging)  # type: ignore[arg-type]
    device = es.device()
    model, x, y = MODELS[name]()
    x, y = x.to(device), y.to(device)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    loader = DataLoader(Batches(x, y, 10**6), batch_size=None)
    model, optimizer, loader = es.prepare(model, optimizer, loader)
    est = est_steps(model, optimizer, loader)
    for _ in range(3 * ests):
        next(est)
    memory = peak(device, lambda: [next(est) for _ in range(ests)])
    bare_model = MODELS[name]()[0].to(device)
    bare = bare_steps(bare_model, torch.optim.SGD(bare_model.parameters(), lr=1e-4, momentum=0.9), x, y, ests)
    for _ in range(2):
        next(bare)
    times: dict[str, list[float]] = {"bare": [], "est": []}
    for _ in range(WINDOWS):
        times["bare"].append(window(device, lambda: [next(bare) for _ in range(steps)]) / steps)
        times["est"].append(window(device, lambda: [next(est) for _ in range(steps * ests)]) / steps)
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {
        "model": name, "k": ests, "staging": staging, "bare_ms": medians["bare"] * 1e3, "est_ms": medians["est"] * 1e3,
        "ratio": medians["bare"] / medians["est"], "peak_mib": memory, "switch_us": switch_cost(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, 1 thread",
        "torch": torch.__version__,
    }  # fmt: skip


def est_steps(model: Any, optimizer: Any, loader: Any) -> Iterator[None]:
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def bare_steps(model: nn.Module, optimizer: Any, x: Any, y: Any, count: int) -> Iterator[None]:
    while True:
        for _ in range(count):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def window(device: torch.device, body: Callable[[], Any]) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    body()
    wait()
    return time.perf_counter() - began


def peak(device: torch.device, body: Callable[[], Any]) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    body()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device) / 2**20


def switch_cost(device: torch.device) -> float:
    """Microseconds of the host to put one EST's random states away and take another's up."""
    from easyscale.numerics.rng import RngState

    other = RngState.capture(device)
    began = time.perf_counter()
    for _ in range(200):
        RngState.capture(device)
        other.restore(device)
    return (time.perf_counter() - began) / 200 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", help="MODEL,K,STAGING,STEPS: measure one row and print it as JSON")
    chosen = parser.parse_args().one
    if chosen:
        name, ests, staging, steps = chosen.split(",")
        print(json.dumps(measure(name, int(ests), staging, int(steps))))
        return
    rows = [run(*row) for row in plan()]
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"step_cost-{kind}.json").write_text(json.dumps(rows, indent=1) + "\n")
    from report import write_page

    write_page()


def plan() -> list[tuple[str, int, str, int]]:
    if torch.cuda.is_available():
        return [(m, k, s, 2) for m in ("resnet50", "bert-base") for k in (1, 4, 8, 16) for s in ("device", "host")]
    return [(m, k, "auto", 4) for m in ("convnet", "encoder") for k in (1, 4, 8, 16)]


def run(name: str, ests: int, staging: str, steps: int) -> dict[str, Any]:
    """In a process of its own, with this one's interpreter."""
    command = [sys.executable, __file__, "--one", f"{name},{ests},{staging},{steps}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    memory = "" if row["peak_mib"] is None else f"{row['peak_mib']:9.0f} MiB"
    print(
        f"{name:10} k={ests:<3} {staging:7} bare {row['bare_ms']:9.2f} ms  ests {row['est_ms']:9.2f} ms  "
        f"{row['ratio']:.3f} of the bare loop's throughput  switch {row['switch_us']:.0f} us {memory}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
