"""Attention that keeps no scores has the bits of torch's composition, which keeps them.

CPUs take the composition; here the operator is switched on for them, so that all of it but its Triton kernels is tried
(those: `test_gpu_attention`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from d2_rows import assert_same
from d2_runs import OPTIMIZERS, RUNS, OptimizerName
from easyscale.numerics.kernels import attention, primitives, products, scores
from easyscale.numerics.kernels.install import installed
from easyscale.numerics.kernels.refusal import Refused

Job = Callable[[], Any]
GOLDEN = Path(__file__).parents[2] / "golden" / "d2.json"


@pytest.fixture(autouse=True)
def d2() -> Iterator[None]:
    with installed():
        yield


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether attention on the CPU is the operator or the composition."""
    return lambda on: monkeypatch.setattr(attention, "DEVICES", {"cpu"} if on else set())


@pytest.fixture
def both(switch: Callable[[bool], None]) -> Callable[[Job], tuple[Any, Any]]:
    """What a job gives by the operator and by the composition, with the state of the generator after it."""

    def run(job: Job) -> tuple[Any, Any]:
        found = []
        for on in (True, False):
            switch(on)
            torch.manual_seed(7)
            found.append((job(), torch.get_rng_state()))
        return found[0], found[1]

    return run


def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def heads(
    length: int = 5, seen: int = 7, dtype: torch.dtype = torch.float32, width: int = 8, last: int = 8
) -> list[Tensor]:
    sizes = (length, width), (seen, width), (seen, last)
    return [make(2, 3, *size, seed=i, dtype=dtype) for i, size in enumerate(sizes)]


def with_gradients(inputs: list[Tensor], **options: Any) -> list[Tensor]:
    leaves = {id(x): x.detach().requires_grad_() for x in inputs}
    out = F.scaled_dot_product_attention(*(leaves[id(x)] for x in inputs), **options)
    return [out, *torch.autograd.grad(out, list(leaves.values()), make(*out.shape, seed=9, dtype=out.dtype))]


def odd(x: Tensor) -> Tensor:
    """With infinities, NaN, zeros of both signs and subnormal numbers in some places."""
    x = x.clone()
    x.view(-1)[:: x.numel() // 5] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-41, 1e30])[
        : len(x.view(-1)[:: x.numel() // 5])
    ]
    return x


_ALLOWED = make(5, 7, seed=20) > 0
_ALLOWED[2] = False  # a query that may look at nothing
_Q, _K, _V = heads()
_ONE = make(2, 3, 6, 8, seed=5)
USUAL: dict[str, Job] = {
    "plain": lambda: with_gradients([_Q, _K, _V]),
    "scaled": lambda: with_gradients([_Q, _K, _V], scale=0.3),
    "scaled by zero": lambda: with_gradients([_Q, _K, _V], scale=0.0),
    "causal": lambda: with_gradients([_Q, _K, _V], is_causal=True),
    "causal, fewer keys": lambda: with_gradients(heads(7, 5), is_causal=True),
    "one of each": lambda: with_gradients(heads(1, 1, width=1, last=1)),
    "wide": lambda: with_gradients(heads(40, 300, width=20, last=33)),
    "three dimensions": lambda: with_gradients([x[0] for x in (_Q, _K, _V)], attn_mask=_ALLOWED),
    "three dimensions, a mask for each": lambda: with_gradients([x[0] for x in (_Q, _K, _V)], attn_mask=make(3, 1, 7)),
    "truth mask": lambda: with_gradients([_Q, _K, _V], attn_mask=_ALLOWED),
    "mask of samples": lambda: with_gradients([_Q, _K, _V], attn_mask=make(2, 1, 1, 7) > 0),
    "added mask": lambda: with_gradients([_Q, _K, _V], attn_mask=make(1, 3, 5, 7, seed=4)),
    "transposed mask": lambda: with_gradients([_Q, _K, _V], attn_mask=make(7, 5, seed=4).mT),
    "mask of one column": lambda: with_gradients([_Q, _K, _V], attn_mask=make(5, 1, seed=4)),
    "infinite mask": lambda: with_gradients([_Q, _K, _V], attn_mask=torch.where(_ALLOWED, 0.0, math.inf)),
    "dropout": lambda: with_gradients([_Q, _K, _V], dropout_p=0.3),
    "causal dropout": lambda: with_gradients([_Q, _K, _V], dropout_p=0.5, is_causal=True),
    "all the same tensor": lambda: with_gradients([_ONE] * 3, dropout_p=0.1),
    "all the same tensor of three dimensions": lambda: with_gradients([_ONE[0]] * 3),
    "all the same tensor in bf16": lambda: with_gradients([_ONE.bfloat16()] * 3),
    "query and key the same tensor": lambda: with_gradients([_ONE, _ONE, make(2, 3, 6, 4)]),
    "key and value the same tensor": lambda: with_gradients([_Q, _K, _K]),
    "transposed": lambda: with_gradients([make(2, 5, 3, 8).transpose(1, 2), _K.mT.contiguous().mT, _V]),
    "expanded": lambda: with_gradients([_Q, _K[:, :1].expand_as(_K), _V[:1].expand_as(_V)]),
    "odd queries": lambda: with_gradients([odd(_Q), _K, _V]),
    "odd values": lambda: with_gradients([_Q, _K, odd(_V)], dropout_p=0.3, is_causal=True),
    "odd mask": lambda: with_gradients([_Q, _K, _V], attn_mask=odd(make(5, 7))),
    **{
        f"{dtype}, {name}": lambda dtype=dtype, options=options: with_gradients(heads(dtype=dtype), **options)
        for dtype in (torch.bfloat16, torch.float16)
        for name, options in {
            "plain": {}, "dropout": {"dropout_p": 0.2}, "mask in fp32": {"attn_mask": make(5, 7)},
            "mask": {"attn_mask": make(5, 7).to(dtype)}, "truth mask": {"attn_mask": _ALLOWED},
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_the_operator_has_the_bits_of_the_composition(name: str, both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, composed = both(USUAL[name])
    assert_same(ours, composed)
    monkeypatch.setattr(attention, "MOST", 80)  # some heads at a time
    assert_same(both(USUAL[name])[0], composed)


@pytest.mark.parametrize("name", ["wide", "dropout", "torch.bfloat16, truth mask", "odd values"])
def test_the_operator_has_the_bits_of_the_composition_by_torch_operators(name: str, both: Any) -> None:
    primitives.use_portable(True)
    try:
        ours, composed = both(USUAL[name])
    finally:
        primitives.use_portable(False)
    assert_same(ours, composed)


@pytest.mark.parametrize("name", ["wide", "causal", "torch.bfloat16, plain"])
def test_products_by_slices_have_the_bits_of_the_composition(
    name: str, both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = both(USUAL[name])[1]
    for setting in ("SLICED_FROM", "SLICED_SIDE", "SLICED_STEPS"):
        monkeypatch.setattr(products, setting, 1)
    ours, composed = both(USUAL[name])
    assert_same(ours, composed)
    if name == "wide":
        assert not torch.equal(ours[0][0], chains[0][0]), "a negative control: slices have other bits"


SOME = [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]


@pytest.mark.parametrize("wanted", SOME)
def test_gradients_of_some_inputs_alone_are_those_of_all(wanted: tuple[bool, ...], both: Any) -> None:
    def job() -> list[Tensor]:
        leaves = [x.detach().requires_grad_(want) for x, want in zip((_Q, _K, _V), wanted, strict=True)]
        out = F.scaled_dot_product_attention(*leaves, dropout_p=0.2)
        return list(torch.autograd.grad(out, [x for x in leaves if x.requires_grad], make(*out.shape)))

    ours, composed = both(job)
    assert_same(ours, composed)


# ------------------------------------------------------------------------------------------------ what is kept


def _kept() -> tuple[Tensor, list[Tensor]]:
    """The result, and what autograd keeps for the backward."""
    kept: list[Tensor] = []
    q, k, v = (x.requires_grad_() for x in heads(17, 19))

    def note(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=make(1, 1, 1, 19), dropout_p=0.1)
    return out, kept


def test_nothing_of_the_size_of_the_scores_is_kept_for_the_backward(switch: Any) -> None:
    switch(True)
    out, kept = _kept()
    assert out.requires_grad
    assert kept
    assert not [x for x in kept if x.numel() >= 17 * 19 * 3]
    switch(False)
    assert [x for x in _kept()[1] if x.shape[-2:] == (17, 19)], "a negative control: the composition keeps them"


def test_scores_of_all_heads_are_never_in_memory_together(switch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noting(a: Tensor, b: Tensor) -> Tensor:
        made = products.multiply(a, b)
        seen.append(made.numel())
        return made

    monkeypatch.setattr(attention, "multiply", noting)
    monkeypatch.setattr(attention, "MOST", 2 * 17 * 19)
    switch(True)
    with_gradients(heads(17, 19))
    assert len(seen) == 7 * 4  # two parts of each sample's three heads
    assert max(seen) == 2 * 17 * 19


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_have_the_same_bits(reentrant: bool, both: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)

    def job() -> Tensor | None:
        x = _ONE.detach().requires_grad_()
        checkpoint(attend, x, use_reentrant=reentrant).sum().backward()
        return x.grad

    ours, composed = both(job)
    assert ours[0] is not None
    assert_same(ours, composed)


# ------------------------------------------------------------------------------------------------ around it


def test_layers_of_transformers_have_the_same_bits(both: Any) -> None:
    def job() -> list[Tensor]:
        layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        x, memory = make(2, 6, 16).requires_grad_(), make(2, 9, 16, seed=1).requires_grad_()
        padding = torch.arange(9) > torch.tensor([[6], [8]])
        out = layer(x, memory, tgt_is_causal=True, memory_key_padding_mask=padding,
                    tgt_mask=nn.Transformer.generate_square_subsequent_mask(6))  # fmt: skip
        return [out, *torch.autograd.grad(out.square().sum(), [x, memory, *layer.parameters()])]

    ours, composed = both(job)
    assert_same(ours, composed)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_transformer_is_trained_to_the_golden_bits(
    optimizer: OptimizerName, autocast: bool, switch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []

    def noting(query: Tensor, key: Tensor) -> Any:
        calls.append(query.shape[2])
        return stock(query, key)

    stock = attention._parts
    monkeypatch.setattr(attention, "_parts", noting)
    switch(True)
    golden = json.loads(GOLDEN.read_text())["runs"][f"transformer/{optimizer}/{'bf16' if autocast else 'fp32'}"]
    assert RUNS["transformer"](optimizer, autocast, "cpu") == golden
    assert len(calls) > 4, "the operator was not taken"


@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_autocast_has_the_same_bits(inside: bool, both: Any) -> None:
    def job() -> Any:
        q, k, v = (x.detach().requires_grad_() for x in heads())
        with torch.autocast("cpu", torch.bfloat16):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=make(5, 7), dropout_p=0.2)
            if inside:
                return out, *torch.autograd.grad(out, (q, k, v), make(*out.shape).to(out.dtype))
        return out, *torch.autograd.grad(out, (q, k, v), make(*out.shape).to(out.dtype))

    ours, composed = both(job)
    assert ours[0][0].dtype is torch.bfloat16
    assert_same(ours, composed)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_compiled_attention_has_the_same_bits_and_draws_anew_in_each_call(dropout: float, both: Any) -> None:
    def job() -> list[Tensor]:
        torch._dynamo.reset()

        @torch.compile(backend="aot_eager")
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q * 2, k, v, dropout_p=dropout, is_causal=True)

        leaves = [x.detach().requires_grad_() for x in heads()]
        outs = [attend(*leaves) for _ in range(2)]
        return [*outs, *torch.autograd.grad(outs[0] + outs[1], leaves, make(*outs[0].shape))]

    ours, composed = both(job)
    assert torch.equal(ours[0][0], ours[0][1]) == (dropout == 0)
    assert_same(ours, composed)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.3}, {"attn_mask": _ALLOWED}, {"is_causal": True}])
def test_a_derivative_of_the_derivative_has_the_same_bits(options: dict[str, Any], both: Any) -> None:
    def job() -> Any:
        leaves = [x.detach().requires_grad_() for x in heads()]
        out = F.scaled_dot_product_attention(*leaves, **options)
        first = torch.autograd.grad(out, leaves, make(*out.shape), create_graph=True)
        return first, torch.autograd.grad(sum(x.square().sum() for x in first), leaves)  # type: ignore[arg-type]

    ours, composed = both(job)
    assert_same(ours, composed)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, in jvp
def test_transforms_of_functions_work_as_before(both: Any) -> None:
    def attend(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, _K, _V)

    def job() -> Any:
        return (
            torch.func.grad(lambda q: attend(q).sum())(_Q), torch.func.jvp(attend, (_Q,), (_Q,)),
            torch.func.vmap(attend)(torch.stack([_Q, _Q])),
        )  # fmt: skip

    ours, composed = both(job)
    assert_same(ours, composed)


def test_inference_mode_has_the_same_bits(both: Any) -> None:
    @torch.inference_mode()
    def job() -> Tensor:
        return F.scaled_dot_product_attention(_Q, _K, _V, dropout_p=0.2)

    ours, composed = both(job)
    assert_same(ours, composed)


# ------------------------------------------------------------------------------------------------ what is left to torch

_SHIFT = make(5, 7).requires_grad_()
RARE: dict[str, Job] = {
    "a mask with a gradient": lambda: torch.autograd.grad(
        F.scaled_dot_product_attention(_Q, _K, _V, attn_mask=_SHIFT).sum(), _SHIFT
    ),
    "grouped queries": lambda: with_gradients([_Q, _K[:, :1], _V[:, :1]], enable_gqa=True),
    "another batch": lambda: with_gradients([_Q, _K[:1], _V[:1]]),
    "two dimensions": lambda: with_gradients([x[0, 0] for x in (_Q, _K, _V)]),
    "five dimensions": lambda: with_gradients([x[None] for x in (_Q, _K, _V)]),
    "nobody": lambda: with_gradients([x[:, :0] for x in (_Q, _K, _V)]),
    "nothing to look at": lambda: with_gradients([_Q, _K[:, :, :0], _V[:, :, :0]]),
    "a negative scale": lambda: with_gradients([_Q, _K, _V], scale=-0.5),
    "dropout of everything": lambda: with_gradients([_Q, _K, _V], dropout_p=1.0),
}


@pytest.mark.parametrize("name", RARE)
def test_what_is_rare_stays_the_composition(name: str, both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: Any) -> Any:
        raise AssertionError("the operator was taken")

    monkeypatch.setattr(attention._Attention, "apply", never)
    ours, composed = both(RARE[name])
    assert_same(ours, composed)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: F.scaled_dot_product_attention(_Q, _K, _V, attn_mask=_ALLOWED, is_causal=True), "is_causal"),
        (lambda: F.scaled_dot_product_attention(_Q, _K, _V.double()), "dtype"),
        (lambda: F.scaled_dot_product_attention(_Q, _K[..., :4], _V), "size|shape"),
        (lambda: F.scaled_dot_product_attention(_Q.double(), _K.double(), _V.double()), "fp32"),
    ],
)
def test_what_does_not_fit_is_refused_as_before(call: Job, words: str, switch: Any) -> None:
    for on in (True, False):
        switch(on)
        with pytest.raises((RuntimeError, Refused), match=words):
            call()


def test_another_way_that_the_script_asks_for_is_refused_as_before(switch: Any) -> None:
    for on in (True, False):
        switch(on)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(Refused, match="flash"):
            F.scaled_dot_product_attention(_Q, _K, _V)


def test_a_cpu_takes_the_composition() -> None:
    assert "cpu" not in attention.DEVICES


# ------------------------------------------------------------------------------------------------ negative controls


def _another_place(kept_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, key, limit, start=0: kept_of(x, key, limit, start + 4)


def _scaled_once(x: Tensor, root: float | None, _: Any) -> Tensor:
    return (x if root is None or x.shape[-1] == 8 else x * root * root).flatten(0, 1)


CONTROLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "numbers of dropout from another place": lambda patch: patch.setattr(
        scores, "kept_of", _another_place(scores.kept_of)
    ),
    "numbers of dropout by another key": lambda patch: patch.setattr(attention, "draw_key", lambda _: 12345),
    "every part with the numbers of the first": lambda patch: patch.setattr(
        attention, "_parts", lambda query, key: [((slice(i, i + 1), slice(None)), 0) for i in range(len(query))]
    ),
    "a softmax that is rounded once more": lambda patch: patch.setattr(
        scores, "safe_softmax", lambda x, dim: torch.softmax(x, dim).bfloat16().float()
    ),
    "the scale on one side": lambda patch: patch.setattr(attention, "flat", _scaled_once),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_an_ingredient_that_is_wrong_is_seen(control: str, both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    CONTROLS[control](monkeypatch)
    ours, composed = both(USUAL["dropout"])
    assert not torch.equal(ours[0][0], composed[0][0])
