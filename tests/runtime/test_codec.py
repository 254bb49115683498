"""The codec gives back what it was given, to the bit and to the type, or refuses by name."""

from __future__ import annotations

import enum
import json
import math
import re
import struct
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from easyscale.core.errors import CheckpointError
from easyscale.numerics.rng import RngState
from easyscale.runtime.codec import SAFETENSORS_DTYPES, decode, encode, flat, to_device, to_host

DTYPES = [*SAFETENSORS_DTYPES, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e8m0fnu]


def bits(tensor: torch.Tensor) -> bytes:
    return flat(tensor.detach().contiguous()).view(torch.uint8).numpy().tobytes()


def is_same(a: Any, b: Any) -> bool:
    """Equal in type, bits, layout and order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape, a.stride(), bits(a)) == (b.dtype, b.shape, b.stride(), bits(b))
    if isinstance(a, np.ndarray):
        return (a.dtype.str, a.shape, a.strides, a.tobytes()) == (b.dtype.str, b.shape, b.strides, b.tobytes())
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return is_same(a.real, b.real) and is_same(a.imag, b.imag)
    if isinstance(a, dict):
        return is_same(list(a.items()), list(b.items()))
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and is_same(list(a), list(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b)


def round_trip(tree: Any) -> Any:
    """Through JSON and through the safetensors library, as between two processes."""
    structure, tensors = encode(tree)
    text = json.dumps(structure, allow_nan=False)
    unshared = {name: tensor.clone() for name, tensor in tensors.items()}  # the library refuses views of one memory
    return decode(json.loads(text), load_safetensors(save_safetensors(unshared)))


numbers = st.one_of(st.integers(), st.integers(-(1 << 200), 1 << 200), st.floats(), st.complex_numbers())
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(), st.binary(max_size=9))
exact = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
keys = st.one_of(exact, st.tuples(exact, exact), st.binary(max_size=3), st.frozensets(st.integers(), max_size=3))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, math.prod(shape) * dtype.itemsize)
    if dtype is torch.bool:
        raw %= 2
    return torch.tensor(raw.tolist(), dtype=torch.uint8).view(dtype).reshape(shape).permute(order)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(keys, inner, max_size=4),
            st.dictionaries(st.text(max_size=4), inner, max_size=4).map(OrderedDict),
            st.builds(deque, st.lists(inner, max_size=4), st.one_of(st.none(), st.integers(0, 5))),
        ),
        max_leaves=12,
    )


@given(trees(st.one_of(scalars, tensors())))
@settings(max_examples=150, deadline=None)
def test_any_tree_comes_back_to_the_bit_to_the_type_and_in_order(tree: Any) -> None:
    assert is_same(round_trip(tree), tree)


@given(trees(st.one_of(scalars, tensors())))
@settings(max_examples=60, deadline=None)
def test_a_snapshot_of_any_tree_is_equal_to_it(tree: Any) -> None:
    assert is_same(to_host(tree), tree)


@given(st.integers(0, (1 << 64) - 1))
def test_every_float_keeps_its_bits_nan_payloads_included(pattern: int) -> None:
    (number,) = struct.unpack(">d", pattern.to_bytes(8, "big"))
    assert is_same(round_trip({"x": number}), {"x": number})


def short(value: object) -> str:
    """The same in every process: no addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:30]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)], ids=str)
def test_each_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    raw = torch.arange(math.prod(shape) * dtype.itemsize, dtype=torch.uint8) % 2
    tensor = raw.view(dtype).reshape(shape)
    assert is_same(round_trip(tensor), tensor)


def test_half_precision_complex_numbers_come_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says, once a process, that it is experimental
        tensor = torch.arange(8, dtype=torch.uint8).view(torch.complex32)
        assert is_same(round_trip(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4).permute(1, 2, 0),
        torch.empty_strided((1, 3, 1), (7, 1, 99)).fill_(1.5),
        torch.empty_strided((2, 0), (1, 2)),
        torch.from_numpy(np.zeros(0)),
        torch.tensor([1j], dtype=torch.complex128).as_strided((1,), (0,)),
        torch.empty_strided((0, 3), (0, 5), dtype=torch.complex128),
    ],
    ids=["channels last", "transposed", "permuted", "odd strides of size one", "empty", "numpy's", "zero", "both"],
)
def test_strides_of_dense_tensors_survive(tensor: torch.Tensor) -> None:
    assert is_same(round_trip(tensor), tensor)
    assert is_same(to_host(tensor), tensor)


@pytest.mark.parametrize(
    "tensor", [torch.arange(12.0)[::2], torch.arange(3.0).expand(4, 3), torch.arange(12.0).view(3, 4)[:, 1:3]], ids=str
)
def test_tensors_with_holes_or_overlaps_become_contiguous(tensor: torch.Tensor) -> None:
    for back in (round_trip(tensor), to_host(tensor)):
        assert torch.equal(back, tensor)
        assert back.is_contiguous()


def test_lazy_flags_and_gradients_are_resolved() -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(round_trip(number.conj()), torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(to_host(number.conj().imag), torch.tensor([-2.0, 4.0]))
    weight = torch.nn.Parameter(torch.ones(2))
    assert type(round_trip(weight)) is torch.Tensor
    assert not to_host(weight).requires_grad


def test_a_tensor_that_is_held_twice_is_stored_once_and_held_twice_again() -> None:
    tensor = torch.arange(4.0)
    _, stored = encode({"a": tensor, "b": tensor[:], "c": tensor.clone()})
    assert len(stored) == 2
    for back in (round_trip({"a": tensor, "b": tensor[:]}), to_host({"a": tensor, "b": tensor[:]})):
        back["a"].add_(1)
        assert torch.equal(back["b"], tensor + 1)


def test_another_view_of_the_same_memory_is_not_mistaken_for_it() -> None:
    tensor = torch.arange(6.0)
    tree = [tensor, tensor.view(2, 3), tensor.view(3, 2), tensor.view(torch.int32), tensor[1:], tensor[:0], tensor[6:]]
    assert is_same(round_trip(tree), tree)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.5, dtype=">f4"),
        np.zeros((2, 0), dtype=np.complex64),
        np.array(["a", "bcd"]),
        np.array([b"x", b"yz"]),
        np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
        np.array([True, False]),
        np.arange(3, dtype=np.longdouble),
        np.float64(math.pi),
        np.float32("nan"),
        np.int64(-1),
        np.uint8(255),
        np.bool_(True),
        np.complex128(1 - 2j),
        np.datetime64("2020-01-01"),
        np.str_("naïve"),
        np.str_(""),
        np.bytes_(b"a\0b"),
    ],
    ids=short,
)
def test_numpy_arrays_and_scalars_come_back(value: Any) -> None:
    assert is_same(round_trip([value]), [value])
    assert is_same(to_host([value]), [value])


def test_read_only_and_strided_numpy_arrays_come_back_writable() -> None:
    array = np.arange(12).reshape(3, 4)[::2, 1:]
    array.flags.writeable = False
    back = round_trip(array)
    assert np.array_equal(back, array)
    back[0, 0] = 7


@pytest.mark.parametrize(
    "value",
    [
        {1, 2, 3},
        {("a", 1), None, b"x"},
        frozenset({"a"}),
        Counter("abracadabra"),
        deque([1, 2], maxlen=2),
        torch.float8_e5m2,
        torch.device("cuda:3"),
        torch.device("cpu"),
        torch.Size([2, 3]),
        10**5000,
        -(2**63),
        2**63,
        -0.0,
        "\ud83d\ude00",
        "\ud800",
        "😀\0",
        {1: "int", "1": "text", 2.5: "float", True + 1: "two", None: 0, (1, ("x",)): [], b"1": {}},
        {"tensor": ["x"], "dict": {"tuple": []}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_each_other_kind_comes_back(value: Any) -> None:
    assert is_same(round_trip({"at": [value]}), {"at": [value]})
    assert is_same(to_host({"at": [value]}), {"at": [value]})


def test_a_defaultdict_is_stored_as_a_dict_and_stays_one_in_a_snapshot() -> None:
    tree = defaultdict(list, {"a": [1]})
    assert round_trip(tree) == {"a": [1]}
    copy = to_host(tree)
    assert copy["new"] == []
    assert "new" not in tree


def test_names_that_read_the_same_do_not_collide() -> None:
    tree = {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, 1: torch.ones(2), "1": torch.ones(3)}
    assert is_same(round_trip(tree), tree)
    odd = {"__metadata__": torch.ones(1), "\ud800": torch.ones(2), "": torch.ones(3)}
    assert is_same(round_trip(odd), odd)


def test_tensors_are_named_after_their_path() -> None:
    _, stored = encode({"optimizers": [{"state": {3: {"exp_avg": torch.ones(1)}}}]})
    assert list(stored) == ["optimizers.0.state.3.exp_avg"]


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    BIG = 1


class Attributes(dict[str, Any]):
    pass


class Tagged(torch.Tensor):
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda: None, "function"),
        (Colour.RED, "Colour"),
        (Size.BIG, "Size"),
        (Attributes(), "Attributes"),
        (Point(1, 2), "Point"),
        (Path("x"), "Path"),
        (object(), "object"),
        (torch.nn.Linear(1, 1), "Linear"),
        (torch.Generator(), "Generator"),
        (torch.ones(2).as_subclass(Tagged), "Tagged"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta"),
        (np.array([object()]), "object"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        (np.zeros(1, dtype=[("a", "i4")]), "dtype"),
        ({torch.ones(1): 1}, "Tensor as a key"),
        ({Colour.RED: 1}, "Colour"),
    ],
    ids=short,
)
def test_what_needs_pickle_is_refused_by_its_path_and_type(value: Any, kind: str) -> None:
    for act in (encode, to_host, lambda tree: to_device(tree, "cpu")):
        with pytest.raises(CheckpointError) as caught:
            act({"registered": {"ema": {"decay_fn": value}}})
        assert "registered.ema.decay_fn" in caught.value.what
        assert kind in caught.value.what
        assert "pickle" in caught.value.why
        assert "state_dict()" in caught.value.now


def test_a_tree_that_contains_itself_or_has_no_end_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = [loop]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for tree, kind in ((loop, "contains itself"), (deep, "inside 200 others")):
        for act in (encode, to_host):
            with pytest.raises(CheckpointError, match=kind):
                act(tree)
    twice = [1]
    assert round_trip([twice, twice]) == [[1], [1]]


@pytest.mark.parametrize(
    "structure",
    [
        {"tensor": ["absent", "float32", [1], [1]]},
        {"tensor": ["x", "float32", [3], [1]]},
        {"tensor": ["x", "float32", [2], [5]]},
        {"tensor": ["x", "int32", [2], [1]]},
        {"tensor": ["x", "load", [2], [1]]},
        {"tensor": ["x"]},
        {"array": ["x", "O", [1], "C"]},
        {"scalar": ["O", "AAAAAAAAAAA="]},
        {"unknown": 1},
        {"tuple": 1, "list": 2},
        {},
        {"dict": [[1]]},
        {"dict": [[[1], 2]]},
        {"int": "wat"},
        {"float": "00"},
        {"dtype": "Tensor"},
        {"device": "toaster"},
        {"bytes": 7},
        {"scalar": ["f8", "AAAA"]},
        object(),
    ],
    ids=short,
)
def test_a_structure_that_nobody_wrote_is_a_checkpoint_error(structure: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode([structure], {"x": torch.ones(2)})
    assert caught.value.now


def test_a_snapshot_shares_nothing_with_the_tree() -> None:
    tree: dict[str, Any] = {"t": torch.zeros(2), "a": np.zeros(2), "l": [1], "d": {"k": {1}}, "q": deque([1])}
    copy = to_host(tree)
    tree["t"].add_(1)
    tree["a"] += 1
    tree["l"].append(2)
    tree["d"]["k"].add(2)
    tree["q"].append(2)
    assert is_same(copy, {"t": torch.zeros(2), "a": np.zeros(2), "l": [1], "d": {"k": {1}}, "q": deque([1])})


def test_to_device_moves_every_tensor_and_keeps_the_rest() -> None:
    tree = {"t": torch.randn(2, 3).t(), "n": [1, np.arange(2)]}
    assert is_same(to_device(tree, "cpu"), tree)
    moved = to_device(tree, torch.device("meta"))
    assert moved["t"].device.type == "meta"
    assert moved["t"].stride() == (1, 3)


def test_encoding_copies_no_dense_tensor() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _, stored = encode([tensor])
    assert stored["0"].data_ptr() == tensor.data_ptr()
    assert stored["0"].is_contiguous()


def test_rng_states_come_back() -> None:
    state = RngState.capture()
    assert RngState.from_tree(round_trip(state.to_tree())).same_as(state)
    for generator in (np.random.PCG64(1), np.random.MT19937(1), np.random.Philox(1)):
        assert is_same(round_trip(generator.state), generator.state)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS", "NAdam", "Adafactor"])
def test_state_of_torch_optimizers_comes_back(name: str) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), **({"momentum": 0.9} if name == "SGD" else {}))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = model(torch.ones(4, 3)).pow(2).mean()
        torch.autograd.backward(value)
        return value

    for _ in range(2):
        optimizer.step(loss)
    assert is_same(round_trip(optimizer.state_dict()), optimizer.state_dict())


def test_state_of_torch_schedulers_comes_back() -> None:
    lr = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    for scheduler in (
        lr.MultiStepLR(optimizer, [2, 2, 5]),
        lr.LambdaLR(optimizer, lambda step: 0.9**step),
        lr.OneCycleLR(optimizer, 0.1, 10),
        lr.CyclicLR(optimizer, 0.1, 0.2),
        lr.ReduceLROnPlateau(optimizer),
        lr.CosineAnnealingWarmRestarts(optimizer, 3),
        lr.SequentialLR(optimizer, [lr.ConstantLR(optimizer), lr.ExponentialLR(optimizer, 0.9)], [3]),
        torch.optim.swa_utils.SWALR(optimizer, 0.05),
    ):
        assert is_same(round_trip(scheduler.state_dict()), scheduler.state_dict())


@pytest.mark.gpu
def test_a_snapshot_of_cuda_tensors_is_complete_when_it_returns() -> None:
    image = torch.randn(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    tree = {"image": image, "same": image, "hole": image[:, :, ::2], "big": torch.ones(1 << 24, device="cuda")}
    for _ in range(20):
        tree["big"].mul_(1.0001)
    copy = to_host(tree)
    tree["big"].zero_()
    assert copy["image"].stride() == image.stride()
    assert copy["same"] is copy["image"]
    assert torch.equal(copy["image"], image.cpu())
    assert torch.equal(copy["hole"], image.cpu()[:, :, ::2])
    assert copy["big"].min() > 1
    assert is_same(round_trip(copy), copy | {"hole": copy["hole"]})
    assert to_device(copy, "cuda")["image"].stride() == image.stride()
