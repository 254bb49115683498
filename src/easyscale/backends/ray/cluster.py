"""A Ray cluster as EasyScale sees it: reached or not, its nodes, their devices, what a worker asks for.

A device type is a custom resource (`ray start --resources '{"v100": 1}'`), or the accelerator type of real GPUs in
small letters (`v100`, `a100`). `gpu`: any GPU. `cpu`: a processor core. A process is connected to one cluster.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from easyscale.core.cluster import Slot
from easyscale.core.errors import EasyScaleError, UsageError

NAMESPACE = "easyscale"
NODE_LABEL = "ray.io/node-id"
ACCELERATOR = "accelerator_type:"
REACH_SECONDS = 5.0  # for a connection to a head node that is there
INIT_SECONDS = 30.0  # to become a driver, which takes a second
TASK_SECONDS = 30.0  # for a first small task on a node, which starts a process there
_BUILT_IN = frozenset(("CPU", "GPU", "TPU", "memory", "object_store_memory"))


def connect(address: str = "auto") -> str:
    """Become a driver of the cluster; returns its address. `auto`: RAY_ADDRESS, or the one of this machine."""
    if address.startswith("ray://"):
        raise UsageError(
            f"{address} is an address of the Ray Client.",
            "a master must be on a node of the cluster: its workers connect to it.",
            "run easyscale on a node of the cluster, with --ray-address auto or HOST:PORT of the head node.",
        )
    address = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if ray.is_initialized() and address in ("auto", ray.get_runtime_context().gcs_address):
        return str(ray.get_runtime_context().gcs_address)
    _check_reachable(address)
    if not ray.is_initialized():
        _init(address)
        _keep_quiet()
    found = str(ray.get_runtime_context().gcs_address)
    if address not in ("auto", found) and not _is_same(address, found):
        raise EasyScaleError(
            f"The Ray cluster at {address} is not the one that this process uses.",
            f"it is connected to {found}, and Ray allows one cluster a process.",
            "use a process for each cluster.",
        )
    return found


def own_address() -> str:
    """The address by which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())


def here() -> str:
    """The node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def nodes() -> list[Mapping[str, Any]]:
    """Those that live."""
    return [node for node in ray.nodes() if node["Alive"]]


def totals() -> dict[str, float]:
    """All resources of all living nodes, in use or not."""
    found: dict[str, float] = {}
    for node in nodes():
        for name, amount in node["Resources"].items():
            found[name] = found.get(name, 0.0) + amount
    return found


# ---------------------------------------------------------------------------------------- what a worker asks for


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The device of one worker, in Ray's words."""

    kind: str
    bundle: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    visible: str | None = None  # the UUID of the very GPU; empty: none at all; None: the one that Ray gives


def ask_for(kind: str, labels: Mapping[str, str] | None = None) -> Ask:
    """One device of a type. A type that no living node has is taken for a custom resource that may yet come."""
    labels = dict(labels or {})
    bundle: dict[str, float] = {kind: 1.0}
    if kind in ("cpu", "gpu"):
        bundle = {kind.upper(): 1.0}
    elif kind not in (found := totals()):
        name = next((name for name in found if _accelerator(name) == kind), None)
        if name is not None:
            bundle = {"GPU": 1.0, name: 0.001}
    return Ask(kind=kind, bundle=bundle, labels=labels, visible=None if "GPU" in bundle else "")


def ask_for_slot(slot: Slot, labels: Mapping[str, str] | None = None) -> Ask:
    """This very device: on its node, and the GPU with its UUID where it has one."""
    ask = ask_for(slot.kind, labels)
    node = {NODE_LABEL: slot.node} if slot.node else {}
    return Ask(kind=ask.kind, bundle=ask.bundle, labels={**ask.labels, **node}, visible=slot.uuid or ask.visible)


def check_types(types: Sequence[str]) -> None:
    """Refuse types that no living node has."""
    known = kinds()
    for kind in types:
        if kind not in known:
            have = ", ".join(f"{name}:{count}" for name, count in sorted(known.items())) or "no devices at all"
            raise UsageError(
                f"No node of the Ray cluster has a device of type {kind}.",
                f"the nodes have {have}.",
                f"use one of these types, start a node with `ray start --resources '{{\"{kind}\": 1}}'`, or pass "
                "--ray-wait where an autoscaler can bring one.",
            )


def kinds() -> dict[str, int]:
    """How many devices of each type the living nodes have."""
    found: dict[str, int] = {}
    for node in nodes():
        for kind, count in _kinds_of(node["Resources"]).items():
            found[kind] = found.get(kind, 0) + count
    return found


def default_kind() -> str:
    """What a worker takes if nobody said: a GPU where there is one, else a core."""
    return "gpu" if totals().get("GPU", 0.0) >= 1 else "cpu"


# ---------------------------------------------------------------------------------------- devices by name


def devices(address: str = "auto", types: Sequence[str] | None = None) -> list[Slot]:
    """Each device of each living node. Processor cores count only where they are asked for by `types`."""
    connect(address)
    found: list[Slot] = []
    for node in sorted(nodes(), key=lambda node: str(node["NodeID"])):
        offered = _kinds_of(node["Resources"])
        special = [kind for kind in offered if kind not in ("cpu", "gpu")]
        wanted = [kind for kind in (special or [k for k in offered if k == "gpu"]) if types is None or kind in types]
        wanted += [kind for kind in ("cpu", "gpu") if types is not None and kind in types and kind in offered]
        for kind in dict.fromkeys(wanted):
            found += _slots(node, kind, offered[kind])
    return found


def _slots(node: Mapping[str, Any], kind: str, count: int) -> list[Slot]:
    identity, resources = str(node["NodeID"]), node["Resources"]
    uuids: list[str] = []
    if kind == "gpu" or any(_accelerator(name) == kind for name in resources):
        uuids = gpu_uuids(identity)
    known = len(uuids) == count  # else Ray was given some of the GPUs, and nobody knows which
    return [
        Slot(
            id=f"{kind}-{identity[:8]}-{place}", kind=kind, node=identity,
            uuid=uuids[place] if known else None,
        )
        for place in range(count)
    ]  # fmt: skip


def gpu_uuids(node: str) -> list[str]:
    """Of one node's GPUs in their order; nothing where that cannot be found out."""
    look: Any = ray.remote(num_cpus=0)(_uuids_here).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    )
    try:
        return list(ray.get(look.remote(), timeout=TASK_SECONDS))
    except (ray.exceptions.RayError, TimeoutError):
        return []


def _uuids_here() -> list[str]:
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # no driver, no library, no rights: the device has no name that we know
        return []


def _kinds_of(resources: Mapping[str, float]) -> dict[str, int]:
    found = {
        name: int(amount)
        for name, amount in resources.items()
        if name not in _BUILT_IN and ":" not in name and "_group_" not in name and amount >= 1
    }
    gpus = int(resources.get("GPU", 0))
    accelerator = next((kind for name in resources if (kind := _accelerator(name))), None)
    if gpus and accelerator is not None and accelerator not in found:
        found[accelerator] = gpus
    if gpus:
        found["gpu"] = gpus
    if resources.get("CPU", 0) >= 1:
        found["cpu"] = int(resources["CPU"])
    return found


def _accelerator(name: str) -> str | None:
    """`accelerator_type:V100` -> `v100`"""
    return name.removeprefix(ACCELERATOR).lower() if name.startswith(ACCELERATOR) else None


# ---------------------------------------------------------------------------------------- reaching it


def _check_reachable(address: str) -> None:
    """Ray itself tries for a minute before it gives up."""
    match = re.fullmatch(r"(.+):(\d+)", address)
    if match is None:
        if address in ("auto", "local"):
            return
        raise UsageError(
            f"{address!r} is not the address of a Ray cluster.",
            "it is `auto`, or the host and port of the head node.",
            "pass --ray-address auto, or such as 10.0.0.1:6379.",
        )
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise _unreachable(address, str(getattr(problem, "strerror", None) or problem)) from None


def _init(address: str) -> None:
    """On a thread: where the two do not agree on how drivers prove who they are, Ray waits for ever."""
    problems: list[BaseException] = []
    logging.getLogger("ray").setLevel(logging.ERROR)

    def begin() -> None:
        try:
            ray.init(
                address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR,
                configure_logging=False,
            )  # fmt: skip
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=begin, name="ray init", daemon=True)
    thread.start()
    thread.join(INIT_SECONDS)
    if thread.is_alive():
        raise _unreachable(
            address,
            f"something listens there, but it took no driver in {INIT_SECONDS:g} seconds: it is no Ray head node, or "
            "RAY_AUTH_MODE is not the same there and here.",
        )
    if problems:
        raise _unreachable(address, _first_line(problems[0])) from None


def _is_same(one: str, other: str) -> bool:
    """Two addresses, of which one may have a name where the other has numbers."""

    def resolved(address: str) -> set[str]:
        host, _, port = address.rpartition(":")
        try:
            return {f"{found[4][0]}:{port}" for found in socket.getaddrinfo(host.strip("[]"), None)}
        except OSError:
            return {address}

    return bool(resolved(one) & resolved(other))


def _unreachable(address: str, why: str) -> EasyScaleError:
    return EasyScaleError(
        f"The Ray cluster at {address} cannot be reached.",
        why,
        "start one (`ray start --head`), or pass --ray-address HOST:PORT of its head node, from a node of the cluster.",
    )


def _first_line(problem: BaseException) -> str:
    return next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)


def _keep_quiet() -> None:
    """Ray prints the last lines of a lost node's log among those of the job; the master tells of a loss itself."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *args, **kwargs: None
