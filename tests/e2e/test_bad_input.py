"""What would break the promise is refused: what happened, why, what to do now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from cluster import JobFailedError, run_job
from workloads import MLP, SEED, PartlyUnused, Vectors, mlp, with_easyscale


def job(
    body: Callable[..., None], model: Callable[[], nn.Module] = mlp, data: Any = Vectors, **init: Any
) -> Callable[[], Any]:
    """A script whose loop body is `body(es, model, optimizer, loader, x, y)`."""

    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED, **init)
        m = model()
        optimizer = MLP.optimizer(m.parameters())
        m, optimizer, loader = es.prepare(m, optimizer, DataLoader(data(), batch_size=4))
        for _epoch in es.epochs(2):
            for x, y in loader:
                body(es, m, optimizer, loader, x, y)
        return {}

    return train


def refused(train: Callable[[], Any], split: tuple[int, ...], kind: str, *words: str) -> str:
    with pytest.raises(JobFailedError) as caught:
        run_job(train, split)
    error = caught.value.error
    assert caught.value.kind == kind, error
    assert "why:" in error
    assert "now:" in error
    for word in words:
        assert word in error
    return error


def ordinary(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
    loss = MLP.loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    es.log(loss=loss)


def test_optimizer_step_without_backward_is_refused() -> None:
    def body(es: Any, model: Any, optimizer: Any, *rest: Any) -> None:
        optimizer.step()

    refused(job(body), (2, 1), "LoopError", "without a backward()")


def test_two_backwards_in_one_local_step_are_refused() -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        MLP.loss(model(x), y).backward()
        MLP.loss(model(x), y).backward()

    refused(job(body), (3,), "LoopError", "second backward()", "no_sync")


def test_a_compiled_model_that_is_compiled_again_is_refused() -> None:
    def compiled() -> nn.Module:
        model = mlp()
        model.compile(backend="eager")
        return model

    def body(es: Any, model: Any, *rest: Any) -> None:
        model.compile()

    refused(job(body, compiled), (2,), "UsageError", "model.compile() was called again", "before es.prepare()")


def test_a_backward_outside_the_loop_is_refused() -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init()
        model = mlp()
        model, _ = es.prepare(model, MLP.optimizer(model.parameters()))
        model(torch.zeros(2, 12)).sum().backward()
        return {}

    refused(train, (2,), "LoopError", "outside the loop")


@pytest.mark.parametrize(("split", "idle", "words"), [((3,), 1, "ESTs [1] did not"), ((1, 2), 2, "only some ESTs")])
def test_a_backward_in_some_ests_only_is_refused(split: tuple[int, ...], idle: int, words: str) -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        if es.rank() != idle:
            MLP.loss(model(x), y).backward()

    refused(job(body), split, "LoopError", words)


def test_leaving_the_loop_in_the_middle_of_a_step_is_refused() -> None:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4))
        for _epoch in es.epochs(2):
            for x, y in loader:
                ordinary(es, model, optimizer, loader, x, y)
                if loader.batch_index == 2:
                    break
        return {}

    refused(train, (3,), "LoopError", "middle of a global step", "loader.batch_index")


def breaks_at_the_top() -> Callable[[], Any]:
    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED)
        model = mlp()
        optimizer = MLP.optimizer(model.parameters())
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
        for _epoch in es.epochs(3):
            for x, y in loader:
                if loader.batch_index == 2:
                    break
                ordinary(es, model, optimizer, loader, x, y)
        return {}

    return train


@pytest.mark.parametrize("split", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_leaving_at_the_top_of_the_body_keeps_stock_ddps_bits(split: tuple[int, ...]) -> None:
    from cluster import run_reference

    assert run_job(breaks_at_the_top(), split)["fingerprint"] == run_reference(breaks_at_the_top(), 3)["fingerprint"]


def breaks_at_the_bottom() -> dict[str, Any]:
    """Leaves in the local step that completes the global step, then evaluates on every worker."""
    import easyscale as es
    from workloads import CNN, Pictures, cnn

    es.init(seed=SEED)
    model = cnn()
    optimizer = CNN.optimizer(model.parameters())
    model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Pictures(), batch_size=4, shuffle=True))
    seen = []
    for _epoch in es.epochs(3):
        for x, y in loader:
            ordinary(es, model, optimizer, loader, x, y)
            if loader.batch_index == 2 and loader.completes_step:
                break
        model.eval()
        with torch.no_grad():
            seen.append(float(model(torch.ones(2, 3, 8, 8)).sum()))
        model.train()
    return {"seen": seen}


@pytest.mark.parametrize("split", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_leaving_after_the_last_est_completes_the_step(split: tuple[int, ...]) -> None:
    from cluster import run_reference

    expected = run_reference(breaks_at_the_bottom, 3)
    result = run_job(breaks_at_the_bottom, split)
    assert result["fingerprint"] == expected["fingerprint"]
    assert result["seen"] == expected["seen"]


class Uneven(IterableDataset[Any]):
    """Shards by rank, one batch more for the first."""

    def __iter__(self) -> Any:
        import easyscale as es

        for i in range(12 if es.rank() == 0 else 8):
            yield torch.full((12,), float(i)), i % 5


@pytest.mark.parametrize("split", [(3,), (1, 2), (2, 1), (1, 1, 1)], ids=str)
def test_loaders_of_different_lengths_are_refused_instead_of_hanging(split: tuple[int, ...]) -> None:
    refused(job(ordinary, data=Uneven), split, "LoaderLengthError", "exhausted")


def test_sync_batch_norm_is_refused() -> None:
    refused(job(ordinary, lambda: nn.Sequential(nn.SyncBatchNorm(12))), (2,), "UnsupportedError", "SyncBatchNorm")


def test_sparse_gradients_are_refused() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(10, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(x[:, 0].abs().long() % 10, self.table, sparse=True)

    refused(
        job(ordinary, lambda: nn.Sequential(nn.Embedding(3, 3, sparse=True))), (2,), "UnsupportedError", "sparse=True"
    )
    refused(job(ordinary, Sparse), (2,), "UnsupportedError", "sparse gradient")


def test_unused_parameters_are_refused_by_name_unless_asked_for() -> None:
    refused(job(ordinary, PartlyUnused), (2,), "UnusedParameterError", "never.weight", "find_unused_parameters=True")


def test_a_closure_is_refused() -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        optimizer.step(lambda: MLP.loss(model(x), y))

    refused(job(body), (2,), "UnsupportedError", "closure")


def test_two_models_are_refused() -> None:
    def train() -> None:
        import easyscale as es

        es.init()
        es.prepare(mlp(), mlp())

    refused(train, (2,), "UnsupportedError", "2 models")


def test_an_unknown_object_is_refused() -> None:
    def train() -> None:
        import easyscale as es

        es.init()
        es.prepare(mlp(), "loader")

    refused(train, (2,), "UsageError", "got a str")


def test_a_non_finite_loss_is_reported_with_est_and_step_and_training_goes_on() -> None:
    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        loss = MLP.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bad = es.rank() == 1 and loader.batch_index == 2
        es.log(loss=loss * float("nan") if bad else loss)

    result = run_job(job(body), (2, 1))
    said = [e["text"] for e in result["events"] if e["what"] == "nonfinite"]
    assert len(said) == 1
    assert "EST 1" in said[0]
    assert "step 2" in said[0]
    assert refused(job(body, on_nonfinite="stop"), (2, 1), "NonFiniteError", "EST 1", "global step 2")


def test_an_operator_without_a_deterministic_form_is_named_with_its_module() -> None:
    from easyscale.runtime.failures import describe

    class Puts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inner(x)
            return out + torch.zeros(5).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))

    def train() -> dict[str, Any]:
        try:
            job(ordinary, lambda: nn.Sequential(nn.Identity(), Puts()))()
        except RuntimeError as problem:
            ours, text = describe(problem)
            return {"ours": ours, "text": text}
        return {}

    from easyscale.core.errors import NondeterministicError  # noqa: F401  the name that users see

    def checked() -> dict[str, Any]:
        from easyscale.runtime import api

        result = train()
        api.engine().failed = True
        return result

    text = run_job(checked, (2,))["text"]
    assert "NondeterministicError: The operator put_ in module 1 (Puts)" in text
    assert "test_bad_input.py" in text  # the user's own lines stay
    assert "easyscale/runtime" not in text  # ours do not


def test_a_scaler_that_was_not_prepared_is_explained() -> None:
    from easyscale.runtime.failures import explain

    problem = AssertionError("No inf checks were recorded for this optimizer.")
    said = explain(problem)
    assert said is not None
    assert "es.prepare()" in said.now


def test_using_the_package_before_init_is_refused() -> None:
    import easyscale as es

    with pytest.raises(es.UsageError, match=r"before es.init\(\)"):
        es.rank()


def test_init_refuses_unknown_choices() -> None:
    import easyscale as es

    with pytest.raises(es.UsageError, match="reduction"):
        es.init(reduction="ring")  # type: ignore[arg-type]


def test_an_ests_number_that_contradicts_the_launcher_is_refused() -> None:
    refused(with_easyscale(replace(MLP, init={"ests": 5})), (2,), "UsageError", "ests=5")


def test_a_second_training_forward_that_changed_a_buffer_is_refused() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 5)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.sum()
            return self.inner(x) * torch.tanh(self.seen)

    def body(es: Any, model: Any, optimizer: Any, loader: Any, x: Any, y: Any) -> None:
        (MLP.loss(model(x), y) + MLP.loss(model(-x), y)).backward()

    refused(job(body, Remembers), (3,), "UnsupportedError", "second forward")
