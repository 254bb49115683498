"""What workers note down: equal between stock DDP and every plan, different where and only where something differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from cluster import run_job, run_reference
from e2e.test_controls import in_ascending_order, without_rank_0_buffers, without_torch_state
from easyscale.core.observe import Observation, Plant, PlantKind
from easyscale.master.verify.findings import Finding, first_finding
from workloads import CNN, MLP, TRANSFORMER, Augmented, Case, Vectors, with_easyscale

ESTS, STEPS = 4, 3
SPLITS = [(4,), (2, 1, 1), (1, 1, 1, 1)]


class Stream(IterableDataset[Any]):
    """Each EST reads its own part, as the documentation of torch shows it."""

    def __iter__(self) -> Iterator[Any]:
        import easyscale as es

        data = Vectors()
        for i in range(es.rank(), len(data) // ESTS * ESTS, es.world_size()):
            yield data[i]


CASES: dict[str, Case] = {
    "mlp": MLP,
    "cnn": CNN,
    "transformer": TRANSFORMER,
    "accumulation": replace(CNN, accumulate=2, batch=2),
    "autocast": replace(CNN, autocast=torch.bfloat16),
    "scaler and clipping": replace(MLP, scaler=True, autocast=torch.float16, clip_norm=1.0),
    "clipping": replace(MLP, clip_norm=0.5),
    "gradients kept as zeros": replace(MLP, zero_first=True, set_to_none=False),
    "average": replace(CNN, average=True),
    "loader with processes": replace(MLP, data=Augmented, loader={"num_workers": 2}),
    "augmented": replace(MLP, data=Augmented),
    "iterable": replace(MLP, data=Stream, batch=2),
}


@cache
def observed(name: str, split: tuple[int, ...] | None, folder: Path | None = None) -> Any:
    observation = Observation() if folder is None else Observation(trace_to=str(folder), first=0, last=STEPS - 1)
    train = with_easyscale(CASES[name])
    if split is None:
        return run_reference(train, ESTS, max_steps=STEPS, fingerprint_every=1, observation=observation)
    return run_job(train, split, max_steps=STEPS, fingerprint_every=1, observation=observation)


@pytest.fixture(scope="module")
def stock_traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of stock DDP's traces, made once for each case."""

    @cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("stock")
        observed(name, None, folder)
        return folder

    return made


def compared(stock: Path, folder: Path) -> Finding | None:
    expected = {f"step-{s}-est-{e}.jsonl" for s, e in itertools.product(range(STEPS), range(ESTS))}
    assert {path.name for path in stock.iterdir()} == {path.name for path in folder.iterdir()} == expected
    return first_finding(stock, folder, range(STEPS), ESTS)[0]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_est_of_every_plan_notes_down_what_stock_does(name: str, split: tuple[int, ...]) -> None:
    stock, job = observed(name, None), observed(name, split)
    assert set(stock["witnesses"]) == set(itertools.product(range(STEPS), range(ESTS)))
    assert job["witnesses"] == stock["witnesses"]
    assert job["step_fingerprints"] == stock["step_fingerprints"]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_operators_of_every_plan_are_those_of_stock(
    name: str, split: tuple[int, ...], tmp_path: Path, stock_traces: Callable[[str], Path]
) -> None:
    traced = observed(name, split, tmp_path)
    assert compared(stock_traces(name), tmp_path) is None
    bare = observed(name, split)
    assert traced["step_fingerprints"] == bare["step_fingerprints"], "a trace changes no bit"
    assert traced["witnesses"] == bare["witnesses"], "and draws no random number"
    assert traced["losses"] == bare["losses"]


def planted(kind: PlantKind, est: int, split: tuple[int, ...], step: int, name: str, folder: Path | None = None) -> Any:
    plant = Plant(kind=kind, step=step, est=est)
    observation = Observation(plant=plant, trace_to=folder and str(folder), first=0, last=STEPS - 1)
    return run_job(
        with_easyscale(CASES[name]), split, max_steps=STEPS, fingerprint_every=1, observation=observation
    )


@pytest.mark.parametrize(("kind", "key"), [("batch", "batch"), ("random", "random.torch")])
@pytest.mark.parametrize(("split", "est"), [((4,), 2), ((2, 1, 1), 3)])
def test_a_planted_difference_shows_in_its_step_and_est(
    kind: PlantKind, key: str, split: tuple[int, ...], est: int
) -> None:
    stock, job = observed("mlp", None)["witnesses"], planted(kind, est, split, 1, "mlp")["witnesses"]
    assert all(job[0, e] == stock[0, e] for e in range(ESTS))
    assert [e for e in range(ESTS) if job[1, e][key] != stock[1, e][key]] == [est]
    assert all(job[1, e]["parameters"] != stock[1, e]["parameters"] for e in range(ESTS))


MODULES = {"mlp": "0", "cnn": "0", "transformer": "embed"}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("split", "est"), [((4,), 1), ((2, 1, 1), 3)])
def test_a_planted_operator_is_found_with_its_module(
    name: str, split: tuple[int, ...], est: int, tmp_path: Path, stock_traces: Callable[[str], Path]
) -> None:
    planted("operator", est, split, 1, name, tmp_path)
    finding, parted = first_finding(stock_traces(name), tmp_path, range(STEPS), ESTS)
    assert finding is not None
    assert (finding.kind, finding.step, finding.est, finding.module) == ("operator", 1, est, MODULES[name])
    assert finding.line.startswith("tests/workloads.py:")
    assert parted == [est]


def test_a_planted_batch_is_found_in_the_trace(tmp_path: Path, stock_traces: Callable[[str], Path]) -> None:
    planted("batch", 2, (2, 1, 1), 2, "mlp", tmp_path)
    finding, parted = first_finding(stock_traces("mlp"), tmp_path, range(STEPS), ESTS)
    assert finding is not None
    assert (finding.kind, finding.step, finding.tensor, parted) == ("batch", 2, "[0]", [2])


def test_a_planted_draw_is_found_at_the_operator_that_draws_next(
    tmp_path: Path, stock_traces: Callable[[str], Path]
) -> None:
    planted("random", 1, (4,), 1, "mlp", tmp_path)
    finding, parted = first_finding(stock_traces("mlp"), tmp_path, range(STEPS), ESTS)
    assert finding is not None
    assert (finding.kind, finding.step, finding.module, parted) == ("random", 1, "2", [1])


@pytest.mark.parametrize(
    ("sabotage", "name", "kind"),
    [
        (without_torch_state, "mlp", "random"),
        (without_rank_0_buffers, "cnn", "buffers"),
        (in_ascending_order, "mlp", "reduction"),
    ],
    ids=["torch's random state", "rank 0's buffers", "the order of the sum"],
)
def test_a_missing_ingredient_is_named(
    sabotage: Callable[[], None], name: str, kind: str, tmp_path: Path, stock_traces: Callable[[str], Path]
) -> None:
    """Negative control: the same sabotage as in tests/e2e/test_controls.py, and what the trace says of it."""

    def train() -> Any:
        sabotage()
        return with_easyscale(CASES[name])()

    observation = Observation(trace_to=str(tmp_path), first=0, last=STEPS - 1)
    job = run_job(train, (4,), max_steps=STEPS, fingerprint_every=1, observation=observation)
    stock = observed(name, None)
    assert any(job[key] != stock[key] for key in ("witnesses", "step_fingerprints"))
    finding = first_finding(stock_traces(name), tmp_path, range(STEPS), ESTS)[0]
    assert finding is not None
    assert finding.kind == kind
