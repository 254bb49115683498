"""A data set that cuts itself by `es.rank()` in `__iter__`, without being a generator: asked when a loop opens it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from cluster import run_job, run_reference
from workloads import MLP, Vectors, with_easyscale


class CutAtOnce(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        import easyscale as es

        data = Vectors()
        return iter([data[i] for i in range(es.rank(), len(data) // 4 * 4, es.world_size())])


@pytest.mark.parametrize("split", [(4,), (2, 1, 1), (1, 1, 1, 1)])
def test_a_data_set_hears_its_own_rank_when_it_is_opened(split: tuple[int, ...]) -> None:
    train = with_easyscale(replace(MLP, data=CutAtOnce, batch=2))
    ours, stock = run_job(train, split, max_steps=3), run_reference(train, 4, max_steps=3)
    assert ours["losses"] == stock["losses"]
    assert ours["fingerprint"] == stock["fingerprint"]
