"""Changed surroundings, each in a process of its own: what a script notices of them, and what it must not."""

from __future__ import annotations

import datetime
import os
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster import _fork
from easyscale.core.observe import Treatment
from easyscale.runtime.observe.evidence import apply_treatments, take_evidence


def treated(body: Callable[[], Any], *treatments: Treatment) -> Any:
    def child() -> dict[str, Any]:
        apply_treatments(treatments)
        return {"value": body(), "evidence": take_evidence()}

    outcome = _fork([child])[0]
    assert "error" not in outcome, outcome["error"]
    return outcome


def listings(folder: Path) -> Callable[[], Any]:
    for name in "bac":
        (folder / name).touch()

    def names() -> Any:
        with os.scandir(folder) as entries:
            scanned = [entry.name for entry in entries]
        walked = next(iter(os.walk(folder)))[2]
        return [os.listdir(folder), scanned, walked, [path.name for path in folder.glob("*")]]

    return names


def test_folders_in_a_given_order(tmp_path: Path) -> None:
    names = listings(tmp_path)
    assert treated(names, "sorted-folders")["value"] == [["a", "b", "c"]] * 4
    assert treated(names, "reversed-folders")["value"] == [["c", "b", "a"]] * 4


def test_clocks() -> None:
    before = time.time()

    def moments() -> Any:
        return [time.time(), time.time_ns() / 1e9, datetime.datetime.now().timestamp()]

    assert all(moment > before + 86_400 for moment in treated(moments, "shifted-clock")["value"])
    assert treated(moments, "counting-clock")["value"] == treated(moments, "counting-clock")["value"]


def draws() -> Any:
    return [
        random.random(), random.Random().random(), float(np.random.rand()), float(np.random.default_rng().random()),
        float(np.random.RandomState().rand()), list(os.urandom(4)), torch.seed(),
    ]  # fmt: skip


def test_generators_without_a_seed_get_one() -> None:
    assert treated(draws, "seeded-generators")["value"] == treated(draws, "seeded-generators")["value"]


def test_generators_with_a_seed_keep_it() -> None:
    def seeded() -> Any:
        random.seed(3)
        np.random.seed(3)
        return [random.random(), random.Random(5).random(), np.random.rand(), np.random.default_rng(seed=5).random()]

    expected = treated(seeded)["value"]
    assert treated(seeded, "seeded-generators")["value"] == expected
    assert treated(seeded, "witnesses")["value"] == expected


def test_who_asks_is_written_down_with_the_line(tmp_path: Path) -> None:
    def asks() -> None:
        time.time()
        os.listdir(tmp_path)
        np.random.default_rng()
        np.random.default_rng(5)

    first = asks.__code__.co_firstlineno
    found = {what: int(place.rpartition(":")[2]) - first for what, place in treated(asks, "witnesses")["evidence"]}
    assert found == {"the clock": 1, "the order of a folder": 2, "a generator without a seed": 3}


@pytest.mark.parametrize("treatment", ["witnesses", "seeded-generators", "shifted-clock", "counting-clock"])
def test_generators_and_moments_can_still_be_saved(treatment: Treatment) -> None:
    """A run that only watches must not break a script that pickles such things."""

    def saves() -> Any:
        generator = pickle.loads(pickle.dumps(random.Random(4)))
        moment = pickle.loads(pickle.dumps(datetime.datetime(2026, 1, 2)))
        assert isinstance(moment, datetime.datetime)
        return [generator.random(), moment.isoformat()]

    assert treated(saves, treatment)["value"] == [random.Random(4).random(), "2026-01-02T00:00:00"]
