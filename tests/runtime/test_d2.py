"""What a D2 job watches over in its process, piece by piece; and that all of it is gone when the job is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cluster import run_job
from easyscale.core.errors import UnsupportedError, UsageError
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.kernels import attention, install
from easyscale.numerics.kernels.switches import SWITCHES
from easyscale.runtime import engine
from easyscale.runtime.d2 import Guard, plain_updates, refuse_device_generators, refuse_types
from workloads import MLP, with_easyscale


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def guard(said: list[str]) -> Iterator[Guard]:
    """Of a D2 job in this process."""
    guard = Guard(said.append)
    with install.installed():
        guard.begin()
        try:
            yield guard
        finally:
            guard.end()


def prepared(guard: Guard) -> nn.Linear:
    model = nn.Linear(3, 2)
    guard.prepared(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    return model


# ---------------------------------------------------------------------------------------- our own operators


@pytest.mark.usefixtures("guard")
def test_our_own_operators_are_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "DEVICES", {"cpu"})
    x = torch.ones(1, 2, 3, 4, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
    assert x.grad is not None


# ---------------------------------------------------------------------------------------- the compiler


@pytest.mark.usefixtures("guard")
@pytest.mark.filterwarnings("ignore")
def test_the_compiler_traces_the_model_and_does_not_look_into_the_kernels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    model.compile(backend="aot_eager")  # stock compiles no Sequential by this method; what it sees next are kernels
    seen = torch._dynamo.utils.counters["stats"]
    before = seen["unique_graphs"]
    try:
        model(torch.randn(4, 3, 8, 8)).sum().backward()
    finally:
        torch._dynamo.reset()  # what it has learned of Sequential would make it skip those of other tests
    assert seen["unique_graphs"] - before <= 1


# ---------------------------------------------------------------------------------------- once


def test_a_setting_that_is_switched_again_and_again_is_corrected_each_time_and_told_once(
    guard: Guard, said: list[str]
) -> None:
    for _ in range(3):
        torch.backends.cuda.matmul.allow_tf32 = True
        guard.check()
        assert not torch.backends.cuda.matmul.allow_tf32
    assert [text for text in said if "allow_tf32 was True" in text] == said[:1]


def test_settings_that_torch_changes_together_are_named_with_what_the_script_made_them(
    guard: Guard, said: list[str]
) -> None:
    torch.set_float32_matmul_precision("medium")
    guard.check()
    assert torch.get_float32_matmul_precision() == "highest"
    assert "torch.get_float32_matmul_precision() was medium" in " ".join(said)
    assert all(text.endswith(".") for text in said)


# ---------------------------------------------------------------------------------------- the model


def test_parameters_of_a_type_that_d2_does_not_have_are_refused_by_name() -> None:
    refuse_types(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).half()))
    with pytest.raises(UnsupportedError, match=r"The parameter 1\.weight is float64"):
        refuse_types(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def test_a_generator_on_another_device_is_refused_by_name() -> None:
    class OnGpu(torch.Generator):
        device = torch.device("cuda")

    model = nn.Sequential(nn.Linear(2, 2))
    model[0].noise = torch.Generator()
    refuse_device_generators(model)
    model[0].noise = OnGpu()
    with pytest.raises(UnsupportedError, match=r"The generator 0\.noise is on cuda"):
        refuse_device_generators(model)


def test_updates_are_made_plain_in_every_group_and_said_where_they_were_asked_for() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": a.parameters(), "fused": True}, {"params": b.parameters()}]
    optimizer = torch.optim.AdamW(groups)
    sentences = plain_updates(optimizer)
    assert len(sentences) == 1
    assert "AdamW(fused=True) runs with fused=False" in sentences[0]
    assert [(g["fused"], g["foreach"]) for g in optimizer.param_groups] == [(False, False)] * 2
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    assert plain_updates(torch.optim.SGD(a.parameters(), lr=0.1)) == []


# ---------------------------------------------------------------------------------------- NumPy


def test_the_model_s_memory_is_handed_to_numpy_to_be_read_only(guard: Guard) -> None:
    model = prepared(guard)
    model.weight.grad = torch.ones_like(model.weight)
    for tensor in (model.weight.detach(), model.weight.data[0], model.weight.grad):
        array = tensor.numpy()
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert not np.asarray(model.bias.detach()).flags.writeable


def test_other_tensors_are_handed_to_numpy_as_ever(guard: Guard, said: list[str]) -> None:
    assert nn.Linear(2, 2).weight.detach().numpy().flags.writeable  # nothing is prepared yet
    model = prepared(guard)
    for tensor in (torch.zeros(3), model(torch.zeros(1, 3)).detach(), model.weight.detach().clone(), torch.zeros(0)):
        assert tensor.numpy().flags.writeable
    assert torch.arange(3).numpy().flags.writeable
    assert said == []


class Glances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + float(x.detach().numpy().mean())


def test_numpy_in_a_forward_is_said_of_the_model_and_not_of_a_transform(guard: Guard, said: list[str]) -> None:
    prepared(guard)
    Glances()(torch.ones(2))
    assert said == []
    model = nn.Sequential(nn.Linear(3, 2), Glances())
    guard.prepared(model, [])
    for _ in range(2):
        model(torch.ones(1, 3))
    (text,) = said
    assert "in module 1 (Glances)" in text


def test_numpy_in_a_backward_is_said(guard: Guard, said: list[str]) -> None:
    model = prepared(guard)
    model.weight.register_hook(lambda gradient: gradient * float(gradient.numpy().mean()))
    model(torch.ones(1, 3)).sum().backward()
    (text,) = said
    assert "NumPy is given a tensor" in text


# ---------------------------------------------------------------------------------------- devices


def test_each_worker_of_a_mixed_plan_has_the_device_of_its_place() -> None:
    spec = WorkerSpec(ests=3, split=(1, 1, 1), device="cpu,meta", determinism="D1")
    kinds = [engine._device(replace(spec, worker=worker)).type for worker in range(3)]
    assert kinds == ["cpu", "meta", "cpu"]
    with pytest.raises(UnsupportedError, match="no operators for the device 'meta'"):
        engine._device(replace(spec, worker=1, determinism="D2"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_of_a_mixed_plan_that_is_not_there_is_said() -> None:
    spec = WorkerSpec(ests=2, split=(1, 1), worker=1, device="cpu,cuda", determinism="D2")
    with pytest.raises(UsageError, match="torch sees no GPU"):
        engine._device(spec)


def test_gpus_of_a_mixed_plan_are_counted_without_the_cpus_between_them() -> None:
    spec = WorkerSpec(ests=4, split=(1, 1, 1, 1), device="cuda,cpu", determinism="D2")
    assert [replace(spec, worker=worker).gpu_number for worker in (0, 2)] == [0, 1]


# ---------------------------------------------------------------------------------------- the end


def state() -> dict[str, Any]:
    """All that D2 changes in a process, and the bits of a product and of a function."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, 257, generator=generator)
    return {
        "installed": install.is_installed(),
        "bits": [(x @ x.T).numpy().tobytes().hex(), torch.tanh(x).numpy().tobytes().hex()],
        "switches": [str(switch.read()) for switch in SWITCHES],
        "numpy": "numpy" in vars(torch.Tensor),
        "impl": torch.library.Library.impl.__module__,
        "compile": torch._TorchCompileInductorWrapper.__call__.__module__,
        "script": torch._C._get_graph_executor_optimize(),
        "ours": sorted(entry for entry in torch.library._impls if entry.startswith("aten/mm/CPU")),
    }


def test_after_a_job_without_the_launcher_the_process_is_as_before() -> None:
    def train() -> dict[str, Any]:
        import os

        from easyscale.core.spec import WORKER_VARIABLE
        from easyscale.runtime import api

        del os.environ[WORKER_VARIABLE]  # alone
        torch.use_deterministic_algorithms(True)  # as every level leaves it
        library = torch.library.Library("d2_end", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        before = state()
        seen: dict[str, Any] = {}

        def look(*_: Any) -> None:
            seen.update(state())

        with_easyscale(replace(MLP, init={"ests": 2, "determinism": "d2"}, groups=watched(look)))()
        api.engine().finish()
        after = state()
        twice = torch.ops.d2_end.twice(torch.ones(1)).item()
        api.engine().finish = lambda: None  # type: ignore[method-assign]
        return {"before": before, "inside": seen, "after": after, "twice": twice}

    result = run_job(train, (1,))
    assert result["after"] == result["before"]
    assert result["twice"] == 2.0
    inside = result["inside"]
    assert inside["installed"]
    changed = {name for name in inside if inside[name] != result["before"][name]}
    assert changed == {"installed", "bits", "switches", "numpy", "impl", "compile", "script", "ours"}


def watched(look: Any) -> Any:
    """Parameter groups; `look` is called when the first gradient of the job is there."""

    def groups(model: nn.Module) -> Any:
        next(iter(model.parameters())).register_post_accumulate_grad_hook(look)
        return model.parameters()

    return groups
