"""Forms on a GPU that are done again without their Python: the same allocations and launches, at other addresses.

A form finds out from shapes, strides and dtypes what to launch, and finds out the same each time. The second call with
the same facts is watched: what it allocates, what it launches, and where each address that it gives to a kernel comes
from: from an argument, from memory that it allocated, or from the workspace. From then on the form is a program:
allocate, add up addresses, launch. On a slow host that is what the time of small models goes into.

Whatever else a form does makes it no program, and it is called as before: an operator of torch that is more than a
copy, a stock kernel, memory that neither it nor its caller owns, a launch that Triton itself has to make. Relies on
forms that look at nothing but the facts of their key (`REPLAYED` lists such forms); arguments that do not begin at
multiples of 16 bytes are left to the form. Guarantees the launches of the form itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import copysign
from typing import Any

import torch

from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.gpu.programs import CANNOT, STALE, Program, written
from easyscale.numerics.kernels.gpu.steps import Watch

# Functions of their arguments alone: no random numbers, no state.
_NAMES = """
mm addmm bmm baddbmm convolution convolution_backward
native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward
native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward
sum.dim_IntList sum mean.dim mean var_mean.correction linalg_vector_norm
_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax
exp expm1 exp2 log log1p log2 log10 sqrt rsqrt erf sin cos pow.Tensor_Scalar native_dropout_backward
tanh tanh_backward sigmoid sigmoid_backward gelu gelu_backward silu silu_backward mish mish_backward
hardswish hardswish_backward hardsigmoid hardsigmoid_backward softplus softplus_backward elu elu_backward
nll_loss_forward nll_loss_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
"""
REPLAYED = frozenset(_NAMES.split())
MOST_KEPT = 4096  # programs of a form

_SMALL = 0x7FFFFFFF  # whole numbers above have another type in kernels
DRAWN = "drawn"
_declared = weights.declared()
_living: weakref.WeakSet[Replayed] = weakref.WeakSet()


def forget() -> None:
    """What forms do may have changed: watch them anew."""
    for form in _living:
        form.forget()


def replayed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of this overload, or one that is done again by programs."""
    if name not in REPLAYED:
        return function
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    return Replayed(function, [str(a.type) for a in schema.arguments if not a.kwarg_only])


def _key_of(kinds: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """What makes the key of positional arguments of these kinds."""
    facts = []
    for i, kind in enumerate(kinds):
        shown = f"a{i}.shape, a{i}.stride(), a{i}.dtype, a{i}.get_device()"
        if kind == "Tensor":
            facts.append(shown)
        elif kind == "Optional[Tensor]":
            facts.append(f"None if a{i} is None else ({shown})")
        elif kind == DRAWN:
            facts.append(f"a{i} > {_SMALL}, 0 if a{i} > {_SMALL} else a{i}")
        elif kind in ("float", "Optional[float]", "number"):  # of 2 and 2.0 comes another dtype, -0.0 is not 0.0
            facts.append(f"a{i}, type(a{i}), a{i} == 0 and copysign(1.0, a{i})")
        elif "List" in kind:
            facts.append(f"None if a{i} is None else tuple(a{i})")
        else:
            facts.append(f"a{i}")
    given = ", ".join(f"a{i}=None" if i else "a0" for i in range(len(kinds)))  # torch leaves defaults out
    return eval(f"lambda {given}: ({', '.join(facts)},)", {"copysign": copysign})  # type: ignore[no-any-return]


class Replayed:
    """A form as torch's dispatcher calls it. `kinds` are the types of its arguments, as schemas have them; one may be
    `DRAWN`, a random number that the form does nothing with but give it to kernels."""

    __slots__ = ("__weakref__", "_drawn", "_function", "_key", "_places", "_programs", "_seen")

    def __init__(self, function: Callable[..., Any], kinds: Sequence[str]) -> None:
        self._function, self._key = function, _key_of(kinds)
        self._places = tuple(i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
        self._drawn = kinds.index(DRAWN) if DRAWN in kinds else None
        self._programs: dict[tuple[Any, ...], Program | None] = {}  # None: it cannot be one
        self._seen: set[tuple[Any, ...]] = set()  # once
        _living.add(self)

    def forget(self) -> None:
        self._programs, self._seen = {}, set()

    def __call__(self, *args: Any, **options: Any) -> Any:
        if options:
            return self._function(*args, **options)
        key = self._key(*args)
        if _declared:  # slices of weights are kept, and not of other tensors
            key = (*key, *[weights.keeps(args[i]) for i in self._given(args)])
        program = self._programs.get(key)
        if program is None:
            return self._watched(key, args)
        results = program(*args)
        if results is CANNOT:
            return self._function(*args)
        if results is STALE:
            self._programs.pop(key, None)
            return self._watched(key, args)
        return results

    def _given(self, args: tuple[Any, ...]) -> list[int]:
        """The places of tensors."""
        return [i for i in self._places if i < len(args) and args[i] is not None]

    def _watched(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """The first calls, and those that cannot be done again."""
        if key in self._programs:
            return self._function(*args)
        if key not in self._seen:
            if len(self._seen) >= MOST_KEPT:
                self._seen.clear()
            self._seen.add(key)
            return self._function(*args)
        places = self._given(args)
        drawn = None if self._drawn is None or args[self._drawn] <= _SMALL else args[self._drawn]
        watch = Watch([args[i] for i in places], drawn)
        if not watch.may_begin():
            return self._function(*args)
        with watch:
            results = self._function(*args)
        if watch.too_early:
            return results
        if len(self._programs) >= MOST_KEPT:
            self._programs.clear()
        self._programs[key] = written(watch, places, len(args), self._drawn, results)
        return results
