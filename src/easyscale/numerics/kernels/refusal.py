"""Refusing an operator by name, with the module and the line that called it.

A kernel is called from C++, under autograd or in a backward, and knows its own name at most. The rest is read off the
Python stack: the user's line, and the path of the innermost module in the model. In a backward the stack holds the
call of `backward()` only; there the autograd node is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from easyscale.core.errors import UnsupportedError

_OURS = f"{Path(__file__).parents[2]}/"
_TORCH = f"{Path(torch.__file__).parent}/"


class Refused(UnsupportedError):
    """An operator without a D2 form was called in a D2 job."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Where an operator was called. `module` is its path in the model; `node` the autograd node, in a backward."""

    file: str
    line: int
    module: str | None
    node: str | None

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line}"
        if self.module is not None:
            place += f", in module {self.module}"
        if self.node is not None:
            place += f", in the backward of {self.node.removesuffix('0').removesuffix('Backward')}"
        return place


def caller() -> Caller:
    """The line of the user's that led here."""
    user, modules = None, []
    for frame in _frames(sys._getframe(1)):
        name = frame.f_code.co_filename
        if user is None and not name.startswith((_OURS, _TORCH, "<")):
            user = frame
        if frame.f_code.co_name == "_call_impl" and isinstance(frame.f_locals.get("self"), torch.nn.Module):
            modules.append(frame.f_locals["self"])
    node = torch._C._current_autograd_node()
    return Caller(
        file=user.f_code.co_filename if user else "?",
        line=user.f_lineno if user else 0,
        module=_path(modules),
        node=type(node).__name__ if node is not None else None,
    )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _path(modules: list[torch.nn.Module]) -> str | None:
    """The innermost module by its path in the outermost; modules come from the inside out."""
    if not modules:
        return None
    innermost, outermost = modules[0], modules[-1]
    kind = type(innermost).__name__
    for name, module in outermost.named_modules():
        if module is innermost:
            return f"{name} ({kind})" if name else kind
    return kind


def refuse(operator: str, why: str = "", now: str = "") -> NoReturn:
    """Raise `Refused` for an operator, naming where it was called."""
    raise Refused(
        f"Level D2 has no form of the operator {operator} ({caller()}).",
        why or "its stock kernels differ in their last bits between device types, and no fixed sequence of IEEE "
        "operations is defined for it here.",
        now or "use another operator there, or --determinism D1 (one device type). `easyscale scan SCRIPT` lists all "
        "operators of a script with their level.",
    )


def refusing_kernel(operator: str) -> Callable[..., Any]:
    """A kernel that only refuses."""

    def kernel(*_args: Any, **_options: Any) -> NoReturn:
        refuse(operator)

    return kernel
