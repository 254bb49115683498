"""At level D2 a job has the bits of stock DDP with D2's operators, on every plan and on every kind of CPU.

Other kinds of CPU are imitated: torch and our C library are held to older instruction sets, with other thread counts.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import easyscale.runtime.reference
import easyscale.runtime.session  # noqa: F401  once here, not once in each forked worker
from cluster import JobFailedError, run_job, run_reference, run_stock, splits_of
from e2e import d2_cases
from e2e.d2_cases import CASES, ESTS, at_d2, judge, losses
from easyscale.backends.apart import ApartWorker
from easyscale.backends.local import LocalLauncher, worker_environment
from easyscale.core.spec import Target, WorkerSpec
from elasticity import Run, run_with_master
from faults.cases import Noisy
from workloads import CNN, Within, with_easyscale

pytestmark = pytest.mark.slow

OF_RANK_0 = ("fingerprint", "parameters", "rates", "scheduler")
TESTS = Path(__file__).parents[1]


# ---------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("name", CASES)
def test_stock_ddp_by_command_has_the_bits_of_stock_ddp_by_hand(name: str) -> None:
    """`--engine ddp --determinism D2` is the reference that users run."""
    result = run_reference(with_easyscale(CASES[name]), ESTS, determinism="D2")
    assert_same(result, judge(name))


@pytest.mark.parametrize("split", [(4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_every_plan_has_the_bits_of_stock_ddp_with_the_same_operators(name: str, split: tuple[int, ...]) -> None:
    assert split in splits_of(ESTS)
    assert_same(run_job(with_easyscale(CASES[name]), split, determinism="D2"), judge(name))


@pytest.mark.parametrize("name", CASES)
def test_d2_s_bits_are_not_d1_s(name: str) -> None:
    """Else its operators would not have been in force."""
    d1 = run_job(with_easyscale(CASES[name]), (2, 2), determinism="D1")
    assert d1["fingerprint"] == judge(name, "D1")["fingerprint"]
    assert d1["fingerprint"] != judge(name)["fingerprint"]


def test_loader_processes_that_draw_numbers_and_a_scaler_keep_the_bits() -> None:
    """D2's operators are in force in loader processes too: the data sets draw their noise there."""
    case = replace(
        CASES["pictures"], data=lambda: Noisy(61), loader={"num_workers": 2}, scaler=True,
        autocast=torch.bfloat16,
    )  # fmt: skip
    expected = run_stock(at_d2(case), ESTS)
    result = run_job(with_easyscale(case), (1, 3), determinism="D2")
    assert_same(result, expected)
    assert result["scale"] == expected["scale"] > case.scale
    assert result["scaler"] == expected["scaler"]


def compiled() -> nn.Module:
    """The compiler does not look into D2's kernels, in the script by hand neither: it would run them another way."""
    from torch._dynamo import trace_rules

    trace_rules.add("easyscale.numerics")
    model = Within(CNN.model())
    model.compile(backend="aot_eager")
    return model


@functools.cache
def compiled_judge() -> dict[str, Any]:
    return run_stock(at_d2(replace(CNN, model=compiled, epochs=1)), ESTS)


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
@pytest.mark.parametrize("split", [(4,), (1, 3), (2, 1, 1), (1, 1, 1, 1)])
def test_a_compiled_model_has_the_bits_of_compiled_stock_ddp(split: tuple[int, ...]) -> None:
    """The compiler changes the order in which gradients are ready, so those of an eager model may be others."""
    result = run_job(with_easyscale(replace(CNN, model=compiled, epochs=1)), split, determinism="D2")
    assert_same(result, compiled_judge())


def assert_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    for entry in OF_RANK_0:
        assert result.get(entry) == expected.get(entry), entry
    assert losses(result) == losses(expected)


# ---------------------------------------------------------------------------------------- kinds of CPU


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A CPU to imitate: what its worker finds in its environment, and its threads."""

    capability: str
    onednn: str
    threads: int
    glibc: str = ""

    def give(self, environment: Mapping[str, str], spec: WorkerSpec) -> dict[str, str]:
        limits = {"ATEN_CPU_CAPABILITY": self.capability, "ONEDNN_MAX_CPU_ISA": self.onednn, "PYTHONPATH": str(TESTS)}
        limits["GLIBC_TUNABLES"] = self.glibc
        return {**worker_environment(environment, replace(spec, threads=self.threads)), **limits}


OLD = Machine(capability="default", onednn="SSE41", threads=2)
MIDDLE = Machine(capability="avx2", onednn="AVX2", threads=1)
NEW = Machine(capability="avx512", onednn="AVX512_CORE", threads=1)  # torch takes the best there is, where it is less


class Machines(LocalLauncher):
    """Starts worker w on the w-th machine, in a process of its own: torch reads these limits once."""

    def __init__(self, name: str, *machines: Machine) -> None:
        super().__init__(os.environ, surround=lambda env, spec: machines[spec.worker % len(machines)].give(env, spec))
        self._target = Target(d2_cases.__file__, (name,))

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> ApartWorker:
        return super().start_apart(spec, self._target, out, err)


def run_on(machines: tuple[Machine, ...], split: tuple[int, ...], level: str, **spec: Any) -> Run:
    return run_with_master(never, split, launcher=Machines("pictures", *machines), determinism=level, **spec)  # type: ignore[arg-type]


def never() -> None:
    raise AssertionError("the machines have a script of their own")


@dataclass(frozen=True)
class Begun:
    """A job that ran to its end on this machine as it is, and its checkpoint after 3 of its 8 steps."""

    fingerprint: str
    checkpoint: str


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Begun]:
    known: dict[str, Begun] = {}

    def job(level: str) -> Begun:
        if level not in known:
            folder = tmp_path_factory.mktemp(level)
            result = run_job(
                with_easyscale(CASES["pictures"]), (2, 2), determinism=level, checkpoint_dir=str(folder),
                checkpoint_every=3, checkpoint_keep=9,
            )  # fmt: skip
            (first, *_) = sorted(path for path in folder.iterdir() if path.is_dir())
            known[level] = Begun(result["fingerprint"], str(first))
        return known[level]

    return job


def best() -> str:
    return torch.backends.cpu.get_cpu_capability()


def test_a_whole_job_on_an_older_cpu_with_more_threads_has_the_same_bits() -> None:
    done = run_on((OLD,), (4,), "D2")
    assert done.exit_code == 0, done.text
    assert done.fingerprint == judge("pictures")["fingerprint"]


def test_machines_of_different_types_in_one_job_have_the_same_bits() -> None:
    done = run_on((OLD, NEW, MIDDLE), (1, 2, 1), "D2")
    assert done.exit_code == 0, done.text
    assert done.fingerprint == judge("pictures")["fingerprint"]
    assert done.state.losses == {int(step): row for step, row in judge("pictures")["losses"].items()}


def test_a_checkpoint_moves_to_another_type(begun: Callable[[str], Begun]) -> None:
    there = begun("D2")
    assert there.fingerprint == judge("pictures")["fingerprint"]
    done = run_on((OLD,), (4,), "D2", resume=there.checkpoint)
    assert done.exit_code == 0, done.text
    assert done.state.steps == 8
    assert sorted(done.state.losses) == [3, 4, 5, 6, 7]
    assert done.fingerprint == there.fingerprint


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64", reason="glibc's, of x86")
def test_a_machine_whose_c_library_rounds_otherwise_is_refused() -> None:
    """No operator of torch computes Adam's beta ** step, or a learning rate."""
    without_fma = replace(NEW, glibc="glibc.cpu.hwcaps=-FMA,-AVX2,-FMA_Usable,-AVX2_Usable")
    done = run_on((NEW, without_fma), (2, 2), "D2")
    assert done.exit_code != 0
    assert "Level D2 cannot be kept between worker 1 and worker 0" in done.text
    assert "digest of the C library's pow, exp, log, cos and sin is" in done.text
    assert "Traceback" not in done.text


def test_below_d2_an_older_cpu_has_other_bits() -> None:
    """The negative control: these imitations are other machines."""
    done = run_on((OLD,), (4,), "D1")
    assert done.exit_code == 0, done.text
    assert done.fingerprint is not None
    assert done.fingerprint != judge("pictures", "D1")["fingerprint"]


def test_below_d2_a_checkpoint_does_not_move(begun: Callable[[str], Begun]) -> None:
    done = run_on((OLD,), (4,), "D1", resume=begun("D1").checkpoint)
    assert done.exit_code != 0
    assert "RecordMismatchError: Level D1 cannot be kept" in done.text
    assert f"CPU instruction set is DEFAULT here and {best()} there" in done.text
    assert "intra-op threads is 2 here and 1 there" in done.text
    assert "why:" in done.text
    assert "now:" in done.text
    assert "Traceback" not in done.text


def test_below_d2_machines_of_different_types_are_refused() -> None:
    done = run_on((OLD, MIDDLE), (2, 2), "D1")
    assert done.exit_code != 0
    assert "Level D1 cannot be kept between worker 1 and worker 0" in done.text
    assert "CPU instruction set is AVX2 here and DEFAULT there" in done.text
    assert "Traceback" not in done.text
    assert done.state.losses == {}


def test_a_job_goes_on_at_the_level_that_it_began_with(begun: Callable[[str], Begun]) -> None:
    for level, other in (("D1", "D2"), ("D2", "D1")):
        with pytest.raises(JobFailedError, match=f"determinism level is {level} here and {other} there") as caught:
            run_job(with_easyscale(CASES["pictures"]), (4,), determinism=level, resume=begun(other).checkpoint)
        assert caught.value.kind == "RecordMismatchError"
        assert f"now: use --determinism {other}, as the job began" in caught.value.error
