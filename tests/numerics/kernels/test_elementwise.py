"""The elementwise forms beside stock: values, dtypes, layouts, special values, optimizers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from easyscale.numerics.kernels import elementwise, foreach, primitives
from easyscale.numerics.kernels.formulas import SINGLE
from easyscale.numerics.kernels.registry import FORMS

aten = torch.ops.aten
FUSED_HERE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
SEED = torch.Generator().manual_seed(11)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


def call(name: str, *args: Any, **options: Any) -> Any:
    return FORMS[name].function(*args, **options)


def stock(name: str, *args: Any, **options: Any) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")(*args, **options)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return change(value) if isinstance(value, Tensor) else value


def inside(name: str, *shape: int) -> Tensor:
    """Random values where the function is defined."""
    x = torch.randn(*shape, generator=SEED)
    if name in ("log", "log2", "log10", "sqrt", "rsqrt", "log1p", "special_entr"):
        return x.abs()
    if name in ("asin", "acos", "atanh", "erfinv"):
        return torch.rand(*shape, generator=SEED) * 1.9 - 0.95
    return x.abs() + 1 if name == "acosh" else x


X, Y, G = torch.randn(3, 3, 40, generator=SEED).unbind()
Z = torch.rand(3, 40, generator=SEED) + 0.5
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[(name, (inside(name, 3, 40),), {}) for name in elementwise.UNARY],
    *[(name, (X, Z), {}) for name in elementwise.BINARY],
    ("pow.Tensor_Tensor", (Z, X), {}), ("pow.Tensor_Scalar", (Z, 1.7), {}), ("pow.Tensor_Scalar", (X, 2), {}),
    ("pow.Tensor_Scalar", (X, 3), {}), ("pow.Tensor_Scalar", (Z, 0.5), {}), ("pow.Tensor_Scalar", (Z, -0.5), {}),
    ("pow.Tensor_Scalar", (Z, -1), {}), ("pow.Tensor_Scalar", (Z, -2), {}), ("pow.Tensor_Scalar", (X, 1), {}),
    ("pow.Tensor_Scalar", (X, 0), {}), ("pow.Scalar", (2.5, X), {}), ("pow.Scalar", (1, X), {}),
    ("lerp.Scalar", (X, Y, 0.1), {}), ("lerp.Scalar", (X, Y, 0.9), {}), ("lerp.Tensor", (X, Y, Z), {}),
    ("addcmul", (X, Y, Z), {"value": 0.3}), ("addcdiv", (X, Y, Z), {"value": -0.3}),
    ("gelu", (X,), {}), ("gelu", (X,), {"approximate": "tanh"}), ("gelu_backward", (G, X), {}),
    ("gelu_backward", (G, X), {"approximate": "tanh"}), ("softplus", (X * 9,), {}), ("softplus", (X, 2.0, 1.0), {}),
    ("softplus_backward", (G, X * 9, 1.0, 20.0), {}), ("softplus_backward", (G, X, 2.0, 1.0), {}),
    ("elu", (X, 1.3, 1.1, 0.9), {}), ("elu_backward", (G, 1.3, 1.1, 0.9, False, X), {}),
    ("elu_backward", (G, 1.3, 1.1, 0.9, True, X * 0.5), {}),
    ("logit", (Z * 0.5,), {}), ("logit", (Z - 0.5, 0.2), {}), ("logit_backward", (G, Z * 0.5), {}),
    ("logit_backward", (G, Z - 0.5, 0.2), {}), ("glu", (X,), {}), ("glu", (X[:2], 0), {}),
    ("glu_backward", (G[:, :20], X, -1), {}), ("glu_backward", (G[:1], X[:2], 0), {}),
    ("hardswish_backward", (G, torch.tensor([-3.0, 3.0, 0.0, 1.0]).repeat(3, 10)), {}),
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["here", "portable"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """By what is fastest here, and by torch operators."""
    primitives.use_portable(request.param)
    yield
    primitives.use_portable(False)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("name", "args", "options"), CASES)
def test_a_form_is_the_value_of_stock_in_fp64(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Correctly rounded, but for those that are computed in fp32."""
    exact = stock(name, *[mapped(a, Tensor.double) for a in args], **options)
    ours = call(name, *args, **options)
    assert ours.dtype == torch.float32
    assert ours.shape == exact.shape
    assert ours.stride() == stock(name, *args, **options).stride()
    relative, absolute = (5e-7, 2e-7) if name in SINGLE else (7e-8, 1e-30)
    torch.testing.assert_close(ours.double(), exact, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.parametrize(("name", "args", "options"), CASES)
def test_bf16_fp16_and_fp64_come_out_as_stock_types_them(
    name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    for dtype, close in ((torch.bfloat16, 8e-3), (torch.float16, 1e-3), (torch.float64, 1e-13)):
        typed = [mapped(a, lambda x, dtype=dtype: x.to(dtype)) for a in args]
        ours = call(name, *typed, **options)
        exact = stock(name, *[mapped(a, Tensor.double) for a in typed], **options)
        assert ours.dtype == dtype
        small = 1e-7 if dtype is torch.float16 else 1e-13
        if name == "hardsigmoid_backward":
            close = max(close, 1e-7)  # stock's factor is a sixth in fp32 there
        torch.testing.assert_close(ours.double(), exact, rtol=close, atol=small, equal_nan=True)


def test_log_sigmoid_gives_an_empty_buffer_and_stocks_value() -> None:
    ours, buffer = call("log_sigmoid_forward", X)
    torch.testing.assert_close(ours.double(), torch.nn.functional.logsigmoid(X.double()), rtol=1e-7, atol=0)
    assert buffer.numel() == 0
    backward = call("log_sigmoid_backward", G, X, buffer)
    torch.testing.assert_close(backward.double(), G.double() * torch.sigmoid(-X.double()), rtol=1e-7, atol=0)


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, -3e38, 3.0, -3.0]


@pytest.mark.parametrize("name", [*elementwise.UNARY, "gelu", "softplus", "elu", "logit"])
def test_special_values_are_those_of_stock(name: str) -> None:
    x = torch.tensor(SPECIAL)
    if name in ("sin", "cos", "tan"):
        x = x[x.isnan() | (x.abs() < 2.0**30) | x.isinf()]  # beyond that a sine is defined but means little
    exact = stock(name, x.double()).float()
    ours = call(name, x)
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=0, equal_nan=True)
    signs = (ours.signbit() == exact.signbit()) | exact.isnan()
    # stock's own zeros have either sign where a factor underflows; zeros that come of zeros must agree
    assert bool((signs | (x != 0)).all())


@pytest.mark.parametrize("name", elementwise.BINARY)
def test_special_pairs_are_those_of_stock(name: str) -> None:
    x, y = (g.flatten() for g in torch.meshgrid(*[torch.tensor(SPECIAL)] * 2, indexing="ij"))
    if name == "mish_backward":
        x, y = x[y != math.inf], y[y != math.inf]  # 1 here, NaN in stock
    if name == "hardswish_backward":
        x, y = x[~y.isnan()], y[~y.isnan()]  # stock's own kernels differ
    exact = stock(name, x.double(), y.double()).float()
    ours = call(name, x, y)
    small = 1e-15 if name == "logaddexp2" else 1e-37  # stock is not exact where the sum is 0
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=small, equal_nan=True)


def test_types_are_promoted_as_in_stock() -> None:
    whole, half = torch.arange(1, 5), torch.rand(4).bfloat16()
    assert call("exp", whole).dtype == torch.float32
    assert call("sqrt", whole > 2).dtype == torch.float32
    assert call("atan2", whole, half).dtype == torch.atan2(whole, half).dtype
    assert call("atan2", whole, whole).dtype == torch.float32
    assert call("xlogy.Tensor", half, torch.tensor(2.0)).dtype == torch.bfloat16
    assert call("pow.Tensor_Scalar", whole, 0.5).dtype == torch.float32
    assert call("pow.Tensor_Scalar", whole, 2).dtype == torch.int64
    assert call("pow.Scalar", 2, whole).dtype == torch.int64
    assert call("pow.Scalar", 2.0, half).dtype == torch.bfloat16
    assert call("addcmul", half, half, half.float()).dtype == torch.float32


def test_powers_of_whole_numbers_are_exact() -> None:
    base, exponent = torch.arange(-7, 8)[:, None], torch.arange(-3, 40)
    assert torch.equal(call("pow.Tensor_Tensor", base, exponent), torch.pow(base, exponent))
    assert torch.equal(call("pow.Tensor_Scalar", base, 13), base**13)
    assert torch.equal(call("pow.Scalar", 3, exponent[3:]), 3 ** exponent[3:])
    small = torch.arange(-7, 8, dtype=torch.int8)
    assert torch.equal(call("pow.Tensor_Scalar", small, 5), small**5)
    with pytest.raises(RuntimeError, match="negative integer powers"):
        call("pow.Tensor_Scalar", base, -1)


def test_squares_are_the_product_to_the_bit() -> None:
    x = torch.randn(100_000)
    assert torch.equal(call("pow.Tensor_Scalar", x, 2), x * x)
    assert torch.equal(call("pow.Tensor_Tensor", x, torch.full_like(x, 2)), x * x)


def test_square_roots_are_correctly_rounded() -> None:
    x = torch.rand(20_000) * 100
    expected = torch.tensor([math.sqrt(v) for v in x.tolist()])  # fp64 to fp32 is innocent for a square root
    assert torch.equal(call("sqrt", x), expected)


@pytest.mark.skipif(not FUSED_HERE, reason="torch does not fuse a + alpha * b on this CPU: the form does it")
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_with_a_factor_is_fused_in_stock_here_and_in_our_form(dtype: torch.dtype) -> None:
    a, b = torch.randn(513, 97).to(dtype), torch.randn(513, 97).to(dtype)
    a[0, :3], b[0, :3] = torch.tensor([math.inf, math.nan, 1e-40]).to(dtype), 1e-30
    for x, y in ((a, b), (a.t(), b.t()), (a[:, ::3], b[:, ::3]), (a, b[:1]), (a, b[:, :1])):
        for alpha in (-0.1, 0.9, 1e-3):
            ours = elementwise.scaled_sum(x, y, alpha)
            torch.testing.assert_close(ours, torch.add(x, y, alpha=alpha), rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(ours, torch.sub(x, y, alpha=-alpha), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_halves_with_a_factor_is_fused_in_fp32(dtype: torch.dtype) -> None:
    a, b = torch.randn(10_000).to(dtype), torch.randn(10_000).to(dtype)
    factor = torch.tensor(-0.1).double()  # of fp32
    exact = a.double() + b.double() * factor  # no tie of fp32 among so few
    for name, alpha in (("add", -0.1), ("sub", 0.1)):
        assert torch.equal(call(f"{name}.Tensor", a, b, alpha=alpha), exact.float().to(dtype))
        assert torch.equal(call(f"{name}_.Tensor", a.clone(), b, alpha=alpha), exact.float().to(dtype))


def test_sums_without_a_factor_are_stocks() -> None:
    for x, y in ((X, Y), (X, Y.double()), (torch.arange(5), torch.arange(5)), (X.bfloat16(), Y.bfloat16())):
        assert torch.equal(call("add.Tensor", x, y), x + y)
        assert torch.equal(call("sub.Tensor", x, y), x - y)
    assert torch.equal(call("add.Tensor", torch.arange(5), torch.arange(5), alpha=3), torch.arange(5) * 4)
    z = X.clone()
    assert call("add_.Tensor", z, Y) is z
    assert torch.equal(z, X + Y)


def test_a_number_may_stand_for_a_tensor() -> None:
    """The dispatcher hands numbers over as Python numbers."""
    for x in (X, X.double(), torch.arange(3), torch.tensor(2)):
        for number in (2, 0.1):
            shown = call("add.Tensor", x, number), call("sub.Tensor", number, x), call("add.Tensor", x, number, alpha=3)
            for ours, expected in zip(shown, (x + number, number - x, torch.add(x, number, alpha=3)), strict=True):
                assert ours.dtype == expected.dtype
                torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
            assert call("atan2", x, number).dtype == torch.atan2(x, torch.tensor(number)).dtype or x.dim() == 0
            assert call("pow.Tensor_Tensor", x.abs(), number).dtype == (x.abs() ** number).dtype
    half = X.bfloat16()
    assert torch.equal(call("add.Tensor", half, 0.1), (half.float() + 0.1).bfloat16())
    assert torch.equal(call("add_.Tensor", half.clone(), 0.1), (half.float() + 0.1).bfloat16())
    assert torch.equal(call("sub_.Tensor", X.clone(), 0.1), X - 0.1)


def test_an_unfused_sum_with_a_factor_is_seen_to_differ() -> None:
    a, b = torch.randn(10_000), torch.randn(10_000)
    assert not torch.equal(elementwise.scaled_sum(a, b, 0.1), a + b * 0.1)


def test_ties_are_not_broken_by_rounding_twice() -> None:
    # 1 + 2^-24 + 2^-60: fp64 loses the last part and would then see a tie, which goes to even, down
    a, b = torch.tensor([1.0 + 2.0**-23]), torch.tensor([2.0**-24 + 2.0**-47])
    tie = torch.tensor([1.0]), torch.tensor([2.0**-24])
    assert elementwise.scaled_sum(*tie, 1.0 + 2.0**-23).item() == 1.0 + 2.0**-23
    assert elementwise.scaled_sum(a, b, 1.0).item() == 1.0 + 2.0**-22
    c = torch.tensor([2.0**-60])
    exact = torch.tensor([1.0 + 2.0**-24], dtype=torch.float64)
    assert (exact + c.double()).float().item() == 1.0  # rounded twice
    got = primitives.evaluate("add_scaled", [exact, c], [1.0], dtype=torch.float32)
    assert got.item() == 1.0 + 2.0**-23


# --------------------------------------------------------------------------- lists and optimizers


def lists() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return [torch.randn(5), torch.randn(2, 3)], [torch.randn(5), torch.randn(2, 3)], [torch.rand(5), torch.rand(2, 3)]


@pytest.mark.parametrize(
    ("name", "rest", "options"),
    [
        ("add.List", lambda b, c: (b,), {"alpha": 0.3}),
        ("sub.List", lambda b, c: (b,), {"alpha": 0.3}),
        ("add.Tensor", lambda b, c: (torch.tensor(2.0),), {"alpha": 0.5}),
        ("addcmul.Scalar", lambda b, c: (b, c, 0.3), {}),
        ("addcdiv.ScalarList", lambda b, c: (b, c, [0.3, 0.4]), {}),
        ("addcdiv.Tensor", lambda b, c: (b, c, torch.tensor([0.3, 0.4])), {}),
        ("lerp.Scalar", lambda b, c: (b, 0.3), {}),
        ("lerp.List", lambda b, c: (b, c), {}),
        ("lerp.ScalarList", lambda b, c: (b, [0.1, 0.8]), {}),
        ("maximum.List", lambda b, c: (b,), {}),
        ("sigmoid", lambda b, c: (), {}),
        ("pow.Scalar", lambda b, c: (2,), {}),
        ("pow.ScalarList", lambda b, c: ([2, 3],), {}),
    ],
)
def test_lists_are_loops_over_the_single_operators(
    name: str, rest: Callable[..., tuple[Any, ...]], options: dict[str, Any]
) -> None:
    a, b, c = lists()
    packet, dot, overload = name.partition(".")
    expected = stock(f"_foreach_{name}", a, *rest(b, c), **options)
    assert all(map(torch.equal, call(f"_foreach_{name}", a, *rest(b, c), **options), expected))
    call(f"_foreach_{packet}_{dot}{overload}", a, *rest(b, c), **options)
    assert all(map(torch.equal, a, expected))


OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any], str]] = [
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}, "_fused_adam_"),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}, "_fused_adam_"),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}, "_fused_adamw_"),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, "_fused_sgd_"),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "_fused_sgd_"),
    (torch.optim.SGD, {"lr": 0.1, "maximize": True}, "_fused_sgd_"),
]


@pytest.mark.parametrize(("kind", "options", "name"), OPTIMIZERS)
def test_a_fused_optimizer_has_the_bits_of_the_plain_one(
    kind: Any, options: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(7, 5)
    other = copy.deepcopy(model)
    monkeypatch.setattr(torch, name, FORMS[name].function)
    plain = kind(model.parameters(), foreach=False, **options)
    fused = kind(other.parameters(), fused=True, **options)
    for _ in range(4):
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        plain.step()
        fused.step()
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_fused_step_is_left_out_where_the_scaler_found_an_infinity() -> None:
    param, grad = torch.ones(3), torch.full((3,), 8.0)
    common = {"weight_decay": 0.0, "momentum": 0.0, "lr": 1.0, "dampening": 0.0, "nesterov": False, "maximize": False,
              "is_first_step": False, "grad_scale": torch.tensor(4.0)}  # fmt: skip
    foreach.fused_sgd([param], [grad], [], found_inf=torch.tensor(1.0), **common)  # type: ignore[arg-type]
    assert torch.equal(param, torch.ones(3))
    foreach.fused_sgd([param], [grad], [], found_inf=torch.tensor(0.0), **common)  # type: ignore[arg-type]
    assert torch.equal(param, torch.full((3,), -1.0))
    assert torch.equal(grad, torch.full((3,), 2.0))
