"""EasyScale: elastic PyTorch training whose result does not depend on the hardware it happened to get.

    import easyscale as es

    es.init(seed=0)
    model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler)
    for epoch in es.epochs(10):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            es.log(loss=loss)
        scheduler.step()

Importing the package imports no torch; the first use of a function does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easyscale.core.errors import (
    CheckpointError,
    EasyScaleError,
    LoaderLengthError,
    LoopError,
    NondeterministicError,
    NonFiniteError,
    PlanError,
    PromiseError,
    RecordMismatchError,
    UnsupportedError,
    UnusedParameterError,
    UsageError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from easyscale.runtime.api import (
        checkpoint,
        device,
        epochs,
        fingerprint,
        init,
        is_main,
        log,
        prepare,
        rank,
        register,
        world_size,
    )

__version__ = "0.1.0"
__all__ = [
    "CheckpointError", "EasyScaleError", "LoaderLengthError", "LoopError", "NonFiniteError", "NondeterministicError",
    "PlanError", "PromiseError", "RecordMismatchError", "UnsupportedError", "UnusedParameterError", "UsageError",
    "WorkerLostError", "checkpoint", "device", "epochs", "fingerprint", "init", "is_main", "log", "prepare", "rank",
    "register", "world_size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from easyscale.runtime import api

        return getattr(api, name)
    raise AttributeError(f"module 'easyscale' has no attribute {name!r}")
