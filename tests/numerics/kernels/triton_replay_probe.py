"""Runs forms that are done again by programs (`gpu.replay`) where there is no GPU; prints what went wrong as JSON.

    TRITON_INTERPRET=1 python triton_replay_probe.py

A program gives addresses to Triton's launcher, which the interpreter does not have: here a launcher makes tensors of
addresses again. Each program gets other tensors than those that it was written for, and has to give what the form
itself gives for them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_plans_probe import SLICED, by, small  # noqa: E402
from triton_probe import Checks, complaints_of  # noqa: E402

from d2_rows import assert_same  # noqa: E402  this file runs as a program of its own
from easyscale.numerics.kernels import (  # noqa: E402
    attention,
    catalogue,
    gpu,
    install,
    sliced_convolutions,
    weights,
)
from easyscale.numerics.kernels.gpu import launch, programs, replay, workspace  # noqa: E402
from easyscale.numerics.kernels.gpu.launch import Tiles  # noqa: E402

FORMS = catalogue.FORMS
ROUNDS = 3  # of each form: unknown, watched, and by its program
Args = Callable[[int], tuple[Any, ...]]


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def addressed() -> Iterator[None]:
    """Launches by addresses, kept anew; forms by the kernels."""

    def first(kernel: Any, grid: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        dtypes = [x.dtype if isinstance(x, Tensor) else None for x in args]

        def run(gx: int, gy: int, gz: int, _stream: int, *final: Any) -> None:
            given = [x.descriptor if isinstance(x, _Map) else x for x in final if x is not _BESIDE]
            with _disable_current_modes():  # the interpreter computes by torch
                kernel[gx, gy, gz](*[_tensor(*pair) for pair in zip(given, dtypes, strict=True)], **named)

        whole = (*grid, *(1,) * (3 - len(grid)))
        there = [x.data_ptr() if isinstance(x, Tensor) else x for x in args]
        if not any(isinstance(x, Tiles) for x in args):
            run(*whole, 0, *there)
            return run, (), ()
        maps = launch._WithMaps(run, [None] * len(args), lambda descriptor, _meta: [_Map(descriptor), _BESIDE])
        maps(*whole, 0, *there)
        return maps, (), ()

    with ExitStack() as stack:
        for name, value in (("_first", first), ("_known", {}), ("_stream", lambda _device: 0)):
            stack.enter_context(patch.object(launch, name, value))
        for plan in _plans():
            plan.cache_clear()
            stack.callback(plan.cache_clear)
        stack.enter_context(by(gpu))
        replay.forget()
        stack.callback(replay.forget)
        yield


class _Map:
    """In place of what the copy engine reads, with which Triton's launcher wants something beside."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor


_BESIDE = object()


def _plans() -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith("easyscale.numerics.kernels.")]
    found = [value for module in modules for value in vars(module).values() if hasattr(value, "cache_clear")]
    return [value for value in found if ".native" not in value.__module__]


def _tensor(value: Any, dtype: torch.dtype | None) -> Any:
    """One element is enough: the interpreter reads behind it."""
    if dtype is None:
        return value
    if not value:  # of no elements
        return torch.empty(0, dtype=dtype)
    size = dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(value), dtype=dtype, count=1)


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In memory of their own, with the same layout and the same place from a multiple of 16 on."""
    return tuple(_copied(x) if isinstance(x, Tensor) else x for x in args)


def _copied(x: Tensor) -> Tensor:
    storage = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype)
    storage.untyped_storage().copy_(x.untyped_storage())
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def count_of(form: replay.Replayed) -> int:
    return sum(program is not None for program in form._programs.values())


def again(form: Any, args: Args, wanted: bool = True) -> None:
    """The form and its program, for other tensors in each round; both may write into their arguments."""
    assert isinstance(form, replay.Replayed)
    kept = []  # so that memory of one round is not that of the next
    for seed in range(ROUNDS):
        given = args(100 * seed)
        other = copied(given)
        calls = []
        function = form._function
        with patch.object(form, "_function", lambda *a, f=function, c=calls: (c.append(1), f(*a))[1]):
            found = form(*given)
        if seed:
            assert_same(found, function(*other))
            assert_same([x for x in given if isinstance(x, Tensor)], [x for x in other if isinstance(x, Tensor)])
        assert bool(calls) == (seed < 2 or not wanted), f"round {seed} by the {'form' if calls else 'program'}"
        kept.append((given, found))


def form_of(name: str) -> Any:
    return replay.replayed(name, FORMS[name].function)


# ------------------------------------------------------------------------------------------------ forms


def _products() -> None:
    with small(), addressed():
        for m, n, k in ((5, 9, 70), (70, 3, 200), (5, 9, 300)):
            again(form_of("mm"), lambda s, m=m, n=n, k=k: (numbers(m, k, seed=s), numbers(k, n, seed=s + 1)))
            again(form_of("mm"), lambda s, m=m, n=n, k=k: (numbers(k, m, seed=s).t(), numbers(n, k, seed=s + 1).t()))
            again(
                form_of("addmm"),
                lambda s, m=m, n=n, k=k: (numbers(n, seed=s + 2), numbers(m, k, seed=s), numbers(k, n, seed=s + 1)),
            )
        again(form_of("bmm"), lambda s: (numbers(3, 5, 70, seed=s), numbers(3, 70, 4, seed=s + 1)))
        again(form_of("mm"), lambda s: (numbers(5, 70, seed=s).bfloat16(), numbers(70, 4, seed=s + 1).bfloat16()))
    with small(**SLICED), addressed():
        again(form_of("mm"), lambda s: (numbers(40, 70, seed=s), numbers(70, 33, seed=s + 1)))
        again(form_of("addmm"), lambda s: (numbers(33, seed=s), numbers(40, 70, seed=s), numbers(70, 33, seed=s + 1)))


def _convolution(
    shape: tuple[int, ...], out: int, kernel: int, stride: int, groups: int = 1, bias: bool = False
) -> None:
    pads = [kernel // 2] * 2
    options = ([stride] * 2, pads, [1, 1], False, [0, 0], groups)

    def given(s: int) -> tuple[Tensor, Tensor]:
        return numbers(*shape, seed=s), numbers(out, shape[1] // groups, kernel, kernel, seed=s + 1)

    again(form_of("convolution"), lambda s: (*given(s), numbers(out, seed=s + 2) if bias else None, *options))
    sizes = [(n + 2 * (kernel // 2) - kernel) // stride + 1 for n in shape[2:]]
    backward = form_of("convolution_backward")
    again(
        backward,
        lambda s: (numbers(shape[0], out, *sizes, seed=s + 3), *given(s), [out], *options, [True, True, bias]),
    )


def _convolutions() -> None:
    with small(), addressed():
        _convolution((3, 5, 6, 7), 4, 1, 1)
        _convolution((2, 3, 4, 3), 3, 3, 2, groups=3)
        with patch.multiple(gpu.direct_convolutions, MOST_ROWS=0, MOST_PAIRS=0):
            _convolution((1, 2, 4, 4), 2, 3, 2, bias=True)
    with small(**SLICED), patch.object(sliced_convolutions, "SLICED_CHANNELS", 1), addressed():
        _convolution((2, 2, 3, 4), 3, 3, 1, bias=True)
        _convolution((1, 2, 4, 4), 3, 3, 2)


def _norms() -> None:
    with addressed():
        running = lambda s: (numbers(5, seed=s + 3), numbers(5, seed=s + 4).abs())  # noqa: E731
        affine = lambda s: (numbers(5, seed=s + 1), numbers(5, seed=s + 2))  # noqa: E731
        for training in (True, False):
            again(
                form_of("native_batch_norm"),
                lambda s, t=training: (numbers(3, 5, 4, 6, seed=s), *affine(s), *running(s), t, 0.1, 1e-5),
            )
        again(form_of("native_batch_norm"), lambda s: (numbers(3, 5, 4, 6, seed=s), *[None] * 4, True, 0.1, 1e-5))
        again(
            form_of("native_batch_norm_backward"),
            lambda s: (
                numbers(3, 5, 4, 6, seed=s), numbers(3, 5, 4, 6, seed=s + 5), numbers(5, seed=s + 1), *running(s),
                numbers(5, seed=s + 7), numbers(5, seed=s + 8), True, 1e-5, [True, True, True],
            ),
        )  # fmt: skip
        again(
            form_of("native_layer_norm"),
            lambda s: (numbers(4, 6, 10, seed=s), [10], numbers(10, seed=s + 1), numbers(10, seed=s + 2), 1e-5),
        )
        again(
            form_of("native_layer_norm_backward"),
            lambda s: (
                numbers(4, 6, 10, seed=s), numbers(4, 6, 10, seed=s + 5), [10], numbers(4, 6, 1, seed=s + 3),
                numbers(4, 6, 1, seed=s + 4), numbers(10, seed=s + 1), numbers(10, seed=s + 2), [True, True, True],
            ),
        )  # fmt: skip


def _rows() -> None:
    x, short = lambda s: numbers(6, 5, 4, seed=s), lambda s: numbers(7, 12, seed=s)
    with addressed():
        again(form_of("sum.dim_IntList"), lambda s: (x(s), [0, 2], True))
        again(form_of("sum.dim_IntList"), lambda s: (x(s).transpose(0, 1), [0]))
        again(form_of("mean.dim"), lambda s: (x(s), [1]))
        again(form_of("gelu"), lambda s: (x(s),))
        again(form_of("gelu_backward"), lambda s: (x(s), x(s + 1)))
        again(form_of("_softmax"), lambda s: (short(s), 1, False))
        again(form_of("_log_softmax"), lambda s: (short(s), 1, False))
        again(form_of("_softmax_backward_data"), lambda s: (short(s), short(s + 1), 1, torch.float32))
        again(form_of("native_dropout_backward"), lambda s: (x(s), x(s + 1) > 0, 1.25))
        picks = lambda s: torch.randint(12, (7,), generator=torch.Generator().manual_seed(s))  # noqa: E731
        again(form_of("nll_loss_forward"), lambda s: (short(s), picks(s), None, 1, -100))


def _attention() -> None:
    """Random numbers are given to programs; and queries, keys and values may lie in one storage."""

    def heads(s: int) -> tuple[Tensor, ...]:
        return tuple(numbers(1, 5, 2, 8, seed=s + i).transpose(1, 2) for i in range(3))

    def of_one(s: int) -> tuple[Tensor, ...]:
        return tuple(x.unflatten(2, (2, 8)).transpose(1, 2) for x in numbers(1, 5, 48, seed=s).split(16, 2))

    key = 0x123456789ABCDEF0
    with small(), addressed():
        for made in (heads, of_one):
            for mask in (None, numbers(1, 1, 1, 5, seed=5)):
                for rate in (0.0, 0.3):
                    settings = lambda s, m=mask, r=rate: (m, r, False, 0.4)  # noqa: E731
                    stream = lambda s, r=rate: key + s if r else 0  # noqa: E731
                    whole = attention._attend_again
                    replay.forget()
                    if made is of_one:
                        _shared(whole, lambda s, g=settings, t=stream, m=made: (*m(s), *g(s), t(s)))
                        continue
                    again(whole, lambda s, g=settings, t=stream, m=made: (*m(s), *g(s), t(s)))
                    again(
                        attention._slopes_again,
                        lambda s, g=settings, t=stream: (
                            numbers(1, 2, 5, 8, seed=s + 9), *heads(s), *g(s), [True, True, True], t(s),
                        ),
                    )  # fmt: skip
        again(attention._attend_again, lambda s: (*heads(s), None, 0.3, False, 0.4, 5 + s), wanted=False)  # other types


def _shared(form: Any, args: Args) -> None:
    """As `again`, but that the copies share no storage: the program may not know where its arguments lay."""
    for seed in range(ROUNDS):
        given = args(100 * seed)
        assert_same(form(*given), form._function(*copied(given)))
    assert count_of(form) == 1
    other = copied(args(7))
    assert_same(form(*other), form._function(*args(7)))


# ------------------------------------------------------------------------------------------------ what is no program


def _left_to_the_form() -> None:
    with small(**SLICED), addressed():
        mm = form_of("mm")
        odd = lambda s: (numbers(8 * 16 + 1, seed=s)[1:].view(8, 16), numbers(16, 5, seed=s + 1))  # noqa: E731
        again(mm, odd, wanted=False)  # beginning at no multiple of 16
        same = lambda s: (numbers(16, 16, seed=s),) * 2  # noqa: E731
        for seed in range(ROUNDS):
            assert_same(mm(*same(seed)), mm._function(*same(seed)))
        a, b = (lambda s: numbers(16, 16, seed=s)), (lambda s: numbers(16, 16, seed=s + 50))
        assert_same(mm(a(1), b(1)), mm._function(a(1), b(1)))  # what was one tensor twice is no other now


def _what_is_unlike_is_not_done_by_the_program() -> None:
    with addressed():
        gelu = form_of("gelu")
        for seed in range(ROUNDS):
            gelu(numbers(6, 8, seed=seed))
        assert count_of(gelu) == 1
        calls = []
        function = gelu._function
        turned, late = numbers(8, 6, seed=7).t(), numbers(49, seed=8)[1:].view(6, 8)
        with patch.object(gelu, "_function", lambda *a: (calls.append(1), function(*a))[1]):
            for other in (turned, late, late.half(), numbers(8, 6, seed=9)):
                before = len(calls)
                assert_same(gelu(other), function(other))
                assert len(calls) == before + 1
            gelu(numbers(6, 8, seed=10))
            assert len(calls) == before + 1
        power = form_of("pow.Tensor_Scalar")
        for seed in range(2 * ROUNDS):
            for number in (2, 2.0, 0.5, -0.0):
                x = numbers(6, 8, seed=seed)
                assert_same(power(x, number), power._function(x, number))


def _kept_weights(made: Callable[[Any, int, Tensor], Any], form: Any, weight: Tensor) -> None:
    """Several mini-batches of a step: the first one cuts, which is not worth being watched, the second one is watched,
    then it is the program's. A weight that has changed is cut again. `made(form, seed, weight)` calls the form."""
    for seed in range(ROUNDS):
        made(form, seed, weight)
    assert count_of(form) == 1  # nothing is kept yet
    weights.declare([weight])
    calls: list[int] = []
    function = form._function
    try:
        with patch.object(form, "_function", lambda *a: (calls.append(1), function(*a))[1]):
            made(form, 5, weight)
            weights.forget()
            for step in range(3):
                by_form = []
                for seed in range(4):
                    before = len(calls)
                    found = made(form, 10 * step + seed, weight)
                    by_form.append(len(calls) > before)
                    assert_same(found, made(function, 10 * step + seed, weight))
                assert by_form == ([True, True, False, False] if not step else [True, False, False, False]), by_form
                assert len(weights._kept) == 1
                weight.data.mul_(1.5) if step else weight.mul_(-0.7)  # the optimizer's step
                weights.forget()
            made(form, 1, weight)
            weight.add_(0.25)  # in the midst of a step: its version says so
            assert_same(made(form, 2, weight), made(function, 2, weight))
        assert count_of(form) == 2
    finally:
        weights.end()


def _weights_are_kept() -> None:
    with small(**SLICED), addressed():
        _kept_weights(lambda form, s, w: form(numbers(8, 16, seed=s), w), form_of("mm"), numbers(16, 5, seed=2))
        _kept_weights(lambda form, s, w: form(numbers(8, 16, seed=s), w.t()), form_of("mm"), numbers(5, 16, seed=2))
        _kept_weights(lambda form, s, w: form(w, numbers(16, 8, seed=s)), form_of("mm"), numbers(5, 16, seed=2))
        bias = numbers(5, seed=4)
        _kept_weights(
            lambda form, s, w: form(bias, numbers(8, 16, seed=s), w), form_of("addmm"), numbers(16, 5, seed=2)
        )
    with small(**SLICED), patch.object(sliced_convolutions, "SLICED_CHANNELS", 1), addressed():
        options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        _kept_weights(
            lambda form, s, w: form(numbers(2, 2, 3, 4, seed=s), w, None, *options), form_of("convolution"),
            numbers(3, 2, 3, 3, seed=2),
        )  # fmt: skip


def _a_workspace_that_moves_is_seen() -> None:
    with small(**SLICED), addressed():
        mm = form_of("mm")
        given = lambda s: (numbers(8, 16, seed=s), numbers(16, 5, seed=s + 1))  # noqa: E731
        for seed in range(ROUNDS):
            mm(*given(seed))
        assert count_of(mm) == 1
        (program,) = mm._programs.values()
        assert program is not None
        assert program(*given(9)) is not programs.CANNOT
        held = workspace.held()
        mm._function(numbers(64, 200, seed=1), numbers(200, 70, seed=2))  # needs more
        assert workspace.held() > held
        assert program(*given(9)) is programs.STALE
        assert_same(mm(*given(9)), mm._function(*given(9)))
        (other,) = mm._programs.values()  # written anew
        assert other is not None
        assert other(*given(9)) is not programs.STALE
        workspace.release()
        gc.collect()
        assert other(*given(9)) is programs.STALE
        assert_same(mm(*given(9)), mm._function(*given(9)))


def _other_streams_and_watchers_are_seen() -> None:
    with addressed():
        gelu = form_of("gelu")
        for seed in range(ROUNDS):
            gelu(numbers(20, seed=seed))
        (program,) = gelu._programs.values()
        assert program is not None
        assert program(numbers(20, seed=1)) is not programs.CANNOT
        with patch.object(launch, "_stream", lambda _device: 5):
            assert program(numbers(20, seed=1)) is programs.CANNOT
        with patch.object(launch, "_current", lambda: 3):
            assert program(numbers(20, seed=1)) is programs.CANNOT
        replay.forget()
        assert not gelu._programs


def _only_launches_and_copies_are_programs() -> None:
    """Whatever computes in another way is not done again."""
    from easyscale.numerics.kernels.philox import draw_key
    from easyscale.numerics.kernels.stock import stock

    exp, mul, over = FORMS["exp"].function, stock("mul.Tensor"), stock("mul_.Tensor")
    outside = torch.ones(20)
    spoiled: dict[str, Callable[[Tensor], Any]] = {
        "a stock kernel": lambda x: mul(x, x), "one in place": lambda x: (y := exp(x), over(y, y))[0],
        "an operator": lambda x: torch.nn.functional.relu(exp(x)),
        "a number of the tensor": lambda x: exp(x) if x.sum().item() > 1e9 else exp(x.clone()),
        "a random number": lambda x: exp(x) if draw_key(None) else None, "its argument": lambda x: x,
        "memory of others": lambda x: (exp(x), outside), "one piece twice": lambda x: (y := exp(x), y[:3]),
        "no tensor": lambda x: (exp(x), 3),
    }  # fmt: skip
    good: dict[str, Callable[[Tensor], Any]] = {
        "a copy": lambda x: exp(x.t().contiguous()), "a sum": lambda x: exp(x) + exp(x.clone()),
        "parts": lambda x: (exp(x[1:]), None, exp(x[:, ::4])), "twice": lambda x: exp(exp(exp(x))),
        "none": lambda x: None,
    }  # fmt: skip
    with addressed():
        for name, function in spoiled.items():
            form = replay.Replayed(function, ["Tensor"])
            for seed in range(ROUNDS):
                form(numbers(20, 12, seed=seed))
            assert list(form._programs.values()) == [None], name
        for name, function in good.items():
            again(replay.Replayed(function, ["Tensor"]), lambda s: (numbers(20, 12, seed=s),))
            assert name


def _memory_is_used_again() -> None:
    """What a form lets go of before it allocates the next is one place in its program."""
    exp = FORMS["exp"].function
    with addressed():
        form = replay.Replayed(lambda x: exp(exp(exp(exp(exp(x))))), ["Tensor"])
        sizes = []
        stock = torch.empty_strided
        for seed in range(3):
            with patch.object(torch, "empty_strided", stock):
                form(numbers(4096, seed=seed))
        (program,) = form._programs.values()
        assert program is not None
        makes = [value for value in program.__globals__.values() if getattr(value, "func", None) is stock]
        sizes = sorted(make().untyped_storage().nbytes() for make in makes)
        assert sizes == [4 * 4096, 2 * 4 * 4096]  # the result, and two places in turn


def _installed_anew() -> None:
    """What is registered is made when D2 is put in force, so no program outlives that."""
    found = install.kernels("cuda")
    assert isinstance(found["mm"], replay.Replayed)
    assert install.kernels("cuda")["mm"] is not found["mm"]
    assert not isinstance(install.kernels("cpu")["mm"], replay.Replayed)
    assert all(name in found for name in replay.REPLAYED)


def interpreted() -> Checks:
    return {
        "products": _products, "convolutions": _convolutions, "norms": _norms, "rows": _rows, "attention": _attention,
        "left to the form": _left_to_the_form, "what is unlike": _what_is_unlike_is_not_done_by_the_program,
        "kept weights": _weights_are_kept,
        "a workspace that moves": _a_workspace_that_moves_is_seen, "streams": _other_streams_and_watchers_are_seen,
        "only launches": _only_launches_and_copies_are_programs, "memory": _memory_is_used_again,
        "installed": _installed_anew,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted())))
