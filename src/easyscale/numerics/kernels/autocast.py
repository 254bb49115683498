"""One policy of autocast on every device: torch.autocast's on CUDA, in the lists of torch 2.13.

Stock torch has another policy for each device type: on CUDA layer_norm, softmax, exp, pow, sum and losses run in fp32,
on CPUs they do not. `register` puts, under the dispatcher's key of autocast for each device type, what is missing there
and takes away what is too much. An operator of another torch's lists that is not in ours falls through, so that what it
is made of is cast.

Casts to the lower precision of a parameter are kept by torch until the outermost autocast ends: a weight that is used
twice has one cast, in which its gradients meet before they are fp32. So torch's kernels stay where they cast to the
lower precision, and ours use torch's cache (`_kept`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from easyscale.numerics.kernels.refusal import Refused, caller, refuse
from easyscale.numerics.kernels.registry import DeviceKind


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOWER = _names("""
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
""")
FP32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
""")
# The argument `dtype` is fp32 where the first tensor is cast and none was given.
FP32_RESULT = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
# These have no argument `dtype`; the overload beside them has.
NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
BANNED = ("binary_cross_entropy",)

POLICY = frozenset((*LOWER, *FP32, *FP32_RESULT, *NORMS, *WIDEST, *BANNED))
KEYS: dict[DeviceKind, str] = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}

# Torch's kernel casts all its tensors, by the cache, and calls the operator below. At D2 nothing else calls that.
_CARRIER = "mkldnn_rnn_layer"
_OURS = -20  # as the carrier's argument `mode`: called by `_kept`
_LEFT = {_CARRIER, "_cudnn_rnn"}  # torch's kernels that stay although no list has them: cuDNN is off
_MOVED = {"rms_norm"}  # from 2.12 on in a list of CUDA's: ours on every version

Kernel = Callable[..., Any]


def register(library: torch.library.Library) -> None:
    """Put the policy in force, until the library is destroyed."""
    for device, key in KEYS.items():
        for name, kernel in changes(device).items():
            library.impl(name, kernel, key)
    library.impl(_CARRIER, _carried, "AutogradCPU")


def changes(device: DeviceKind) -> dict[str, Kernel]:
    """By overload: what replaces torch's kernel on this device type, or goes where torch has none."""
    named = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    stock = {n for n in named if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{n}", KEYS[device])}
    keep = set(LOWER) if device == "cpu" else POLICY - _MOVED  # for CUDA torch has the policy
    found: dict[str, Kernel] = dict.fromkeys(stock - POLICY - _LEFT, torch.library.fallthrough_kernel)
    found |= {name: _kernel(name, device) for name in (POLICY & named) - (stock & keep)}
    return found


# ------------------------------------------------------------------------------------------------ casts


def _is_cast(value: Any, device: DeviceKind) -> bool:
    return (
        isinstance(value, Tensor) and value.device.type == device and value.is_floating_point()
        and value.dtype is not torch.float64
    )  # fmt: skip


def _cast(value: Any, dtype: torch.dtype, device: DeviceKind) -> Any:
    """Tensors, and those in lists, as torch's `cached_cast` does. Called while autocast is on."""
    if isinstance(value, (list, tuple)):
        return [_cast(each, dtype, device) for each in value]
    if not _is_cast(value, device) or value.dtype is dtype:
        return value
    if value.dtype is torch.float32 and value.requires_grad and value.is_leaf and device == "cpu":
        return _kept(value, dtype)
    return value.to(dtype)


def _kept(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Its cast to the lower precision from torch's cache: the one that torch's own kernels use too."""
    if torch.is_inference_mode_enabled():  # the carrier is under autograd's key
        return parameter.to(dtype)
    none = torch.empty(0, dtype=torch.int8)
    carried = torch.ops.aten.mkldnn_rnn_layer(
        parameter, none, none, none, none, none, none, False, [], _OURS, 0, 1, False, False, False, False
    )
    cast: Tensor = carried[0]
    return cast


def _carried(input: Tensor, *args: Any, **_options: Any) -> tuple[Tensor, ...]:
    if args[8] != _OURS:
        refuse(_CARRIER)
    return (input,) * 4


# ------------------------------------------------------------------------------------------------ kernels


def _kernel(name: str, device: DeviceKind) -> Kernel:
    if name in BANNED:
        return _banned
    if name in FP32_RESULT:
        return _fp32_result(name, device)
    if name in NORMS:
        return _norm(name, device)
    if name in WIDEST:
        return _widest(name, device)
    return _all_cast(name, device, torch.float32 if name in FP32 else None)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _below(device: DeviceKind) -> Callable[[], Any]:
    """A context in which nothing is cast on this device type."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEYS[device]))
    return lambda: torch._C._ExcludeDispatchKeyGuard(keys)


def _all_cast(name: str, device: DeviceKind, dtype: torch.dtype | None) -> Kernel:
    """To `dtype`, or to the lower precision."""
    operator, below = _operator(name), _below(device)

    def kernel(*args: Any, **options: Any) -> Any:
        to = dtype or torch.get_autocast_dtype(device)
        given = [_cast(value, to, device) for value in args]
        named = {key: _cast(value, to, device) for key, value in options.items()}
        with below():
            return operator(*given, **named)

    return kernel


def _fp32_result(name: str, device: DeviceKind) -> Kernel:
    operator, below = _operator(name), _below(device)
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **options: Any) -> Any:
        if _is_cast(args[0], device):
            if len(args) > place and args[place] is None:
                args = args[:place]
            if len(args) <= place and options.get("dtype") is None:
                options["dtype"] = torch.float32
        with below():
            return operator(*args, **options)

    return kernel


def _norm(name: str, device: DeviceKind) -> Kernel:
    operator, below, beside = _operator(name), _below(device), _operator(NORMS[name])
    defaults = {a.name: a.default_value for a in operator._schema.arguments if a.has_default_value()}
    places = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **options: Any) -> Any:
        given = defaults | dict(zip(places, args, strict=False)) | options
        to = torch.float32 if _is_cast(given["self"], device) else given["self"].dtype
        with below():
            return beside(*(given[place] for place in places), dtype=to)

    return kernel


def _widest(name: str, device: DeviceKind) -> Kernel:
    """To fp32 if one of the tensors is that, else all are of the lower precision. Optional tensors have no say."""
    operator, below = _operator(name), _below(device)
    asked = [str(argument.type) in ("Tensor", "List[Tensor]") for argument in operator._schema.arguments]

    def kernel(*args: Any, **options: Any) -> Any:
        to = lower = torch.get_autocast_dtype(device)
        for value, has_a_say in zip(args, asked, strict=False):
            if has_a_say and _is_cast(value, device) and to is not torch.float32:
                if value.dtype not in (torch.float32, lower):
                    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")  # as torch says
                to = value.dtype
        given = [_cast(value, to, device) for value in args]
        with below():
            return operator(*given, **options)

    return kernel


def _banned(*_args: Any, **_options: Any) -> NoReturn:
    raise Refused(
        f"binary_cross_entropy does not run under autocast at level D2 ({caller()}).",
        "its sigmoid was rounded to the lower precision, where a loss near 0 or 1 is lost. torch refuses it on CUDA, "
        "and D2 has CUDA's policy of autocast on every device.",
        "leave the sigmoid out and use torch.nn.functional.binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss, or compute this loss in fp32 under `torch.autocast(..., enabled=False)`.",
    )
