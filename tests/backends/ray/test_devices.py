"""Ray's resources in our words, and what goes along to another machine. No cluster is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from easyscale.backends.ray import cluster
from easyscale.backends.ray.keeper import luggage, node_environment, with_device
from easyscale.backends.ray.sweeping import unused
from easyscale.core.cluster import Slot
from easyscale.core.spec import WorkerSpec

GPU_NODE = {"NodeID": "a" * 56, "Alive": True, "Resources": {
    "CPU": 8.0, "GPU": 2.0, "accelerator_type:V100": 1.0, "memory": 1e9, "node:10.0.0.2": 1.0,
}}  # fmt: skip
TRIAL_NODE = {"NodeID": "b" * 56, "Alive": True, "Resources": {
    "CPU": 2.0, "t4": 1.0, "t4_group_0_12ab": 1.0, "node:__internal_head__": 1.0, "object_store_memory": 1.0,
}}  # fmt: skip
DEAD_NODE = {"NodeID": "c" * 56, "Alive": False, "Resources": {"a100": 4.0}}


@pytest.fixture(autouse=True)
def _nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [TRIAL_NODE, DEAD_NODE, GPU_NODE])
    monkeypatch.setattr(cluster, "connect", lambda address: address)
    monkeypatch.setattr(cluster, "gpu_uuids", lambda node: ["GPU-1", "GPU-2"])


def test_types_are_custom_resources_and_accelerators_of_living_nodes() -> None:
    assert cluster.kinds() == {"v100": 2, "gpu": 2, "t4": 1, "cpu": 10}
    assert cluster.default_kind() == "gpu"


def test_devices_have_names_nodes_and_the_uuids_of_gpus() -> None:
    assert cluster.devices("x") == [
        Slot(id="v100-aaaaaaaa-0", kind="v100", node="a" * 56, uuid="GPU-1"),
        Slot(id="v100-aaaaaaaa-1", kind="v100", node="a" * 56, uuid="GPU-2"),
        Slot(id="t4-bbbbbbbb-0", kind="t4", node="b" * 56),
    ]
    assert [slot.id for slot in cluster.devices("x", ["t4"])] == ["t4-bbbbbbbb-0"]
    assert [slot.kind for slot in cluster.devices("x", ["cpu"])] == ["cpu"] * 10


def test_gpus_of_which_ray_has_only_some_have_no_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "gpu_uuids", lambda node: ["GPU-1", "GPU-2", "GPU-3"])
    assert [slot.uuid for slot in cluster.devices("x", ["v100"])] == [None, None]


@pytest.mark.parametrize(
    ("kind", "bundle", "visible"),
    [
        ("t4", {"t4": 1.0}, ""),
        ("v100", {"GPU": 1.0, "accelerator_type:V100": 0.001}, None),
        ("gpu", {"GPU": 1.0}, None),
        ("cpu", {"CPU": 1.0}, ""),
        ("h100", {"h100": 1.0}, ""),  # may yet come
    ],
)
def test_a_worker_asks_for_its_device_in_ray_s_words(kind: str, bundle: dict[str, float], visible: str | None) -> None:
    ask = cluster.ask_for(kind, {"zone": "a"})
    assert (ask.bundle, ask.labels, ask.visible) == (bundle, {"zone": "a"}, visible)


def test_a_slot_is_asked_for_on_its_node_and_by_its_uuid() -> None:
    ask = cluster.ask_for_slot(Slot(id="x", kind="v100", node="n1", uuid="GPU-2"), {"zone": "a"})
    assert ask.labels == {"zone": "a", "ray.io/node-id": "n1"}
    assert ask.visible == "GPU-2"
    assert cluster.ask_for_slot(Slot(id="x", kind="t4")).labels == {}


def test_a_type_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    cluster.check_types(["v100", "t4", "cpu"])
    with pytest.raises(Exception, match=r"type a100[\s\S]*cpu:10, gpu:2, t4:1, v100:2[\s\S]*ray start --resources"):
        cluster.check_types(["a100"])


def test_what_belongs_to_a_machine_stays_there() -> None:
    here = {"PATH": "/here", "HOME": "/me", "RAY_ADDRESS": "x", "SSH_TTY": "y", "EASYSCALE_KEPT": "z", "DATA": "/d"}
    assert luggage(here) == {"DATA": "/d"}
    node = {"PATH": "/there", "RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "3", "DATA": "/other"}
    assert node_environment(node, luggage(here)) == {"PATH": "/there", "CUDA_VISIBLE_DEVICES": "3", "DATA": "/d"}
    assert node_environment(node, {}, "GPU-2")["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    ray = {"RAY_JOB_ID": "1", "RAY_AUTH_MODE": "token"}
    assert node_environment(ray, {}) == {}
    assert node_environment(ray, {}, driver=True) == {"RAY_AUTH_MODE": "token"}


def test_a_gpu_without_a_known_name_is_the_one_that_ray_gave() -> None:
    slot: Any = Slot(id="x", kind="v100", node="n")
    assert with_device(WorkerSpec(ests=1, slot=slot), "3").slot == Slot(id="x", kind="v100", node="n", uuid="3")
    assert with_device(WorkerSpec(ests=1, slot=slot), "") == WorkerSpec(ests=1, slot=slot)
    named = WorkerSpec(ests=1, slot=Slot(id="x", kind="v100", uuid="GPU-1"))
    assert with_device(named, "3") == named


def test_only_our_reservations_that_hold_a_device_and_have_no_keeper_are_unused() -> None:
    table = [
        ("job-1/worker-0/0123abcd", "CREATED"), ("job-1/worker-1/0123abcd", "RESCHEDULING"),
        ("job-1/worker-2/0123abcd", "PENDING"), ("job-1/worker-3/0123abcd", "CREATED"), ("other", "CREATED"),
    ]  # fmt: skip
    assert unused(table, ["job-1/worker-3/0123abcd"]) == {"job-1/worker-0/0123abcd", "job-1/worker-1/0123abcd"}
