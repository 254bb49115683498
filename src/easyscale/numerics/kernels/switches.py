"""Settings of torch that choose other kernels, or other precision, than the ones that D2 is installed on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting: how it is read and written, what D2 needs it to be, and why."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    wanted: Any
    why: str
    by_wish: bool = False  # torch's default is `wanted`, so another value is what the script asked for

    def set(self, value: Any) -> None:
        """Without what older torches say once about their two interfaces."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.write(value)


def _attribute(owner: Any, path: str, name: str, wanted: Any, why: str) -> Switch:
    def write(value: Any) -> None:
        setattr(owner, name, value)

    return Switch(f"{path}.{name}", lambda: getattr(owner, name), write, wanted, why)


_NEWER = "fp32_precision = "  # what is read where the newer of torch's two interfaces to a precision was used


def _precision(name: str, read: Callable[[], Any], write: Callable[[Any], Any], wanted: Any) -> Switch:
    """A precision of products. torch raises where it is asked by the older interface for what the newer one has set."""

    def told() -> Any:
        try:
            return read()
        except RuntimeError:
            return f"{_NEWER}{_matmul.fp32_precision}"

    def put(value: Any) -> None:
        if isinstance(value, str) and value.startswith(_NEWER):
            _matmul.fp32_precision = value.removeprefix(_NEWER)
        else:
            write(value)

    return Switch(name, told, put, wanted, _REDUCED, by_wish=True)


def _cudnn_precision() -> Any:
    """torch raises where convolutions and RNNs of cuDNN have different ones: set by the newer interface."""
    try:
        return _cudnn.allow_tf32
    except RuntimeError:
        return _cudnn.conv.fp32_precision, _cudnn.rnn.fp32_precision  # type: ignore[attr-defined]


def _set_cudnn_precision(value: Any) -> None:
    if isinstance(value, tuple):
        _cudnn.conv.fp32_precision, _cudnn.rnn.fp32_precision = value  # type: ignore[attr-defined]
    else:
        _cudnn.allow_tf32 = value


def _set_general(value: str) -> None:
    torch.backends.fp32_precision = value  # type: ignore[attr-defined]


_matmul, _cudnn, _cuda = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda
_ROUND = "its kernels go round the operators of D2"
_REDUCED = "products are defined with fp32 accumulation"

SWITCHES: tuple[Switch, ...] = (
    Switch(
        "torch.use_deterministic_algorithms()",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
        "sums by index are defined in the order of positions",
    ),
    Switch(
        "torch.backends.mkldnn.enabled",
        torch._C._get_mkldnn_enabled,
        torch._C._set_mkldnn_enabled,
        False,
        _ROUND,
    ),
    # Before the others, which torch cannot read as long as this one contradicts them.
    Switch(
        "torch.backends.fp32_precision",
        lambda: torch.backends.fp32_precision,  # type: ignore[attr-defined]
        _set_general,
        "none",
        _REDUCED,
        by_wish=True,
    ),
    _attribute(_cudnn, "torch.backends.cudnn", "enabled", False, _ROUND),
    Switch("torch.backends.cudnn.allow_tf32", _cudnn_precision, _set_cudnn_precision, False, _REDUCED),
    _precision(
        "torch.backends.cuda.matmul.allow_tf32",
        lambda: _matmul.allow_tf32,
        lambda value: setattr(_matmul, "allow_tf32", value),
        False,
    ),
    _attribute(_matmul, "torch.backends.cuda.matmul", "allow_fp16_reduced_precision_reduction", False, _REDUCED),
    _attribute(_matmul, "torch.backends.cuda.matmul", "allow_bf16_reduced_precision_reduction", False, _REDUCED),
    _precision(
        "torch.get_float32_matmul_precision()",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "highest",
    ),
    Switch("flash attention", _cuda.flash_sdp_enabled, _cuda.enable_flash_sdp, False, _ROUND),
    Switch(
        "memory-efficient attention", _cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp, False, _ROUND
    ),
    Switch("cuDNN attention", _cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp, False, _ROUND),
    Switch("plain attention", _cuda.math_sdp_enabled, _cuda.enable_math_sdp, True, "D2 computes attention by it"),
    Switch(
        "the fast path of torch.nn.MultiheadAttention",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
        False,
        _ROUND,
    ),
)
