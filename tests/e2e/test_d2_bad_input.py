"""What D2 cannot promise is refused, and what it can correct is corrected and said: what, why, what to do now."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import easyscale.runtime.session  # noqa: F401  once here, not once in each forked worker
from cluster import JobFailedError, run_job, run_reference
from e2e.d2_odd import Around, job, ordinary, refused, told
from easyscale.numerics.kernels import install  # noqa: F401  the same
from elasticity import run_with_master
from faults.judge import Marks
from workloads import CNN, MLP, Within, cnn, mlp, with_easyscale


@pytest.fixture(scope="module")
def plain() -> str:
    """The sha256 of the script that does nothing odd."""
    result = run_job(job(), (2,), determinism="D2")
    assert told(result) == []
    return str(result["fingerprint"])


# ---------------------------------------------------------------------------------------- operators


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return x + torch.linalg.svd(x).S.sum()


def test_an_operator_without_a_form_is_refused_by_name_with_module_and_line_before_the_first_update() -> None:
    line = spectrum.__code__.co_firstlineno + 1
    refused("Refused", "_linalg_svd", f"test_d2_bad_input.py:{line}", "in module odd (Odd)", "easyscale scan",
            model=lambda: Around(spectrum), split=(1, 1))  # fmt: skip


def test_the_user_sees_the_refusal_and_no_traceback_of_ours() -> None:
    done = run_with_master(job(model=lambda: Around(spectrum)), (1, 1), determinism="D2")
    assert done.exit_code != 0
    assert "Level D2 has no form of the operator _linalg_svd" in done.text
    assert "Traceback" not in done.text
    assert done.state.steps == 0
    assert done.fingerprint is None


def test_stock_ddp_at_d2_refuses_it_too() -> None:
    with pytest.raises(JobFailedError, match="no form of the operator _linalg_svd"):
        run_reference(job(model=lambda: Around(spectrum)), 2, determinism="D2")


def test_an_operator_that_only_the_backward_reaches_is_refused_before_the_first_update() -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        rows = torch.zeros(len(x), dtype=torch.long)
        loss = model(x).sum() + torch.nn.functional.embedding(rows, model[0].weight, sparse=True).sum()
        loss.backward()
        optimizer.step()

    refused("Refused", "sparse", "in the backward of Embedding", body=body)


def test_products_of_fp64_are_refused_where_they_are_called() -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        x = (x.double() @ torch.eye(12, dtype=torch.float64)).float()
        ordinary(es, model, optimizer, x, y)

    refused("Refused", "mm on torch.float64", "test_d2_bad_input.py:", body=body)


def with_a_complex_parameter() -> nn.Module:
    model = mlp()
    model.register_parameter("phase", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: mlp().double(), "The parameter 0.weight is float64"),
        (with_a_complex_parameter, "The parameter phase is complex64"),
        (lambda: nn.Sequential(mlp(), nn.SyncBatchNorm(5)), "SyncBatchNorm"),
        (lambda: nn.Sequential(nn.Embedding(3, 2, sparse=True), mlp()), "sparse=True"),
        (lambda: scripted(mlp()), "is TorchScript"),
    ],
)
def test_models_that_d2_does_not_have_are_refused_by_prepare(model: Callable[[], nn.Module], words: str) -> None:
    refused("UnsupportedError", words, model=model)


def test_a_complex_layer_is_refused_where_it_is_made() -> None:
    refused("Refused", "uniform_ on torch.complex64", model=lambda: nn.Linear(3, 3, dtype=torch.complex64))


# ---------------------------------------------------------------------------------------- kernels of others


def an_extension() -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.library.custom_op("d2_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_autograd(lambda _, gradient: gradient * 2, setup_context=lambda ctx, inputs, output: None)
    return twice


def test_an_operator_of_an_extension_is_refused_whenever_it_was_loaded() -> None:
    def in_the_loop(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        ordinary(es, model, optimizer, an_extension()(x), y)

    def early() -> None:
        model.append(Around(an_extension()))

    model: list[nn.Module] = []
    words = ("d2_test::twice", "it comes from an extension")
    refused("Refused", *words, "in module odd (Odd)", first=early, model=lambda: model[0])
    refused("Refused", *words, "in module odd (Odd)", model=lambda: Around(an_extension()))
    refused("Refused", *words, body=in_the_loop)


def test_a_kernel_that_comes_after_its_operator_is_refused_too() -> None:
    libraries = []

    def first() -> None:
        libraries.append(torch.library.Library("d2_late", "DEF"))
        libraries[0].define("thrice(Tensor x) -> Tensor")

    def model() -> nn.Module:
        libraries[0].impl("thrice", lambda x: x * 3, "CPU")
        return Around(torch.ops.d2_late.thrice)

    refused("Refused", "d2_late::thrice", first=first, model=model)


def test_a_composite_of_torch_s_operators_is_no_extension() -> None:
    """It has no kernels of its own, so there is nothing to refuse."""

    def model() -> nn.Module:
        library = torch.library.Library("d2_composite", "DEF")
        library.define("shifted(Tensor x) -> Tensor")
        library.impl("shifted", lambda x: x + 1, "CompositeImplicitAutograd")
        whole = Around(torch.ops.d2_composite.shifted)
        whole.library = library
        return whole

    composed = run_job(job(model=model), (2,), determinism="D2")
    written_out = run_job(job(model=lambda: Around(lambda x: x + 1)), (2,), determinism="D2")
    assert composed["fingerprint"] == written_out["fingerprint"]


def test_a_script_s_own_kernel_for_an_operator_of_torch_is_refused() -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        torch.library.Library("aten", "IMPL").impl("mm", lambda a, b: a, "CPU")

    refused("UnsupportedError", "registers a kernel of its own for torch's operator mm", body=body)


# ---------------------------------------------------------------------------------------- generated code


@pytest.mark.slow
def test_torch_compile_runs_its_graphs_by_d2_s_operators_and_says_so_once() -> None:
    """With two ESTs: the compiler changes the order in which gradients come, and only two summands do not mind."""

    def compiled() -> nn.Module:
        model = Within(cnn())
        model.compile()
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch imports its own TorchScript there
        importlib.import_module("torch._inductor.compile_fx")

    eager = run_job(with_easyscale(replace(CNN, model=lambda: Within(cnn()))), (2,), determinism="D2")
    result = run_job(with_easyscale(replace(CNN, model=compiled)), (2,), determinism="D2")
    assert [text[:45] for text in told(result)] == ["torch.compile uses the backend aot_eager inst"]
    assert result["fingerprint"] == eager["fingerprint"]


class Scripted(nn.Module):
    def __init__(self, script: bool) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(12, 33), nn.LayerNorm(33), nn.Linear(33, 5)
        self.function = scripted(_wave) if script else _wave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.function(self.inner(x), self.norm.weight, self.norm.bias))  # type: ignore[no-any-return]


def _wave(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.layer_norm(x, [33], weight, bias)
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421)) + torch.tanh(x) * torch.sigmoid(x)


def scripted(thing: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would have people compile instead
        return torch.jit.script(thing)


def test_scripted_functions_compute_as_they_are_written_however_often_they_ran() -> None:
    def sha(script: bool, split: tuple[int, ...]) -> str:
        case = replace(MLP, model=lambda: Scripted(script))
        return str(run_job(with_easyscale(case), split, determinism="D2")["fingerprint"])

    assert sha(True, (4,)) == sha(True, (2, 2)) == sha(False, (4,))


# ---------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize("flag", ["fused", "foreach"])
def test_fused_and_grouped_updates_are_corrected_and_told(flag: str) -> None:
    def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=3e-3, **options)

    asked = replace(MLP, optimizer=lambda parameters: adam(parameters, **{flag: True}))
    result = run_job(with_easyscale(asked), (2,), determinism="D2")
    assert [text.partition(":")[0] for text in told(result)] == [f"AdamW({flag}=True) runs with {flag}=False"]
    expected = run_job(with_easyscale(replace(MLP, optimizer=adam)), (2,), determinism="D2")
    assert result["fingerprint"] == expected["fingerprint"]


def tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def medium() -> None:
    torch.set_float32_matmul_precision("medium")


def newer() -> None:
    torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]


FLAGS = {
    tf32: ("torch.backends.cuda.matmul.allow_tf32", "True"),
    medium: ("torch.get_float32_matmul_precision()", "medium"),
    newer: ("torch.backends.fp32_precision", "tf32"),
}


@pytest.mark.parametrize("switch", FLAGS)
def test_reduced_precision_switched_on_before_init_is_corrected_and_told(switch: Any, plain: str) -> None:
    result = run_job(job(first=switch), (2,), determinism="D2")
    name, value = FLAGS[switch]
    assert [text for text in told(result) if text.startswith(f"{name} is {value}; level D2 makes it")]
    assert result["fingerprint"] == plain


@pytest.mark.parametrize("switch", FLAGS)
def test_reduced_precision_switched_on_in_the_loop_is_corrected_and_told_once(switch: Any, plain: str) -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        switch()
        ordinary(es, model, optimizer, x, y)

    result = run_job(job(body), (2,), determinism="D2")
    name, value = FLAGS[switch]
    assert len([text for text in told(result) if text.startswith(f"{name} was {value}, is")]) == 1
    assert len(set(told(result))) == len(told(result))
    assert result["fingerprint"] == plain


def test_a_precision_that_torch_s_older_interface_cannot_tell_is_corrected_too(plain: str) -> None:
    def convolutions() -> None:
        torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]

    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        convolutions()
        ordinary(es, model, optimizer, x, y)

    assert run_job(job(first=convolutions), (2,), determinism="D2")["fingerprint"] == plain
    result = run_job(job(body), (2,), determinism="D2")
    assert [text for text in told(result) if text.startswith("torch.backends.cudnn.allow_tf32 was ('tf32', ")]
    assert result["fingerprint"] == plain


def test_another_kernel_of_attention_is_refused_where_the_script_chooses_it() -> None:
    def attends(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(len(x), 3, 1, 4)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).flatten(1)

    refused("Refused", "_scaled_dot_product_flash_attention", "in module odd (Odd)", model=lambda: Around(attends))


# ---------------------------------------------------------------------------------------- devices and levels


@pytest.mark.parametrize("device", ["meta", "mps", "xpu"])
def test_devices_without_d2_s_operators_are_refused(device: str) -> None:
    refused("UnsupportedError", "Level D2 has no operators for the device", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    refused("UsageError", "torch sees no GPU", device="cuda")


@pytest.mark.parametrize("level", ["D0", "D1"])
def test_a_script_that_asks_for_d2_is_not_run_below_it(level: str) -> None:
    refused("UsageError", f"the job was started at level {level}", "--determinism D2", level=level, determinism="d2")


def test_a_script_may_ask_for_d2_in_a_d2_job(plain: str) -> None:
    assert run_job(job(determinism="d2"), (1, 1), determinism="D2")["fingerprint"] == plain


# ---------------------------------------------------------------------------------------- NumPy


def test_numpy_in_a_forward_is_told_once_with_its_line() -> None:
    def by_numpy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.tanh(np.asarray(x.detach())))

    result = run_job(job(model=lambda: Around(by_numpy)), (2,), determinism="D2")
    line = by_numpy.__code__.co_firstlineno + 1
    (text,) = told(result)
    assert text.startswith("NumPy is given a tensor while the model computes")
    assert f"(test_d2_bad_input.py:{line}, in module odd (Odd))" in text


def test_looking_at_the_model_with_numpy_is_left_alone(plain: str) -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        ordinary(es, model, optimizer, x, y)
        np.histogram(model[0].weight.detach().numpy())
        model(x).argmax(1).numpy().sum()

    def without_numpy(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        ordinary(es, model, optimizer, x, y)
        model(x)

    result = run_job(job(body), (2,), determinism="D2")
    assert told(result) == []
    assert result["fingerprint"] == run_job(job(without_numpy), (2,), determinism="D2")["fingerprint"] != plain


@pytest.mark.parametrize("what", ["a weight", "a gradient"])
def test_a_write_to_the_model_through_numpy_fails_and_says_why(what: str) -> None:
    def body(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
        MLP.loss(model(x), y).backward()
        if what == "a weight":
            model[0].weight.detach().numpy()[0] = 0
        elif model[0].weight.grad is not None:
            array = model[0].weight.grad.numpy()
            array *= 0.5
        optimizer.step()

    updates = Marks()
    done = run_with_master(job(body, updates=updates), (2,), determinism="D2")
    assert done.exit_code != 0
    assert "A parameter, a gradient or a buffer of the model was written to through NumPy." in done.text
    assert "now: write to it with torch" in done.text
    assert "easyscale/runtime" not in done.text
    assert updates[0] == 0
