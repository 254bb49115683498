"""Triton's interpreter in about three quarters of its time, with the same operations in the same order, and true FMA.

It puts its operators in the place of the language's anew for every function that a kernel calls; once a launch is
enough. And it makes a table of all dtypes whenever it looks one up. Its FMA rounds twice: of fp32 it is replaced by one
that rounds once. Relies on the interpreter of Triton 3.6.
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
    _fused_once()


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


def _fused_once() -> None:
    stock = interpreter.InterpreterBuilder.create_fma

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype != np.float32:
            return stock(self, x, y, z)
        product, added = np.float64(x.data) * np.float64(y.data), np.float64(z.data)  # the product is exact
        total = np.asarray(product + added)
        shadow = total - product
        lost = (product - (total - shadow)) + (added - shadow)
        bits = total.view(np.int64)
        away = np.where((lost > 0) == (total > 0), 1, -1)
        cut = (lost != 0) & np.isfinite(total) & (bits & 1 == 0)  # rounded to odd: no tie for the second rounding
        odd = np.where(cut, bits + away, bits).view(np.float64)
        return interpreter.TensorHandle(odd.astype(np.float32), z.dtype.scalar)

    interpreter.InterpreterBuilder.create_fma = fused
