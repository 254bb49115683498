"""Triton's interpreter in about three quarters of its time, with the same operations in the same order.

It puts its operators in the place of the language's anew for every function that a kernel calls; once a launch is
enough. And it makes a table of all dtypes whenever it looks one up. Relies on the interpreter of Triton 3.6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_NAMES = ("_patch_lang", "_get_np_dtype", "GridExecutor", "InterpretedFunction")


def install() -> None:
    """For the rest of the process."""
    if all(hasattr(interpreter, name) for name in _NAMES):
        _once_a_launch()
        _known_dtypes()


def _once_a_launch() -> None:
    launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    done: set[tuple[bool, bool]] = set()  # in this launch: for functions that see these modules

    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        done.clear()
        return launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = self.fn.__globals__.values()
        modules = any(value is tl for value in seen), any(value is tl.core for value in seen)
        if modules not in done:
            patch(self.fn)
            done.add(modules)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.GridExecutor.__call__ = begin
    interpreter.InterpretedFunction.__call__ = call


def _known_dtypes() -> None:
    stock, known = interpreter._get_np_dtype, {}
    address = np.dtype(np.uint64)

    def find(dtype: Any) -> Any:
        single = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(single, tl.pointer_type):
            return address
        if single.name not in known:
            known[single.name] = stock(single)
        return known[single.name]

    interpreter._get_np_dtype = find
