"""`--engine ddp` and a script without the launcher: stock DDP's bits. The plans are in the matrix (tests/parity)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from cluster import run_reference, run_stock
from workloads import CNN, MLP, TRANSFORMER, Case, by_hand, with_easyscale

FAMILIES = {"mlp": MLP, "cnn": CNN, "transformer": TRANSFORMER}


@cache
def stock(family: str, ests: int) -> dict[str, Any]:
    return run_stock(by_hand(FAMILIES[family]), ests)


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
