"""What a script may use, across a plan that grows and then loses the worker of EST 0: all of it comes along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, IterableDataset, WeightedRandomSampler, get_worker_info

from cluster import run_job
from switches.stage import PICTURES, Play, judge, play, stock, wished
from workloads import MLP, TRANSFORMER, Augmented, Case, Vectors, adam, with_easyscale

pytestmark = pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated:FutureWarning")

ESTS = 4
WAY = {0: wished(workers=3), 2: wished(leave=0)}  # 2+2, then 2+1+1, then 2+2 without worker 0
BACK = {0: wished(workers=1), 2: wished(workers=4)}  # 2+2, then 4, then 1+1+1+1


class Stream(IterableDataset[Any]):
    """Shards itself by rank and by loader process."""

    def __init__(self, kind: type[Vectors] = Vectors) -> None:
        self._kind = kind

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = rank_here()
        info = get_worker_info()
        parts, part = (info.num_workers, info.id) if info else (1, 0)
        data = self._kind(64)
        for i in range(rank * parts + part, 64, ranks * parts):
            yield data[i]


def rank_here() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    import easyscale as es

    return es.rank(), es.world_size()


class Drift:
    """State that each EST has of its own, and that its losses depend on."""

    def __init__(self) -> None:
        self.value = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"].clone()


@dataclass(frozen=True, kw_only=True)
class Drifting(Case):
    drift: Drift

    def averaged(self, model: torch.nn.Module) -> Any:
        """Called by both loops, after the model is prepared."""
        from easyscale.runtime import api

        if api.current_engine() is not None:
            import easyscale as es

            es.register("drift", self.drift, per_est=True)
        return super().averaged(model)


def drifting() -> Case:
    drift = Drift()

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        plain = MLP.loss(output, y)
        drift.value = 0.9 * drift.value + 0.1 * plain.detach()
        return plain * (1 + drift.value)

    return Drifting(loss=loss, drift=drift)


def weighted(data: Any) -> Any:
    return WeightedRandomSampler(torch.arange(1.0, len(data) + 1), len(data))


def batched(data: Any) -> Any:
    return BatchSampler(weighted(data), 4, drop_last=True)


FEATURES: dict[str, Case] = {
    "random augmentation": replace(MLP, data=Augmented),
    "loader processes": replace(MLP, data=Augmented, loader={"num_workers": 2}),
    "persistent loader processes": replace(
        MLP, data=Augmented, loader={"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}
    ),
    "iterable data": replace(MLP, data=Stream),
    "iterable data, loader processes": replace(MLP, data=lambda: Stream(Augmented), loader={"num_workers": 2}),
    "scaler": replace(MLP, scaler=True, autocast=torch.float16, clip_norm=1.0),
    "scaler that skips steps": replace(MLP, scaler=True, autocast=torch.float16, scale=2.0**24),
    "accumulation": replace(MLP, accumulate=2, epochs=3),
    "accumulation across epochs": replace(PICTURES, accumulate=3, epochs=4),
    "average of the weights": replace(PICTURES, average=True),
    "evaluation inside the loop": replace(PICTURES, evaluate_inside=True),
    "mean over epochs, evaluation": replace(PICTURES, average_each_epoch=True, evaluate=True),
    "state of each EST": drifting(),
    "sampler": replace(MLP, sampler=weighted),
    "batch sampler": replace(MLP, batches=batched),
    "scheduler each step": replace(
        MLP, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40), schedule_each_step=True
    ),
    "scheduler that follows the score": replace(
        MLP, scheduler=lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), plateau=True, evaluate=True, epochs=3
    ),
    "gradients kept as zeros": replace(MLP, set_to_none=False, optimizer=adam),
    "own buffers": replace(PICTURES, prepare={"broadcast_buffers": False}),
    "tied weights": replace(TRANSFORMER, prepare={"bucket_cap_mb": 0.005}),
}


def moved(played: Play, plans: list[tuple[int, ...]]) -> None:
    assert played.splits == plans
    assert set(played.codes.values()) == {0}


@pytest.mark.parametrize("feature", FEATURES)
def test_it_comes_along_to_newcomers_and_heirs(feature: str) -> None:
    case = FEATURES[feature]
    played = play(case, (2, 2), WAY)
    judge(played, stock(feature, case, ESTS), losses=0)
    moved(played, [(2, 2), (2, 1, 1), (2, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_it_comes_along_to_one_worker_and_back(feature: str) -> None:
    case = FEATURES[feature]
    played = play(case, (2, 2), BACK)
    judge(played, stock(feature, case, ESTS), losses=0)
    moved(played, [(2, 2), (4,), (1, 1, 1, 1)])


@pytest.mark.parametrize("way", [WAY, BACK], ids=["grow and leave", "to one and back"])
def test_tree_order_is_kept_across_switches(way: Any) -> None:
    """It differs from stock DDP on purpose, so an undisturbed run of ours is the judge."""
    case = replace(PICTURES, init={"reduction": "tree"})
    expected = run_job(with_easyscale(case), (2, 2))
    judge(play(case, (2, 2), way), expected, losses=0)
    assert expected["fingerprint"] != stock("pictures", PICTURES, ESTS)["fingerprint"]


def test_the_data_is_read_once_and_in_order() -> None:
    """Not only the bits: which samples an EST sees, step for step, is what its rank of stock DDP sees."""
    case = replace(MLP, data=lambda: Vectors(96), epochs=1)
    judge(play(case, (1, 3), {0: wished(split=(3, 1)), 3: wished(workers=4)}), stock("vectors", case, ESTS), losses=0)


@pytest.mark.parametrize("scale", [{"workers": 3}, {"split": (1, 3)}])
def test_data_that_hangs_on_training_moves_between_epochs(scale: Any) -> None:
    """It draws from the random numbers that dropout draws from, and cannot say where it is: it waits for its end."""
    case = replace(MLP, data=lambda: Stream(Augmented))
    played = play(case, (2, 2), {1: wished(**scale)})
    judge(played, stock("stream with noise", case, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, 4]
