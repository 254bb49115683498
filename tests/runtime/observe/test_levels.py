"""Operators get the level that a D2 job would give them, and times and places are noted while a script runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from easyscale.numerics.kernels import attention, install
from easyscale.numerics.kernels.refusal import Refused
from easyscale.numerics.kernels.registry import FORMS
from easyscale.runtime.observe.levels import _FAMILIES, STOCK_FAMILY, Levels, family_of
from easyscale.runtime.observe.scan import LOOP, Scanner

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "level", "family"),
    [
        (ATEN.mm.default, "D2", "products"),
        (ATEN.convolution_backward.default, "D2", "convolutions"),
        (ATEN.native_layer_norm.default, "D2", "norms"),
        (ATEN._log_softmax.default, "D2", "softmax"),
        (ATEN.nll_loss_forward.default, "D2", "losses"),
        (ATEN.sum.dim_IntList, "D2", "sums"),
        (ATEN.exp_.default, "D2", "elementwise"),
        (ATEN.bernoulli_.float, "D2", "random"),
        (ATEN.view.default, "D2", STOCK_FAMILY),
        (ATEN.relu.default, "D2", STOCK_FAMILY),
        (ATEN._scaled_dot_product_flash_attention.default, "D2", "attention"),
        (torch.ops.easyscale.attention.default, "D2", "attention"),
        (torch.ops.easyscale.attention_backward.default, "D2", "attention"),
        (ATEN.linalg_inv_ex.default, "D1", STOCK_FAMILY),
        (ATEN._fft_r2c.default, "D1", STOCK_FAMILY),
    ],
)
def test_an_operator_has_the_level_of_its_form(operator: Any, level: str, family: str) -> None:
    standing = Levels().of(operator, "cpu")
    assert (standing.level, standing.family) == (level, family)
    assert bool(standing.why) == (level != "D2" or operator._schema.name.startswith("aten::_scaled_dot"))


def test_an_operator_of_an_extension_is_at_d0_and_the_extension_is_named() -> None:
    with torch.library._scoped_library("shop_of_levels", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: 2 * x, "CPU")
        standing = Levels().of(torch.ops.shop_of_levels.double.default, "cpu")
        assert (standing.level, standing.family) == ("D0", "extensions")
        assert "shop_of_levels" in standing.why


def test_every_operator_with_a_form_has_a_family_of_its_own() -> None:
    assert FORMS
    assert [name for name in FORMS if family_of(name) == STOCK_FAMILY] == []
    assert {form.function.__module__.rpartition(".")[2] for form in FORMS.values()} <= set(_FAMILIES)
    assert family_of("no_such_operator") == STOCK_FAMILY


def test_whatever_a_d2_job_refuses_is_not_at_d2_in_a_scan() -> None:
    """Both read the same tables. Composites are taken apart before they reach a kernel, so only kernels are asked."""
    levels = Levels()
    install.install()
    try:
        for name in ("linalg_inv_ex", "_fft_r2c", "_linalg_eigh", "cholesky", "mm", "exp", "view", "relu"):
            operator = getattr(ATEN, name)
            operator = getattr(operator, operator.overloads()[0])
            at_d2 = levels.of(operator, "cpu").level == "D2"
            assert at_d2 == (_refusal_of(name) is None), name
    finally:
        install.uninstall()


def _refusal_of(name: str) -> str | None:
    x = torch.eye(3)
    arguments: dict[str, tuple[Any, ...]] = {
        "mm": (x, x), "view": (x, [9]), "_fft_r2c": (x, [0], 0, True), "_linalg_eigh": (x,),
    }  # fmt: skip
    try:
        getattr(ATEN, name)(*arguments.get(name, (x,)))
    except Refused as problem:
        return str(problem)
    return None


# ---------------------------------------------------------------------------------------- the scanner


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.first(x))  # type: ignore[no-any-return]


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def scanned(tmp_path: Path, model: nn.Module, body: Any, steps: int = 5) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scanner = Scanner(str(tmp_path / "scan.json"), torch.device("cpu"))
    scanner.prepared(model, [optimizer])
    for step in range(steps):
        with scanner.body(step):
            body(step).backward()
            optimizer.step()
            optimizer.zero_grad()
        scanner.step_ended()
    facts: dict[str, Any] = json.loads((tmp_path / "scan.json").read_text())
    return facts


def test_operators_are_noted_with_module_class_phase_and_line(tmp_path: Path, model: Net) -> None:
    facts = scanned(tmp_path, model, lambda step: model(torch.ones(2, 4)).square().mean())
    rows = {(row["module"], row["phase"], row["operator"]): row for row in facts["operators"]}
    assert rows["first", "forward", "addmm"]["kind"] == "Linear"
    assert rows["blocks.1", "forward", "tanh"]["kind"] == "Tanh"
    assert rows["blocks.1", "backward", "tanh_backward"]["calls"] == 1
    assert rows[LOOP, "forward", "mean"]["kind"] == ""
    assert rows["SGD", "update", "add_.Tensor"]["calls"] == 8  # momentum and weights of four parameters
    assert all("test_levels.py" in row["line"] for row in rows.values() if row["phase"] == "forward")
    assert {row["level"] for row in rows.values()} == {"D2"}
    assert (facts["level"], facts["traced"], len(facts["steps"])) == ("D1", 3, 2)


class Reader(nn.Module):
    """Layers that D2 takes apart by functions of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LSTM(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.steps(x)[0]
        return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def test_what_d2_takes_apart_is_noted_with_its_module_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "DEVICES", {"cpu"})
    torch.manual_seed(0)
    with install.installed():
        reader = Reader()
        facts = scanned(tmp_path, reader, lambda step: reader(torch.ones(3, 2, 4)).sum())
    rows = {(row["module"], row["phase"], row["operator"]): row for row in facts["operators"]}
    for phase, operator in (("forward", "easyscale.attention"), ("backward", "easyscale.attention_backward")):
        row = rows["attention", phase, operator]
        assert (row["level"], row["family"]) == ("D2", "attention")
        assert "test_levels.py" in row["line"]
    assert "test_levels.py" in rows["steps", "forward", "sigmoid_"]["line"]
    assert {row["level"] for row in rows.values()} == {"D2"}


def test_what_a_later_step_no_longer_does_is_listed_without_time(tmp_path: Path, model: Net) -> None:
    def body(step: int) -> torch.Tensor:
        x = torch.ones(2, 4)
        return model(torch.linalg.inv(torch.eye(4))[:2] if step == 0 else x).sum()  # type: ignore[no-any-return]

    (inverse,) = [row for row in scanned(tmp_path, model, body)["operators"] if row["operator"] == "linalg_inv_ex"]
    assert (inverse["level"], inverse["calls"], inverse["seconds"]) == ("D1", 0, 0.0)


def test_a_nondeterministic_operator_is_noted_at_d0_and_let_through(tmp_path: Path, model: Net) -> None:
    def body(step: int) -> torch.Tensor:
        x = torch.put(torch.ones(2, 4), torch.tensor([0, 1]), torch.ones(2))  # torch refuses it, on CPUs too
        return model(x).sum()  # type: ignore[no-any-return]

    facts = scanned(tmp_path, model, body)
    assert {row["operator"] for row in facts["operators"] if row["level"] == "D0"} == {"put"}
    assert len(facts["steps"]) == 2
    assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="deterministic"):
        body(0)


def test_a_scan_changes_no_bit(tmp_path: Path) -> None:
    def weights(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = Net()
        if watched:
            scanned(tmp_path, net, lambda step: net(torch.full((2, 4), 1.0 + step)).square().mean())
            return [p.detach() for p in net.parameters()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(5):
            net(torch.full((2, 4), 1.0 + step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in net.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(weights(True), weights(False), strict=True))


def test_a_script_that_fails_leaves_what_was_seen(tmp_path: Path, model: Net) -> None:
    def body(step: int) -> torch.Tensor:
        model(torch.ones(2, 4))
        raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        scanned(tmp_path, model, body)
    seen = {row["operator"] for row in json.loads((tmp_path / "scan.json").read_text())["operators"]}
    assert {"addmm", "tanh"} <= seen
