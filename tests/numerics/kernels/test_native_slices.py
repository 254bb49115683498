"""Exact slices in C against the definition: fractions for small products, numpy's whole numbers for larger ones.

Every test runs all that may multiply slices here: pairs of 16 bits by each instruction set, bytes, and tiles of bytes,
which are emulated too (`emulated_tiles.h`), because few CPUs have them.
"""

import importlib.util
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from d2_chains import chain, fp32, same, spread
from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.native import library, products

ROOT = Path(__file__).resolve().parents[3]
BOUND = [products._product, products._known_product, products._sliced_product, products._cut, products._cut_bytes]

# name -> (library, what it may multiply by: see d2_allow_slices_by)
MULTIPLIERS = {"pairs, base": ("base", 0), "pairs, avx2": ("avx2", 0), "pairs, avx512": ("avx512", 0),
               "bytes": ("avx512", 1), "emulated tiles": ("emulated", 2), "tiles": ("avx512", 2)}  # fmt: skip


def here() -> list[str]:
    """Names of those that this CPU has."""
    capability = torch.backends.cpu.get_cpu_capability()
    flags = Path("/proc/cpuinfo").read_text().split()
    has = {
        "avx2": capability in ("AVX2", "AVX512"), "avx512": capability == "AVX512", "emulated": capability == "AVX512",
        "base": True,
    }  # fmt: skip
    needs = {"bytes": "avx512_vnni", "tiles": "amx_int8"}
    return [name for name, (of, _) in MULTIPLIERS.items() if has[of] and needs.get(name, flags[0]) in flags]


@pytest.fixture(scope="module")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products in C for AVX-512, with tiles in plain C."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    folder, sources = tmp_path_factory.mktemp("tiles"), ROOT / build.NATIVE / "c"
    command = [*build.compiler(), *build.FLAGS, *build.AVX512]
    parts = []
    for name in ("product", "slices", "slice_tiles"):
        emulated = ["-include", str(Path(__file__).with_name("emulated_tiles.h"))] if name == "slice_tiles" else []
        parts.append(folder / f"{name}.o")
        build.run([*command, *emulated, "-c", str(sources / f"{name}.c"), "-o", str(parts[-1])])
    made = folder / "products.so"
    build.run([*build.compiler(), "-shared", *map(str, parts), "-lm", "-o", str(made)])
    return made


def _forget_functions() -> None:
    for function in BOUND:
        function.cache_clear()


@pytest.fixture(params=here())
def multiplier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Slices are multiplied by this."""
    of, most = MULTIPLIERS[request.param]
    path = request.getfixturevalue("emulated_library") if of == "emulated" else library.path_of(of)
    loaded = library.open_library(path)
    loaded.d2_allow_slices_by(most)
    monkeypatch.setattr(products, "library", lambda: loaded)
    _forget_functions()
    yield request.param
    loaded.d2_allow_slices_by(2)
    _forget_functions()
    weights.end()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------- slow references


def slices_by_fractions(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """The definition of docs/numerics.md, word by word, for finite values."""

    def cut(line: list[float]) -> tuple[list[list[int]], int]:
        fraction, exponent = math.frexp(max(map(abs, line)))
        exponent += fraction >= 127 / 128
        whole = [round(Fraction(v) * Fraction(2) ** (8 * slices - 1 - exponent)) for v in line]
        parts: list[list[int]] = []
        for _ in range(slices - 1):
            parts.append([(v + 128) % 256 - 128 for v in whole])
            whole = [(v - q) // 256 for v, q in zip(whole, parts[-1], strict=True)]
        return [whole, *reversed(parts)], exponent

    out = torch.zeros(a.shape[0], b.shape[1])
    for m in range(a.shape[0]):
        for n in range(b.shape[1]):
            (left, ea), (right, eb) = cut(a[m].tolist()), cut(b[:, n].tolist())
            whole = 0
            for g in range(slices):
                group = sum(x * y for i in range(g + 1) for x, y in zip(left[i], right[g - i], strict=True))
                whole = 256 * whole + group
            result = Fraction(float(whole)) * Fraction(2) ** (ea + eb - 14 - 8 * (slices - 1))
            out[m, n] = fp32(result) if result else 0.0
    return out


def portable_slices(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """The definition by numpy's int64 products, for finite values."""
    parts, exponents = [], []
    for lines in (a.double().numpy(), b.t().double().numpy()):
        fraction, exponent = np.frexp(np.abs(lines).max(1))
        exponent = exponent + (fraction >= 127 / 128)
        whole = np.rint(np.ldexp(lines, (8 * slices - 1 - exponent)[:, None])).astype(np.int64)
        cut = []
        for _ in range(slices - 1):
            cut.append((whole + 128) % 256 - 128)
            whole = (whole - cut[-1]) // 256
        parts.append([whole, *reversed(cut)])
        exponents.append(exponent)
    total = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for g in range(slices):
        total = 256 * total + sum(parts[0][i] @ parts[1][g - i].T for i in range(g + 1))
    power = exponents[0][:, None] + exponents[1] - 14 - 8 * (slices - 1)
    return torch.from_numpy(np.ldexp(total.astype(np.float64), power).astype(np.float32))


# ---------------------------------------------------------------------------------------------- the definition


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_slices_are_those_of_exact_fractions(multiplier: str, slices: int) -> None:
    a, b = spread(5, 21, seed=20), spread(21, 6, seed=21)
    a[1] *= 1e-37  # a row of subnormals
    a[2] = 0
    a[3] *= 1e30
    b[:, 2] = 0.5  # all equal, and a power of two
    b[:, 3] = torch.linspace(-127 / 128, 127 / 128, 21)  # as large as asks for another exponent
    b[:, 4] = b[:, 3] * (1 - 2**-22)
    assert same(products.sliced_product(a, b, slices), slices_by_fractions(a, b, slices))


def test_slices_have_the_same_bits_for_any_layout_and_number_of_threads(multiplier: str) -> None:
    chosen = products.sliced_product
    for m, n, k, slices in [(1, 1, 5, 4), (13, 33, 2100, 3), (50, 70, 300, 4)]:
        a, b = spread(m, k, seed=22), spread(k, n, seed=23)
        expected = portable_slices(a, b, slices)
        for count in (1, 2):
            torch.set_num_threads(count)
            for left in (a, a.t().contiguous().t(), torch.stack([a, a], 2)[:, :, 0]):
                assert same(chosen(left, b, slices), expected)
                assert same(chosen(left, b.t().contiguous().t(), slices), expected)


def test_sums_of_slices_do_not_overflow(multiplier: str) -> None:
    """Digits of the largest size: -126, -128, -128, -128, and 127 with zeros."""
    lowest, highest = -0x7E808080 / 2**31, 127 / 128 - 2.0**-24
    for value in (lowest, highest, 0.99, 0.5):
        a, b = torch.full((2, 300_000), value), torch.full((300_000, 3), lowest)
        assert same(products.sliced_product(a, b, 4), portable_slices(a, b, 4))


def test_lines_may_be_scaled_by_given_values(multiplier: str) -> None:
    """In panels that are full and not, by one thread and two."""
    for m, n, k in [(1, 1, 5), (30, 70, 1100)]:
        a, b = spread(m, k, seed=28), spread(k, n, seed=29)
        most_a, most_b = a.abs().amax(1) * 5, b.abs().amax(0) * 300
        # one more step of k, of which the other factor has zeros, makes these the largest values
        wide = torch.cat([a, most_a[:, None], torch.zeros(m, 1)], 1)
        deep = torch.cat([b, torch.zeros(1, n), most_b[None]])
        expected = portable_slices(wide, deep, 4)
        for count in (1, 2):
            torch.set_num_threads(count)
            given = most_a.view(torch.int32), most_b.view(torch.int32)
            assert same(products.sliced_product(a, b, 4, *given), expected)
            apart = torch.stack(given[:1] * 2, 1)[:, 0]  # not side by side in memory
            assert same(products.sliced_product(a, b, 4, apart, given[1]), expected)
    lost = most_a.clone()
    lost[17] = math.nan
    expected[17] = math.nan
    assert same(products.sliced_product(a, b, 4, lost.view(torch.int32), given[1]), expected)


def test_other_numbers_of_slices_are_refused(multiplier: str) -> None:
    for slices in (0, 5):
        with pytest.raises(AssertionError, match="1 to 4 slices"):
            products.sliced_product(torch.ones(2, 3), torch.ones(3, 2), slices)


def test_lines_that_are_not_finite_are_chains(multiplier: str) -> None:
    a, b = spread(20, 50, seed=24), spread(50, 40, seed=25)
    expected = products.sliced_product(a, b, 3)
    a[4, 7], b[9, 30] = math.inf, math.nan
    out = products.sliced_product(a, b, 3)
    by_chain = chain(a[None], b[None])[0]
    expected[4], expected[:, 30] = by_chain[4], by_chain[:, 30]
    assert same(out, expected)


def test_short_types_and_empty_sums_are_sliced_too(multiplier: str) -> None:
    a, b = spread(7, 30, seed=26).bfloat16(), spread(30, 9, seed=27).half()
    assert same(products.sliced_product(a, b, 3), portable_slices(a, b, 3))
    assert same(products.sliced_product(torch.ones(2, 0), torch.ones(0, 3), 3), torch.zeros(2, 3))


# ---------------------------------------------------------------------------------------------- what multiplies


def test_each_multiplier_is_the_one_that_is_meant(multiplier: str) -> None:
    """By the layout that it asks for: tiles have 16 words of each line, and no sums of the other factor's slices."""
    loaded = products.library()
    loaded.d2_tiles.restype = products.ctypes.c_void_p
    tiled = loaded.d2_tiles() is not None
    assert tiled == ("tiles" in multiplier) or tiled == ("tiles" in here())
    small = products._cut_bytes()(0, 1, 1, 4)
    assert (small == 16 * 4 * 64 + 16 * 4 * 8 + 64) == ("tiles" in multiplier)


# rows, columns, k: within a tile, over several with rests, over several blocks of tiles and of k
@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 16, 64), (17, 31, 65), (150, 140, 1030), (3, 300, 2049)], ids=str)
@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_any_shape_and_number_of_slices(multiplier: str, shape: tuple[int, int, int], slices: int) -> None:
    m, n, k = shape
    a, b = spread(m, k, seed=30), spread(k, n, seed=31)
    expected = portable_slices(a, b, slices)
    for count in (1, 2):
        torch.set_num_threads(count)
        assert same(products.sliced_product(a, b, slices), expected)


def test_ties_are_rounded_to_even_and_lost_bits_do_not_carry(multiplier: str) -> None:
    """Values whose scaled whole numbers lie halfway, or whose digits carry through all slices."""
    step = 2.0**-31
    halves = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 128.5, -128.5, 32767.5]).double() * step
    carries = torch.tensor([0x7F7F7F, 0x7F7F80, 0x808080, -0x808080, -0x808081, 0x7F8080]).double() * step
    tiny = torch.tensor([1e-45, -1e-45, 1e-38, 0.0, -0.0]).double()
    line = torch.cat([torch.tensor([0.75]).double(), halves, carries, tiny]).float()
    a = torch.stack([line, line * 2.0**100, line * 2.0**-90])
    b = torch.eye(len(line))
    for slices in (1, 2, 3, 4):
        found = products.sliced_product(a, b, slices)
        assert same(found, slices_by_fractions(a, b, slices))
        assert same(found.t().contiguous(), products.sliced_product(b, a.t(), slices))


def test_a_weight_is_cut_once_for_each_side(multiplier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward it is the right factor, backward it is the left or the right one the other way round."""
    weight, x, grad = nn.Parameter(spread(40, 70, seed=32)), spread(9, 70, seed=33), spread(9, 40, seed=34)
    w = weight.detach()
    uses = [(x, w.t()), (grad, w), (w.t(), grad.t()), (w, x.t())]
    plain = [products.sliced_product(a, b, 4) for a, b in uses]
    cuts: list[int] = []
    cut = products._cut()
    monkeypatch.setattr(products, "_cut", lambda: lambda *given: (cuts.append(given[0]), cut(*given))[1])
    weights.declare([weight])
    for _ in range(3):
        assert all(same(products.sliced_product(a, b, 4), y) for (a, b), y in zip(uses, plain, strict=True))
    assert sorted(cuts) == [0, 0, 1, 1], "two ways round, each as a left and as a right factor"
    with torch.no_grad():
        weight[3, 5] += 1
    after = products.sliced_product(*uses[0], 4)
    assert len(cuts) == 5, "a changed weight is cut again"
    weights.end()
    assert same(after, products.sliced_product(*uses[0], 4))
    assert not same(after, plain[0]), "a negative control: stale slices would have been seen"


def test_a_weight_that_is_not_finite_is_a_chain_where_it_is_kept_too(multiplier: str) -> None:
    weight = nn.Parameter(spread(20, 50, seed=35))
    with torch.no_grad():
        weight[4, 7] = math.inf
    x = spread(30, 50, seed=36)
    plain = products.sliced_product(x, weight.detach().t(), 3)
    assert same(plain[:, 4], chain(x[None], weight.detach().t()[None])[0][:, 4])
    weights.declare([weight])
    for _ in range(2):
        assert same(products.sliced_product(x, weight.detach().t(), 3), plain)
