"""Three families of models on every plan: the fingerprint and every loss are stock DDP's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from cluster import run_job, run_reference, run_stock, splits_of
from workloads import CNN, MLP, TRANSFORMER, Case, by_hand, with_easyscale

FAMILIES = {"mlp": MLP, "cnn": CNN, "transformer": TRANSFORMER}


@cache
def stock(family: str, ests: int) -> dict[str, Any]:
    return run_stock(by_hand(FAMILIES[family]), ests)


def plans() -> list[Any]:
    """Every split of 2, 3 and 4 ESTs, and for 5 each number of workers, uneven ones among them."""
    chosen = [split for ests in (2, 3, 4) for split in splits_of(ests)]
    chosen += [(5,), (2, 3), (1, 4), (3, 1, 1), (1, 3, 1), (2, 1, 1, 1), (1, 1, 1, 1, 1)]
    return [
        pytest.param(family, split, id=f"{family}-{'+'.join(map(str, split))}", marks=pytest.mark.slow)
        for family in FAMILIES
        for split in chosen
    ]


@pytest.mark.parametrize(("family", "split"), plans())
def test_any_plan_ends_with_the_bits_of_a_hand_written_ddp_script(family: str, split: tuple[int, ...]) -> None:
    expected = stock(family, sum(split))
    result = run_job(with_easyscale(FAMILIES[family]), split)
    assert result["fingerprint"] == expected["fingerprint"]
    assert result["losses"] == expected["losses"]


@pytest.mark.parametrize("ests", [2, 3, 4, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ddp_engine_is_stock_ddp(family: str, ests: int) -> None:
    result = run_reference(with_easyscale(FAMILIES[family]), ests)
    assert result["fingerprint"] == stock(family, ests)["fingerprint"]
    assert result["losses"] == stock(family, ests)["losses"]


def test_a_script_without_the_launcher_is_one_worker_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from cluster import _fork, seed_by_hand

    def alone(case: Case) -> dict[str, Any]:
        import easyscale as es
        from easyscale.runtime import api

        os.environ.pop("EASYSCALE_WORKER", None)
        os.environ["EASYSCALE_ESTS"] = "4"
        seed_by_hand(99)  # init() must seed by itself
        with_easyscale(case)()
        engine = api.engine()
        assert engine.model is not None
        return {"fingerprint": es.fingerprint(engine.model)}

    (outcome,) = _fork([lambda: alone(MLP)])
    assert outcome.get("fingerprint") == stock("mlp", 4)["fingerprint"], outcome
