"""Each training feature once: same fingerprint, losses, rates and averages as a hand-written DDP script.

Features that the matrix (tests/parity) combines on all plans run here under `--engine ddp` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from cluster import run_job, run_reference, run_stock
from workloads import CNN, MLP, TRANSFORMER, Augmented, Case, Vectors, Within, adam, by_hand, cnn, mlp, with_easyscale


class Branches(nn.Module):
    """A parameter that some ESTs use, one that others use, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.never, self.out = nn.Linear(12, 9), nn.Linear(12, 9), nn.Linear(3, 3), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.a(x) if x[0, 0] > 0 else self.b(x))


class Recomputed(nn.Module):
    """Activation checkpointing, with dropout inside: the recomputation must see the same random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(12, 20), nn.Dropout(0.2), nn.ReLU())
        self.b = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(self.a, x, use_reentrant=False))


class ReadsItsBuffer(nn.Module):
    """Training reads and changes a buffer, as spectral norm does: what rank 0 left in the last step counts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 9))
        self.out = nn.Linear(9, 5)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.9).add_(0.1 * x.abs().mean())
        return self.out(self.body(x)) / self.scale


class OfType(Vectors):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = self.x.to(dtype)


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


def groups(model: nn.Module) -> Any:
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "lr": 0.01}, {"params": parameters[2:], "weight_decay": 0.1}]


def typed(dtype: torch.dtype) -> Case:
    return replace(MLP, model=lambda: mlp().to(dtype), data=lambda: OfType(dtype))


FEATURES: dict[str, Case] = {
    "adamw": replace(MLP, optimizer=adam),
    "rmsprop": replace(MLP, optimizer=lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5)),
    "adagrad": replace(MLP, optimizer=lambda p: torch.optim.Adagrad(p, lr=1e-2)),
    "parameter groups": replace(MLP, groups=groups, optimizer=adam),
    "scheduler each epoch": replace(MLP, scheduler=lambda o: lr_scheduler.StepLR(o, 1, 0.5)),
    "scheduler each step": replace(
        MLP, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40), schedule_each_step=True
    ),
    "clip norm": replace(MLP, clip_norm=0.5),
    "clip value": replace(MLP, clip_value=0.01),
    "accumulation": replace(MLP, accumulate=3, epochs=3),
    "accumulation that crosses epochs": replace(CNN, accumulate=2, batch=3, epochs=3),
    "autocast": replace(CNN, autocast=torch.bfloat16),
    "scaler": replace(MLP, scaler=True, autocast=torch.float16),
    "scaler and clipping": replace(MLP, scaler=True, autocast=torch.float16, clip_norm=1.0),
    "bf16": typed(torch.bfloat16),
    "fp16": typed(torch.float16),
    "fp64": typed(torch.float64),
    "average of weights": replace(CNN, average=True),
    "evaluation": replace(CNN, evaluate=True),
    "zero_grad first": replace(MLP, zero_first=True),
    "gradients kept as zeros": replace(MLP, set_to_none=False),
    "zeroed first and kept": replace(MLP, zero_first=True, set_to_none=False),
    "unused parameters": replace(
        MLP, model=Branches, data=lambda: Vectors(24), batch=1, prepare={"find_unused_parameters": True}
    ),
    "buffers that training reads": replace(MLP, model=ReadsItsBuffer),
    "frozen parameters": replace(MLP, model=frozen),
    "activation checkpointing": replace(MLP, model=Recomputed),
    "channels last": replace(CNN, model=lambda: cnn().to(memory_format=torch.channels_last)),
    "small buckets": replace(TRANSFORMER, prepare={"bucket_cap_mb": 0.005}),
    "large model": replace(
        MLP,
        model=lambda: nn.Sequential(nn.Linear(12, 700), nn.Tanh(), nn.Linear(700, 700), nn.Linear(700, 5)),
        epochs=1,
    ),
    "random augmentation": replace(MLP, data=Augmented),
    "loader processes": replace(MLP, data=Augmented, loader={"num_workers": 2}),
    "persistent loader processes": replace(
        MLP, data=Augmented, loader={"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}
    ),
    "no shuffling, last batch dropped": replace(MLP, loader={"shuffle": False, "drop_last": True}),
}
PLANS = [(3,), (2, 1), (1, 2), (1, 1, 1)]
ON_ALL_PLANS = [
    "parameter groups", "fp16", "fp64", "zero_grad first", "gradients kept as zeros", "zeroed first and kept",
    "unused parameters", "buffers that training reads", "frozen parameters", "channels last", "large model",
]  # fmt: skip


def runs() -> list[Any]:
    chosen = [(feature, "ddp") for feature in FEATURES] + [(f, split) for f in ON_ALL_PLANS for split in PLANS]
    return [pytest.param(f, s, id=f"{f}-{s if s == 'ddp' else '+'.join(map(str, s))}") for f, s in chosen]


@cache
def stock(feature: str) -> dict[str, Any]:
    return run_stock(by_hand(FEATURES[feature]), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("feature", "split"), runs())
def test_a_feature_gives_stock_ddps_bits(feature: str, split: Any) -> None:
    case, expected = FEATURES[feature], stock(feature)
    result = run_reference(with_easyscale(case), 3) if split == "ddp" else run_job(with_easyscale(case), split)
    assert result["fingerprint"] == expected["fingerprint"]
    assert list(result["losses"].values()) == list(expected["losses"].values())
    assert result["rates"] == expected["rates"]
    assert result.get("average") == expected.get("average")


def test_broadcast_buffers_off_keeps_each_ests_buffers() -> None:
    case = replace(CNN, prepare={"broadcast_buffers": False})
    results = [run_job(with_easyscale(case), split)["fingerprint"] for split in PLANS]
    reference = run_reference_quietly(case)
    assert results == [reference] * len(PLANS)


def run_reference_quietly(case: Case) -> str:
    """torch 2.13 deprecates the option's name; the warning is not what is tested."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(run_reference(with_easyscale(case), 3)["fingerprint"])


def compiled_mlp() -> nn.Module:
    return torch.compile(mlp())  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
@pytest.mark.parametrize("split", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_a_compiled_model_gives_stock_ddps_bits(split: tuple[int, ...]) -> None:
    case = replace(MLP, model=compiled_mlp, epochs=1)
    expected = compiled_reference()
    result = run_job(with_easyscale(case), split)
    assert result["fingerprint"] == expected["fingerprint"]
    assert result["losses"] == expected["losses"]


@cache
def compiled_reference() -> dict[str, Any]:
    return run_stock(by_hand(replace(MLP, model=compiled_mlp, epochs=1)), 3)


IN_PLACE: dict[str, Callable[[], nn.Module]] = {
    "a Sequential, which torch leaves alone": mlp, "a module": lambda: Within(mlp())
}  # fmt: skip


def compiled_in_place(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = IN_PLACE[name]()
        model.compile(backend="aot_eager")
        return model

    return build


@cache
def in_place_reference(name: str) -> dict[str, Any]:
    return run_stock(by_hand(replace(MLP, model=compiled_in_place(name), epochs=1)), 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
@pytest.mark.parametrize("split", [(4,), (1, 3), (2, 1, 1), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_model_that_was_compiled_in_place_gives_stock_ddps_bits(name: str, split: tuple[int, ...]) -> None:
    """With four ESTs: of two summands any order of gradients has the same bits."""
    result = run_job(with_easyscale(replace(MLP, model=compiled_in_place(name), epochs=1)), split)
    assert result["fingerprint"] == in_place_reference(name)["fingerprint"]
    assert result["losses"] == in_place_reference(name)["losses"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_s_reference_of_a_model_compiled_in_place_is_stock_ddp() -> None:
    for name in IN_PLACE:
        result = run_reference(with_easyscale(replace(MLP, model=compiled_in_place(name), epochs=1)), 4)
        assert result["fingerprint"] == in_place_reference(name)["fingerprint"]


def test_tree_order_is_the_same_on_every_plan_and_differs_from_ddp() -> None:
    case = replace(CNN, init={"reduction": "tree"})
    found = {
        run_job(with_easyscale(case), split)["fingerprint"] for split in [(5,), (2, 3), (3, 1, 1), (1, 1, 1, 1, 1)]
    }
    assert len(found) == 1
    assert found != {run_job(with_easyscale(CNN), (5,))["fingerprint"]}


@pytest.mark.parametrize("split", [(2, 1), (1, 2), (1, 1, 1), (3, 2), (2, 1, 1), (1, 3, 1)], ids=str)
def test_a_worker_sends_at_most_the_bound(split: tuple[int, ...]) -> None:
    """Counted by the group: (N-1)/N + (p-1)/p of the gradients' bytes a step, and a little for agreement."""
    wide = replace(
        MLP, model=lambda: nn.Linear(12, 40000), loss=lambda o, y: o.square().mean(), data=lambda: Vectors(20), epochs=1
    )
    result = run_job(with_easyscale(wide), split)
    ests, workers, steps = sum(split), len(split), result["steps"]
    gradients = (12 + 1) * 40000 * 4
    allowed = gradients * ((ests - 1) / ests + (workers - 1) / workers) * steps
    control = 3000 + steps * 200 + gradients  # agreement, records; the first worker's initial state
    assert max(result["bytes_sent"]) <= allowed * 1.001 + control
