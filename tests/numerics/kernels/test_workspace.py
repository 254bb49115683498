"""The memory that is kept from launch to launch (`gpu.workspace`), on the CPU: it asks for nothing of a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch

from easyscale.numerics.kernels import install
from easyscale.numerics.kernels.gpu import slices, workspace
from easyscale.numerics.kernels.gpu.workspace import Places

HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    workspace.release()
    yield
    workspace.release()


def places(size: int) -> Places:
    return Places(((torch.int8, (size,)), (torch.int32, (3, 5))))


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_buffer_grows_to_what_is_wanted_and_no_further() -> None:
    for size, wanted in ((1000, 1024), (5000, 5120), (5100, 5120), (300, 5120), (20_000, 20_224)):
        first, second = places(size).at(HERE, 0)
        assert (first.shape, first.dtype, second.shape, second.dtype) == ((size,), torch.int8, (3, 5), torch.int32)
        assert second.data_ptr() - first.data_ptr() == -(-size // 256) * 256
        assert wanted <= workspace.held() <= wanted + 256


def test_the_same_plan_gets_the_same_tensors_until_the_buffer_is_replaced() -> None:
    one, other = places(1000), places(2000)
    other.at(HERE, 0)
    before = one.at(HERE, 0)
    assert one.at(HERE, 0) is before
    assert storage_of(other.at(HERE, 0)[0]) == storage_of(before[0]), "two plans share a slot"
    assert storage_of(one.at(HERE, 1)[0]) != storage_of(before[0]), "slots are apart"
    places(9000).at(HERE, 0)
    assert one.at(HERE, 0) is not before


def test_no_plan_keeps_a_buffer_alive_that_was_replaced() -> None:
    plans = [places(size) for size in (1000, 3000, 9000)]
    gone = []
    for plan in plans:
        first = plan.at(HERE, 0)[0]
        gone.append(weakref.ref(first.untyped_storage()))
        del first
    assert [storage() is None for storage in gone] == [True, True, False]
    workspace.release()
    assert gone[2]() is None
    assert workspace.held() == 0


def test_a_buffer_goes_before_its_successor_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else both would be there at once, when memory is short."""
    small, large = places(1000), places(5000)
    storage = weakref.ref(small.at(HERE, 0)[0].untyped_storage())
    stock, found = torch.empty, []

    def empty(*args: object, **options: object) -> torch.Tensor:
        found.append(storage() is None)
        made: torch.Tensor = stock(*args, **options)  # type: ignore[call-overload]
        return made

    monkeypatch.setattr(torch, "empty", empty)
    large.at(HERE, 0)
    assert found == [True]


def test_more_than_is_kept_is_given_for_one_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_KEPT", 4096)
    small, large = places(1000), places(5000)
    for _ in range(2):
        kept, given = small.at(HERE, 0), large.at(HERE, 0)
        assert given is not large.at(HERE, 0)
        assert small.at(HERE, 0) is kept
        assert workspace.held() <= 4096


def test_each_stream_has_buffers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs beside each other must not write to the same memory."""
    plan, found = places(1000), []
    for stream in (7, 8, 7):
        monkeypatch.setattr(workspace, "current_stream", lambda device, stream=stream: stream)
        found.append(plan.at(HERE, 0))
    assert storage_of(found[0][0]) != storage_of(found[1][0])
    assert found[2] is found[0]
    assert workspace.held() == 2 * (1024 + 256)


def test_nothing_is_held_when_d2_is_over() -> None:
    """What is measured or trained after it in the same process has that memory."""
    with install.installed():
        places(1000).at(HERE, 0)
        assert workspace.held()
    assert not workspace.held()


def test_a_plan_of_products_keeps_nothing_of_what_it_multiplied() -> None:
    """Launches are left out: what is seen is who holds the slices."""
    plan = slices._product_plan(8, 8, 64, 4, slices.TILES[-1], False, HERE)
    plan.whole = lambda *tensors: None  # type: ignore[assignment]
    cut = [(torch.zeros(32, 64, dtype=torch.int8), torch.zeros(8, dtype=torch.int32)) for _ in range(2)]
    storages = [weakref.ref(parts.untyped_storage()) for parts, _ in cut]
    plan.multiply(cut[0], cut[1], None)
    cut.clear()
    assert [storage() is None for storage in storages] == [True, True]
    assert slices._product_plan(8, 8, 64, 4, slices.TILES[-1], False, HERE) is plan, "which is kept"
    slices._product_plan.cache_clear()
