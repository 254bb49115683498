"""Updates as scripts write them: optimizers with default arguments, clipping and the loss scaler, under D2."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from d2_rows import assert_same, native_only, portable, threads
from easyscale.numerics.kernels.install import installed

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=5e-4),
    "SGD with Nesterov's momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "Adam with weight decay and amsgrad": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
}
# As given, by lists of tensors, by fused kernels, and one parameter after the other.
WAYS: dict[str, dict[str, Any]] = {
    "default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "plain": {"foreach": False},
}  # fmt: skip


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """More than a thread's share, odd sizes, one element, none."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(131, 257), (13,), (1,), (0, 4), (3, 1, 5)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(found: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for one in found:
        drawn = torch.randn(one.shape, generator=generator)
        one.grad = (drawn * torch.tensor([1e-20, 1e-3, 1.0, 50.0])[step]).to(one.dtype)


def updated(make: Optimizer, way: str = "default", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Parameters and norms after four updates with clipping."""
    with installed():
        found = parameters(dtype)
        optimizer = make(found)
        for group in optimizer.param_groups:
            group.update(WAYS[way])
        norms = []
        for step in range(4):
            gradients(found, step)
            norms.append(torch.nn.utils.clip_grad_norm_(found, 1.0))
            optimizer.step()
            optimizer.zero_grad()
    return [*(one.detach() for one in found), *norms]


@native_only
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_have_the_same_bits_by_both_implementations_and_any_number_of_threads(name: str) -> None:
    with portable():
        wanted = updated(OPTIMIZERS[name])
    for number in (1, 2):
        with threads(number):
            assert_same(updated(OPTIMIZERS[name]), wanted)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", ["foreach", "fused", "plain"])
def test_updates_have_the_same_bits_however_the_optimizer_loops(name: str, way: str) -> None:
    assert_same(updated(OPTIMIZERS[name], way), updated(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_bf16_parameters_are_the_same_by_both_implementations(name: str) -> None:
    ours = updated(OPTIMIZERS[name], dtype=torch.bfloat16)
    with portable():
        assert_same(updated(OPTIMIZERS[name], dtype=torch.bfloat16), ours)
    assert ours[0].dtype is torch.bfloat16


def test_another_learning_rate_is_another_result() -> None:
    """A negative control: the comparison sees a change in the last bits."""
    ours = updated(lambda p: torch.optim.Adam(p, 1e-2))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(updated(lambda p: torch.optim.Adam(p, 1e-2 * (1 + 1e-6))), ours)


# ------------------------------------------------------------------------------------------------- in plain numbers


def single(value: float) -> float:
    """Rounded to fp32."""
    return torch.tensor(value, dtype=torch.float64).float().item()


def fused(a: float, b: float, c: float) -> float:
    """a * b + c of fp32 numbers, rounded once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = torch.tensor(float(exact), dtype=torch.float64).float()  # rounded twice: right, or next to it
    around = [near, *(near.nextafter(torch.tensor(end)) for end in (math.inf, -math.inf))]
    return min((x.item() for x in around), key=lambda x: abs(Fraction(x) - exact))


def test_sgd_with_momentum_is_the_written_sequence() -> None:
    p, buffer = 0.7299999, 0.0
    p, rate, momentum, decay = single(p), 0.1, 0.9, 5e-4
    with installed():
        parameter = nn.Parameter(torch.tensor([p]))
        optimizer = torch.optim.SGD([parameter], rate, momentum=momentum, weight_decay=decay)
        for step, gradient in enumerate((0.31, -1.7, 2.9e-5)):
            parameter.grad = torch.tensor([gradient])
            optimizer.step()
            d = fused(single(decay), p, single(gradient))
            buffer = d if step == 0 else single(single(buffer * single(momentum)) + d)
            p = fused(single(-rate), buffer, p)
            assert parameter.item() == p


def test_adam_is_the_written_sequence() -> None:
    p, m, v, rate, eps = single(0.3), 0.0, 0.0, 1e-3, 1e-8
    with installed():
        parameter = nn.Parameter(torch.tensor([p]))
        optimizer = torch.optim.Adam([parameter], rate)
        for step, gradient in enumerate((0.25, -1.75, 3e-5), start=1):
            parameter.grad = torch.tensor([gradient])
            optimizer.step()
            g = single(gradient)
            m = single(m + (1 - 0.9) * (g - m))  # lerp, in fp64
            v = single(single(v * single(0.999)) + (1 - 0.999) * (g * g))  # mul, then addcmul in fp64
            n = single(single(single(math.sqrt(v)) / single((1 - 0.999**step) ** 0.5)) + single(eps))
            p = single(p + -(rate / (1 - 0.9**step)) * (m / n))  # addcdiv, in fp64
            assert parameter.item() == p


# ------------------------------------------------------------------------------------------------- clipping, scaling


def test_clipping_is_one_norm_of_norms_and_one_factor() -> None:
    found = parameters()
    gradients(found, 3)
    before = [one.grad.clone() for one in found if one.grad is not None]
    with installed():
        total = torch.nn.utils.clip_grad_norm_(found, 0.5)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in before])
        wanted = torch.linalg.vector_norm(norms)
        factor = (0.5 / (wanted + 1e-6)).clamp(max=1.0)
        assert_same([one.grad for one in found], [g * factor for g in before])
    assert_same(total, wanted)
    exact = torch.cat([g.double().reshape(-1) for g in before]).norm()
    assert total.item() == pytest.approx(exact.item(), rel=1e-6)


@pytest.mark.parametrize("how", [{"norm_type": 1.0}, {"norm_type": math.inf}, {"norm_type": 3.0}, {"foreach": False}])
def test_other_norms_clip_with_the_same_bits_by_both_implementations(how: dict[str, Any]) -> None:
    def clipped() -> list[Tensor]:
        found = parameters()[:3]
        gradients(found, 3)
        with installed():
            total = torch.nn.utils.clip_grad_norm_(found, 0.5, **how)
        return [total, *(one.grad for one in found if one.grad is not None)]

    ours = clipped()
    with portable():
        assert_same(clipped(), ours)


def _scaled_training() -> tuple[list[Tensor], list[float]]:
    """Five updates under autocast to fp16 with a loss scale that overflows at first; parameters and scales."""
    generator = torch.Generator().manual_seed(3)
    with installed():
        model = nn.Sequential(nn.Linear(7, 33), nn.ReLU(), nn.Linear(33, 3))
        with torch.no_grad():
            for one in model.parameters():
                one.copy_(torch.randn(one.shape, generator=generator) * 0.3)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=2)
        scales = []
        for _ in range(5):
            x, y = torch.randn(19, 7, generator=generator), torch.randint(3, (19,), generator=generator)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    return [one.detach() for one in model.parameters()], scales


@native_only
def test_training_with_a_loss_scale_has_the_same_bits_everywhere() -> None:
    with portable():
        wanted, scales = _scaled_training()
    assert scales[0] < 2.0**24, "the first scale was to overflow"
    assert max(scales) > min(scales), "the scale was to grow again"
    for number in (1, 2):
        with threads(number):
            found, other = _scaled_training()
        assert_same(found, wanted)
        assert other == scales
