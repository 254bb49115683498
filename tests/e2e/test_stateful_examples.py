"""Two examples with training state of their own keep stock DDP's bits, and its state, while the workers change.

The judges are written by hand below, with torch's DistributedDataParallel and nothing of ours. They share with an
example only its plain part: networks, data and the object that holds the state. The examples' own scripts are what is
run. Losses and state are compared for each EST.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cluster import Result, run_job, run_stock, seed_by_hand
from e2e.test_checkpoints import in_stages

EXAMPLES = Path(__file__).parents[2] / "examples"
MCMISP, BALANCED = "04-mcmisp", "05-balanced-sparsity"
ESTS = 4
# 4 -> 2 -> 3 workers, the last two plans uneven. The cuts lie inside of epochs and between two makings of the masks.
STAGES: list[tuple[tuple[int, ...], int | None]] = [((1, 1, 1, 1), 7), ((3, 1), 18), ((1, 2, 1), None)]


def digest(state: Mapping[str, Any]) -> str:
    """sha256 over the names and bytes of a tree of tensors and plain values."""
    sha = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif isinstance(value, torch.Tensor):
            sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.detach().numpy().tobytes())
        else:
            sha.update(f"{name} {value!r}".encode())

    add("", state)
    return sha.hexdigest()


# ---------------------------------------------------------------------------------------- stock DDP, by hand


def plain_part(example: str, name: str) -> ModuleType:
    """The file of an example that knows nothing of EasyScale."""
    path = EXAMPLES / example / f"{name}.py"
    assert "easyscale" not in path.read_text(encoding="utf-8").split('"""', 2)[2]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mcmisp_by_hand(folder: str, rank: int, ranks: int) -> Result:
    electra = plain_part(MCMISP, "electra")
    torch.use_deterministic_algorithms(True)
    seed_by_hand(0)
    data = TensorDataset(electra.corpus(256))
    sampler = DistributedSampler(data, ranks, rank, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = electra.Electra()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ddp = DistributedDataParallel(model)
    statistics = electra.Statistics()
    seed_by_hand(rank)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (tokens,) in loader:
            masked = torch.rand(tokens.shape) < 0.2
            read = ddp(tokens, masked, statistics.guide())
            loss = read.generator_loss + 10 * read.discriminator_loss + read.harm
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            statistics.record(tokens, read)
            losses.append(loss.item())
    Path(folder, str(rank)).write_text(digest(statistics.state_dict()))
    return {"model": digest(model.state_dict()), "losses": losses}


def balanced_by_hand(folder: str, rank: int, ranks: int) -> Result:
    balanced = plain_part(BALANCED, "balanced")
    torch.use_deterministic_algorithms(True)
    seed_by_hand(0)
    data = TensorDataset(*balanced.task(512))
    sampler = DistributedSampler(data, ranks, rank, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = balanced.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    ddp = DistributedDataParallel(model)
    pruner = balanced.BalancedPruner(model)
    seed_by_hand(rank)
    losses, kept = [], []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pruner.step()
            losses.append(loss.item())
            kept.append(sum(int(mask.sum()) for mask in pruner.masks.values()))
    Path(folder, str(rank)).write_text(digest(pruner.state_dict()))
    return {"model": digest(model.state_dict()), "losses": losses, "kept": kept}


BY_HAND = {MCMISP: mcmisp_by_hand, BALANCED: balanced_by_hand}


@cache
def stock(example: str) -> Result:
    with TemporaryDirectory() as folder:
        result = run_stock(partial(BY_HAND[example], folder), ESTS)
        return {**result, "state": states(Path(folder))}


# ---------------------------------------------------------------------------------------- the examples' own scripts

Register = Callable[..., None]


def registered(register: Register, name: str, state: Any, **options: Any) -> None:
    register(name, state, **options)


def forgotten(register: Register, name: str, state: Any, **options: Any) -> None:
    """Negative control: the script does not register its state."""


def the_workers(register: Register, name: str, state: Any, **options: Any) -> None:
    """Negative control: what each EST should have for itself belongs to the worker, but survives a change of plan."""
    register(name, state)


def without_masks(register: Register, name: str, state: Any, **options: Any) -> None:
    """Negative control: the pruner's counter survives a change of plan, its masks do not."""
    whole = type(state).load_state_dict
    type(state).load_state_dict = lambda self, saved: whole(self, {**saved, "masks": self.masks})
    register(name, state, **options)


def script(
    example: str,
    folder: Path,
    how: Callable[..., None] = registered,
    look: Callable[[dict[str, Any]], Result] = lambda names: {},
) -> Callable[[], Result]:
    """Runs train.py as it is; notes the state that each EST has at the end, and what `look` finds in the script."""

    def train() -> Result:
        import easyscale as es

        register, log = es.register, es.log
        state: Any = None
        shared = False
        seen: dict[int, str] = {}

        def noting_register(name: str, obj: Any, **options: Any) -> None:
            nonlocal state, shared
            state, shared = obj, not options.get("per_est", False)
            how(register, name, obj, **options)

        def noting_log(**values: Any) -> None:
            seen[es.rank()] = digest(state.state_dict())
            log(**values)

        es.register, es.log = noting_register, noting_log
        path = EXAMPLES / example / "train.py"
        sys.path.insert(0, str(path.parent))
        names = runpy.run_path(str(path), run_name="__main__")
        for est, text in seen.items():
            (folder / str(est)).write_text(digest(state.state_dict()) if shared else text)
        return {"model": digest(names["model"].state_dict()), **look(names)}

    return train


def states(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def assert_the_same(example: str, result: Result, notes: Path) -> None:
    expected = stock(example)
    assert result["model"] == expected["model"]
    assert list(result["losses"].values()) == list(expected["losses"].values())
    assert states(notes) == expected["state"]


# ---------------------------------------------------------------------------------------- the promise


@pytest.mark.slow
@pytest.mark.parametrize("split", [(4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("example", BY_HAND)
def test_an_example_has_stock_ddps_bits_and_state_on_any_plan(
    example: str, split: tuple[int, ...], notes: Path
) -> None:
    assert_the_same(example, run_job(script(example, notes), split), notes)


@pytest.mark.parametrize("example", BY_HAND)
def test_the_state_travels_when_the_workers_change(example: str, notes: Path, tmp_path: Path) -> None:
    assert_the_same(example, in_stages(script(example, notes), STAGES, tmp_path), notes)


@pytest.mark.parametrize("example", BY_HAND)
def test_the_state_comes_back_with_a_checkpoint(example: str, notes: Path, tmp_path: Path) -> None:
    """A run that writes one every 5 steps is stopped after step 13; the next one takes up the latest."""
    train, spec = script(example, notes), {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every": 5}
    first = run_job(train, (2, 2), stop_at=13, handoff=str(tmp_path / "unused"), **spec)
    second = run_job(train, (1, 3), resume="latest", **spec)
    assert "resumed at global step 10" in second["events"][0]["text"]
    assert_the_same(example, {**second, "losses": first["losses"] | second["losses"]}, notes)


# ---------------------------------------------------------------------------------------- what the workloads are


def test_the_statistics_of_the_ranks_differ_and_the_losses_fall() -> None:
    expected = stock(MCMISP)
    assert len(set(expected["state"].values())) == ESTS
    means = [sum(row) / ESTS for row in expected["losses"].values()]
    assert sum(means[-8:]) < 0.85 * sum(means[:8])


def test_the_masks_are_the_same_on_all_ranks_and_grow_in_several_steps() -> None:
    expected = stock(BALANCED)
    assert len(set(expected["state"].values())) == 1
    kept = expected["kept"]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) >= 5
    means = [sum(row) / ESTS for row in expected["losses"].values()]
    assert sum(means[-8:]) < 0.8 * sum(means[:8])


def test_each_block_of_a_row_keeps_the_same_number_of_weights(notes: Path) -> None:
    def balance(names: dict[str, Any]) -> Result:
        pruner = names["pruner"]
        rows = {name: (weight, pruner.masks[name]) for name, weight in pruner.weights.items()}
        return {
            "masks": {name: mask.unflatten(1, (-1, 16)).sum(-1).unique().tolist() for name, (_, mask) in rows.items()},
            "weights": {
                name: (weight != 0).unflatten(1, (-1, 16)).sum(-1).unique().tolist()
                for name, (weight, _) in rows.items()
            },
        }

    result = run_job(script(BALANCED, notes, look=balance), (3, 1))
    assert result["masks"] == {"0": [4], "4": [4], "6": [4]}
    assert result["weights"] == result["masks"]


# ---------------------------------------------------------------------------------------- negative controls


@pytest.mark.slow
@pytest.mark.parametrize("example", BY_HAND)
def test_without_its_registration_the_state_is_lost_and_the_bits_differ(
    example: str, notes: Path, tmp_path: Path
) -> None:
    """With one EST a worker nothing is missed until the workers change: it is the loss of the state that is seen."""
    train, expected = script(example, notes, forgotten), stock(example)
    whole = run_job(train, (1, 1, 1, 1), checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_every=17)
    assert_the_same(example, whole, notes)
    resumed = run_job(train, (1, 1, 1, 1), resume=str(tmp_path / "checkpoints" / "step-0000000017"))
    assert resumed["model"] != expected["model"]
    assert all(text != expected["state"][est] for est, text in states(notes).items())
    assert in_stages(train, [((2, 2), 7), ((3, 1), None)], tmp_path)["model"] != expected["model"]


def test_statistics_that_the_ests_of_a_worker_share_change_the_bits(notes: Path) -> None:
    assert run_job(script(MCMISP, notes, the_workers), (2, 2))["model"] != stock(MCMISP)["model"]


def test_masks_cannot_be_told_from_the_weights_alone(notes: Path, tmp_path: Path) -> None:
    train = script(BALANCED, notes, without_masks)
    assert in_stages(train, [((4,), 10), ((4,), None)], tmp_path)["model"] != stock(BALANCED)["model"]
