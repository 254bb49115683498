"""The parity matrix: what can be combined, the rows in which every two values meet, and what a row trains.

A row is a job of 8 mini-batches a rank in two epochs (9 in three where gradients go on accumulating over the end of an
epoch), with data that do not divide evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import WeightedRandomSampler, default_collate

from parity.families import FAMILIES, Cast, Data, Recomputed, SometimesUnused, Stream, UnevenBatches
from parity.pairs import Exclusion, Pairwise, Row
from workloads import Case

Split = tuple[int, ...]
PER_RANK = 14  # samples: three batches of 4 and one of 2


def collate(samples: list[Any]) -> Any:
    """A collate function of one's own that draws."""
    x, y = default_collate(samples)
    return x, y.roll(int(torch.randint(2, ())), 0)


def one_cycle(optimizer: Any) -> Any:
    knows_momentum = {"momentum", "betas"} & set(optimizer.defaults)
    return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12, cycle_momentum=bool(knows_momentum))


SPLITS: dict[str, Callable[[int], Split]] = {
    "1 worker": lambda n: (n,),
    "2 workers": lambda n: (n - n // 2, n // 2),
    "front-heavy": lambda n: (2, 1) if n == 3 else (n - 2, 1, 1),
    "back-heavy": lambda n: (1, n - 1),
    "N workers": lambda n: (1,) * n,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=3e-3),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=3e-3, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "none": {},
    "StepLR": {"scheduler": lambda o: lr_scheduler.StepLR(o, 1, 0.5)},
    "cosine": {"scheduler": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4)},
    "OneCycle each step": {"scheduler": one_cycle, "schedule_each_step": True},
    "ReduceLROnPlateau": {
        # A threshold that no score meets: the rate falls at each epoch, if the step takes effect.
        "scheduler": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.9),
        "plateau": True,
    },
}
CLIPPING: dict[str, dict[str, Any]] = {"none": {}, "norm": {"clip_norm": 0.3}, "value": {"clip_value": 0.01}}
ACCUMULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "3, epoch ends window": {"accumulate": 3, "close_windows": True},
    "3, across epochs": {"accumulate": 3, "epochs": 3},
}
PRECISION: dict[str, dict[str, Any]] = {
    "fp32": {},
    "autocast bf16": {"autocast": torch.bfloat16},
    # The scale is so high that the first steps overflow and are skipped.
    "autocast fp16, scaler": {"autocast": torch.float16, "scaler": True, "scale": 2.0**20},
    "bf16 model": {},
}
AVERAGE: dict[str, dict[str, Any]] = {
    "none": {}, "EMA each step": {"average": True}, "SWA each epoch": {"average_each_epoch": True},
}  # fmt: skip
COMPUTE = ["plain", "activation checkpointing"]
EVALUATION: dict[str, dict[str, Any]] = {
    "none": {}, "between epochs": {"evaluate": True}, "also inside": {"evaluate": True, "evaluate_inside": True},
}  # fmt: skip
DATA: dict[str, dict[str, Any]] = {
    "in order": {"loader": {"shuffle": False}},
    "shuffled": {},
    "drop_last": {"loader": {"drop_last": True}},
    "2 loader processes": {"loader": {"num_workers": 2}},
    "persistent, prefetch": {"loader": {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3}},
    "weighted sampler": {"sampler": lambda data: WeightedRandomSampler(torch.arange(len(data)) + 1.0, len(data))},
    "batch sampler, collate": {
        "batches": lambda data: UnevenBatches(len(data) - 3), "loader": {"collate_fn": collate}
    },
    "iterable": {},
    "iterable, 2 processes": {"loader": {"num_workers": 2}},
}  # fmt: skip
BUCKETS: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {"prepare": {"bucket_cap_mb": 0.002}},
    "find unused": {"prepare": {"find_unused_parameters": True}},
}

FACTORS: dict[str, list[str]] = {
    "family": list(FAMILIES),
    "N": ["2", "3", "4", "5", "8"],
    "plan": [*SPLITS, "4 plans", "stop, resume"],
    "optimizer": list(OPTIMIZERS),
    "scheduler": list(SCHEDULERS),
    "clipping": list(CLIPPING),
    "accumulation": list(ACCUMULATION),
    "precision": list(PRECISION),
    "average": list(AVERAGE),
    "compute": COMPUTE,
    "evaluation": list(EVALUATION),
    "data": list(DATA),
    "buckets": list(BUCKETS),
}

EXCLUSIONS = [
    Exclusion({"N": ["2"], "plan": ["front-heavy", "back-heavy"]}, "Two ESTs have no uneven split."),
    Exclusion(
        {"scheduler": ["ReduceLROnPlateau"], "evaluation": ["none"]}, "It follows the score of an evaluation."
    ),
    Exclusion(
        {"family": ["cnn"], "scheduler": ["ReduceLROnPlateau"], "accumulation": ["3, across epochs"]},
        "Stock DDP's own ranks come apart: after a forward under no_sync each evaluates with its own batch norm "
        "statistics and sees another score, so its scheduler's state, and sooner or later its rate, is its own.",
    ),
]  # fmt: skip
# Compiled models take from 10 s to minutes of a core each, so they have a small array of their own.
COMPILED: dict[str, list[str]] = {
    "family": ["mlp", "cnn", "recommender", "rnn"],
    "N": ["2", "3"],
    "plan": ["1 worker", "2 workers"],
    "accumulation": ["none", "3, across epochs"],
    "precision": ["fp32", "autocast bf16"],
    "buckets": ["default", "find unused"],
}
# What no row has, and why.
LEFT_OUT = {
    "LBFGS": "`step` needs a closure that runs several backwards in one local step. Refused with `UnsupportedError`.",
    "torch.compile in every row": "Time. Compiled rows are few, and use the back end `aot_eager`: graph capture, DDP's "
    "cuts and autograd ahead of time, without code generation. Inductor is compared on an MLP "
    "(`tests/e2e/test_features.py`).",
    "torch.compile of the transformer": "Time: up to two minutes a row.",
    "torch.compile with small buckets": "torch refuses it for stock DDP: its compiler wants buckets of at least 1 MiB.",
    "LSTM under autocast": "oneDNN has no such LSTM for every CPU. The LSTM of `rnn` runs outside of autocast, its GRU "
    "inside.",
    "CUDA": "These rows run on a CPU. [Parity on one GPU](parity-gpu.md) has its own table.",
}


@cache
def matrix() -> list[Row]:
    return Pairwise(FACTORS, EXCLUSIONS).rows()


@cache
def compiled() -> list[Row]:
    return [{**cheap("mlp", 2), **row, "compute": "torch.compile"} for row in Pairwise(COMPILED).rows()]


def cheap(family: str, ests: int) -> Row:
    """Plain in all that costs time: what the splits and the compiled rows start from."""
    first = {name: values[0] for name, values in FACTORS.items()}
    return {**first, "family": family, "N": str(ests), "data": "shuffled", "clipping": "norm", "buckets": "small"}


def splits(ests: int) -> list[Split]:
    """Each number of workers with shares as even as can be, and uneven ones: front-heavy, back-heavy, in the middle."""
    even = [tuple(ests // p + (w < ests % p) for w in range(p)) for p in range(1, ests + 1)]
    uneven = [(ests - 1, 1), (1, ests - 1), (1, ests - 2, 1), (ests - 2, 1, 1), (1, 1, ests - 2)] if ests > 2 else []
    return list(dict.fromkeys([*even, *(split for split in uneven if min(split) > 0)]))


def stages(plan: str, ests: int, steps: int) -> list[tuple[Split, int | None]]:
    """The plans of a row one after the other, and the global step at which each ends."""
    if plan in SPLITS:
        return [(SPLITS[plan](ests), None)]
    each, two, one, back = (SPLITS[name](ests) for name in ("N workers", "2 workers", "1 worker", "back-heavy"))
    if plan == "stop, resume":
        return [(two, max(steps // 2, 1)), (back, None)]
    cuts = sorted({max(steps * quarter // 4, 1) for quarter in (1, 2, 3)} - {steps})
    return [*zip([each, two, one], cuts, strict=False), (back, None)]


def case(row: Row) -> Case:
    family, ests = FAMILIES[row["family"]], int(row["N"])
    samples = PER_RANK * ests - 1

    def model() -> nn.Module:
        made = family.model()
        if row["compute"] == "activation checkpointing":
            made = Recomputed(made)
        if row["buckets"] == "find unused":
            made = SometimesUnused(made)
        if row["precision"] == "bf16 model":
            made = Cast(made, torch.bfloat16)
        if row["compute"] == "torch.compile":
            made = torch.compile(made, backend="aot_eager")  # type: ignore[assignment]
        return made

    def data() -> Any:
        whole = Data(samples, family.samples)
        return Stream(whole, PER_RANK) if row["data"].startswith("iterable") else whole

    def held_out() -> Any:
        calm = Data(9, family.samples)
        calm.noise = False
        return calm

    tables = {
        "scheduler": SCHEDULERS, "clipping": CLIPPING, "accumulation": ACCUMULATION, "precision": PRECISION,
        "average": AVERAGE, "evaluation": EVALUATION, "data": DATA, "buckets": BUCKETS,
    }  # fmt: skip
    options = {key: value for name, table in tables.items() for key, value in table[row[name]].items()}
    return Case(
        model=model, data=data, held_out=held_out, loss=family.loss, optimizer=OPTIMIZERS[row["optimizer"]], **options
    )

