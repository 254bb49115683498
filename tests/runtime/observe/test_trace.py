"""Whatever a script does with torch, its trace can be written, changes nothing, and is equal to that of another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from easyscale.master.verify.findings import compare
from easyscale.runtime.observe.trace import Trace


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


class Own(torch.Tensor):
    """A subclass as people write them."""


def sparse(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    eye = torch.eye(8).to_sparse()
    return model((eye.to_sparse_csr() @ torch.sparse.mm(eye, x.t())).t())


def complex_numbers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(torch.fft.ifft(torch.fft.fft(x).conj() * (1 + 0.5j)).real)


def own_function(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(Doubled.apply(x))


def recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False)


def recomputed_reentrant(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x.requires_grad_(), use_reentrant=True)


def subclass(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model((x.as_subclass(Own) * 2).as_subclass(torch.Tensor))


def mapped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(torch.func.vmap(lambda row: row * row.sum())(x))


def compiled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(torch.compile(lambda t: t.sin() * 2, backend="aot_eager")(x))


def without_data(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode() as mode:
        mode.from_tensor(x) * 2 + torch.ones(4, 8)
    torch.ones(3, device="meta") * 2
    return model(x)


def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with FlopCounterMode(display=False):
        return model(x)


def nested(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parts = torch.nested.nested_tensor([x[0, :3], x[1]], layout=torch.jagged)
    return model(x) * parts.values().sum()


def inferred(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        model(x)
    return model(x)


def filled_in_parts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """New memory holds whatever was there: only what was written into it counts."""
    buffer = torch.empty(4, 8)
    buffer[torch.tensor([0, 2])] = x[:2]
    buffer[torch.tensor([3, 1])] = x[2:]
    half = torch.empty(8, 8)
    half[:4] = x
    half[4:].normal_()
    return model(buffer + half[4:] * 0)


def hooked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    handles = [
        model[2].register_full_backward_hook(lambda module, given, made: None),
        model[2].weight.register_hook(lambda gradient: gradient * 0.5),
    ]
    output = model(x)
    output.register_hook(lambda gradient: gradient + 1)
    handles[0].remove()
    return output


def random_numbers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    own = torch.Generator().manual_seed(3)
    return model(x + torch.randn(4, 8, generator=own) + torch.rand(8) + torch.empty(8).uniform_())


BODIES = [
    sparse, complex_numbers, own_function, recomputed, recomputed_reentrant, subclass, mapped, compiled, without_data,
    counted, nested, inferred, filled_in_parts, hooked, random_numbers,
]  # fmt: skip


def run(body: Callable[[nn.Module, torch.Tensor], torch.Tensor], path: Path | None) -> Any:
    """One local step; with a path, traced. Returns loss, gradients and the random state after it."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.3), nn.Linear(6, 2))
    x = torch.randn(4, 8)
    torch.empty(64, 64).fill_(float(path is None))  # other leftovers in the memory that comes next
    if path is None:
        loss = body(model, x).square().mean()
        loss.backward()
    else:
        trace = Trace(model, {id(module): name for name, module in model.named_modules()})
        with trace.watching():
            loss = body(model, x).square().mean()
            loss.backward()
        trace.write(path)
    return loss.item(), [p.grad.clone() for p in model.parameters()], torch.get_rng_state()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("body", BODIES)
def test_a_trace_changes_nothing_and_equals_that_of_another_run(body: Any, tmp_path: Path) -> None:
    bare = run(body, None)
    traced = [run(body, tmp_path / name) for name in ("a", "b")]
    for loss, gradients, state in traced:
        assert loss == bare[0]
        assert all(torch.equal(a, b) for a, b in zip(gradients, bare[1], strict=True))
        assert torch.equal(state, bare[2])
    lines = [[json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("a", "b")]
    assert len(lines[0]) > 5
    assert any(line["backward"] for line in lines[0])
    assert compare(*lines, 0, 0) is None


def test_memory_that_was_read_before_it_was_written_is_found(tmp_path: Path) -> None:
    """Nothing hides a real read of what chance has left there."""

    def careless(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(4, 8)
        buffer.numpy()[:] = next(leftovers)  # stands for whatever was in that memory
        buffer[0].fill_(1)
        return model(x * buffer)

    leftovers = iter((1.0, 2.0))
    for name in ("a", "b"):
        run(careless, tmp_path / name)
    lines = [[json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("a", "b")]
    finding = compare(*lines, 0, 0)
    assert finding is not None
    assert (finding.kind, finding.operator) == ("input", "aten.mul.Tensor")


def test_an_operator_is_told_with_its_module_and_its_line(tmp_path: Path) -> None:
    run(own_function, tmp_path / "a")
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    linear = [line for line in lines if line["name"] == "aten.addmm.default"]
    assert [line["module"] for line in linear] == ["0", "2"]
    assert all("test_trace.py:" in line["line"] for line in linear)
    assert linear[0]["tensors"] == ["0.bias", None, "0.weight"]
    backward = [line for line in lines if line["backward"] == "AddmmBackward0"]
    assert {line["module"] for line in backward} == {"0", "2"}
