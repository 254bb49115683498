"""How Triton kernels are launched: as Triton does, by the same choice of compiled kernels, without its search."""

from __future__ import annotations

import importlib.util
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from easyscale.numerics.kernels.gpu import launch as launching
from easyscale.numerics.kernels.gpu.launch import Launch, Tiles, _c_launcher_is_known, facts, launch

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
    monkeypatch.setattr(launching, "_current", lambda: -1)  # a torch with CUDA would look for a driver
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


def _kept(kernel: Kernel, **constants: Any) -> Launch:
    return Launch(kernel, (9,), (50,), BLOCK=32, **constants)


@needs_triton
def test_a_kept_launch_goes_round_triton_with_the_addresses_of_its_tensors(on_a_cpu: None) -> None:
    noted: list[tuple[Any, ...]] = []
    kernel = Kernel(3, ("BLOCK",), launch=lambda *args: noted.append(args))
    kept = _kept(kernel)
    settings = (77, 0, 0, None, None, (4, 1, 0), None, None, None)
    pairs = [(torch.zeros(64), torch.zeros(64)) for _ in range(3)]
    for x, y in pairs:
        kept(x, y)
    assert len(kernel.grids) == 1
    assert noted == [(9, 1, 1, 5, *settings, x.data_ptr(), y.data_ptr(), 50, 32) for x, y in pairs[1:]]


@needs_triton
def test_a_kept_launch_looks_at_alignment_itself(on_a_cpu: None) -> None:
    """In any order: another kernel for each set of addresses that are multiples of 16, found once."""
    x = torch.zeros(65)
    cases = list(itertools.product((x[:64], x[1:]), repeat=2))
    for order in itertools.permutations(range(4)):
        kernel = Kernel(3, ("BLOCK",), launch=lambda *args: None)
        kept = _kept(kernel)
        for count, case in enumerate(order, 1):
            for _ in range(3):
                kept(*cases[case])
            assert len(kernel.grids) == count


@needs_triton
def test_beside_tiles_alignment_is_not_looked_at(on_a_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launching, "_as_triton_takes_it", lambda arg: arg)
    kernel = Kernel(3, ("BLOCK",), launch=lambda *args: noted.append(args))
    kept, tiles = _kept(kernel), Tiles(torch.zeros(16, 16), (8, 8))
    for x in (torch.zeros(64), torch.zeros(64)):
        kept(tiles, x)
    assert len(kernel.grids) == 1
    assert noted[0][13:15] == (tiles, x.data_ptr())


@needs_triton
def test_a_kept_launch_on_another_device_is_triton_s(on_a_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps is of the device that it was launched on first."""
    kernel = Kernel(3, ("BLOCK",), launch=lambda *args: None)
    kept, pair = _kept(kernel), (torch.zeros(64), torch.zeros(64))
    kept(*pair)
    kept(*pair)
    assert len(kernel.grids) == 1
    monkeypatch.setattr(launching, "_current", lambda: 3)
    slow: list[Any] = []
    monkeypatch.setattr(launching, "launch", lambda *args, **named: slow.append(args))
    kept(*pair)
    assert len(slow) == 1


@needs_triton
def test_a_kept_launch_of_a_kernel_with_memory_of_its_own_is_always_triton_s(on_a_cpu: None) -> None:
    kernel = Kernel(3, ("BLOCK",), launch=None, global_scratch_size=8)
    kept = _kept(kernel)
    for _ in range(3):
        kept(torch.zeros(64), torch.zeros(64))
    assert len(kernel.grids) == 3


@needs_triton
def test_threads_may_share_a_kept_launch(on_a_cpu: None) -> None:
    noted: list[int] = []
    kernel = Kernel(3, ("BLOCK",), launch=lambda *args: noted.append(args[13]))
    kept, x = _kept(kernel), torch.zeros(65)
    with ThreadPoolExecutor(8) as threads:
        tensors = [(x[:64], x[:64]) if i % 2 else (x[1:], x[1:]) for i in range(400)]
        list(threads.map(lambda pair: kept(*pair), tensors))
    assert len(noted) + len(kernel.grids) == 400
    assert set(noted) == {x.data_ptr(), x[1:].data_ptr()}


@needs_triton
def test_a_number_that_differs_in_each_call_goes_behind_the_tensors(on_a_cpu: None) -> None:
    """One of 32 bits has another type in Triton, and a tensor that begins elsewhere another kernel."""
    noted: list[tuple[Any, ...]] = []
    kernel = Kernel(3, ("BLOCK",), launch=lambda *args: noted.append(args[13:]))
    kept, x = _kept(kernel), torch.zeros(65)
    small, large = (3, 0x7FFFFFFF), (1 << 31, 1 << 40, 16 * 12345678901, (1 << 63) - 1)
    kept.drawing(small[0], x[:64])
    kept.drawing(large[0], x[:64])
    assert len(kernel.grids) == 2
    for key in large:
        kept.drawing(key, x[:64])
    assert len(kernel.grids) == 2
    assert noted == [(x.data_ptr(), key, 50, 32) for key in large]
    kept.drawing(small[1], x[:64])
    kept.drawing(large[1], x[1:])
    assert len(kernel.grids) == 3
    assert noted[len(large) :] == [(x.data_ptr(), small[1], 50, 32)]
