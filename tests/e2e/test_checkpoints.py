"""Stopping anywhere and going on with any plan: bits as if never stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from cluster import JobFailedError, run_job, run_stock
from e2e.test_features import Branches, OfType
from workloads import CNN, MLP, SEED, Augmented, Case, Vectors, adam, by_hand, mlp, with_easyscale

RESUMABLE: dict[str, Case] = {
    "momentum": MLP,
    "batch norm": CNN,
    "adam": replace(MLP, optimizer=adam),
    "augmentation": replace(MLP, data=Augmented),
    "loader processes": replace(MLP, data=Augmented, loader={"num_workers": 2}),
    "persistent loader processes": replace(MLP, data=Augmented, loader={"num_workers": 2, "persistent_workers": True}),
    "scheduler": replace(
        MLP, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40), schedule_each_step=True
    ),
    "scaler": replace(MLP, scaler=True, autocast=torch.float16),
    "average": replace(CNN, average=True),
    "accumulation that crosses epochs": replace(CNN, accumulate=2, batch=3, epochs=3),
    "unused parameters": replace(
        MLP, model=Branches, data=lambda: Vectors(24), batch=1, prepare={"find_unused_parameters": True}
    ),
    "gradients kept": replace(MLP, set_to_none=False),
    "evaluation": replace(CNN, evaluate=True),
    "bf16": replace(MLP, model=lambda: mlp().bfloat16(), data=lambda: OfType(torch.bfloat16), optimizer=adam),
}


@cache
def stock(name: str) -> dict[str, Any]:
    return run_stock(by_hand(RESUMABLE[name]), 4)


def in_stages(
    train: Callable[[], Any], stages: list[tuple[tuple[int, ...], int | None]], folder: Path
) -> dict[str, Any]:
    """Run each plan up to its step; the state goes from one to the next through a hand-off folder."""
    losses: dict[str, list[float]] = {}
    result: dict[str, Any] = {}
    before = None
    for i, (split, until) in enumerate(stages):
        handoff = str(folder / f"stage-{i}")
        result = run_job(train, split, stop_at=until, handoff=handoff, resume=before)
        assert result["code"] == 0
        losses |= result["losses"]
        before = handoff
    return {**result, "losses": losses}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMABLE)
def test_four_plans_in_one_run_end_with_stock_ddps_bits(name: str, tmp_path: Path) -> None:
    """4 -> 2 -> 1 -> 3 workers, the published stages and one more, with cuts inside of epochs."""
    stages = [((1, 1, 1, 1), 2), ((2, 2), 3), ((4,), 6), ((2, 1, 1), None)]
    result = in_stages(with_easyscale(RESUMABLE[name]), stages, tmp_path)
    expected = stock(name)
    assert result["fingerprint"] == expected["fingerprint"]
    assert list(result["losses"].values()) == list(expected["losses"].values())
    assert result.get("average") == expected.get("average")


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 8))
def test_a_run_can_stop_after_any_step(step: int, tmp_path: Path) -> None:
    """Eight global steps in two epochs: before, at and after the epoch's end."""
    result = in_stages(with_easyscale(RESUMABLE["augmentation"]), [((1, 3), step), ((3, 1), None)], tmp_path)
    assert result["fingerprint"] == stock("augmentation")["fingerprint"]


def test_checkpoints_every_k_steps_resume_the_latest_and_keep_the_last(tmp_path: Path) -> None:
    first = run_job(
        with_easyscale(MLP), (2, 2), checkpoint_dir=str(tmp_path), checkpoint_every=2, checkpoint_keep=2, stop_at=5,
        handoff=str(tmp_path / "x"),
    )  # fmt: skip
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-0000000002", "step-0000000004"]
    assert [e["what"] for e in first["events"]].count("checkpoint-saved") == 2
    result = run_job(with_easyscale(MLP), (1, 3), checkpoint_dir=str(tmp_path), resume="latest")
    assert result["fingerprint"] == stock("momentum")["fingerprint"]
    assert "resumed at global step 4" in result["events"][0]["text"]


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_every": 2}
    run_job(with_easyscale(MLP), (4,), stop_at=5, handoff=str(tmp_path / "x"), **spec)
    target = tmp_path / "step-0000000004" / "model.safetensors"
    raw = bytearray(target.read_bytes())
    raw[-5] ^= 16
    target.write_bytes(raw)
    result = run_job(with_easyscale(MLP), (3, 1), resume="latest", **spec)
    assert result["fingerprint"] == stock("momentum")["fingerprint"]
    said = [e for e in result["events"] if e["what"] == "checkpoint-damaged"]
    assert said
    assert "step-0000000004" in said[0]["text"]
    assert any("resumed at global step 2" in e["text"] for e in result["events"])


def asks_for_a_checkpoint(where: str) -> Callable[[], dict[str, Any]]:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
        for epoch in es.epochs(2):
            for x, y in loader:
                MLP.loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if where == "inside" and epoch == 0 and loader.batch_index == 1 and es.is_main():
                    es.checkpoint()
            if where == "between" and epoch == 0:
                es.checkpoint()
        return {}

    return train


def test_persistent_loader_processes_keep_their_streams_over_a_resume_between_epochs(tmp_path: Path) -> None:
    """Stock does not reseed them, so their random states are part of the job even when no epoch is open."""
    case = replace(RESUMABLE["persistent loader processes"], epochs=3)
    expected = run_stock(by_hand(case), 4)["fingerprint"]
    whole = run_job(with_easyscale(replace(case, ask_between=True)), (2, 2), checkpoint_dir=str(tmp_path))
    assert whole["fingerprint"] == expected
    asked = sorted(tmp_path.glob("step-*"))[0]
    assert int(asked.name.removeprefix("step-")) == 4
    assert run_job(with_easyscale(case), (3, 1), resume=str(asked))["fingerprint"] == expected


@pytest.mark.parametrize(("where", "step"), [("inside", (2, 3)), ("between", (4,))])
def test_a_script_may_ask_for_a_checkpoint_and_any_plan_may_take_it_up(
    where: str, step: tuple[int, ...], tmp_path: Path
) -> None:
    whole = run_job(asks_for_a_checkpoint(where), (2, 2), checkpoint_dir=str(tmp_path))
    assert whole["fingerprint"] == stock("momentum")["fingerprint"]
    asked = sorted(tmp_path.glob("step-*"))[0]
    assert int(asked.name.removeprefix("step-")) in step
    resumed = run_job(
        asks_for_a_checkpoint(where), (1, 2, 1), checkpoint_dir=str(tmp_path / "other"), resume=str(asked)
    )
    assert resumed["fingerprint"] == whole["fingerprint"]


def terminated_in_step(step: int, number: int) -> Callable[[], dict[str, Any]]:
    """A script whose worker 0 gets a signal in the middle of a step, as a preempted machine does."""

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        from easyscale.runtime import api

        engine = api.engine()
        if engine.step == step and engine.spec.worker == 0:
            os.kill(os.getpid(), number)
        return MLP.loss(output, y)

    return with_easyscale(replace(MLP, loss=loss))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_on_all_workers_at_one_step(number: int, tmp_path: Path) -> None:
    stopped = run_job(terminated_in_step(3, number), (2, 1, 1), checkpoint_dir=str(tmp_path))
    assert stopped["code"] == 128 + number
    result = run_job(with_easyscale(MLP), (1, 3), checkpoint_dir=str(tmp_path), resume="latest")
    assert result["fingerprint"] == stock("momentum")["fingerprint"]


def test_a_full_disk_is_said_and_training_goes_on(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        from easyscale.runtime.checkpoint import tensorfile

        written = {"files": 0}
        original = tensorfile.write_hashed

        def full(path: Any, pieces: Any) -> Any:
            written["files"] += 1
            if written["files"] > 4:
                raise OSError(28, "No space left on device")
            return original(path, pieces)

        for module in ("folder", "tensorfile"):
            target = __import__(f"easyscale.runtime.checkpoint.{module}", fromlist=["x"])
            if hasattr(target, "write_hashed"):
                target.write_hashed = full
        return with_easyscale(MLP)()

    result = run_job(train, (2, 2), checkpoint_dir=str(tmp_path), checkpoint_every=2)
    assert result["fingerprint"] == stock("momentum")["fingerprint"]
    assert any(e["what"] == "checkpoint-failed" and "No space left" in e["text"] for e in result["events"])
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000000002"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"threads": 2}, "intra-op threads"),
        ({"ests": 3}, "number of ESTs"),
        ({"determinism": "D0"}, "determinism level"),
    ],
)
def test_a_resume_that_cannot_keep_the_promise_is_refused_by_name(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    run_job(with_easyscale(MLP), (4,), stop_at=2, handoff=str(tmp_path))
    split = (2, 1) if "ests" in change else (2, 2)
    change.pop("ests", None)
    with pytest.raises(JobFailedError) as caught:
        run_job(with_easyscale(MLP), split, resume=str(tmp_path), **change)
    assert caught.value.kind == "RecordMismatchError"
    assert named in caught.value.error


def test_another_seed_or_order_is_refused_by_name(tmp_path: Path) -> None:
    run_job(with_easyscale(MLP), (4,), stop_at=2, handoff=str(tmp_path))
    with pytest.raises(JobFailedError, match="reduction order is tree here and ddp there"):
        run_job(with_easyscale(replace(MLP, init={"reduction": "tree"})), (4,), resume=str(tmp_path))


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    run_job(with_easyscale(MLP), (2,), stop_at=2, handoff=str(tmp_path))
    with pytest.raises(JobFailedError) as caught:
        run_job(with_easyscale(CNN), (2,), resume=str(tmp_path))
    assert caught.value.kind == "CheckpointError"
    assert "another model" in caught.value.error


@pytest.mark.parametrize("resume", ["latest", "nowhere"])
def test_a_missing_checkpoint_is_refused(resume: str, tmp_path: Path) -> None:
    where = "latest" if resume == "latest" else str(tmp_path / resume)
    with pytest.raises(JobFailedError) as caught:
        run_job(with_easyscale(MLP), (2,), checkpoint_dir=str(tmp_path / "empty"), resume=where)
    assert caught.value.kind == "CheckpointError"


def test_resume_auto_starts_anew_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    result = run_job(with_easyscale(MLP), (4,), checkpoint_dir=str(tmp_path), resume="auto")
    assert result["fingerprint"] == stock("momentum")["fingerprint"]


def test_per_est_state_travels_with_its_est(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        class Counter:
            """Counts what its own EST saw, and gives it to the loss: wrong state changes the bits."""

            def __init__(self) -> None:
                self.total = torch.zeros(1)

            def state_dict(self) -> dict[str, Any]:
                return {"total": self.total}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.total = state["total"]

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
        counter = Counter()
        es.register("counter", counter, per_est=True)
        for _epoch in es.epochs(2):
            for x, y in loader:
                counter.total += x.sum()
                (MLP.loss(model(x), y) * (1 + 0.01 * torch.tanh(counter.total))).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {}

    from cluster import run_reference

    expected = run_reference(train, 4)["fingerprint"]
    assert run_job(train, (4,))["fingerprint"] == expected
    assert in_stages(train, [((3, 1), 3), ((1, 1, 2), 5), ((4,), None)], tmp_path)["fingerprint"] == expected


def draws_at_the_top_of_an_epoch() -> dict[str, Any]:
    """Random numbers drawn outside the loop reach the training: a resume must meet the same ones."""
    import easyscale as es

    es.init(seed=SEED)
    model = mlp()
    optimizer = MLP.optimizer(model.parameters())
    model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
    for _epoch in es.epochs(3):
        noise = torch.rand(1)
        for x, y in loader:
            MLP.loss(model(x * (1 + noise)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {}


def test_numbers_drawn_at_the_top_of_an_epoch_are_drawn_again_after_a_resume(tmp_path: Path) -> None:
    from cluster import run_reference

    expected = run_reference(draws_at_the_top_of_an_epoch, 3)["fingerprint"]
    assert in_stages(draws_at_the_top_of_an_epoch, [((3,), 8), ((1, 2), None)], tmp_path)["fingerprint"] == expected


def test_a_resumed_job_that_loops_over_a_plain_range_is_refused(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
        for _epoch in range(2):
            for x, y in loader:
                MLP.loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {}

    assert run_job(train, (4,))["fingerprint"] == stock("momentum")["fingerprint"]
    run_job(train, (4,), stop_at=2, handoff=str(tmp_path))
    with pytest.raises(JobFailedError, match=r"es.epochs\(\)"):
        run_job(train, (2, 2), resume=str(tmp_path))


def test_a_signal_between_epochs_stops_the_job_even_without_a_checkpoint_folder() -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4))
        for _epoch in es.epochs(2):
            for x, y in loader:
                MLP.loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    assert run_job(train, (2, 1))["code"] == 143


def test_checkpoints_by_time_are_taken_by_all_workers_at_one_step(tmp_path: Path) -> None:
    run_job(with_easyscale(MLP), (2, 1, 1), checkpoint_dir=str(tmp_path), checkpoint_seconds=1e-6, checkpoint_keep=99)
    saved = sorted(tmp_path.glob("step-*"))
    assert len(saved) > 2
    result = run_job(with_easyscale(MLP), (1, 3), resume=str(saved[1]))
    assert result["fingerprint"] == stock("momentum")["fingerprint"]


def test_workers_that_differ_in_what_decides_bits_do_not_start() -> None:
    def train() -> dict[str, Any]:
        import json

        from easyscale.numerics import record

        if json.loads(os.environ["EASYSCALE_WORKER"])["worker"] == 1:
            record._device_type = lambda device: "another kind of GPU"
        return with_easyscale(MLP)()

    with pytest.raises(JobFailedError, match="device type is another kind of GPU here") as caught:
        run_job(train, (2, 2))
    assert caught.value.kind == "RecordMismatchError"
