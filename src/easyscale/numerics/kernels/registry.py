"""The table of D2 forms: which aten operator is computed by which function of ours, on which devices.

Modules of forms fill it at import with the decorator `form`; `install` carries it into torch's dispatcher. A form is a
functional kernel below autograd: it gets plain tensors and returns new ones. In-place and `out=` overloads of the same
operator are derived from it by `install`, unless they are given as forms of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

DeviceKind = Literal["cpu", "cuda"]
ANYWHERE: tuple[DeviceKind, ...] = ("cpu", "cuda")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Form:
    """One aten overload and what computes it. `name` is "mm" or, with an overload, "sum.dim_IntList"."""

    name: str
    function: Callable[..., Any]
    devices: tuple[DeviceKind, ...] = ANYWHERE


FORMS: dict[str, Form] = {}


def form(*names: str, devices: tuple[DeviceKind, ...] = ANYWHERE) -> Callable[[F], F]:
    """Make the decorated function the D2 form of these overloads. A device left out keeps stock's kernel, which must
    then stand in the list of stock operators that are safe there (`safe`)."""

    def note(function: F) -> F:
        for name in names:
            assert name not in FORMS, f"two D2 forms of {name}"
            FORMS[name] = Form(name, function, devices)
        return function

    return note
