"""The D2 section of docs/benchmarks.md is what its script makes of the results: no figure there is typed in by hand."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
PARTS = ("cpu", "accuracy", "curves", "gpu")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script's module, which is imported as it is by benchmarks/report.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("parts.d2_page")


def results() -> list[Any]:
    paths = [ROOT / "benchmarks" / "results" / f"d2-{part}.json" for part in PARTS]
    return [json.loads(path.read_text()) if path.exists() else [] for path in paths]


def test_the_d2_section_is_that_of_the_results(page: ModuleType) -> None:
    assert page.section(*results()) in PAGE, "run: python benchmarks/report.py"


def test_another_result_would_be_seen(page: ModuleType) -> None:
    """Negative control."""
    cpu, *rest = results()
    other = copy.deepcopy(cpu)
    other["steps"][0]["ratio"] += 1
    assert page.section(other, *rest) not in PAGE


def test_the_page_says_plainly_that_a_gpu_is_missing(page: ModuleType) -> None:
    assert "Not measured yet on a GPU" in page.section([], [], [], [])


def test_gpu_results_of_any_shape_are_shown(page: ModuleType) -> None:
    found = {
        "about": {"device": "NVIDIA H200", "torch": "2.11"},
        "whole_steps": [{"model": "BERT", "ratio": 0.98765, "same_bits": True}, {"model": "Swin", "note": "failed"}],
    }
    text = page.section([], [], [], found)
    assert "### D2 on a GPU: NVIDIA H200, 2.11" in text
    assert "| model | ratio | same bits | note |" in text
    assert "| BERT | 0.988 | yes |  |" in text
    assert "| Swin |  |  | failed |" in text
    assert "Not measured" not in text


def test_a_layer_above_twice_the_vendors_error_is_named(page: ModuleType) -> None:
    layer = {
        "inputs": 24, "outputs": 58, "kernel": [1, 1], "size": [28, 28], "groups": 1, "linear": False, "positions": 784,
    }  # fmt: skip
    fine = {product: {"ours": 1.5, **layer} for product in page.PRODUCTS_OF}
    row = {"model": "ShuffleNetV2", "usual": fine, "outliers": {**fine, "weight": {"ours": 2.04, **layer}}}
    assert "2.04 in a convolution 1 x 1, 24 to 58 channels over 28 x 28" in page.beyond([], [row])
    found = {"usual": {"ours": 1.0, **layer}, "outliers": {"ours": 3.5, **layer}}
    assert "(input, outliers): 3.50" in page.beyond([{"model": "VGG19", **dict.fromkeys(page.PRODUCTS_OF, found)}], [])
    assert page.beyond([], [{**row, "outliers": fine}]) == "No layer is above twice the vendor's error.\n"
