"""Habits of real scripts that once changed bits in silence: now the same bits as stock DDP, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import cluster
from cluster import JobFailedError, run_job, run_reference
from workloads import MLP, SEED, Vectors, mlp, with_easyscale

PLANS = [(3,), (2, 1), (1, 2), (1, 1, 1)]


def kept_or_refused(run: Callable[[], dict[str, Any]], reference: Callable[[], dict[str, Any]]) -> None:
    expected = run_reference(reference, 3)
    try:
        result = run()
    except JobFailedError as failure:
        if failure.kind in ("LoopError", "UsageError", "PromiseError"):
            return
        raise
    assert (result["fingerprint"], result["steps"]) == (expected["fingerprint"], expected["steps"])


def resumed(train: Callable[[], dict[str, Any]], at: int, folder: Path) -> dict[str, Any]:
    run_job(train, (3,), stop_at=at, handoff=str(folder))
    return run_job(train, (2, 1), resume=str(folder))


def prepared(*, loaders: int = 1, batch: int = 4) -> tuple[Any, ...]:
    import easyscale as es

    es.init(seed=SEED)
    model = mlp()
    optimizer = MLP.optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = [DataLoader(Vectors(), batch_size=batch, shuffle=True) for _ in range(loaders)]
    return (es, *es.prepare(model, optimizer, scheduler, *data))


def train_on(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        MLP.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_loops_an_epoch() -> dict[str, Any]:
    es, model, optimizer, _scheduler, *loaders = prepared(loaders=2)
    for _epoch in es.epochs(2):
        for loader in loaders:
            train_on(model, optimizer, loader)
    return {}


def test_a_resume_in_the_second_loop_of_an_epoch_does_not_train_the_first_again(tmp_path: Path) -> None:
    kept_or_refused(lambda: resumed(two_loops_an_epoch, 8, tmp_path), two_loops_an_epoch)


def one_loader_twice_an_epoch() -> dict[str, Any]:
    es, model, optimizer, _scheduler, loader = prepared()
    for _epoch in es.epochs(2):
        for _ in range(2):
            train_on(model, optimizer, loader)
    return {}


def test_a_resume_in_the_second_loop_over_one_loader_goes_on_there(tmp_path: Path) -> None:
    kept_or_refused(lambda: resumed(one_loader_twice_an_epoch, 8, tmp_path), one_loader_twice_an_epoch)


def schedules_at_the_top_of_an_epoch() -> dict[str, Any]:
    es, model, optimizer, scheduler, loader = prepared()
    for epoch in es.epochs(2):
        if epoch > 0:
            scheduler.step()
        train_on(model, optimizer, loader)
    return {}


def test_a_scheduler_stepped_at_the_top_of_an_epoch_is_not_stepped_again_by_a_resume(tmp_path: Path) -> None:
    kept_or_refused(lambda: resumed(schedules_at_the_top_of_an_epoch, 8, tmp_path), schedules_at_the_top_of_an_epoch)


def leaves_a_window() -> dict[str, Any]:
    es, model, optimizer, _scheduler, loader = prepared(batch=2)
    for _epoch in es.epochs(2):
        for x, y in loader:
            if loader.batch_index == 3:  # the top of the body, but EST 0 has begun a window and the others have not
                break
            last = loader.batch_index % 2 == 1
            with nullcontext() if last else model.no_sync():
                MLP.loss(model(x), y).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return {}


def test_leaving_the_loop_inside_an_accumulation_window_keeps_the_bits_or_is_refused() -> None:
    kept_or_refused(lambda: run_job(leaves_a_window, (3,)), leaves_a_window)


def test_a_checkpoints_per_est_state_that_the_script_does_not_register_is_refused(tmp_path: Path) -> None:
    def counts(register: bool) -> Callable[[], dict[str, Any]]:
        def train() -> dict[str, Any]:
            es, model, optimizer, _scheduler, loader = prepared()
            if register:
                es.register("counter", torch.nn.Linear(1, 1), per_est=True)
            for _epoch in es.epochs(2):
                train_on(model, optimizer, loader)
            return {}

        return train

    run_job(counts(True), (3,), stop_at=2, handoff=str(tmp_path))
    with pytest.raises(JobFailedError, match="counter"):
        run_job(counts(False), (3,), resume=str(tmp_path))


# ---------------------------------------------------------------------------------------------------------------------


def script(
    body: Callable[..., None],
    model: Callable[[], nn.Module] = mlp,
    data: Callable[[], Any] = Vectors,
    top: Callable[..., None] = lambda *_: None,
    options: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
) -> Callable[[], dict[str, Any]]:
    """Three epochs; `body(es, model, optimizer, loader, x, y)` in the loop, `top(epoch, loader)` above it."""

    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        m = model()
        optimizer = MLP.optimizer(m.parameters())
        m, optimizer, feed = es.prepare(
            m, optimizer, DataLoader(data(), batch_size=4, **(loader or {})), **(options or {})
        )
        for epoch in es.epochs(3):
            top(epoch, feed)
            for x, y in feed:
                body(es, m, optimizer, feed, x, y)
        return {}

    return train


def ordinary(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
    MLP.loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def same_on_all_plans_and_stops(train: Callable[[], Any], folder: Path, stops: tuple[int, ...] = (3, 8)) -> None:
    expected = run_reference(train, 3)
    for split in PLANS:
        assert run_job(train, split)["fingerprint"] == expected["fingerprint"], split
    for at in stops:
        run_job(train, (3,), stop_at=at, handoff=str(folder / str(at)))
        assert run_job(train, (1, 2), resume=str(folder / str(at)))["fingerprint"] == expected["fingerprint"], at


def refused(train: Callable[[], Any], split: tuple[int, ...], words: str) -> None:
    with pytest.raises(JobFailedError, match=words) as caught:
        run_job(train, split)
    assert "now:" in caught.value.error


def test_gradients_that_a_script_keeps_over_steps_survive_a_resume(tmp_path: Path) -> None:
    """Accumulation without `no_sync`: step and zero_grad every second batch."""

    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        MLP.loss(model(x), y).backward()
        if loader.batch_index % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    same_on_all_plans_and_stops(script(body), tmp_path, (1, 3))


class FollowsTheEpoch(IterableDataset[Any]):
    epoch = 0

    def __iter__(self) -> Any:
        import easyscale as es

        for i in range(20):
            yield torch.full((12,), 0.1 * i + self.epoch + es.rank()), (i + self.epoch) % 5


class MapFollowsTheEpoch(Vectors):
    epoch = 0

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * self.epoch, self.y[i]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [FollowsTheEpoch, MapFollowsTheEpoch])
def test_what_a_script_tells_its_data_set_above_the_loop_counts_after_a_resume(
    data: Any, workers: int, tmp_path: Path
) -> None:
    def top(epoch: int, loader: Any) -> None:
        loader.dataset.epoch = epoch

    same_on_all_plans_and_stops(script(ordinary, data=data, top=top, loader={"num_workers": workers}), tmp_path, (8,))


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 5)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(1.01)
        return self.inner(x) * self.scale


def test_buffers_outside_the_state_dict_survive_a_resume(tmp_path: Path) -> None:
    same_on_all_plans_and_stops(script(ordinary, Forgetful), tmp_path)


class HasAGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.generator = nn.Linear(12, 5), torch.Generator().manual_seed(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + torch.rand(x.shape, generator=self.generator))


def test_a_generator_of_a_module_is_kept_for_each_est(tmp_path: Path) -> None:
    same_on_all_plans_and_stops(script(ordinary, HasAGenerator), tmp_path)


def test_no_sync_batches_count_as_use_of_a_parameter(tmp_path: Path) -> None:
    class Alternates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 5), nn.Linear(12, 5)

        def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
            return self.a(x) if first else self.b(x)

    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        last = loader.batch_index % 2 == 1
        with nullcontext() if last else model.no_sync():
            MLP.loss(model(x, not last), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    train = script(body, Alternates, options={"find_unused_parameters": True}, data=lambda: Vectors(48))
    same_on_all_plans_and_stops(train, tmp_path, ())


def test_complex_parameters_are_summed_as_gloo_does(tmp_path: Path) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 5, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.complex64) @ self.weight).abs()

    same_on_all_plans_and_stops(script(ordinary, Complex), tmp_path, ())


def test_hooks_that_a_script_sets_after_prepare_see_gradients_before_the_sum(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4))

        def halve(parameter: Any) -> None:
            parameter.grad.mul_(0.5)

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(halve)
        for _epoch in es.epochs(2):
            for x, y in loader:
                ordinary(es, model, optimizer, loader, x, y)
        return {}

    same_on_all_plans_and_stops(train, tmp_path, ())


def test_a_module_that_counts_in_a_plain_attribute_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.steps = nn.Linear(12, 5), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return self.inner(x) / self.steps

    refused(script(ordinary, Counts), (2, 1), "'steps'")


def test_a_module_that_caches_is_not_refused(tmp_path: Path) -> None:
    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.longest, self.shown = nn.Linear(12, 5), 0, None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.longest = max(self.longest, x.shape[1])
            out = self.inner(x)
            self.shown = out.detach()
            return out

    same_on_all_plans_and_stops(script(ordinary, Caches), tmp_path, ())


@pytest.mark.parametrize("habit", ["outside", "unfrozen"])
def test_gradients_that_nobody_sums_are_refused(habit: str) -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model, head = mlp(), nn.Linear(5, 5)
        model[0].weight.requires_grad_(habit != "unfrozen")
        optimizer = MLP.optimizer([*model.parameters(), *(head.parameters() if habit == "outside" else ())])
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4))
        for _epoch in es.epochs(2):
            model[0].weight.requires_grad_(True)
            for x, y in loader:
                MLP.loss(head(model(x)) if habit == "outside" else model(x), y).backward()
                optimizer.step()
        return {}

    refused(train, (2, 1), "not summed over the ESTs")


def test_a_scheduler_or_optimizer_that_was_not_prepared_is_refused() -> None:
    def train(with_optimizer: bool) -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        things = [model, optimizer] if with_optimizer else [model]
        loader = es.prepare(*things, DataLoader(Vectors(), batch_size=4))[-1]
        for x, y in loader:
            MLP.loss(model(x), y).backward()
        scheduler.step()
        return {}

    refused(lambda: train(True), (3,), "StepLR follows a prepared optimizer")
    refused(lambda: train(False), (3,), "no optimizer was passed")


def test_an_evaluation_forward_after_the_training_forward_of_batch_norm_is_refused() -> None:
    from workloads import Pictures, cnn

    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        loss = MLP.loss(model(x), y)
        model.eval()
        loss = loss + MLP.loss(model(x), y)
        model.train()
        loss.backward()

    refused(script(body, cnn, Pictures), (3,), "second forward")


@pytest.mark.parametrize("split", [(3,), (2, 1), (1, 2)], ids=str)
def test_a_buffer_that_grows_is_refused(split: tuple[int, ...]) -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 5)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.cat([self.seen, x.detach().mean().reshape(1)])
            return self.inner(x) * self.seen.mean()

    refused(script(ordinary, Grows), split, "changed its shape")


@pytest.mark.parametrize("split", PLANS, ids=str)
def test_a_batch_left_out_by_one_rank_is_refused_instead_of_mixing_steps(
    split: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TIMEOUT", 8.0)

    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        if es.rank() == 2 and loader.batch_index == 2:
            return
        ordinary(es, model, optimizer, loader, x, y)

    with pytest.raises(JobFailedError) as caught:
        run_job(script(body), split)
    assert caught.value.kind in ("LoopError", "WorkerLostError")


@pytest.mark.parametrize("split", PLANS, ids=str)
def test_a_round_that_every_rank_leaves_out_is_fine(split: tuple[int, ...]) -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        if loader.batch_index != 2:
            ordinary(es, model, optimizer, loader, x, y)

    assert run_job(script(body), split)["fingerprint"] == run_reference(script(body), 3)["fingerprint"]


@pytest.mark.parametrize("split", PLANS, ids=str)
def test_an_iterator_that_a_script_leaves_open_is_closed_for_it(split: tuple[int, ...]) -> None:
    def train() -> dict[str, Any]:
        es, model, optimizer, _scheduler, loader = prepared()
        for _epoch in es.epochs(2):
            batches = iter(loader)
            while True:
                x, y = next(batches)
                ordinary(es, model, optimizer, loader, x, y)
                if loader.batch_index == 2 and loader.completes_step:
                    break
        return {}

    assert run_job(train, split)["fingerprint"] == run_reference(train, 3)["fingerprint"]


@pytest.mark.parametrize("value", [None, "a", torch.zeros(3)], ids=repr)
def test_a_metric_that_is_not_a_number_is_refused(value: Any) -> None:
    def body(es: Any, *rest: Any) -> None:
        ordinary(es, *rest)
        es.log(loss=value)

    refused(script(body), (2,), "metrics are single numbers")


def test_a_logged_tensor_may_be_changed_afterwards() -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        ordinary(es, model, optimizer, loader, x, y)
        value = torch.tensor(float(es.rank()))
        es.log(loss=value)
        value.fill_(-1.0)

    assert run_job(script(body), (3,))["losses"]["0"] == [0.0, 1.0, 2.0]


def test_a_job_that_stopped_early_has_no_epoch_left(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        es, model, optimizer, _scheduler, loader = prepared()
        for epoch in es.epochs(9):
            train_on(model, optimizer, loader)
            if epoch == 1:
                break
        return {}

    first = run_job(train, (3,), checkpoint_dir=str(tmp_path))
    again = run_job(train, (2, 1), checkpoint_dir=str(tmp_path), resume="latest")
    assert (again["fingerprint"], again["steps"]) == (first["fingerprint"], first["steps"])


def test_lazy_modules_are_refused() -> None:
    refused(with_easyscale(replace(MLP, model=lambda: nn.Sequential(nn.LazyLinear(5)))), (2,), "lazy")
