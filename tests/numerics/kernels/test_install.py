"""The forms under a user's model: what is replaced, what is refused, and that all of it goes again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from easyscale.numerics.kernels import install, safe
from easyscale.numerics.kernels.catalogue import FORMS
from easyscale.numerics.kernels.refusal import Refused


class Odd(nn.Module):
    """A module that calls an operator for which there is no D2 form."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


def model_of(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), layer))


def test_products_are_ours_inside_and_stock_outside() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 300), torch.randn(300, 64)
    stock = a @ b
    with install.installed():
        ours = a @ b
    assert not torch.equal(ours, stock), "a chain over 300 products rounds otherwise than the vendor's kernel"
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)
    assert torch.equal(a @ b, stock)


def test_installing_twice_is_once() -> None:
    install.install()
    install.install()
    assert install.is_installed()
    install.uninstall()
    assert not install.is_installed()
    install.uninstall()


def test_settings_come_back_as_they_were() -> None:
    before = [switch.read() for switch in install.SWITCHES]
    with install.installed():
        assert [switch.read() for switch in install.SWITCHES] == [switch.wanted for switch in install.SWITCHES]
    assert [switch.read() for switch in install.SWITCHES] == before


def test_a_script_that_switches_tf32_on_is_corrected_and_told() -> None:
    with install.installed():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.mkldnn.set_flags(True)
        told = install.correct()
        assert len(told) == 2
        assert any("allow_tf32 was True" in sentence for sentence in told)
        assert not torch.backends.cuda.matmul.allow_tf32
        assert install.correct() == []


@pytest.mark.parametrize("where", ["general", "matmul"])
def test_a_precision_set_by_torch_s_newer_interface_is_corrected_and_comes_back(where: str) -> None:
    owner = torch.backends if where == "general" else torch.backends.cuda.matmul
    before = owner.fp32_precision
    try:
        owner.fp32_precision = "tf32"
        with install.installed():
            assert torch.backends.cuda.matmul.allow_tf32 is False
            owner.fp32_precision = "tf32"
            assert any("was" in sentence and "tf32" in sentence for sentence in install.correct())
            assert torch.get_float32_matmul_precision() == "highest"
            assert install.correct() == []
        assert owner.fp32_precision == "tf32"
    finally:
        owner.fp32_precision = before


def test_an_operator_without_a_form_is_refused_with_module_and_line() -> None:
    with install.installed(), pytest.raises(Refused) as caught:
        model_of(Odd())(torch.eye(4))
    assert "linalg_inv" in caught.value.what
    assert "1.1 (Odd)" in caught.value.what
    assert "test_install.py:" in caught.value.what
    assert "scan" in caught.value.now
    assert torch.equal(Odd()(torch.eye(4)), torch.eye(4)), "outside nothing is refused"


def test_an_operator_of_a_backward_is_refused_with_its_node() -> None:
    x = torch.eye(3, requires_grad=True)
    y = torch.linalg.det(x)
    with install.installed(), pytest.raises(Refused, match="in the backward of"):
        y.backward()


def test_every_form_names_an_operator_that_torch_has() -> None:
    for name in FORMS:
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_no_operator_is_both_ours_and_safe_on_one_device() -> None:
    for device in ("cpu", "cuda"):
        both = [name for name in install.kernels(device) if safe.is_safe(name, device)]
        assert not both


def test_variants_give_the_form_s_bits() -> None:
    torch.manual_seed(1)
    x = torch.randn(50)
    with install.installed():
        wanted = torch.exp(x)
        into = torch.empty(50)
        torch.exp(x, out=into)
        over = x.clone().exp_()
        small = torch.empty(0)
        torch.exp(x, out=small)
    assert torch.equal(into, wanted)
    assert torch.equal(over, wanted)
    assert torch.equal(small, wanted)


def test_a_compiled_step_without_its_own_kernels_has_the_same_bits() -> None:
    torch.manual_seed(2)
    layer, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(5, 8)

    def gradients(module: nn.Module) -> list[torch.Tensor]:
        layer.zero_grad()
        F.mse_loss(module(x), torch.zeros(5, 8)).backward()
        return [p.grad.clone() for p in layer.parameters()]

    with install.installed():
        plain = gradients(layer)
        compiled = gradients(torch.compile(layer, backend="aot_eager"))
    for one, other in zip(plain, compiled, strict=True):
        assert torch.equal(one, other)


def test_autocast_works_above_the_forms() -> None:
    torch.manual_seed(3)
    a, b = torch.randn(9, 40), torch.randn(40, 9)
    with install.installed(), torch.autocast("cpu", torch.bfloat16):
        y = a @ b
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float(), a.bfloat16().double().mm(b.bfloat16().double()).float(), rtol=1e-2, atol=1e-2)
