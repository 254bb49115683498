"""How long Python takes to launch a D2 step on a GPU, measured where there is no GPU.

    python benchmarks/d2_host.py [bert swin ..] [--forms] [--layers] [--json FILE]

Whole training steps of the models at full size on the `meta` device, whose tensors have shapes but no memory: the forms
of CUDA are put under its key, Triton's launcher is replaced by a function that does nothing, and all that is left is
the host's part: Python of the model, of autograd and of the forms. What a program takes off a tensor is zero. A real
launch costs 2 to 3 us more, and memory of a GPU one more than that of `meta`. Of torch's own operators some have no
cheap form there (norms, convolutions, dropout), so the same step by stock is not shown.

Times are of the processor, not the clock, and the least of several rounds. Counts are exact: launches, calls of forms,
and calls from the forms' Python into torch that make tensors or change them (`calls`; an operator or a view costs 1 to
3 us, `data_ptr` and the like are not counted).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch._meta_registrations

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]
import torchvision_shim  # noqa: E402, F401  the models need torchvision, beside a torch without CUDA too
from easyscale.numerics.kernels import stock as stocks  # noqa: E402

stocks._KEYS["meta"] = "Meta"  # before the forms look for stock kernels


# ------------------------------------------------------------------------------------------------ torch's own operators

# Those on meta tensors that are written in Python take ten times as long as a launch: C++ has most of them too.
torch._meta_registrations._meta_lib_dont_use_me_use_register_meta._destroy()


def _where(condition: torch.Tensor, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    shape = torch._C._infer_size(torch._C._infer_size(condition.shape, self.shape), other.shape)
    return torch.empty(shape, dtype=torch.promote_types(self.dtype, other.dtype), device="meta")


def _index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return torch.empty((*self.shape[:dim], index.numel(), *self.shape[dim + 1 :]), dtype=self.dtype, device="meta")


def _same(self: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
    return torch.empty_like(self)


def _in_place(self: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
    return self


def _nothing(*_args: Any) -> None:
    pass


def _out(self: torch.Tensor, *_args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.resize_(self.shape)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return torch.native_dropout(input, p, train)[0] if train and 0 < p < 1 else input  # as on CUDA


def _number(x: torch.Tensor) -> int | bool:
    return False if x.dtype is torch.bool else 0


_MISSING: dict[str, Callable[..., Any]] = {
    "where.self": _where, "index_select": _index_select, "_local_scalar_dense": _number,
    "abs.out": _out, "roll": _same, "_index_put_impl_": _in_place, "_foreach_mul_.Tensor": _nothing,
}  # fmt: skip
_missing = torch.library.Library("aten", "IMPL")  # kept as long as it is in force
for _name, _function in _MISSING.items():
    _missing.m.impl(_name, "Meta", _function, False)

from benchmarks.gpu.d2_models import ALL  # noqa: E402
from benchmarks.gpu.d2_steps import Step, placed, trainer  # noqa: E402

from easyscale.numerics.kernels import attention, gpu, install, native, primitives, updates  # noqa: E402
from easyscale.numerics.kernels.gpu import channels, launch, products, replay, rows, slices, views  # noqa: E402
from easyscale.numerics.kernels.switches import SWITCHES  # noqa: E402

NAMES = ("bert", "electra", "swin", "shufflenetv2", "neumf", "gpt")
PROCESSORS = 132  # an H200's
FORMS = str(Path(install.__file__).parent)
# Into torch, but neither operators nor views.
_CHEAP = frozenset((
    "data_ptr", "stride", "dim", "size", "numel", "get_device", "is_contiguous", "element_size", "storage_offset",
    "untyped_storage", "is_inference", "call_boxed", "is_floating_point", "_current_device", "result_type",
    "get_default_dtype", "is_inference_mode_enabled", "promote_types", "is_complex",
))  # fmt: skip

run: Callable[..., Any] = "".format  # takes any arguments, in C, and does nothing with them


@contextmanager
def meta_is_cuda(launched: Callable[..., Any] = run, wrap: Callable[[str, Any], Any] | None = None) -> Iterator[None]:
    """D2's forms of CUDA for meta tensors inside the block. `launched` is called in place of the C launcher with what
    that would get, `wrap` gives what is registered for a form."""
    library = torch.library.Library("aten", "IMPL")
    before = [switch.read() for switch in SWITCHES]
    known = install.kernels("cuda")
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)  # torch says that kernels are replaced
        for name, function in known.items():
            ours = function if wrap is None else wrap(name, function)
            library.m.impl(name, "Meta", ours, False)  # `library.impl` refuses what stock takes apart
        library.impl("dropout", _dropout, "CompositeImplicitAutograd")
        for name, function in {**install.COMPOSITES, **attention.COMPOSITES}.items():
            library.impl(name, function, "CompositeImplicitAutograd")
        ours_too = torch.library.Library("easyscale", "IMPL")
        stack.callback(ours_too._destroy)
        own = {"attention": attention.attention, "attention_backward": attention.attention_backward}
        for name, function in own.items():
            ours_too.m.impl(name, "Meta", function if wrap is None else wrap(name, function), False)
        stack.callback(library._destroy)
        for switch, value in zip(SWITCHES, before, strict=True):
            switch.set(switch.wanted)
            stack.callback(switch.set, value)

        def first(kernel: Any, grid: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
            rest = kernel.params[len(args) :]
            constants = tuple(named[p.name] for p in rest)
            return launched, (0, False, False, None, None, (4, 1, 0), None, None, None), constants

        def implementation(device: torch.device) -> Any:
            return gpu if device.type == "meta" else native

        for place, name, value in (
            (launch, "_first", first), (launch, "_known", {}), (primitives, "implementation", implementation),
            *((place, "processors", lambda device: PROCESSORS) for place in (channels, products, rows, slices, views)),
            (attention, "DEVICES", {"cuda", "meta"}), (torch, "is_autocast_enabled", lambda *_device: False),
            (torch.nn.utils.clip_grad, "_has_foreach_support", lambda tensors, device: True),  # as on CUDA
            (slices, "tile_for", lambda device: slices.TILES[0]),
        ):  # fmt: skip
            stack.enter_context(patch.object(place, name, value))
        for kept in _plans():
            kept.cache_clear()
            stack.callback(kept.cache_clear)
        replay.forget()
        stack.callback(replay.forget)
        stack.callback(updates.join())
        yield


def _plans() -> list[Any]:
    """What keeps launches: those of meta tensors are of no use afterwards, nor are others here."""
    modules = [module for name, module in sys.modules.items() if name.startswith("easyscale.numerics.kernels.")]
    found = [value for module in modules for value in vars(module).values() if hasattr(value, "cache_clear")]
    return [value for value in found if ".native" not in value.__module__]


def step_of(name: str) -> Step:
    """A training step at full size."""
    work = ALL[name]
    torch.manual_seed(7)
    batch = 4 if name == "neumf" else 1
    batches = [placed(part, "cpu") for part in torch.utils.data.DataLoader(work.data("full", batch), batch_size=batch)]
    with torch.device("meta"):
        model = work.build("full")

    def widened(x: torch.Tensor) -> torch.Tensor:
        return torch.empty((work.batch, *x.shape[1:]), dtype=x.dtype, device="meta")

    for i, part in enumerate(batches):
        batches[i] = {k: widened(x) for k, x in part.items()} if isinstance(part, dict) else [widened(x) for x in part]
    return trainer(work, model, batches, "d2")


# ---------------------------------------------------------------------------------------------------------- counting


class Counts:
    """Launches by kernel, and calls of forms and from them into torch."""

    def __init__(self) -> None:
        self.launches = 0
        self.forms: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def launched(self, *_args: Any) -> None:
        self.launches += 1

    def wrap(self, name: str, function: Any) -> Any:
        def form(*args: Any, **options: Any) -> Any:
            self.forms[name] += 1
            return function(*args, **options)

        return form

    def seen(self, frame: Any, event: str, arg: Any) -> None:
        """For `sys.setprofile`."""
        if event == "c_call" and frame.f_code.co_filename.startswith(FORMS):
            owner = getattr(arg, "__self__", None)
            module = getattr(arg, "__module__", None) or type(owner).__module__
            if (isinstance(owner, torch.Tensor) or module.startswith("torch")) and arg.__name__ not in _CHEAP:
                self.calls[arg.__name__] += 1


def counted(make: Callable[[], Step]) -> Counts:
    """Of one step of what is made, when everything that is kept has been made."""
    counts = Counts()
    with meta_is_cuda(counts.launched, counts.wrap):
        step = make()
        for _ in range(3):
            step()
        counts.launches = 0
        counts.forms.clear()
        sys.setprofile(counts.seen)
        try:
            step()
        finally:
            sys.setprofile(None)
    return counts


# ---------------------------------------------------------------------------------------------------------- timing


def timed(step: Step, rounds: int) -> list[float]:
    """Milliseconds of the processor for a step, in each round."""
    for _ in range(3):
        step()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(2):
            step()
        found.append((time.process_time() - began) / 2 * 1e3)
    return found


class Clock:
    """Time of each form, without that of forms inside it."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self._inside = [0.0]

    def wrap(self, name: str, function: Any) -> Any:
        inside, times = self._inside, self.times.setdefault(name, [0, 0.0])
        now = time.thread_time

        def form(*args: Any, **options: Any) -> Any:
            inside.append(0.0)
            began = now()
            try:
                return function(*args, **options)
            finally:
                took = now() - began
                times[0] += 1
                times[1] += took - inside.pop()
                inside[-1] += took

        return form


def by_form(name: str, steps: int) -> list[dict[str, Any]]:
    clock = Clock()
    with meta_is_cuda(wrap=clock.wrap):
        step = step_of(name)
        for _ in range(3):
            step()
        for times in clock.times.values():
            times[:] = [0, 0.0]
        for _ in range(steps):
            step()
    rows = [
        {"form": form, "calls": count // steps, "us": 1e6 * took / count, "ms": 1e3 * took / steps}
        for form, (count, took) in clock.times.items() if count
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["ms"])


def by_layer(name: str, steps: int) -> list[dict[str, Any]]:
    """Own time of functions, by cProfile, which makes short ones look longer than they are."""
    with meta_is_cuda():
        step = step_of(name)
        for _ in range(3):
            step()
        profile = cProfile.Profile(time.thread_time)
        with profile:
            for _ in range(steps):
                step()
    rows = []
    found: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, line, function), (_, count, own, whole, _) in found.items():
        where = f"{Path(file).name}:{line} {function}" if line else function
        times = {"own_ms": 1e3 * own / steps, "ms": 1e3 * whole / steps}
        rows.append({"function": where, "calls": count // steps, **times})
    return sorted(rows, key=lambda row: -row["own_ms"])


def plainly(form: replay.Replayed, *args: Any, **options: Any) -> Any:
    """In place of a program."""
    return form._function(*args, **options)


def row_of(name: str, rounds: int) -> dict[str, Any]:
    with meta_is_cuda(), patch.object(replay.Replayed, "__call__", plainly):
        plain = timed(step_of(name), rounds)
    with meta_is_cuda():
        ours = timed(step_of(name), rounds)
    counts = counted(lambda: step_of(name))
    return {
        "model": name, "without_programs_ms": min(plain), "ms": min(ours), "median_ms": median(ours),
        "launches": counts.launches, "forms": counts.forms.total(), "calls": counts.calls.total(),
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    if rows:
        print(f"\n| {' | '.join(rows[0])} |\n|{' --- |' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(f'{x:.4g}' if isinstance(x, float) else str(x) for x in row.values())} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument("--forms", action="store_true", help="time of each form")
    parser.add_argument("--layers", action="store_true", help="time of each function")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"steps": [row_of(name, given.rounds) for name in given.models]}
    show(found["steps"])
    for wanted, key, of in ((given.forms, "forms", by_form), (given.layers, "layers", by_layer)):
        for name in given.models if wanted else ():
            found.setdefault(key, {})[name] = rows = of(name, 3)[:40]
            print(f"\n{name}")
            show(rows)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
