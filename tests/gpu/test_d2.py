"""D2 on a GPU against the CPU: operators, tiles, whole runs, models at full size, mixed plans. Runs under pytest with
`-m gpu`, or by itself, which needs no pytest and prints a table last:

    python tests/gpu/test_d2.py [--only operators,formulas,tiles,golden,controls,plans,models] [--models bert,mlp]
                             [--names rows,channels]
    python tests/gpu/test_d2.py --device cpu --tiny      # a try without a GPU: the CPU's two implementations

The CPU's side is the C library with all threads. Models are the eight of benchmarks/zoo, a GPT, an MLP and an RNN.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), *(str(ROOT / "tests" / part) for part in ("", "gpu", "numerics/kernels"))]

try:
    import pytest
except ImportError:  # the table does without; files that we take samples from import it

    class _Marks:
        def __getattr__(self, name: str) -> Any:
            return lambda *_args, **_options: lambda function: function

    pytest = types.ModuleType("pytest")
    pytest.mark = _Marks()  # type: ignore[assignment]
    sys.modules["pytest"] = pytest

# ruff: noqa: E402  the lines above come first
import d2_cases
import d2_jobs
import torch
from benchmarks.gpu.d2_models import ALL
from benchmarks.zoo.record import Size, Workload
from d2_mirror import Mirrored, elsewhere, mirrored, same
from d2_tiles import any_bits, tiles_that_differ
from torch.utils.data import DataLoader

from d2_runs import fingerprints
from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.kernels import install, native, portable
from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.gpu import elementwise

GOLDEN = json.loads((ROOT / "tests" / "golden" / "d2.json").read_text())
CONTROLS = ("plain matmul", "unfused multiply-add", "vendor exp", "vendor sums")
MODEL_STEPS = 2
SHARE = "0/1"
Verdict = tuple[bool, str]  # good, and what to say of it


# ------------------------------------------------------------------------------------------------ operators


def samples(name: str, tiny: bool) -> Iterable[Callable[[], Any]]:
    """By the name of the collection; those of this share."""
    number, shares = map(int, SHARE.split("/"))
    return list(_samples(name, tiny))[number::shares]


def _samples(name: str, tiny: bool) -> Iterable[Callable[[], Any]]:
    import isa_samples
    import test_coverage_operators

    if name == "covered":
        return [*test_coverage_operators.CASES.values(), *test_coverage_operators.RANDOM.values()]
    if name == "safe":
        return list(isa_samples.samples())[:: 40 if tiny else 1]
    return list(d2_cases.everything()[name]())[:: 40 if tiny else 1]


COLLECTIONS = ("covered", "safe", *d2_cases.everything())


def operators(name: str, device: str, tiny: bool = False) -> Mirrored:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mirrored(samples(name, tiny), device)


# ------------------------------------------------------------------------------------------------ formulas


def formulas_that_differ(device: str, count: int) -> list[str]:
    bad = []
    for name, formula in FORMULAS.items():
        scalars = (0.3, 2.0, 1.0)[: formula.scalars]
        inputs = [any_bits(count, seed) for seed in range(formula.tensors)]
        near = [torch.randn(count, generator=torch.Generator().manual_seed(seed)) for seed in range(formula.tensors)]
        for tensors in (inputs, near):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                theirs = native.evaluate(name, tensors, scalars, dtype=dtype)
                there = [x.to(device) for x in tensors]
                module: Any = portable if device == "cpu" else elementwise
                if not same(module.evaluate(name, there, scalars, dtype=dtype), theirs):
                    bad.append(f"{name} to {dtype}")
    return bad


# ------------------------------------------------------------------------------------------------ whole runs


def golden_that_differ(device: str, control: str = "none") -> list[str]:
    """Runs of tests/d2_runs.py whose sha256 is not the golden one; with a control in a process of its own."""
    if control == "none":
        with install.installed(), elsewhere(device):
            found = fingerprints(device)
    else:
        code = (
            "import json, d2_controls, d2_runs; from easyscale.numerics.kernels import install;"
            f"d2_controls.CONTROLS[{control!r}]();\n"
            f"with install.installed(): print(json.dumps(d2_runs.fingerprints({device!r})))"
        )
        paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "PYTHONPATH": paths},
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
    return [name for name, value in found.items() if value != GOLDEN["runs"][name]]


# ------------------------------------------------------------------------------------------------ models


def placed(part: Any, device: str) -> Any:
    if isinstance(part, dict):
        return {name: tensor.to(device) for name, tensor in part.items()}
    return [tensor.to(device) for tensor in part]


def trained(work: Workload, model: torch.nn.Module, batches: list[Any], device: str) -> list[str]:
    """Fingerprint and loss after each step."""
    from easyscale.runtime.d2 import plain_updates

    model.to(device)
    optimizer = work.optimizer(model)
    plain_updates(optimizer)
    random.seed(3)
    torch.manual_seed(3)
    found = []
    for part in batches:
        loss = work.loss(model, placed(part, device))
        loss.backward()
        if work.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        found.append(f"{fingerprint(model)} {loss.item():.9g}")
    return found


def model_agrees(name: str, device: str, size: Size = "full", steps: int = MODEL_STEPS) -> Verdict:
    import torchvision_shim  # noqa: F401  torchvision beside a CPU build of torch

    work = ALL[name]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    with install.installed():
        torch.manual_seed(5)
        model = work.build(size)
        batches = list(DataLoader(work.data(size, steps * work.batch_of(size)), batch_size=work.batch_of(size)))
        twin = copy.deepcopy(model)
        began = time.monotonic()
        with elsewhere(device):
            there = trained(work, twin, batches, device)
        middle = time.monotonic()
        here = trained(work, model, batches, "cpu")
    words = (
        f"{steps} steps, {middle - began:.1f} s there, {time.monotonic() - middle:.1f} s on the CPU, {here[-1][:12]}"
    )
    if there != here:
        step = next(i for i, (x, y) in enumerate(zip(there, here, strict=True)) if x != y)
        words += f"; first other bits after step {step}: {there[step]} and {here[step]}"
    return there == here, words


# ------------------------------------------------------------------------------------------------ under pytest

gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("name", COLLECTIONS)
def test_operators_have_the_cpus_bits(name: str) -> None:
    found = operators(name, "cuda")
    assert found.outcomes
    assert not found.bad, str(found)


@gpu
def test_formulas_have_the_cpus_bits_for_any_input() -> None:
    assert formulas_that_differ("cuda", 2**20) == []


@gpu
def test_tiles_warps_and_other_work_change_nothing() -> None:
    assert tiles_that_differ() == []


@gpu
def test_small_runs_have_the_golden_bits() -> None:
    assert golden_that_differ("cuda") == []


@gpu
@pytest.mark.parametrize("control", CONTROLS)
def test_an_ingredient_left_out_is_seen(control: str) -> None:
    assert golden_that_differ("cuda", control) != []


@gpu
def test_every_plan_of_gpus_and_cpus_ends_with_the_same_bits() -> None:
    assert len(set(d2_jobs.plans("cuda").values())) == 1


@gpu
def test_a_job_that_loses_its_gpu_and_gets_one_again_ends_with_the_same_bits() -> None:
    found = d2_jobs.in_flight_apart("cuda")
    assert found["moved"] == found["still"], found
    assert found["lost"] == 1


@gpu
@pytest.mark.parametrize("name", ALL)
def test_a_model_at_full_size_has_the_cpus_bits(name: str) -> None:
    agrees, words = model_agrees(name, "cuda")
    assert agrees, words


# ------------------------------------------------------------------------------------------------ by itself


def none_of(found: list[str]) -> Verdict:
    return not found, ", ".join(found[:8]) or "all the same"


def must_differ(found: list[str]) -> Verdict:
    return bool(found), f"seen in {len(found)} of {len(GOLDEN['runs'])} runs"


def of_plans(found: dict[str, str]) -> Verdict:
    common = found["all on the CPU"]
    other = [label for label, value in found.items() if value != common]
    return not other, f"{len(found)} ways, {common[:12]}" if not other else f"other bits: {', '.join(other)}"


def of_flight(found: dict[str, Any]) -> Verdict:
    return found["moved"] == found["still"] is not None and found["lost"] == 1, json.dumps(found)


def of_operators(found: Mirrored) -> Verdict:
    return bool(found.outcomes) and not found.bad, str(found)


def checks(
    device: str, tiny: bool, models: list[str], steps: int = MODEL_STEPS
) -> dict[str, dict[str, Callable[[], Verdict]]]:
    """By part, then by name."""
    size: Size = "small" if tiny else "full"
    seen: dict[str, Callable[[], Verdict]] = {
        control: lambda control=control: must_differ(golden_that_differ(device, control))
        for control in CONTROLS[: 1 if tiny else None]
    }
    parts: dict[str, dict[str, Callable[[], Verdict]]] = {
        "operators": {name: lambda name=name: of_operators(operators(name, device, tiny)) for name in COLLECTIONS},
        "formulas": {"any bits": lambda: none_of(formulas_that_differ(device, 2**10 if tiny else 2**20))},
        "tiles": {"tiles, warps, stages": lambda: none_of(tiles_that_differ())} if device != "cpu" else {},
        "golden": {"small runs": lambda: none_of(golden_that_differ(device))},
        "controls": seen,
        "plans": {
            "plans": lambda: of_plans(d2_jobs.plans(device)),
            "flight": lambda: of_flight(d2_jobs.in_flight_apart(device)),
        },
        "models": {name: lambda name=name: model_agrees(name, device, size, steps) for name in models},
    }
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="operators,formulas,tiles,golden,controls,plans,models")
    parser.add_argument("--models", default=",".join(ALL), help="of the part `models`")
    parser.add_argument("--steps", type=int, default=MODEL_STEPS, help="of each model")
    parser.add_argument("--names", default="", help="of the other parts; all of them if not given")
    parser.add_argument("--share", default="0/1", help="of the samples of operators: 2/3 is the last of three shares")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="small models, few samples")
    chosen = parser.parse_args()
    global SHARE
    SHARE = chosen.share
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --tiny tries this program out without one")
    parts = checks(chosen.device, chosen.tiny, chosen.models.split(","), chosen.steps)
    lines, good = [], True
    named = set(filter(None, chosen.names.split(",")))
    for part in chosen.only.split(","):
        for name, check in parts[part].items():
            if named and part != "models" and name not in named:
                continue
            began = time.monotonic()
            try:
                fine, words = check()
            except Exception:
                fine, words = False, traceback.format_exc()[-1500:]
            good &= fine
            print(
                f"{part}, {name}: {'good' if fine else 'BAD'} ({time.monotonic() - began:.1f} s)\n{words}", flush=True
            )
            lines.append(f"| {part} | {name} | {'good' if fine else '**bad**'} | {words.splitlines()[0]} |")
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else "CPU, C kernels against torch operators"
    print(f"\nD2 on {device}, torch {torch.__version__}, CPU kernels: {install.status()['cpu']}\n")
    print("\n".join(["| part | what | verdict | |", "|---|---|---|---|", *lines]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
