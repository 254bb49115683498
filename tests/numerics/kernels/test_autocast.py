"""Autocast at D2: CUDA's policy on CPU tensors too.

The lists here are written from torch's documentation (torch.amp, "CUDA Ops that can autocast to ..."), with the
overloads of aten. An operator under autocast has to give the bits that it gives without, on tensors that the test cast.
Kernels are torch's own: only the policy is in force, so that operators without a D2 form are tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from easyscale.numerics.kernels import autocast, install
from easyscale.numerics.kernels.refusal import Refused

HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def t(*shape: int) -> Tensor:
    """Of (0, 1): where all functions are defined."""
    return torch.rand(shape) * 0.8 + 0.1


def long(*shape: int) -> Tensor:
    return torch.randint(3, shape)


def spatial(places: int) -> Tensor:
    return t(1, 2, *[6] * places)


def convolution(places: int) -> tuple[Any, ...]:
    return spatial(places), t(2, 2, *[3] * places), t(2), [1] * places, [1] * places, [1] * places


def nearest(places: int) -> tuple[Any, ...]:
    return spatial(places), [9] * places


def general(places: int = 2) -> tuple[Any, ...]:
    return *convolution(places), False, [0] * places, 1


def cell(gates: int) -> tuple[Any, ...]:
    return t(2, 3), t(2, 4), t(4 * gates, 3), t(4 * gates, 4), t(4 * gates), t(4 * gates)


LOWER: dict[str, Callable[[], tuple[Any, ...]]] = {
    "_convolution": lambda: (*general(), False, False, False, False),
    "_convolution.deprecated": lambda: (*general(), False, False, False),
    "conv1d": lambda: convolution(1), "conv2d": lambda: convolution(2), "conv3d": lambda: convolution(3),
    "conv_tbc": lambda: (t(5, 2, 3), t(3, 3, 4), t(4), 1),
    "conv_transpose1d": lambda: convolution(1)[:5], "conv_transpose2d.input": lambda: convolution(2)[:5],
    "conv_transpose3d.input": lambda: convolution(3)[:5], "convolution": general,
    "prelu": lambda: (t(2, 3) - 0.5, t(3)),
    "addmm": lambda: (t(4), t(2, 3), t(3, 4)), "addmv": lambda: (t(2), t(2, 3), t(3)),
    "addr": lambda: (t(2, 3), t(2), t(3)), "matmul": lambda: (t(2, 3), t(3, 4)),
    "einsum": lambda: ("ij,jk->ik", [t(2, 3), t(3, 4)]),
    "mm": lambda: (t(2, 3), t(3, 4)), "mv": lambda: (t(2, 3), t(3)), "linalg_vecdot": lambda: (t(2, 3), t(2, 3)),
    "linear": lambda: (t(2, 3), t(4, 3), t(4)), "addbmm": lambda: (t(2, 4), t(5, 2, 3), t(5, 3, 4)),
    "baddbmm": lambda: (t(5, 2, 4), t(5, 2, 3), t(5, 3, 4)), "bmm": lambda: (t(5, 2, 3), t(5, 3, 4)),
    "chain_matmul": lambda: ([t(2, 3), t(3, 4), t(4, 5)],), "linalg_multi_dot": lambda: ([t(2, 3), t(3, 4), t(4, 5)],),
    "lstm_cell": lambda: (t(2, 3), [t(2, 4), t(2, 4)], *cell(4)[2:]), "gru_cell": lambda: cell(3),
    "rnn_tanh_cell": lambda: cell(1), "rnn_relu_cell": lambda: cell(1),
    "scaled_dot_product_attention": lambda: (t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
}  # fmt: skip
NO_CPU_KERNEL: dict[str, Callable[[], tuple[Any, ...]]] = {
    "cudnn_convolution": lambda: (spatial(2), t(2, 2, 3, 3), [1, 1], [1, 1], [1, 1], 1, False, False, False),
    "cudnn_convolution_transpose":
        lambda: (spatial(2), t(2, 2, 3, 3), [1, 1], [0, 0], [1, 1], [1, 1], 1, False, False, False),
    "_thnn_fused_lstm_cell": lambda: (t(2, 16), t(2, 16), t(2, 4)),
    "_thnn_fused_gru_cell": lambda: (t(2, 12), t(2, 12), t(2, 4)),
    "_scaled_dot_product_flash_attention": lambda: (t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
}  # fmt: skip
_PLAIN = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus nuclear_norm
    pdist"""
_PAIRS = """pow.Tensor_Tensor cosine_similarity kl_div l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss dist
    cdist binary_cross_entropy_with_logits"""
FP32: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{name: lambda: (t(3, 4),) for name in _PLAIN.split()},
    **{name: lambda: (t(3, 4), t(3, 4)) for name in _PAIRS.split()},
    "pow.Tensor_Scalar": lambda: (t(3), 2.5), "pow.Scalar": lambda: (2.5, t(3)),
    "layer_norm": lambda: (t(3, 4), [4], t(4), t(4)), "native_layer_norm": lambda: (t(3, 4), [4], t(4), t(4), 1e-5),
    "rms_norm": lambda: (t(3, 4), [4], t(4)), "group_norm": lambda: (t(2, 4, 3), 2, t(4), t(4)),
    "frobenius_norm.dim": lambda: (t(3, 4), [1], False), "nuclear_norm.dim": lambda: (t(3, 4), [0, 1]),
    "poisson_nll_loss": lambda: (t(3), t(3), True, False, 1e-8, 1),
    "cosine_embedding_loss": lambda: (t(3, 4), t(3, 4), torch.ones(3, dtype=torch.int64)),
    "nll_loss": lambda: (t(3, 4), long(3), t(4)), "nll_loss2d": lambda: (t(2, 4, 3, 3), long(2, 3, 3)),
    "hinge_embedding_loss": lambda: (t(3), torch.ones(3, dtype=torch.int64)),
    "margin_ranking_loss": lambda: (t(3), t(3), torch.ones(3, dtype=torch.int64)),
    "multilabel_margin_loss": lambda: (t(2, 3), long(2, 3)), "multi_margin_loss": lambda: (t(2, 3), long(2)),
    "triplet_margin_loss": lambda: (t(2, 3), t(2, 3), t(2, 3)), "renorm": lambda: (t(3, 4), 2, 0, 0.5),
    "logsumexp": lambda: (t(3, 4), [1]),
    **{f"{name}{n}d": partial(nearest, n)
       for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)},
    "upsample_linear1d": lambda: (spatial(1), [9], False),
    **{name: lambda: (spatial(2), [9, 9], False) for name in
       ("upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa")},
    "upsample_trilinear3d": lambda: (spatial(3), [9, 9, 9], False),
}  # fmt: skip
FP32_RESULT: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{name: lambda: (t(3, 4),) for name in ("prod", "sum", "linalg_vector_norm", "linalg_matrix_norm.str_ord")},
    **{name: lambda: (t(3, 4), 1) for name in ("prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum")},
    "sum.dim_IntList": lambda: (t(3, 4), [1]), "linalg_matrix_norm": lambda: (t(3, 4), 1),
}  # fmt: skip
NORMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "norm.Scalar": lambda: (t(3, 4),), "norm.ScalarOpt_dim": lambda: (t(3, 4), 3, [1]),
}  # fmt: skip
WIDEST: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{name: lambda: (t(4, 3), t(4, 3), t(4, 3)) for name in ("addcdiv", "addcmul")},
    **{name: lambda: (t(4, 3), t(4, 3)) for name in ("atan2", "cross")},
    **{name: lambda: (t(4), t(4)) for name in ("dot", "vdot")},
    "bilinear": lambda: (t(2, 3), t(2, 4), t(5, 3, 4), t(5)),
    "grid_sampler": lambda: (spatial(2), t(1, 4, 4, 2), 0, 0, False),
    "index_put": lambda: (t(4, 3), [long(2)], t(2, 3)),
    "tensordot": lambda: (t(2, 3), t(3, 2), [1], [0]),
    "scatter_add": lambda: (t(4, 3), 0, long(4, 3), t(4, 3)),
}  # fmt: skip


@pytest.fixture
def _policy(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """The policy alone."""
    library = torch.library.Library("aten", "IMPL")
    autocast.register(library)
    yield
    library._destroy()


policy = pytest.mark.usefixtures("_policy")


def under(dtype: torch.dtype = HALF) -> torch.autocast:
    return torch.autocast("cpu", dtype)


def to(value: Any, dtype: torch.dtype) -> Any:
    """All floating tensors, as this dtype."""
    if isinstance(value, (list, tuple)):
        return type(value)(to(each, dtype) for each in value)
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def same(ours: Any, wanted: Any) -> None:
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, wanted)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


class Seen(TorchDispatchMode):
    """The dtypes of what arrives below autocast, at the operator itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            return func(*args, **(kwargs or {}))
        self.dtypes = {x.dtype for x in args if isinstance(x, Tensor)}
        raise StopIteration


# ------------------------------------------------------------------------------------------------ the lists


def test_every_operator_of_torch_s_policy_is_in_a_list_here_and_in_ours() -> None:
    """A torch with other lists is noticed here. 2.11 has rms_norm in none, and overloads with names of dimensions."""
    names = [n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    torchs = {n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{n}", "AutocastCUDA")}
    torchs = {n for n in torchs if "imname" not in n and "names_" not in n} - {"_cudnn_rnn"}
    lists = {*LOWER, *NO_CPU_KERNEL, *FP32, *FP32_RESULT, *NORMS, *WIDEST, "binary_cross_entropy"}
    assert torchs - lists == set()
    assert lists - torchs <= {"rms_norm"}
    assert set(autocast.LOWER) == LOWER.keys() | NO_CPU_KERNEL.keys()
    assert set(autocast.FP32) == FP32.keys()
    assert set(autocast.FP32_RESULT) == FP32_RESULT.keys()
    assert autocast.NORMS.keys() == NORMS.keys()
    assert set(autocast.WIDEST) == WIDEST.keys()


def test_what_only_the_cpu_s_policy_has_falls_through() -> None:
    names = [n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    stock = {n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{n}", "AutocastCPU")}
    changes = autocast.changes("cpu")
    through = {n for n, kernel in changes.items() if kernel is torch.library.fallthrough_kernel}
    assert {"cat", "stack", "max_pool3d", "quantile", "cross_entropy_loss", "conv2d.padding"} <= through
    assert stock - changes.keys() - set(autocast.LOWER) == {"mkldnn_rnn_layer"}


# ------------------------------------------------------------------------------------------------ casts


@policy
@pytest.mark.parametrize("lower", [HALF, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOWER)
def test_products_run_in_the_lower_precision(name: str, lower: torch.dtype) -> None:
    args = LOWER[name]()
    wanted, doubles = operator(name)(*to(args, lower)), operator(name)(*to(args, DOUBLE))
    with under(lower):
        same(operator(name)(*args), wanted)
        same(operator(name)(*to(args, DOUBLE)), doubles)


@policy
@pytest.mark.parametrize("name", NO_CPU_KERNEL)
def test_products_without_a_kernel_for_cpus_are_cast_too(name: str) -> None:
    args = NO_CPU_KERNEL[name]()
    with under(), Seen() as seen, pytest.raises(StopIteration):
        operator(name)(*args)
    assert seen.dtypes == {HALF}


@policy
@pytest.mark.parametrize("name", FP32)
def test_functions_and_losses_run_in_fp32(name: str) -> None:
    args = to(FP32[name](), HALF)
    wanted = operator(name)(*to(args, SINGLE))
    with under():
        same(operator(name)(*args), wanted)
        doubles = operator(name)(*to(args, DOUBLE))
    same(doubles, operator(name)(*to(args, DOUBLE)))


@policy
@pytest.mark.parametrize("name", FP32_RESULT)
def test_sums_have_results_in_fp32_if_no_dtype_is_given(name: str) -> None:
    args, call = to(FP32_RESULT[name](), HALF), operator(name)
    with under():
        same(call(*args), call(*args, dtype=SINGLE))
        same(call(*args, dtype=None), call(*args, dtype=SINGLE))
        assert call(*to(args, SINGLE)).dtype is SINGLE
        if "norm" not in name:
            assert call(*args, dtype=HALF).dtype is HALF
        assert call(*args, dtype=DOUBLE).dtype is DOUBLE
        assert call(*to(args, DOUBLE)).dtype is DOUBLE
        if "norm" not in name and "softmax" not in name:
            whole = (torch.ones(3, 4, dtype=torch.int32), *args[1:])
            assert call(*whole).dtype is torch.int64


@policy
@pytest.mark.parametrize("name", NORMS)
def test_norms_have_results_in_fp32(name: str) -> None:
    args, call = to(NORMS[name](), HALF), operator(name)
    with under():
        found, doubles = call(*args), call(*to(args, DOUBLE))
    same(found, call(*to(args, SINGLE)))
    same(doubles, call(*to(args, DOUBLE)))
    with under():
        assert torch.norm(args[0]).dtype is SINGLE
        assert torch.norm(args[0], dim=1, keepdim=True).shape == (3, 1)


@policy
@pytest.mark.parametrize("name", WIDEST)
def test_operators_of_several_tensors_run_in_the_widest_dtype(name: str) -> None:
    args, call = WIDEST[name](), operator(name)
    halves = to(args, HALF)
    mixed = (halves[0], *args[1:])
    wanted = call(*to(halves, SINGLE)[:1], *args[1:]), call(*halves)
    with under():
        same(call(*mixed), wanted[0])
        same(call(*halves), wanted[1])


@policy
def test_an_optional_tensor_has_no_say_in_the_widest_dtype() -> None:
    x, y, weight, bias = WIDEST["bilinear"]()
    with under():
        assert F.bilinear(x.to(HALF), y.to(HALF), weight.to(HALF), bias).dtype is HALF


@policy
def test_two_lower_precisions_at_once_are_an_error_as_on_cuda() -> None:
    with under(), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        torch.dot(t(3).half(), t(3).half())


# ------------------------------------------------------------------------------------------------ the cache of casts


@policy
def test_a_weight_has_one_cast_whoever_asks_for_it() -> None:
    """torch's own kernel of mm and ours of mv and addr: their gradients meet in the lower precision."""
    weight = torch.nn.Parameter(torch.randn(5, 5))
    x = torch.randn(5, 5)

    def step(cast: Callable[[], Tensor], around: Any) -> Tensor:
        weight.grad = None
        with around:
            a, b = torch.mm(cast(), x.to(HALF)), torch.mv(cast(), x[0].to(HALF))
            c = torch.addr(cast(), x[1].to(HALF), x[2].to(HALF))
        (a.float().sum() + b.float().sum() * 0.37 + c.float().sum() * 1.7).backward()
        assert weight.grad is not None
        return weight.grad

    once = weight.to(HALF)
    wanted = step(lambda: once, nullcontext())
    assert torch.equal(step(lambda: weight, under()), wanted)
    apart = step(lambda: weight.to(HALF), nullcontext())
    assert not torch.equal(apart, wanted), "with a cast each the bits are others: the test can see it"
    assert torch.equal(step(lambda: weight, torch.autocast("cpu", HALF, cache_enabled=False)), apart)


@policy
def test_casts_are_forgotten_when_autocast_ends() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    with under():
        first = torch.mv(weight, torch.ones(2))
    with torch.no_grad():
        weight.fill_(3.0)
    with under():
        second = torch.mv(weight, torch.ones(2))
    assert (first[0].item(), second[0].item()) == (2.0, 6.0)


@policy
def test_parameters_are_cast_in_inference_mode_too() -> None:
    with under(), torch.inference_mode():
        assert torch.mv(torch.nn.Parameter(torch.ones(2, 2)), torch.ones(2)).dtype is HALF


def test_what_carries_the_casts_is_not_for_the_user() -> None:
    x = torch.ones(1, 1, 1)
    with install.installed(), pytest.raises(Refused, match="mkldnn_rnn_layer"):
        torch.mkldnn_rnn_layer(x, x, x, x, x, x, x, False, [], 2, 1, 1, True, False, False, False)


# ------------------------------------------------------------------------------------------------ with D2


def test_binary_cross_entropy_is_refused_under_autocast_only() -> None:
    with install.installed():
        with under(), pytest.raises(Refused, match="binary_cross_entropy does not run under autocast") as caught:
            F.binary_cross_entropy(t(3), t(3))
        assert "binary_cross_entropy_with_logits" in caught.value.now
        with under(), torch.autocast("cpu", enabled=False):
            assert F.binary_cross_entropy(t(3), t(3)).dtype is SINGLE


def test_d2_has_the_policy_while_it_is_installed() -> None:
    x = t(3, 4).to(HALF)

    def dtypes() -> list[torch.dtype]:
        with under():
            found = (x.exp(), x.sum(), F.layer_norm(x, [4]), F.softmax(x, 1), F.cross_entropy(x, long(3)), x.tanh())
            volume = F.max_pool3d(t(1, 1, 4, 4, 4).to(HALF), 2)
            same_padding = F.conv2d(t(1, 2, 4, 4), t(2, 2, 3, 3), padding="same")
        return [each.dtype for each in (*found, volume, same_padding)]

    stock = [HALF, HALF, HALF, HALF, SINGLE, HALF, SINGLE, HALF]
    assert dtypes() == stock
    with install.installed():
        assert dtypes() == [SINGLE, SINGLE, SINGLE, SINGLE, SINGLE, HALF, HALF, HALF]
    assert dtypes() == stock


def test_cells_are_cast_whole_and_layers_by_their_products() -> None:
    """On CUDA a cell is in the list of products, a layer is in none."""
    cell, layer = torch.nn.GRUCell(3, 4), torch.nn.GRU(3, 4)
    x, state = t(2, 3), t(2, 4)
    with install.installed():
        with under():
            found = cell(x, state)
            outputs, _ = layer(x[:, None], torch.zeros(1, 1, 4))
            halves, _ = layer(x[:, None].to(HALF), torch.zeros(1, 1, 4, dtype=HALF))
        assert (outputs.dtype, halves.dtype) == (SINGLE, HALF)
        same(found, cell.to(HALF)(x.to(HALF), state.to(HALF)))
