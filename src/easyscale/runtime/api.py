"""The public functions of `easyscale`, as DESIGN fixes them: thin, each hands over to the process's engine."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch

from easyscale.core.errors import UsageError
from easyscale.core.spec import WORKER_VARIABLE, Level, WorkerSpec, spec_from_environment
from easyscale.numerics.fingerprint import fingerprint
from easyscale.runtime.engine import Engine, PrepareOptions, ScriptSettings
from easyscale.runtime.journal import OnNonFinite
from easyscale.runtime.reduce import Order
from easyscale.runtime.staging import StagingKind

__all__ = [
    "checkpoint", "device", "epochs", "fingerprint", "init", "is_main", "log", "prepare", "rank", "register",
    "world_size",
]  # fmt: skip

_engine: Engine | None = None
_started = time.time()


def init(
    seed: int = 0,
    *,
    ests: int | None = None,
    reduction: Order = "ddp",
    staging: StagingKind = "auto",
    on_nonfinite: OnNonFinite = "warn",
    device: str | None = None,
    threads: int | None = None,
    determinism: Level | Literal["d0", "d1", "d2"] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | None = None,
) -> None:
    """Join the job (under the launcher) or become its only worker (alone), and seed everything.

    Args:
        seed: everything before `prepare` runs under it; EST v continues under `seed + v`.
        ests: number of ESTs, N. Under the launcher it must agree with `--ests`; alone it falls back to the
            environment variable EASYSCALE_ESTS, then to 1.
        reduction: "ddp" sums in stock DDP's order; "tree" in a fixed binary tree (less memory, other bits).
        staging: where set-aside gradients of a GPU wait: "device", "host" (pinned), or "auto" by free memory.
        on_nonfinite: "warn" or "stop" when a logged value is NaN or infinite.
        device, threads, determinism, checkpoint_dir, checkpoint_every, resume: as the flags of `easyscale run`,
            for scripts that run without it; the launcher's flags win.
    """
    global _engine
    if _engine is not None:
        raise UsageError("es.init() was called twice.", "a process is one worker.", "call it once, at the top.")
    _check_choice("reduction", reduction, ("ddp", "tree"))
    _check_choice("staging", staging, ("auto", "device", "host"))
    _check_choice("on_nonfinite", on_nonfinite, ("warn", "stop"))
    level = determinism.upper() if isinstance(determinism, str) else determinism
    _check_choice("determinism", level or "D1", ("D0", "D1", "D2"))
    spec = spec_from_environment(os.environ, ests)
    if level == "D2" and WORKER_VARIABLE in os.environ:
        _refuse_less_than_d2(spec)
    wishes = {
        "device": device, "threads": threads, "determinism": level, "resume": resume,
        "checkpoint_dir": None if checkpoint_dir is None else os.fspath(checkpoint_dir),
        "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    if WORKER_VARIABLE not in os.environ:
        spec = replace(spec, **{key: value for key, value in wishes.items() if value is not None})  # type: ignore[arg-type]
    settings = ScriptSettings(seed=seed, reduction=reduction, staging=staging, on_nonfinite=on_nonfinite)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it starts
    if spec.engine == "ddp":
        from easyscale.runtime.reference import ReferenceSession

        _engine = ReferenceSession(spec, settings, _started)
    else:
        from easyscale.runtime.session import EstSession

        _engine = EstSession(spec, settings, _started)
    if WORKER_VARIABLE not in os.environ:
        from easyscale.runtime.failures import install_hook

        install_hook()
        atexit.register(_finish_alone)


def prepare(
    *objects: Any,
    find_unused_parameters: bool = False,
    broadcast_buffers: bool = True,
    bucket_cap_mb: float | None = None,
    place_batches: bool = True,
) -> Any:
    """Make model, optimizers, DataLoaders, LR schedulers and GradScalers follow the ESTs.

    Returns them in the order given; all but the loaders are the same objects. `find_unused_parameters`,
    `broadcast_buffers` and `bucket_cap_mb` mean what they mean for stock DDP. `place_batches` moves tensors of each
    batch to `device()`.
    """
    options = PrepareOptions(
        find_unused_parameters=find_unused_parameters,
        broadcast_buffers=broadcast_buffers,
        bucket_cap_mb=bucket_cap_mb,
        place_batches=place_batches,
    )
    prepared = engine().prepare(objects, options)
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def epochs(count: int) -> Iterator[int]:
    """The epochs that remain of `count`: all of them, or from the checkpoint's on."""
    return engine().epochs(count)


def rank() -> int:
    """The virtual rank of the EST whose local step runs; outside of loops, of the worker's first EST."""
    return engine().rank()


def world_size() -> int:
    """The number of ESTs, whatever the number of workers."""
    return engine().world


def is_main() -> bool:
    """True in EST 0's local steps and, outside of loops, on the worker that holds EST 0."""
    return rank() == 0


def device() -> torch.device:
    """The device of this worker."""
    return engine().device


def log(**values: Any) -> None:
    """Report numbers of this local step (`loss=loss`); tensors are read later, without waiting for the device."""
    engine().log(values)


def register(name: str, obj: Any, per_est: bool = False) -> None:
    """Let state outside model and optimizer travel: anything with `state_dict` and `load_state_dict`.

    Shared (the default): one object a worker, the same everywhere; its `step`, `update` and `update_parameters` take
    effect once a global step. `per_est=True`: each EST has its own state, swapped when ESTs take turns.
    """
    engine().register(name, obj, per_est)


def checkpoint() -> None:
    """Ask for a checkpoint: written at the end of the next global step, or of this epoch's body outside of the loop.

    The next one, because workers agree on a step while they compute it.
    """
    engine().request_checkpoint()


def engine() -> Engine:
    if _engine is None:
        raise UsageError(
            "easyscale was used before es.init().",
            "the process does not know its job yet.",
            "call es.init(seed=...) at the top of the script.",
        )
    return _engine


def current_engine() -> Engine | None:
    return _engine


def _finish_alone() -> None:
    """A script without the launcher ended: write what is still to be written, unless it failed."""
    if _engine is None or _engine.failed:
        return
    if _engine.leaving:
        _engine.leave()
    else:
        _engine.finish()


def _refuse_less_than_d2(spec: WorkerSpec) -> None:
    """Other flags of the launcher win over the script's; a promise is not weakened in silence."""
    scanned = spec.observation is not None and spec.observation.scan_to is not None  # runs at both levels
    if spec.determinism != "D2" and not scanned:
        raise UsageError(
            f'The script says es.init(determinism="D2"), but the job was started at level {spec.determinism}.',
            "the launcher plans by the level that it was given, and D2 has operators of its own.",
            "start the job with --determinism D2, or leave determinism out of es.init().",
        )


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(
            f"es.init({name}={value!r}) is not a choice.", f"it must be one of {', '.join(allowed)}.", "correct it."
        )
