"""An observation crosses the process boundary inside the worker's spec."""

from __future__ import annotations

import json

import pytest

from easyscale.core.observe import Observation, Plant
from easyscale.core.spec import WorkerSpec

OBSERVATIONS = [
    None,
    Observation(),
    Observation(plant=Plant(kind="batch", step=3, est=1)),
    Observation(trace_to="traces", first=2, last=5, treatments=("witnesses", "shifted-clock")),
    Observation(trace_to="t", last=0, plant=Plant(kind="operator", step=0, est=0), treatments=("sorted-folders",)),
]


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=str)
def test_a_spec_with_an_observation_survives_json(observation: Observation | None) -> None:
    spec = WorkerSpec(ests=4, split=(3, 1), worker=1, max_steps=7, observation=observation)
    assert WorkerSpec.from_json(spec.to_json()) == spec


def test_fields_that_a_later_version_adds_are_left_out() -> None:
    raw = json.loads(WorkerSpec(ests=1, observation=Observation(last=4)).to_json())
    raw["observation"]["colour"] = "green"
    assert WorkerSpec.from_json(json.dumps(raw)).observation == Observation(last=4)


def test_a_step_is_traced_only_inside_the_window_and_only_into_a_folder() -> None:
    window = Observation(trace_to="traces", first=2, last=3)
    assert [window.traces(step) for step in range(5)] == [False, False, True, True, False]
    assert not any(Observation(first=0, last=9).traces(step) for step in range(10))
    assert not any(Observation(trace_to="traces").traces(step) for step in range(10))
