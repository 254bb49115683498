"""A digest sees every change of a tensor's bytes, and nothing else: not its strides, not where it begins."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from easyscale.numerics import digest as module
from easyscale.numerics.digest import combined, digest, plain, read

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
SHAPES = [(), (1,), (2,), (3,), (7,), (8,), (17,), (3, 5), (2, 3, 4), (64, 3)]


def text(tensor: torch.Tensor) -> str:
    value = read([digest(tensor)])[0]
    assert value is not None
    return value


def made(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(2, shape, generator=g).bool()
    size = torch.empty((), dtype=dtype).element_size()
    data = torch.randint(256, (*shape, size), generator=g, dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def with_one_bit_changed(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    other = tensor.contiguous().clone()
    data = torch.view_as_real(other) if other.is_complex() else other
    raw = data.reshape(-1).view(torch.uint8)
    if tensor.dtype is torch.bool:
        raw[bit % raw.numel()] ^= 1
    else:
        raw[(bit // 8) % raw.numel()] ^= 1 << bit % 8
    return other


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES), shape=st.sampled_from(SHAPES), bit=st.integers(0, 1 << 14), seed=st.integers(0, 9)
)
def test_one_changed_bit_changes_the_digest(dtype: torch.dtype, shape: tuple[int, ...], bit: int, seed: int) -> None:
    tensor = made(dtype, shape, seed)
    assert text(with_one_bit_changed(tensor, bit)) != text(tensor)
    assert text(tensor.clone()) == text(tensor)


@settings(max_examples=200, deadline=None)
@given(dtype=st.sampled_from(DTYPES), begin=st.integers(0, 9), length=st.integers(0, 20))
def test_where_a_tensor_begins_in_its_storage_does_not_matter(dtype: torch.dtype, begin: int, length: int) -> None:
    part = made(dtype, (32,))[begin : begin + length]
    assert text(part) == text(part.clone())


@settings(max_examples=200, deadline=None)
@given(dtype=st.sampled_from(DTYPES), pair=st.sampled_from(list(itertools.combinations(range(12), 2))))
def test_two_elements_that_change_places_change_the_digest(dtype: torch.dtype, pair: tuple[int, int]) -> None:
    i, j = pair
    tensor = made(dtype, (12,), 3)
    other = tensor.clone()
    other[i], other[j] = tensor[j], tensor[i]
    bytes_differ = with_bytes(other) != with_bytes(tensor)
    assert (text(other) != text(tensor)) == bytes_differ


def with_bytes(tensor: torch.Tensor) -> list[int]:
    data = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return data.contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [2, 4, 5, 64])
def test_a_negated_tensor_has_another_digest(dtype: torch.dtype, count: int) -> None:
    """All sign bits change at once: they must not cancel."""
    tensor = torch.arange(1, count + 1).to(dtype)
    assert text(-tensor) != text(tensor)
    assert text(-0.0 * tensor) != text(0.0 * tensor)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.dictionaries(st.integers(0, 31), st.sampled_from([-2, -1, 1, 2]), min_size=2, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_last_bits_up_here_and_down_there_do_not_cancel(changes: dict[int, int], dtype: torch.dtype) -> None:
    """What another order of a sum leaves behind: several elements, a unit in the last place up or down."""
    tensor = made(dtype, (32,), 5)
    other = tensor.clone()
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    for index, units in changes.items():
        other.view(integers)[index] += units
    assert text(other) != text(tensor)


def test_steps_at_equal_distances_do_not_cancel() -> None:
    tensor = torch.arange(64, dtype=torch.int32)
    seen = {text(tensor)}
    for first, gap in itertools.product(range(20), range(1, 10)):
        other = tensor.clone()
        for place, units in ((first, 1), (first + gap, -2), (first + 2 * gap, 1)):
            other[place] += units
        seen.add(text(other))
    assert len(seen) == 1 + 20 * 9


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_layout_does_not_matter(dtype: torch.dtype) -> None:
    tensor = made(dtype, (2, 3, 4, 5))
    for other in (
        tensor.transpose(0, 3), tensor[:, ::2], tensor[..., 1:4], tensor.to(memory_format=torch.channels_last),
        tensor[:, :1].to(memory_format=torch.channels_last), tensor[:1, :1, :1].expand(6, 1, 4, 5),
    ):  # fmt: skip
        assert text(other) == text(other.contiguous().clone())


def test_channels_last_has_the_digest_of_its_values() -> None:
    tensor = made(torch.float32, (2, 3, 4, 4))
    assert text(tensor.to(memory_format=torch.channels_last)) == text(tensor)


def test_conjugated_and_negated_views_are_read_as_they_are() -> None:
    tensor = torch.randn(6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert text(tensor.conj()) == text(tensor.conj().resolve_conj())
    assert text(tensor.conj().imag) == text(tensor.conj().imag.resolve_neg())


def test_tensors_longer_than_a_piece_are_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 16)
    module._weights.cache_clear()
    try:
        tensor = torch.arange(100, dtype=torch.float32)
        seen = {text(tensor)}
        for bit in range(100 * 32):
            seen.add(text(with_one_bit_changed(tensor, bit)))
        assert len(seen) == 100 * 32 + 1
        swapped = tensor.clone()
        swapped[3], swapped[19] = tensor[19], tensor[3]  # the same place of two pieces
        assert text(swapped) != text(tensor)
        moved = torch.cat([tensor[16:32], tensor[:16], tensor[32:]])  # two pieces change places
        assert text(moved) != text(tensor)
    finally:
        module._weights.cache_clear()


def test_a_tensor_of_more_than_one_real_piece() -> None:
    tensor = torch.zeros(module._PIECE + 5)
    before = text(tensor)
    tensor[-1] = 1
    after = text(tensor)
    tensor[-1], tensor[0] = 0, 1
    assert len({before, after, text(tensor)}) == 3


def test_an_empty_tensor_has_a_digest_and_zeros_of_other_lengths_have_others() -> None:
    assert text(torch.empty(0)) == text(torch.empty(3, 0))
    assert len({text(torch.zeros(n)) for n in range(6)}) == 6


def test_what_has_no_plain_bytes_has_no_digest() -> None:
    assert digest(torch.eye(3).to_sparse()) is None
    assert digest(torch.empty(3, device="meta")) is None


def test_a_digest_changes_nothing_and_draws_no_random_number() -> None:
    tensor = torch.randn(5, requires_grad=True)
    before, state = tensor.detach().clone(), torch.get_rng_state()
    value = digest(tensor * 2)
    assert value is not None
    assert not value.requires_grad
    assert torch.equal(tensor, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_reading_keeps_the_order_and_the_gaps() -> None:
    tensors = [torch.tensor([float(i)]) for i in range(5)]
    digests = [digest(t) for t in tensors]
    mixed = [digests[3], None, digests[0], None, digests[4]]
    assert read(mixed) == [text(tensors[3]), None, text(tensors[0]), None, text(tensors[4])]
    assert read([]) == []
    assert read([None]) == [None]
    assert all(len(t) == 16 for t in read(digests) if t is not None)


def test_many_digests_in_one() -> None:
    assert combined(["a", None]) != combined([None, "a"])
    assert combined(["a", "b"]) != combined(["b", "a"])
    assert combined([]) == combined([])
    assert plain(b"x") != plain("x")
    assert plain((1, 2.0)) == plain((1, 2.0))
