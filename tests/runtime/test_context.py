"""A saved state goes back to where its object keeps its tensors: checkpoints do not know devices."""

from __future__ import annotations

from typing import Any

import torch

from easyscale.runtime.context import placed_like

META = torch.device("meta")  # a second device that every machine has


def devices(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.device.type
    if isinstance(tree, dict):
        return {key: devices(value) for key, value in tree.items()}
    return [devices(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def test_tensors_go_where_the_object_keeps_its_own() -> None:
    current = {"a": torch.zeros(2, device=META), "b": torch.zeros(2), "n": 3}
    saved = {"a": torch.ones(2), "b": torch.ones(2), "n": 4}
    placed = placed_like(current, saved)
    assert devices(placed) == {"a": "meta", "b": "cpu", "n": 4}
    assert torch.equal(placed["b"], torch.ones(2))
    assert saved["a"].device.type == "cpu", "what was saved stays as it is"


def test_nested_states_are_walked() -> None:
    current = {"groups": [{"x": torch.zeros(1, device=META)}, (torch.zeros(1), torch.zeros(1, device=META))]}
    saved = {"groups": [{"x": torch.ones(1)}, (torch.ones(1), torch.ones(1))]}
    placed = placed_like(current, saved)
    assert devices(placed) == {"groups": [{"x": "meta"}, ["cpu", "meta"]]}
    assert isinstance(placed["groups"][1], tuple)


def test_what_the_object_does_not_have_yet_stays_where_it_is() -> None:
    """An optimizer has no momentum before its first step."""
    saved = {"new": torch.ones(1), "list": [torch.ones(1), torch.ones(1)], "deep": {"x": torch.ones(1)}, "text": "t"}
    placed = placed_like({"list": [torch.zeros(1, device=META)], "deep": 5}, saved)
    assert devices(placed) == {"new": "cpu", "list": ["meta", "cpu"], "deep": {"x": "cpu"}, "text": "t"}
    assert devices(placed_like(None, saved)) == devices(saved)
    assert placed_like(torch.zeros(1, device=META), None) is None
