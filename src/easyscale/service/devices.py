"""The devices of this machine: GPUs as NVML names them, places on the CPU otherwise, or what someone declares."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from easyscale.core.cluster import Slot
from easyscale.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Found:
    slot: Slot
    memory_gb: float | None = None


def declared(devices: Mapping[str, int], node: str | None = None) -> list[Found]:
    """Names for places on the CPU, for trials: v100:2 gives v100-0 and v100-1."""
    where = socket.gethostname() if node is None else node
    names = [(kind, n) for kind, count in devices.items() for n in range(count)]
    return [Found(Slot(id=f"{kind}-{n}", kind=kind, node=where)) for kind, n in names]


def discover() -> list[Found]:
    """GPUs where there are any, else as many CPU places as this process has cores."""
    gpus = _gpus()
    if gpus:
        return gpus
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return declared({"cpu": cores})


def _gpus() -> list[Found]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        node = socket.gethostname()
        return [_gpu(pynvml, place, node) for place in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as problem:
        raise UsageError(
            "The GPUs of this machine cannot be listed.",
            f"NVML says: {problem}.",
            "see `nvidia-smi`, or name devices with --devices.",
        ) from None
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: object, place: int, node: str) -> Found:
    handle = nvml.nvmlDeviceGetHandleByIndex(place)  # type: ignore[attr-defined]
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))  # type: ignore[attr-defined]
    memory = nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30  # type: ignore[attr-defined]
    kind = kind_of(name)
    return Found(Slot(id=f"{kind}-{uuid.removeprefix('GPU-')[:8]}", kind=kind, node=node, uuid=uuid), round(memory, 1))


def kind_of(name: str) -> str:
    """`NVIDIA H200` -> `h200`, `Tesla V100-SXM2-16GB` -> `v100-sxm2-16gb`: what people type."""
    short = re.sub(r"\b(nvidia|tesla|geforce|quadro)\b", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-") or "gpu"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
