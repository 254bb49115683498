"""The level of an operator, as it was called: D2, D1 or D0; and the family of operators that it belongs to.

    D2  it has a D2 form, or its stock kernel is in the list of those with the same bits everywhere
    D1  its stock kernel gives the same bits on one device type, and perhaps others on another
    D0  torch has no deterministic kernel of it, or it comes from an extension whose kernels are not known

Relies on the tables that a D2 job installs (`numerics.kernels`), so a scan and a job cannot disagree about a form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from easyscale.core.spec import Level
from easyscale.numerics.kernels import install, safe
from easyscale.numerics.kernels.registry import FORMS, DeviceKind
from easyscale.runtime.d2 import STOCK

_KEYS: dict[DeviceKind, str] = {"cpu": "CPU", "cuda": "CUDA"}
# Ways of stock torch that a D2 job does not take: it computes the same by other operators, which have forms.
_OTHER_WAY = (
    "_scaled_dot_product_", "_fused_adam", "_fused_adagrad", "_fused_sgd", "mkldnn_", "cudnn_", "_cudnn_", "miopen_",
    "_thnn_fused_",
)  # fmt: skip
_FAMILIES = {
    "products": "products", "convolutions": "convolutions", "norms": "norms", "softmax": "softmax", "losses": "losses",
    "reductions": "sums", "elementwise": "elementwise", "foreach": "elementwise", "exact": "elementwise",
    "pooling": "pooling", "interpolation": "pooling", "randomness": "random", "indexing": "indexing",
    "bags": "indexing", "recurrent": "recurrent", "sorting": "sorting", "counting": "sums", "distances": "sums",
    "ctc": "losses", "margins": "losses", "gamma": "elementwise", "orthogonal": "products", "sampling": "pooling",
}  # fmt: skip
STOCK_FAMILY = "stock kernels"


@dataclass(frozen=True, slots=True)
class Standing:
    """`why` is a sentence for an operator that is not at D2, or that D2 computes in another way."""

    level: Level
    family: str
    why: str = ""


@dataclass(slots=True)
class Levels:
    """Answers are remembered: a step asks for the same few operators again and again."""

    _known: dict[DeviceKind, set[str]] = field(default_factory=dict)
    _found: dict[tuple[Any, DeviceKind], Standing] = field(default_factory=dict)

    def of(self, func: Any, device: DeviceKind) -> Standing:
        found = self._found.get((func, device))
        if found is None:
            found = self._found[func, device] = self._look(func, device)
        return found

    def _look(self, func: Any, device: DeviceKind) -> Standing:
        space, _, packet = func._schema.name.partition("::")
        if space not in STOCK:
            return Standing("D0", "extensions", f"it comes from the extension {space}, whose kernels are not known")
        if space == "easyscale":
            return Standing("D2", "attention")
        name = packet if func._overloadname == "default" else f"{packet}.{func._overloadname}"
        if space != "aten" or name in self._kernels(device):
            return Standing("D2", family_of(name))
        if safe.is_safe(name, device):
            return Standing("D2", STOCK_FAMILY)
        if packet.startswith(_OTHER_WAY):
            family = "attention" if packet.startswith("_scaled_dot") else family_of(name)
            return Standing("D2", family, "a D2 job computes it by other operators")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEYS[device]):
            return Standing("D2", family_of(name), "it is made of other operators")
        return Standing("D1", family_of(name), "its stock kernels may differ between device types; it has no D2 form")

    def _kernels(self, device: DeviceKind) -> set[str]:
        if device not in self._known:
            self._known[device] = set(install.kernels(device))
        return self._known[device]


def family_of(name: str) -> str:
    """By the module that has its form, or a form of another overload."""
    packet = name.partition(".")[0].removesuffix("_")
    form = FORMS.get(name) or FORMS.get(packet)
    if form is None:
        form = next((one for of, one in FORMS.items() if of.partition(".")[0].removesuffix("_") == packet), None)
    if form is None:
        return STOCK_FAMILY
    return _FAMILIES.get(form.function.__module__.rpartition(".")[2], "elementwise")
