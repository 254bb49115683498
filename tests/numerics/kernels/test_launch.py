"""How Triton kernels are launched: as Triton does, by the same choice of compiled kernels, without its search."""

from __future__ import annotations

import importlib.util
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from easyscale.numerics.kernels.gpu import launch as launching
from easyscale.numerics.kernels.gpu.launch import _c_launcher_is_known, facts, launch

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


class Kernel:
    """Stands for a Triton kernel of these arguments and constants; counts the launches that Triton makes."""

    __name__ = "kernel"

    def __init__(self, arguments: int, constants: tuple[str, ...], **run: Any) -> None:
        from triton.backends.nvidia.driver import CudaLauncher

        self.params = [SimpleNamespace(name=f"p{i}", is_constexpr=False) for i in range(arguments)]
        self.params += [SimpleNamespace(name=name, is_constexpr=True) for name in constants]
        launcher = object.__new__(CudaLauncher)
        settings = {"launch": print, "global_scratch_size": 0, "profile_scratch_size": 0}
        launcher.__dict__.update(settings | {"launch_cooperative_grid": 0, "launch_pdl": 0} | run)
        self.compiled = SimpleNamespace(run=launcher, function=77, packed_metadata=(4, 1, 0))
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *args, **named: self.compiled


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_stream", lambda device: 5)
    monkeypatch.setattr(launching.inspect, "isbuiltin", lambda function: True)


VALUES: list[Any] = [
    0, 1, 2, 15, 16, 17, 32, -1, -16, -17, 2**31 - 1, 2**31 - 16, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1,
    -(2**31) - 16, 2**32, 2**32 + 8, 2**63 - 1, 2**63 - 16, 2**63, 2**63 + 1, 2**64 - 16, -(2**63), -(2**63) + 1, True,
    False, None, 0.0, 1.0, 2.5,
]  # fmt: skip


def _values() -> list[Any]:
    pool = torch.zeros(4096, dtype=torch.uint8)
    start = -pool.data_ptr() % 64
    places = [pool[start + shift : start + shift + 64] for shift in (0, 8, 16, 24, 32)]
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
              torch.int8, torch.int16, torch.bool)  # fmt: skip
    return [*VALUES, *(place.view(dtype) for place in places for dtype in dtypes)]


@needs_triton
@pytest.mark.parametrize("specialize", [True, False])
def test_the_facts_distinguish_all_that_triton_distinguishes(specialize: bool) -> None:
    """And, where arguments are looked at in full, nothing more: else kernels would be looked for again and again."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    found = [
        (facts((x,), {})[0], native_specialize_impl(BaseBackend, x, False, specialize, specialize)) for x in _values()
    ]
    for (ours, triton), (others, tritons) in itertools.combinations(found, 2):
        if ours == others:
            assert triton == tritons
        if triton == tritons and specialize:
            assert ours == others


@needs_triton
def test_facts_of_several_arguments_do_not_run_into_one_another() -> None:
    some = [1, 16, 3, 2**40, True, None, 2.5, torch.zeros(4), torch.zeros(4).double()]
    lists = [*itertools.product(some, repeat=1), *itertools.product(some, repeat=2), *itertools.product(some, repeat=3)]
    assert len({tuple(facts(args, {})[0]) for args in lists}) == len(lists)


def test_constants_and_options_are_facts() -> None:
    def fact(**named: Any) -> tuple[Any, ...]:
        return tuple(facts((torch.zeros(4),), named)[0])

    different = [{"A": 1, "B": 2}, {"A": 2, "B": 1}, {"B": 1}, {"A": 1}, {"A": 1, "num_warps": 4}, {"A": 1, "B": 4}]
    assert len({fact(**named) for named in different}) == len(different)


def test_what_a_kernel_cannot_take_is_refused() -> None:
    with pytest.raises(TypeError, match="is given a str"):
        facts(("x",), {})


@needs_triton
def test_the_second_launch_goes_round_triton(on_a_cpu: None) -> None:
    noted: list[tuple[Any, ...]] = []
    kernel = Kernel(3, ("BLOCK", "ONE"), launch=lambda *args: noted.append(args))
    x, y = torch.zeros(64), torch.zeros(64)
    for _ in range(3):
        launch(kernel, (9, 2), x, y, 50, ONE=True, BLOCK=32, num_warps=4)
    assert kernel.grids == [(9, 2)]
    settings = (77, 0, 0, None, None, (4, 1, 0), None, None, None)
    wanted = (9, 2, 1, 5, *settings, x.data_ptr(), y.data_ptr(), 50, 32, True)
    assert noted == [wanted, wanted]
    launch(kernel, (9, 2), x, y[1:], 50, ONE=True, BLOCK=32, num_warps=4)  # another alignment: another kernel
    assert len(kernel.grids) == 2


@needs_triton
@pytest.mark.parametrize("run", [{"global_scratch_size": 8}, {"profile_scratch_size": 8}])
def test_kernels_that_need_memory_of_their_own_are_launched_by_triton(on_a_cpu: None, run: dict[str, int]) -> None:
    kernel = Kernel(1, (), launch=None, **run)
    for _ in range(3):
        launch(kernel, (4,), torch.zeros(64))
    assert len(kernel.grids) == 3


@needs_triton
def test_constants_without_a_name_are_refused(on_a_cpu: None) -> None:
    """Of them only the facts of a number would be in the key, not their value."""
    with pytest.raises(AssertionError, match="constants of kernel go by name"):
        launch(Kernel(1, ("BLOCK",)), (4,), torch.zeros(64), 32)
    with pytest.raises(AssertionError, match="lacks arguments"):
        launch(Kernel(2, ("BLOCK",)), (4,), torch.zeros(64), BLOCK=32)


@needs_triton
def test_only_the_launcher_that_is_known_is_gone_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.nvidia import driver

    text = launching.inspect.getsource(driver.make_launcher)
    if launching._ORDER not in " ".join(text.split()):
        pytest.skip("another Triton: nothing is gone round")
    for other in (text, text.replace("&launch_pdl, &global_scratch_obj", "&global_scratch_obj, &launch_pdl"), ""):
        _c_launcher_is_known.cache_clear()
        monkeypatch.setattr(launching.inspect, "getsource", lambda function, other=other: other)
        assert _c_launcher_is_known(driver.CudaLauncher) == (other is text)
    _c_launcher_is_known.cache_clear()
