"""The numerics record: everything outside the script that decides bits, written into the job.

`apply_level` puts torch into the state that a level needs; `collect` writes down what is in force; `differences`
names what the level forbids to differ. A job compares records between its workers at the start and with the
checkpoint on every resume.

At D2 the operators have the same bits on every device type, torch version, instruction set and thread count, so none of
these is compared: only what defines the job (level, ESTs, seed, order of sums), the version of D2's definitions, and
what the C library makes of Python's own floats, which no operator computes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from easyscale.core.spec import Level
from easyscale.numerics import libm

# Kept in the record for people; other values cannot change the bits of a run.
_INFORMATION = {"python", "numpy", "split"}
# Names that people know these entries by, for messages.
_WORDS = {
    "ests": "number of ESTs", "torch": "torch version", "device": "device type", "threads": "intra-op threads",
    "cuda": "CUDA version", "cudnn": "cuDNN version", "level": "determinism level", "reduction": "reduction order",
    "capability": "CPU instruction set", "split": "split of ESTs over workers", "d2": "version of the D2 definitions",
    "libm": "digest of the C library's pow, exp, log, cos and sin",
}  # fmt: skip
# All that must agree at D2, and between D2 and another level: the rest of the record is kept for people.
_AT_D2 = {"level", "ests", "seed", "reduction", "d2", "libm"}


def apply_level(level: Level, threads: int) -> None:
    """Seeds apart, what a level needs. All: deterministic algorithms, no choice by timing, a fixed thread count. D2:
    its own operators too, until `leave_level`."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Filling new memory with NaN costs a pass over each tensor and decides no bit of a correct script.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if level == "D2":
        from easyscale.numerics.kernels import install  # a second or so, for D2 jobs alone

        install.install()


def leave_level(level: Level) -> None:
    """The job is over: operators are stock's again."""
    if level == "D2":
        from easyscale.numerics.kernels import install

        install.uninstall()


def collect(
    *, level: Level, ests: int, seed: int, reduction: str, device: torch.device, split: tuple[int, ...]
) -> dict[str, Any]:
    """What is in force now, as plain JSON values."""
    return {
        "level": level,
        "ests": ests,
        "seed": seed,
        "reduction": reduction,
        "split": list(split),
        **({"d2": _definition()} if level == "D2" else {}),
        **surroundings(device),
    }


def _definition() -> int:
    from easyscale.numerics.kernels import install

    return install.DEFINITION


def surroundings(device: torch.device) -> dict[str, Any]:
    """What of the machine and the libraries decides bits."""
    return {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": _device_type(device),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "isa_limits": {
            name: os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
        },
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        "libm": libm.digest(),
        "flags": flags(),
    }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Sentences that name each difference which the level forbids; empty where there is none."""
    level = str(theirs.get("level", ours.get("level")))
    ignored = _INFORMATION - ({"split"} if level == "D0" else set())
    if "D2" in (ours.get("level"), theirs.get("level")):
        ignored = set(ours) - _AT_D2
    found = []
    for name in ours:
        if name in ignored or name not in theirs or ours[name] == theirs[name]:
            continue
        if isinstance(ours[name], dict) and isinstance(theirs[name], dict):
            for key in ours[name]:
                if ours[name][key] != theirs[name].get(key):
                    found.append(f"{key} is {ours[name][key]} here and {theirs[name].get(key)} there")
        else:
            found.append(f"{_WORDS.get(name, name)} is {ours[name]} here and {theirs[name]} there")
    return found


def _device_type(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()})"


def flags() -> dict[str, Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.allow_tf32": _precision(lambda: cudnn.allow_tf32, cudnn.conv),  # type: ignore[attr-defined]
        "matmul.allow_tf32": _precision(lambda: matmul.allow_tf32, matmul),
        "matmul.allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "matmul.allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "float32_matmul_precision": _precision(torch.get_float32_matmul_precision, matmul),
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "default_dtype": str(torch.get_default_dtype()),
    }


def _precision(read: Callable[[], Any], owner: Any) -> Any:
    """torch does not tell by one of its two interfaces what was set by the other."""
    try:
        return read()
    except RuntimeError:
        return owner.fp32_precision
