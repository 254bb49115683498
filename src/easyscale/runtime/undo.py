"""The parameters as they were before the last optimizer step.

A worker may die after its gradients were counted and before its peers have its ESTs' new contexts. Then those local
steps are run once more, for the contexts alone, on the parameters that they had. Costs one copy of the parameters on
the device, and is kept only where there are peers that may die.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class Undo:
    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self._kept: list[torch.Tensor] = []

    def keep(self) -> None:
        """Before they change."""
        if not self._kept:
            self._kept = [torch.empty_like(parameter) for parameter in self._parameters]
        torch._foreach_copy_(self._kept, self._parameters)

    def drop(self) -> None:
        self._kept = []

    @contextmanager
    def back(self) -> Iterator[None]:
        """Inside, the parameters are those that were kept."""
        now = [parameter.clone() for parameter in self._parameters]
        if self._kept:
            torch._foreach_copy_(self._parameters, self._kept)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, now)
