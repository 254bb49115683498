"""Whole training steps of the models at D1 and D2: time, memory, and the losses over many steps."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from benchmarks.gpu.d2_models import ALL
from benchmarks.gpu.d2_timing import Place, Row, level
from benchmarks.zoo.record import Size, Workload
from torch import nn
from torch.utils.data import DataLoader

from easyscale.runtime.d2 import plain_updates

STEPS = 8  # times as long as a layer is measured
Step = Callable[[], torch.Tensor]


def placed(part: Any, device: str) -> Any:
    if isinstance(part, dict):
        return {name: tensor.to(device) for name, tensor in part.items()}
    return [tensor.to(device) for tensor in part]


def trainer(
    work: Workload, model: nn.Module, batches: list[Any], name: str, after: Callable[[str], None] = lambda phase: None
) -> Step:
    """One step on the next batch. D1 has torch's own choice of optimizer kernels, D2 one update a parameter. `after` is
    told of the end of forward, backward and update."""
    optimizer = work.optimizer(model)
    if name == "d2":
        plain_updates(optimizer)
    number = 0

    def step() -> torch.Tensor:
        nonlocal number
        loss = work.loss(model, batches[number % len(batches)])
        after("forward")
        loss.backward()
        after("backward")
        if work.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        optimizer.zero_grad()
        after("update")
        number += 1
        return loss.detach()

    return step


def prepared(name: str, size: Size, device: str, count: int) -> tuple[nn.Module, list[Any]]:
    work = ALL[name]
    torch.manual_seed(7)
    batch = work.batch_of(size)
    loader = DataLoader(work.data(size, count * batch), batch_size=batch)
    return work.build(size).to(device), [placed(part, device) for part in loader]


def step_of(name: str, size: Size, place: Place) -> Row:
    """Time and peak memory of a whole step, D1 and D2 in turn, each with a model of its own."""
    work = ALL[name]
    times: dict[str, list[float]] = {"stock": [], "d2": []}
    peaks: dict[str, float] = {}
    first, batches = prepared(name, size, "cpu", 1)
    batches = [placed(part, place.device) for part in batches]
    for _ in range(min(place.rounds, 2)):
        for kind, found in times.items():
            model = copy.deepcopy(first).to(place.device)
            gc.collect()
            gc.freeze()  # as a job's workers do: what was made before the first step is not looked through again
            with level(kind):
                step = trainer(work, model, batches, kind)
                if place.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                found.append(replace(place, least=STEPS * place.least).seconds(step))
                if place.device == "cuda":
                    peaks[kind] = torch.cuda.max_memory_allocated() / 2**20
            del model, step
            if place.device == "cuda":
                torch.cuda.empty_cache()
    ratio = median(b / a for a, b in zip(times["stock"], times["d2"], strict=True))
    row: Row = {"model": name, "batch": work.batch_of(size), "d1_ms": median(times["stock"]) * 1e3}
    row |= {"d2_ms": median(times["d2"]) * 1e3, "time": ratio}
    if peaks:
        row |= {"d1_mib": round(peaks["stock"]), "d2_mib": round(peaks["d2"]), "memory": peaks["d2"] / peaks["stock"]}
    return row


def curve(name: str, place: Place, steps: int) -> Row:
    """The mean loss of each sixth of the steps, from the same weights on the same data, at the small size.

    Dropout draws other numbers at D2: it has another generator.
    """
    work = ALL[name]
    model, batches = prepared(name, "small", place.device, 20)
    row: Row = {"model": name}
    for kind, title in (("stock", "D1"), ("d2", "D2")):
        twin = copy.deepcopy(model)
        torch.manual_seed(1)
        with level(kind):
            step = trainer(work, twin, batches, kind)
            found = torch.stack([step() for _ in range(steps)]).double().cpu()
        part = max(1, steps // 6)
        row[title] = [float(found[i : i + part].mean()) for i in range(0, steps, part)]
    return row
