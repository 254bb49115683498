"""Models, ready mini-batches and the two loops that the benchmarks compare; nothing is measured here.

A model's name may carry a number: `mlp-512` is a stack of linear layers of that width, `bert-6` an encoder of the
sizes of BERT-base with that many layers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

HERE = Path(__file__).parent.parent
RESULTS = HERE / "results"
Workload = tuple[nn.Module, torch.Tensor, torch.Tensor]


class Batches(Dataset[Any]):
    """Ready mini-batches, so that all loops pay nothing for data."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, count: int = 10**6) -> None:
        self.x, self.y, self.count = x, y, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.x, self.y


def build(name: str) -> Workload:
    """A model with one mini-batch for it."""
    kind, _, number = name.partition("-")
    if kind == "mlp":
        return mlp(int(number))
    if kind == "bert":
        return bert(12 if number == "base" else int(number))
    return {"convnet": convnet, "encoder": encoder, "resnet50": resnet50}[name]()


def convnet() -> Workload:
    """44 tensors of parameters, batch norm: about 45 ms a mini-batch on one core."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(10):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AvgPool2d(16), nn.Flatten(), nn.Linear(32, 10))
    return model, torch.randn(16, 3, 16, 16), torch.randint(10, (16,))


def encoder() -> Workload:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(4096, 10))
    return model, torch.randn(8, 32, 128), torch.randint(10, (8,))


def resnet50() -> Workload:
    from torchvision.models import resnet50 as stock

    model = stock()
    model.avgpool = nn.AvgPool2d(7)  # the adaptive one has no deterministic backward on a GPU
    return model, torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))


def bert(layers: int) -> Workload:
    """BERT-base's encoder by its sizes, batch 8 of 384 tokens."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(768 * 384, 2))
    return model, torch.randn(8, 384, 768), torch.randint(2, (8,))


def mlp(width: int) -> Workload:
    """Four layers; a batch of 64 rows gives each weight 64 uses, few enough that its gradient's way costs something."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), torch.randn(64, width), torch.randint(10, (64,))


def est_steps(model: Any, optimizer: Any, loader: Any) -> Iterator[None]:
    """The loop of a script: each item is the body of one EST."""
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def bare_steps(model: nn.Module, optimizer: Any, x: Any, y: Any, count: int) -> Iterator[None]:
    """What there is to compute and nothing else: each item is `count` mini-batches and one optimizer step."""
    while True:
        for _ in range(count):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, 1 thread"


def resident_mib() -> float:
    """Host memory of this process, shared pages by their share (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def in_own_process(script: str, *arguments: str) -> Any:
    """Run a benchmark script for one row and read the JSON of its last line."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def save(name: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    """Into results/NAME-cpu.json or -gpu.json, where rows with the same key are replaced; and the page anew."""
    from report import write_page

    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{'gpu' if torch.cuda.is_available() else 'cpu'}.json"
    found = json.loads(path.read_text()) if path.exists() else []
    merged = {tuple(row[part] for part in key): row for row in [*found, *rows]}
    path.write_text(json.dumps([merged[k] for k in sorted(merged)], indent=1) + "\n")
    write_page()


def chosen(rows: list[Any], text: str | None) -> list[Any]:
    """Those rows of a plan whose first parts are named: `bert-base:16,resnet50`."""
    if text is None:
        return rows
    wanted = [tuple(name.split(":")) for name in text.split(",")]
    return [row for row in rows if any(tuple(map(str, row))[: len(name)] == name for name in wanted)]
