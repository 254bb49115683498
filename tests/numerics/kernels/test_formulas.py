"""The formulas: one definition, run by Python's floats, torch operators, three C libraries and the Triton text."""

from __future__ import annotations

import functools
import math
import struct
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from easyscale.numerics.kernels import primitives
from easyscale.numerics.kernels.emit_triton import triton_source
from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.native import elementwise as native
from easyscale.numerics.kernels.native import library
from easyscale.numerics.kernels.portable import elementwise as portable
from easyscale.numerics.kernels.tracing import Kind, bits_of, wrapped

needs_library = pytest.mark.skipif(not library.available(), reason="no C library was built")

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40,
    2.0**-126, 3.4e38, -3.4e38, 88.7, 89.0, -87.4, -103.0, -104.0, -150.0, 20.0, 40.0, 44.0, 1e10, 2.0**30, 1.5707964,
    3.1415927, 0.99999994, 1.0000001, -0.99999994, 10.0, 100.0, 1000.0, 26.0, 28.0, 5.9, -5.9, 5e-324, -1e-310, 1.7e308,
    710.0, -745.5,
]  # fmt: skip
SCALARS = [1.3, 0.7, 1.1]


# --------------------------------------------------------------------------- the reference: Python's floats


def divided(a: float, b: float) -> float:
    if b != 0 or math.isnan(a):
        return a / b if b != 0 else math.nan
    if a == 0 or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def from_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def single(value: float) -> float:
    """Rounded to fp32."""
    return float(torch.tensor(value, dtype=torch.float64).float())


def fused(a: float, b: float, c: float) -> float:
    """a * b + c with one rounding: by fractions, where they are finite."""
    if not all(map(math.isfinite, (a, b, c))):
        return single(a * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return a * b + c  # of the signs of the zeros
    near = single(float(exact))  # rounded twice: it or a neighbour is right
    found = torch.tensor(near)
    around = [float(torch.nextafter(found, torch.tensor(to))) for to in (-math.inf, math.inf)]
    finite = [value for value in (near, *around) if math.isfinite(value)]
    if not math.isfinite(near):
        return near
    distance = min(abs(Fraction(value) - exact) for value in finite)
    nearest = [value for value in finite if abs(Fraction(value) - exact) == distance]
    even = [value for value in nearest if not torch.tensor(value).view(torch.int32) & 1]
    return math.copysign((even or nearest)[0] if len(nearest) > 1 else nearest[0], 1 if exact > 0 else -1)


def power_of_two(shifted: float) -> float:
    return float(((torch.tensor(shifted).view(torch.int32) + 127) << 23).view(torch.float32))


def guess(value: float) -> float:
    return float((0x7EF311C7 - torch.tensor(value).view(torch.int32)).view(torch.float32))


REFERENCE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": divided,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan, "neg": lambda a: -a, "abs": abs,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a,
    "where": lambda c, a, b: a if c else b, "bits": bits_of, "from_bits": from_bits,
    "iadd": lambda a, b: wrapped(a + b), "isub": lambda a, b: wrapped(a - b), "iand": lambda a, b: a & b,
    "ior": lambda a, b: a | b, "ixor": lambda a, b: a ^ b, "ishl": lambda a, n: wrapped(a << n),
    "ishr": lambda a, n: (a % (1 << 64)) >> n,
    "sadd": lambda a, b: single(a + b), "ssub": lambda a, b: single(a - b), "smul": lambda a, b: single(a * b),
    "sneg": lambda a: -a, "sabs": abs, "sfma": fused,
    "ssign": math.copysign, "spower": power_of_two, "sguess": guess, "slt": lambda a, b: a < b,
    "swhere": lambda c, a, b: a if c else b,
}  # fmt: skip


def by_python(name: str, columns: list[list[float]], scalars: list[float]) -> Tensor:
    formula = FORMULAS[name]
    if formula.single:
        columns = [[single(value) for value in column] for column in columns]
    return torch.tensor(
        [formula.evaluate(REFERENCE, lambda value, kind: value, row, scalars) for row in zip(*columns, strict=True)],
        dtype=torch.float64,
    )


def same(a: Tensor, b: Tensor) -> bool:
    """The same bits; NaN is NaN."""
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.dtype == b.dtype and bool(((a.view(width) == b.view(width)) | (a.isnan() & b.isnan())).all())


@functools.cache
def samples(tensors: int, count: int = 200) -> list[Tensor]:
    """fp64: special values in all pairs, and random ones of all sizes."""
    made = torch.Generator().manual_seed(7)
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    grids = torch.meshgrid(*[special if i < 2 else special[:4] for i in range(tensors)], indexing="ij")
    columns = []
    for grid in grids:
        bits = torch.randint(-(2**31), 2**31, (count,), generator=made).to(torch.int32).view(torch.float32)
        near = torch.randn(count, generator=made, dtype=torch.float64)
        wide = torch.randn(count, generator=made, dtype=torch.float64) * 30
        unit = torch.rand(count, generator=made, dtype=torch.float64)
        columns.append(torch.cat([grid.flatten(), bits.double(), near, wide, unit]))
    return columns


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("name", FORMULAS)
def test_torch_operators_give_the_bits_of_python_floats(name: str) -> None:
    formula = FORMULAS[name]
    inputs = [x[:: 1 + len(x) // 1500] for x in samples(formula.tensors)]
    scalars = SCALARS[: formula.scalars]
    expected = by_python(name, [x.tolist() for x in inputs], scalars)
    assert same(portable.evaluate(name, inputs, scalars, dtype=torch.float64), expected)


@pytest.fixture(params=["avx512", "avx2", "base"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of the libraries that this CPU can run."""
    order = ["base", "avx2", "avx512"]
    known = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "base")
    path = library.path_of(request.param)
    if order.index(request.param) > order.index(known) or not path.exists():
        pytest.skip("this CPU, or this build, does not have it")
    loaded = library.open_library(path)
    monkeypatch.setattr(native, "library", lambda: loaded)
    native._loop.cache_clear()
    yield request.param
    native._loop.cache_clear()


@needs_library
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_c_library_gives_the_bits_of_torch_operators(variant: str, dtype: torch.dtype) -> None:
    different = []
    for name, formula in FORMULAS.items():
        inputs = [x.to(dtype) for x in samples(formula.tensors)]
        scalars = SCALARS[: formula.scalars]
        ours = native.evaluate(name, inputs, scalars, dtype=dtype)
        if not same(ours, portable.evaluate(name, inputs, scalars, dtype=dtype)):
            different.append(name)
    assert not different


@needs_library
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin", "exp_single", "tanh_single", "gelu_single"])
def test_a_million_values_of_fp32_have_the_same_bits_in_c_and_in_torch(name: str) -> None:
    bits = torch.arange(-(2**31), 2**31, 4099)  # all exponents, subnormals, infinities, NaN, both signs
    x = bits.to(torch.int32).view(torch.float32)
    assert len(x) > 1_000_000
    assert same(native.evaluate(name, [x], dtype=torch.float32), portable.evaluate(name, [x], dtype=torch.float32))


@needs_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_is_read_and_written_as_torch_does(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    read = native.evaluate("elu", [x], [1.0, 1.0, 1.0], dtype=torch.float64)[x >= 0]
    assert same(read, x[x >= 0].double())
    halfway = torch.rand(100_000, dtype=torch.float64) * 10.0 ** torch.linspace(-9, 6, 100_000, dtype=torch.float64)
    written = native.evaluate("elu", [halfway], [1.0, 1.0, 1.0], dtype=dtype)
    assert same(written, halfway.float().to(dtype))


@needs_library
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_are_converted_in_the_loop(dtype: torch.dtype) -> None:
    x = torch.arange(0, 100).to(dtype)
    expected = native.evaluate("exp", [x.double()], dtype=torch.float32)
    assert same(native.evaluate("exp", [x], dtype=torch.float32), expected)


@needs_library
def test_bits_do_not_depend_on_the_number_of_threads_or_the_place() -> None:
    x = torch.randn(100_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = native.evaluate("gelu", [x], dtype=torch.float32)
        torch.set_num_threads(2)
        assert same(native.evaluate("gelu", [x], dtype=torch.float32), one)
    finally:
        torch.set_num_threads(before)
    assert same(native.evaluate("gelu", [x[77:80]], dtype=torch.float32), one[77:80])


def test_layouts_and_broadcasting_give_the_elements_of_the_plain_call() -> None:
    image, row, number = torch.randn(2, 3, 4, 5), torch.rand(5), torch.tensor(2.5, dtype=torch.float64)
    image = image.to(memory_format=torch.channels_last)
    for module in [portable, *([native] if library.available() else [])]:
        flat = module.evaluate("silu", [image.flatten()], dtype=torch.float32).view_as(image)
        assert module.evaluate("silu", [image], dtype=torch.float32).stride() == image.stride()
        for shown in (image, image.transpose(1, 3).contiguous().transpose(1, 3)):
            assert same(module.evaluate("silu", [shown], dtype=torch.float32).contiguous(), flat)
        cut = module.evaluate("silu", [image[:, 1:, ::2]], dtype=torch.float32)
        assert same(cut.contiguous(), flat[:, 1:, ::2].contiguous())
        wide = module.evaluate("atan2", [image, row.expand(2, 3, 4, 5).clone()], dtype=torch.float32)
        assert same(module.evaluate("atan2", [image, row], dtype=torch.float32).contiguous(), wide.contiguous())
        assert module.evaluate("atan2", [number, image], dtype=torch.float32).shape == image.shape
        assert module.evaluate("atan2", [row[:, None], row], dtype=torch.float32).shape == (5, 5)
        assert module.evaluate("exp", [number], dtype=torch.float64).shape == ()
        assert module.evaluate("exp", [torch.empty(3, 0)], dtype=torch.float32).shape == (3, 0)


# --------------------------------------------------------------------------- the Triton text, by a stand-in for tl


class Block:
    """What the text needs of a Triton value, over torch tensors; other uses fail."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, dtype: torch.dtype, *, bitcast: bool) -> Block:
        assert bitcast
        return Block(self.x.view(dtype))


def _operator(name: str) -> Callable[[Block, Any], Block]:
    def apply(self: Block, other: Any) -> Block:
        right = other.x if isinstance(other, Block) else other
        assert not isinstance(right, float), "a float constant would become fp32"
        return Block(getattr(self.x, name)(right))

    return apply


for _name in ["add", "sub", "mul", "truediv", "and", "or", "xor", "lshift", "rshift", "lt", "le", "eq"]:
    setattr(Block, f"__{_name}__", _operator(f"__{_name}__"))

STAND_IN = types.SimpleNamespace(
    int64=torch.int64, float64=torch.float64, int32=torch.int32, float32=torch.float32,
    full=lambda shape, value, dtype: Block(torch.full(shape, value, dtype=dtype)),
    where=lambda c, a, b: Block(torch.where(c.x, a.x, b.x)), sqrt=lambda a: Block(portable.square_root(a.x)),
    fma=lambda a, b, c: Block(portable._fused(a.x, b.x, c.x)),
)  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_the_triton_text_says_the_same_as_the_formula(name: str) -> None:
    formula = FORMULAS[name]
    scope: dict[str, Any] = {"tl": STAND_IN, "triton": types.SimpleNamespace(jit=lambda function: function)}
    exec(triton_source(formula), scope)
    inputs, scalars = samples(formula.tensors), SCALARS[: formula.scalars]
    width = torch.float32 if formula.single else torch.float64
    blocks = [Block(x.to(width)) for x in inputs] + [Block(torch.tensor(s, dtype=width)) for s in scalars]
    result = scope[f"f_{name}"](*blocks).x.double()
    assert same(result, portable.evaluate(name, inputs, scalars, dtype=torch.float64))


# --------------------------------------------------------------------------- accuracy

RANGES: dict[str, tuple[float, float]] = {
    "exp": (-700, 700), "expm1": (-30, 30), "exp2": (-1000, 1000), "log": (1e-9, 1e9), "log1p": (-0.999, 100),
    "log2": (1e-9, 1e9), "log10": (1e-9, 1e9), "tanh": (-20, 20), "erf": (-5, 5), "erfc": (-5, 25),
    "sin": (-1000, 1000), "cos": (-1000, 1000), "tan": (-1000, 1000), "asin": (-1, 1), "acos": (-1, 1),
    "atan": (-50, 50), "sinh": (-700, 700), "cosh": (-700, 700), "asinh": (-1e5, 1e5), "acosh": (1, 1e5),
    "atanh": (-1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_functions_are_within_a_few_last_places_of_the_c_library_in_fp64(name: str) -> None:
    low, high = RANGES[name]
    function = math.exp2 if name == "exp2" else getattr(math, name)
    x = torch.cat([
        torch.rand(3000, dtype=torch.float64) * (high - low) + low,
        torch.rand(3000, dtype=torch.float64) * (min(high, 1.0) - max(low, -1.0)) + max(low, -1.0),
    ]) if name != "acosh" else torch.rand(3000, dtype=torch.float64) * 1000 + 1  # fmt: skip
    expected = [function(value) for value in x.tolist()]
    got = portable.evaluate(name, [x], dtype=torch.float64).tolist()
    worst = max(abs(a - b) / math.ulp(b) for a, b in zip(got, expected, strict=True))
    assert worst <= 6


def test_pow_is_within_a_few_last_places_of_the_c_library_in_fp64() -> None:
    x = torch.exp(torch.rand(5000, dtype=torch.float64) * 400 - 200)
    y = (torch.rand(5000, dtype=torch.float64) * 2 - 1) * 700 / x.log().abs()
    got = portable.evaluate("pow", [x, y], dtype=torch.float64).tolist()
    expected = [a**b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert max(abs(a - b) / math.ulp(b) for a, b in zip(got, expected, strict=True)) <= 16


def c_pow(x: float, y: float) -> float:
    """C's pow: Python's raises where C returns infinity or NaN."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        if x == 0:
            return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
        return math.nan


def test_pow_has_the_special_cases_of_c() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e300,
              -1e300, 2.0**53 + 2, 2.0**52 + 1, -(2.0**52 + 1), 1e-310]  # fmt: skip
    x, y = (grid.flatten() for grid in torch.meshgrid(*[torch.tensor(values, dtype=torch.float64)] * 2, indexing="ij"))
    expected = torch.tensor([c_pow(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], dtype=torch.float64)
    got = portable.evaluate("pow", [x, y], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=0, equal_nan=True)
    assert bool(((got.signbit() == expected.signbit()) | expected.isnan()).all())


def test_sines_are_right_up_to_two_to_the_thirty() -> None:
    x = torch.rand(3000, dtype=torch.float64) * 2.0**31 - 2.0**30
    for name, function in (("sin", math.sin), ("cos", math.cos)):
        got = portable.evaluate(name, [x], dtype=torch.float64).tolist()
        assert max(abs(a - function(v)) / math.ulp(function(v)) for a, v in zip(got, x.tolist(), strict=True)) <= 4
        huge = portable.evaluate(name, [torch.tensor([1e20, -3e38])], dtype=torch.float64)
        assert bool((huge.abs() <= 1).all())  # defined, if not right


def test_the_square_root_of_torch_operators_is_correctly_rounded() -> None:
    x = torch.cat([samples(1)[0], torch.rand(20_000, dtype=torch.float64) * 4, 4 - torch.arange(1, 100) * 2.0**-51])
    expected = torch.tensor([math.sqrt(v) if v >= 0 else math.nan for v in x.tolist()], dtype=torch.float64)
    assert same(portable.square_root(x), expected)


STOCK = {
    "exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf,
    "sin": torch.sin, "rsqrt": torch.rsqrt, "sqrt": torch.sqrt, "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu, "log1p": torch.log1p, "expm1": torch.expm1, "mish": torch.nn.functional.mish,
}  # fmt: skip


@pytest.mark.parametrize("name", STOCK)
def test_fp32_is_never_less_accurate_than_stock(name: str) -> None:
    x = torch.rand(50_000) * (8 if name in ("log", "rsqrt", "sqrt", "log1p") else 16) - (
        0 if name in ("log", "rsqrt", "sqrt", "log1p") else 8
    )
    exact = portable.evaluate(name, [x], dtype=torch.float64)
    unit = torch.nextafter(exact.float().abs(), torch.tensor(math.inf)).double() - exact.float().abs().double()

    def error(result: Tensor) -> float:
        return float(((result.double() - exact).abs() / unit).max())

    ours = error(portable.evaluate(name, [x], dtype=torch.float32))
    assert ours <= 0.5
    assert ours <= error(STOCK[name](x))


def test_results_of_fp64_have_the_long_formula_and_others_the_short_one() -> None:
    x = torch.randn(20_000)
    for dtype, name in ((torch.float64, "gelu"), (torch.float32, "gelu_single"), (torch.bfloat16, "gelu_single")):
        assert same(primitives.evaluate("gelu", [x.double()], dtype=dtype),
                    portable.evaluate(name, [x.double()], dtype=dtype))  # fmt: skip


def test_the_vendors_exp_is_seen_to_differ() -> None:
    x = torch.randn(100_000)
    assert not same(torch.exp(x), portable.evaluate("exp", [x], dtype=torch.float32))


@needs_library
def test_a_fused_multiply_add_would_be_seen() -> None:
    """The polynomial of exp with one fused step has other bits somewhere: equality above means that none is fused."""
    x = torch.rand(20_000, dtype=torch.float64)
    c, d = 0.1666666666666667, 0.5
    unfused = x * c + d
    fused = portable.evaluate("add_scaled_double", [torch.full_like(x, d), x], [c], dtype=torch.float64)
    assert not same(unfused, fused)


def test_constants_keep_their_kind() -> None:
    kind: Kind = "f"
    assert portable.constant(-0.0, kind).signbit().item()
    assert portable.constant(2, "i").dtype == torch.int64
