"""Random operators: the generator against published numbers, each operator against plain Python, and their rules."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import native, philox, primitives, randomness

CPU = torch.device("cpu")


def reference_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 as its paper writes it."""
    c, k = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = (second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF)
        k = ((k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF)
    return c


def reference_words(count: int, key: int) -> list[int]:
    made: list[int] = []
    for block in range((count + 3) // 4):
        made += reference_block((block & 0xFFFFFFFF, block >> 32, 0, 0), (key & 0xFFFFFFFF, key >> 32))
    return made[:count]


def next_key(seed: int) -> int:
    torch.manual_seed(seed)
    return int(torch.empty((), dtype=torch.int64).random_())


@pytest.fixture(params=["native", "portable"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "native" and not native.available():
        pytest.skip("no C library")
    primitives.use_portable(request.param == "portable")
    yield str(request.param)
    primitives.use_portable(False)


def test_the_reference_has_the_published_numbers() -> None:
    ones = 0xFFFFFFFF
    assert reference_block((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert reference_block((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert reference_block(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 63, 64, 65, 301])
def test_words_are_those_of_the_reference(implementation: str, count: int) -> None:
    key = 0x1234_5678_9ABC_DEF1
    assert philox.words(count, key, CPU).tolist() == reference_words(count, key)


def test_words_far_into_the_stream(implementation: str) -> None:
    key, block = 77, 2**33 + 5
    made = philox.words(9, key, CPU, start=4 * block).tolist()
    wanted = [w for i in range(3) for w in reference_block(((block + i) & 0xFFFFFFFF, 2, 0, 0), (77, 0))]
    assert made == wanted[:9]


def test_words_do_not_depend_on_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    two = philox.words(100_003, 5, CPU)
    torch.set_num_threads(1)
    assert torch.equal(two, philox.words(100_003, 5, CPU))
    torch.set_num_threads(threads)
    assert torch.equal(two, philox.portable_words(100_003, 5, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.3, 0.7), (5.0, 5.0), (-1 / 17, 1 / 17)])
def test_uniform_is_from_plus_u_times_range_rounded_once(
    implementation: str, dtype: torch.dtype, low: float, high: float
) -> None:
    key = next_key(1)
    torch.manual_seed(1)
    made = randomness.uniform_(torch.empty(7, 11, dtype=dtype), low, high)
    bits = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11, torch.float64: 53}[dtype]
    drawn = reference_words(154, key)
    for i, value in enumerate(made.flatten().tolist()):
        whole = (drawn[2 * i] << 21 | drawn[2 * i + 1] >> 11) if bits == 53 else drawn[i] >> (32 - bits)
        wanted = torch.tensor(whole * 2.0**-bits * (high - low) + low, dtype=torch.float64)
        wanted = wanted.to(dtype) if bits == 53 else wanted.float().to(dtype)
        top = torch.tensor(high, dtype=dtype)
        assert value == (wanted.item() if low == high or wanted < top else torch.tensor(low, dtype=dtype).item())


def test_uniform_never_reaches_its_upper_end(implementation: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        end = 1.0 + 4 * torch.finfo(dtype).eps
        made = randomness.uniform_(torch.empty(20_000, dtype=dtype), 1.0, end)
        assert ((made >= 1) & (made < end)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_bernoulli_compares_a_word_with_the_probability(implementation: str, dtype: torch.dtype) -> None:
    key = next_key(2)
    torch.manual_seed(2)
    made = randomness.bernoulli_(torch.empty(301, dtype=dtype), 0.9)
    assert made.tolist() == [float(word < 0.9 * 2**32) for word in reference_words(301, key)]


def test_bernoulli_of_certain_events() -> None:
    assert randomness.bernoulli_(torch.empty(999), 1.0).all()
    assert not randomness.bernoulli_(torch.empty(999), 0.0).any()
    with pytest.raises(RuntimeError, match="expects p"):
        randomness.bernoulli_(torch.empty(3), 1.5)


def test_bernoulli_by_a_tensor_takes_each_probability(implementation: str) -> None:
    key = next_key(3)
    p = torch.linspace(0, 1, 50)
    torch.manual_seed(3)
    made = randomness.bernoulli_by(torch.empty(50), p)
    assert made.tolist() == [float(w < q * 2**32) for w, q in zip(reference_words(50, key), p.tolist(), strict=True)]


def test_normal_is_box_muller(implementation: str) -> None:
    key = next_key(4)
    torch.manual_seed(4)
    made = randomness.normal_(torch.empty(200), 0.5, 2.0)
    drawn = reference_words(400, key)
    for i, value in enumerate(made.tolist()):
        radius = math.sqrt(-2 * math.log((drawn[2 * i] + 0.5) / 2**32))
        wanted = radius * math.cos(2 * math.pi * drawn[2 * i + 1] / 2**32) * 2 + 0.5
        assert value == pytest.approx(wanted, rel=2e-7, abs=1e-7)


def test_normal_numbers_are_normal() -> None:
    torch.manual_seed(5)
    made = randomness.normal_(torch.empty(200_000))
    assert abs(made.mean().item()) < 0.01
    assert abs(made.std().item() - 1) < 0.01
    assert abs((made.abs() < 1).float().mean().item() - 0.6827) < 0.005
    assert abs((made.abs() < 2).float().mean().item() - 0.9545) < 0.003


OPERATORS = {
    "uniform": randomness.uniform_,
    "bernoulli": lambda x: randomness.bernoulli_(x, 0.3),
    "normal": randomness.normal_,
    "log_normal": randomness.log_normal_,
    "exponential": lambda x: randomness.exponential_(x, 1.5),
    "geometric": lambda x: randomness.geometric_(x, 0.2),
    "cauchy": randomness.cauchy_,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_order_of_samples_is_that_of_the_indices_not_of_the_memory(name: str) -> None:
    torch.manual_seed(6)
    plain = OPERATORS[name](torch.empty(3, 4, 5, 6))
    torch.manual_seed(6)
    assert torch.equal(plain, OPERATORS[name](torch.empty(3, 4, 5, 6, memory_format=torch.channels_last)))
    torch.manual_seed(6)
    assert torch.equal(plain, OPERATORS[name](torch.empty(6, 5, 4, 3).permute(3, 2, 1, 0)))


@pytest.mark.parametrize("name", OPERATORS)
def test_chunks_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    whole = OPERATORS[name](torch.empty(1000))
    monkeypatch.setattr(randomness, "_CHUNK", 64)
    torch.manual_seed(7)
    assert torch.equal(whole, OPERATORS[name](torch.empty(1000)))
    torch.manual_seed(7)
    assert torch.equal(whole.view(10, 100), OPERATORS[name](torch.empty(100, 10).t()))


@pytest.mark.parametrize("name", OPERATORS)
def test_c_and_torch_operators_give_the_same_bits(name: str) -> None:
    if not native.available():
        pytest.skip("no C library")
    torch.manual_seed(8)
    fast = OPERATORS[name](torch.empty(5001))
    primitives.use_portable(True)
    torch.manual_seed(8)
    slow = OPERATORS[name](torch.empty(5001))
    primitives.use_portable(False)
    assert torch.equal(fast, slow)


def test_each_call_draws_one_number_of_the_generator() -> None:
    torch.manual_seed(9)
    torch.empty((), dtype=torch.int64).random_()
    wanted = torch.get_rng_state()
    for make in OPERATORS.values():
        torch.manual_seed(9)
        make(torch.empty(777))
        assert torch.equal(torch.get_rng_state(), wanted)


def test_a_generator_of_its_own_is_used_and_the_default_one_is_not() -> None:
    torch.manual_seed(10)
    before = torch.get_rng_state()
    first = randomness.uniform_(torch.empty(9), generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, randomness.uniform_(torch.empty(9), generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_on_another_device_is_refused() -> None:
    class OnCuda:
        device = torch.device("cuda", 0)

    with pytest.raises(UnsupportedError, match=r"generator on cuda:0"):
        philox.draw_key(OnCuda())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.9, 1 / 3])
def test_fused_dropout_has_the_bits_of_dropout_on_cpus(dtype: torch.dtype, p: float) -> None:
    x, grad = torch.randn(2, 400).to(dtype)
    torch.manual_seed(11)
    noise = randomness.bernoulli_(torch.empty_like(x), 1 - p).div_(1 - p)  # what stock does on CPUs
    torch.manual_seed(11)
    made, mask = randomness.native_dropout(x, p, True)
    assert torch.equal(made, x * noise)
    assert torch.equal(randomness.native_dropout_backward(grad, mask, 1 / (1 - p)), grad * noise)


def test_the_derivative_of_dropping_everything_is_zero() -> None:
    """torch then hands over a scale of 0."""
    _, mask = randomness.native_dropout(torch.ones(5), 1.0, True)
    assert not randomness.native_dropout_backward(torch.ones(5), mask, 0.0).any()


def test_multinomial_follows_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0])
    torch.manual_seed(12)
    drawn = randomness.multinomial(weights, 20_000, True)
    shares = torch.bincount(drawn, minlength=5) / 20_000
    assert shares[0] == shares[3] == 0
    assert torch.allclose(shares, weights / 8, atol=0.015)
    single = randomness.multinomial(weights.expand(5000, 5), 1)
    assert torch.allclose(torch.bincount(single[:, 0], minlength=5) / 5000, weights / 8, atol=0.03)
    assert sorted(randomness.multinomial(weights, 3).tolist()) == [1, 2, 4]


def test_stock_numbers_are_others() -> None:
    """Negative control: the stock generator let through would be seen."""
    torch.manual_seed(13)
    stock = torch.empty(100).uniform_()
    torch.manual_seed(13)
    assert not torch.equal(stock, randomness.uniform_(torch.empty(100)))
