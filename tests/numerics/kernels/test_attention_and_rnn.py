"""Attention and recurrent layers reach only operators that D2 knows, and are taken apart as stock does on CPUs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from easyscale.numerics.kernels import install
from easyscale.numerics.kernels.recurrent import COMPOSITES


@contextmanager
def ours() -> Iterator[None]:
    """Recurrent layers taken apart by us, over stock kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library = torch.library.Library("aten", "IMPL")
        for name, function in COMPOSITES.items():
            library.impl(name, function, "CompositeImplicitAutograd")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def run(build: Callable[[], nn.Module], call: Callable[[nn.Module], Any]) -> list[Tensor]:
    """Outputs and gradients of a layer built from the same seed."""
    torch.manual_seed(0)
    layer = build()
    found = call(layer)
    flat: list[Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            flat.append(value)
        else:
            for part in value:
                if part is not None:
                    collect(part)

    collect(found)
    flat = [tensor for tensor in flat if tensor.requires_grad]
    sum((tensor * torch.linspace(-1, 1, tensor.numel()).view(tensor.shape)).sum() for tensor in flat).backward()  # type: ignore[union-attr]
    return [*flat, *(p.grad for p in layer.parameters() if p.grad is not None)]


def sequences() -> Tensor:
    return torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(1))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(7, 9),
    "lstm, two layers, both directions, dropout": lambda: nn.LSTM(7, 9, 2, bidirectional=True, dropout=0.3),
    "lstm, batch first, no bias": lambda: nn.LSTM(7, 9, batch_first=True, bias=False),
    "lstm with a projection": lambda: nn.LSTM(7, 9, 2, proj_size=4),
    "lstm with a projection, no bias": lambda: nn.LSTM(7, 9, proj_size=4, bias=False),
    "gru": lambda: nn.GRU(7, 9, 2),
    "gru, both directions": lambda: nn.GRU(7, 9, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(7, 9, 2, dropout=0.5),
    "rnn with relu": lambda: nn.RNN(7, 9, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_has_the_bits_of_the_stock_cpu_code(name: str) -> None:
    with without_onednn():
        stock = run(LAYERS[name], lambda layer: layer(sequences()))
        with ours():
            mine = run(LAYERS[name], lambda layer: layer(sequences()))
    assert len(stock) == len(mine) > 4
    assert all(torch.equal(a, b) for a, b in zip(stock, mine, strict=True))


@pytest.mark.parametrize("name", ["lstm, two layers, both directions, dropout", "gru", "rnn with relu"])
def test_packed_sequences_have_the_bits_of_the_stock_cpu_code(name: str) -> None:
    def call(layer: nn.Module) -> Any:
        return layer(pack_padded_sequence(sequences(), torch.tensor([6, 6, 4, 2, 1])))

    with without_onednn():
        stock = run(LAYERS[name], call)
        with ours():
            mine = run(LAYERS[name], call)
    assert len(stock) == len(mine) > 4
    assert all(torch.equal(a, b) for a, b in zip(stock, mine, strict=True))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_cell_has_the_bits_of_the_stock_cpu_code(kind: type[nn.Module]) -> None:
    def call(cell: nn.Module) -> Any:
        state = None
        for step in sequences().unbind(0):
            state = cell(step, state)
        return state

    with without_onednn():
        stock = run(lambda: kind(7, 9), call)
        with ours():
            mine = run(lambda: kind(7, 9), call)
    assert all(torch.equal(a, b) for a, b in zip(stock, mine, strict=True))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_d2_takes_layers_apart_by_us_and_keeps_the_bits_of_the_stock_cpu_code(
    name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(layer: nn.Module) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            packed = pack_padded_sequence(sequences(), torch.tensor(lengths[layer.batch_first]), layer.batch_first)
            return layer(sequences()), layer(packed)

    lengths = {False: [6, 6, 4, 2, 1], True: [5, 5, 4, 3, 2, 1]}
    taken: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def layer(*args: Any) -> Any:
            taken.append(name)
            return function(*args)

        return layer

    for overload, function in COMPOSITES.items():
        monkeypatch.setitem(COMPOSITES, overload, noting(overload, function))
    with install.installed():
        mine = run(LAYERS[name], call)
    assert {overload.partition(".")[2] for overload in taken} == {"input", "data"}
    taken.clear()
    monkeypatch.setattr(install, "COMPOSITES", {})
    with install.installed():
        stock = run(LAYERS[name], call)
    assert not taken
    assert len(stock) == len(mine) > 4
    assert all(torch.equal(a, b) for a, b in zip(stock, mine, strict=True))


def test_d2_takes_cells_apart_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Exception):
        pass

    def cell(*_args: Any) -> Any:
        raise Mine

    for name in ("lstm_cell", "gru_cell"):
        monkeypatch.setitem(COMPOSITES, name, cell)
    for kind in (nn.LSTMCell, nn.GRUCell):
        with install.installed(), pytest.raises(Mine):
            kind(7, 9)(torch.ones(2, 7))
        assert torch.is_tensor(kind(7, 9)(torch.ones(2, 7))[0])


def test_our_way_is_used_while_it_is_installed() -> None:
    """Negative control of the tests above: a layer of ours that does something else is seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library = torch.library.Library("aten", "IMPL")
        library.impl("lstm.input", lambda x, *_rest: (x, x, x), "CompositeImplicitAutograd")
    try:
        x = sequences()
        assert nn.LSTM(7, 9)(x)[0] is x or torch.equal(nn.LSTM(7, 9)(x)[0], x)
    finally:
        library._destroy()
    assert nn.LSTM(7, 9)(sequences())[0].shape == (6, 5, 9)


# ------------------------------------------------------------------------------------------------ operators reached


class Operators(TorchDispatchMode):
    """Notes the operators that reach the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(func).split(".")[1])
        return func(*args, **(kwargs or {}))


PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_trilinear", "convolution", "convolution_backward"}
# what moves, makes or compares numbers, or is fixed by IEEE for one element
PLAIN = {
    "_unsafe_view", "add", "add_", "cat", "clone", "copy_", "detach", "div_", "empty_like", "expand", "lift_fresh",
    "mul", "mul_", "neg", "new_empty_strided", "ones", "ones_like", "permute", "randn", "relu", "scalar_tensor",
    "select", "select_backward", "slice", "slice_backward", "split", "squeeze", "stack", "sub", "t",
    "threshold_backward", "transpose", "transpose_", "tril", "unbind", "unsafe_split", "unsqueeze", "view", "where",
    "zeros", "zeros_like", "as_strided", "full", "empty", "fill_", "zero_", "_pack_padded_sequence",
    "_local_scalar_dense",
}  # fmt: skip
OTHER_FORMS = {
    "_safe_softmax", "_softmax", "_softmax_backward_data", "bernoulli_", "mean", "native_layer_norm",
    "native_layer_norm_backward", "sigmoid_", "sigmoid_backward", "sum", "tanh", "tanh_", "tanh_backward", "uniform_",
}  # fmt: skip


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: F.linear(leaf(2, 4, 3), leaf(5, 3), leaf(5)),
    "linear of a transposed input": lambda: F.linear(leaf(2, 3, 4).mT, leaf(5, 3), leaf(5)),
    "einsum": lambda: torch.einsum("bij,bjk,k->bi", leaf(2, 3, 4), leaf(2, 4, 5), leaf(5)),
    "bilinear": lambda: F.bilinear(leaf(2, 3), leaf(2, 4), leaf(5, 3, 4), leaf(5)),
    "attention with a mask": lambda: F.scaled_dot_product_attention(
        leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), attn_mask=torch.ones(4, 4, dtype=torch.bool).tril()
    ),
    "causal attention": lambda: F.scaled_dot_product_attention(
        leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), is_causal=True, dropout_p=0.1
    ),
    "multi-head attention": lambda: nn.MultiheadAttention(8, 2)(leaf(2, 3, 8), leaf(2, 3, 8), leaf(2, 3, 8))[0],
    "transformer layer": lambda: nn.TransformerEncoderLayer(8, 2, 16)(leaf(2, 3, 8)),
    "lstm": lambda: nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True, dropout=0.1)(leaf(2, 5, 4))[0],
    "gru": lambda: nn.GRU(4, 6)(leaf(2, 5, 4))[0],
    "convolution": lambda: F.conv2d(leaf(1, 2, 5, 5), leaf(3, 2, 3, 3), padding="same"),
    "transposed convolution": lambda: F.conv_transpose1d(leaf(1, 2, 5), leaf(2, 3, 3), leaf(3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_reach_only_operators_that_have_forms_or_are_plain(name: str) -> None:
    with without_onednn(), sdpa_kernel(SDPBackend.MATH), ours(), Operators() as operators:
        MODELS[name]().sum().backward()
    assert operators.seen & (PRODUCTS | OTHER_FORMS)
    assert operators.seen <= PRODUCTS | PLAIN | OTHER_FORMS
