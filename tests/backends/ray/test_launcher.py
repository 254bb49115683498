"""Workers on the nodes of a real Ray cluster: where they run, what becomes of them, what is left behind."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.cluster import Slot
from easyscale.core.spec import Bounds, Control, Target, WorkerSpec
from elasticity import wait_until
from raycluster import NODES, RayCluster

pytestmark = pytest.mark.slow
TELL = "import json, os, sys; print(json.dumps(dict(os.environ)), flush=True)"


def sleeper(code: str = "pass") -> Sequence[str]:
    return (sys.executable, "-c", f"import os, time; print('up', os.getpid(), flush=True); {code}; time.sleep(99)")


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Those who still live in the end are killed: the next test needs their devices."""
    workers: list[Any] = []
    yield workers
    for worker in workers:
        worker.kill()
        worker.close()


def launcher(cluster: RayCluster, command: Sequence[str], **settings: Any) -> Any:
    from easyscale.backends.ray.launcher import RayLauncher

    return RayLauncher("job", os.environ, address=cluster.address, command=command, **{"types": ["v100"], **settings})


def end(worker: Any) -> int | None:
    assert select.select([worker.ended], [], [], 60.0)[0]
    assert worker.gone()
    code: int | None = worker.code
    return code


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def reservations() -> list[str]:
    import ray

    table = ray.util.placement_group_table().values()
    return [one["name"] for one in table if one["state"] != "REMOVED"]


def test_each_worker_has_a_device_of_its_own_and_is_reached_at_its_node(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    import json

    control = Control(host="127.0.0.1", port=1, token="t", endpoint=str(tmp_path / "master.json"))
    specs = [WorkerSpec(ests=3, worker=number, control=control) for number in range(3)]
    ours = launcher(ray_cluster, (sys.executable, "-c", f"{TELL}; import time; time.sleep(99)"))
    for n, spec in enumerate(specs):
        started.append(ours.start_apart(spec, Target("x"), tmp_path / f"o{n}", tmp_path / f"e{n}"))
    told = []
    for number in range(3):
        out = tmp_path / f"o{number}"
        wait_until(lambda out=out: out.read_text().endswith("\n"), 60.0)  # type: ignore[misc]
        told.append(json.loads(out.read_text()))
    seen = [WorkerSpec.from_json(environment["EASYSCALE_WORKER"]) for environment in told]
    addresses = [spec.control.address for spec in seen if spec.control is not None]
    assert sorted(addresses) == sorted(worker.facts["address"] for worker in started)
    assert len(set(addresses)) == 3
    assert {worker.facts["node"] for worker in started} == {ray_cluster.id_of(name) for name in NODES}
    for spec in seen:
        assert spec.control is not None
        assert spec.control.endpoint is not None
        assert Path(spec.control.endpoint) != tmp_path / "master.json"  # which other machines need not have
    # A master that is started again elsewhere is made known through the keeper.
    (tmp_path / "master.json").write_text('{"host": "127.0.0.9", "port": 2}')
    wait_until(lambda: '"port": 2' in Path(str(_control(seen[0]).endpoint)).read_text(), 30.0)
    assert all(environment["CUDA_VISIBLE_DEVICES"] == "" for environment in told)
    assert not any(name.startswith("RAY_") for environment in told for name in environment)
    for worker in started:
        worker.kill()
        end(worker)
    assert not [spec for spec in seen if Path(str(_control(spec).endpoint)).parent.exists()], "folders are left behind"


def _control(spec: WorkerSpec) -> Control:
    assert spec.control is not None
    return spec.control


def test_a_worker_with_a_slot_goes_to_that_node_and_labels_choose_nodes(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    from easyscale.backends.ray.cluster import devices

    there = {ray_cluster.id_of(name) for name in NODES}
    # Ray may take half a minute to call a node dead that a test before has cut off.
    wait_until(lambda: {slot.node for slot in devices(ray_cluster.address)} == there, 90.0)
    slots = devices(ray_cluster.address)
    assert {slot.kind for slot in slots} == {"v100"}
    assert len({slot.id for slot in slots}) == len(slots)
    slot = next(slot for slot in slots if slot.node == ray_cluster.id_of("two"))
    one = launcher(ray_cluster, sleeper()).start_apart(
        WorkerSpec(ests=1, slot=slot), Target("x"), tmp_path / "o", tmp_path / "e"
    )
    other = launcher(ray_cluster, sleeper(), labels={"name": "three"}).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "o2", tmp_path / "e2"
    )
    started += [one, other]
    wait_until(lambda: bool(one.facts and other.facts), 60.0)
    assert one.facts["node"] == ray_cluster.id_of("two")
    assert other.facts["node"] == ray_cluster.id_of("three")


def test_a_worker_sees_the_gpu_of_its_slot_and_is_held_to_its_bounds(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    code = "import os, resource as r; print(os.environ['CUDA_VISIBLE_DEVICES'], r.getrlimit(r.RLIMIT_NOFILE)[1])"
    slot = Slot(id="x", kind="v100", node=ray_cluster.id_of("one"), uuid="GPU-1234")
    worker = launcher(ray_cluster, (sys.executable, "-c", code)).start_apart(
        WorkerSpec(ests=1, slot=slot, bounds=Bounds(files=64)), Target("x"), tmp_path / "o", tmp_path / "e"
    )
    started.append(worker)
    assert end(worker) == 0
    assert (tmp_path / "o").read_text() == "GPU-1234 64\n"


def test_a_worker_without_a_free_device_waits_and_says_so_until_one_is_free(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from easyscale.backends.ray import process

    monkeypatch.setattr(process, "PATIENCE_SECONDS", 0.5)
    slot = Slot(id="only", kind="v100", node=ray_cluster.id_of("one"))
    ours = launcher(ray_cluster, sleeper())
    for n in range(2):
        spec = WorkerSpec(ests=2, worker=n, slot=slot)
        started.append(ours.start_apart(spec, Target("x"), tmp_path / f"o{n}", tmp_path / f"e{n}"))
        wait_until(lambda: bool(started[0].facts), 60.0)
    wait_until(lambda: "it waits for a device of type v100" in (tmp_path / "e1").read_text(), 30.0)
    assert _pending_devices() == 1, "the autoscaler sees what is waited for"
    assert not started[1].gone()
    assert (tmp_path / "o1").read_text() == ""
    started[0].kill()
    assert end(started[0]) == -signal.SIGKILL
    wait_until(lambda: "up" in (tmp_path / "o1").read_text(), 60.0)


def _pending_devices() -> int:
    """Bundles that Ray's autoscaler is told to find a node for."""
    from ray.autoscaler.v2.sdk import get_cluster_resource_state
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    state = get_cluster_resource_state(internal_kv_get_gcs_client())
    return sum(len(gang.requests) for gang in state.pending_gang_resource_requests)


def test_a_lost_node_is_a_lost_worker_and_its_process_is_gone(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    node = ray_cluster.add("short-lived", p100=1)
    worker = launcher(ray_cluster, sleeper(), types=["p100"]).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "o", tmp_path / "e"
    )
    started.append(worker)
    wait_until(lambda: (tmp_path / "o").read_text().endswith("\n"), 60.0)
    assert worker.facts["node"] == node
    pid = int((tmp_path / "o").read_text().split()[1])
    ray_cluster.remove("short-lived")
    assert end(worker) is None, "nobody can tell how it ended"
    wait_until(lambda: not lives(pid))
    assert "[easyscale: " in (tmp_path / "e").read_text()


def test_a_dead_keeper_takes_its_worker_along(ray_cluster: RayCluster, tmp_path: Path, started: list[Any]) -> None:
    code = "print(os.getppid(), flush=True)"
    worker = launcher(ray_cluster, sleeper(code)).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "o", tmp_path / "e"
    )
    started.append(worker)
    wait_until(lambda: (tmp_path / "o").read_text().count("\n") == 2, 60.0)
    pid, keeper = (int(word) for word in (tmp_path / "o").read_text().split()[1:])
    os.kill(keeper, signal.SIGKILL)
    assert end(worker) is None
    wait_until(lambda: not lives(pid))


def test_a_folder_that_the_node_does_not_have_is_told(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    ours = launcher(ray_cluster, sleeper())
    (tmp_path / "work").rename(tmp_path / "moved")
    monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "work"))
    worker = ours.start_apart(WorkerSpec(ests=1), Target("x"), tmp_path / "o", tmp_path / "e")
    started.append(worker)
    assert end(worker) is None
    said = (tmp_path / "e").read_text()
    assert "it could not be started on the node at 127.0.0." in said
    assert f"No such file or directory ({tmp_path / 'work'})" in said


def test_nothing_is_left_in_the_cluster_once_a_worker_has_ended(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    import ray

    worker = launcher(ray_cluster, (sys.executable, "-c", "print('short')")).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "o", tmp_path / "e"
    )
    assert end(worker) == 0
    worker.close()
    wait_until(lambda: reservations() == [])
    assert ray.util.list_named_actors(all_namespaces=True) == []


def test_a_keeper_whom_nobody_asks_gives_the_device_back(
    ray_cluster: RayCluster, tmp_path: Path, started: list[Any]
) -> None:
    """As when the master dies for good: the worker leaves, and then its keeper does."""
    code = f"""
import os, sys, time
from pathlib import Path
from easyscale.backends.ray.launcher import RayLauncher
from easyscale.core.spec import Target, WorkerSpec
command = (sys.executable, "-c", "print('up', flush=True); import time; time.sleep(2)")
launcher = RayLauncher("job", os.environ, address={ray_cluster.address!r}, types=["v100"], command=command, linger=1.0)
out = Path({str(tmp_path / "o")!r})
launcher.start_apart(WorkerSpec(ests=1), Target("x"), out, Path({str(tmp_path / "e")!r}))
while not out.read_text():
    time.sleep(0.01)
os._exit(0)
"""
    import subprocess

    launcher(ray_cluster, sleeper())  # this process becomes a driver, to see what is left
    subprocess.run((sys.executable, "-c", code), check=True)
    assert len(reservations()) == 1
    wait_until(lambda: reservations() == [], 60.0)


def test_a_reservation_without_a_keeper_is_given_back_at_the_second_look(ray_cluster: RayCluster) -> None:
    from ray.util.placement_group import placement_group

    from easyscale.backends.ray.cluster import connect
    from easyscale.backends.ray.sweeping import Sweeper

    connect(ray_cluster.address)
    name = "gone-1234/worker-3/0123abcd"
    group = placement_group([{"v100": 1}], name=name, lifetime="detached")
    other = placement_group([{"v100": 1}], name="of someone else", lifetime="detached")
    assert group.wait(30)
    assert other.wait(30)
    sweeper = Sweeper(seconds=3600.0)
    try:
        sweeper.look()
        assert name in reservations()
        sweeper.look()
        wait_until(lambda: reservations() == ["of someone else"])
    finally:
        from ray.util.placement_group import remove_placement_group

        sweeper.close()
        remove_placement_group(other)


def test_a_wish_for_more_devices_is_with_the_autoscaler_until_it_is_withdrawn(ray_cluster: RayCluster) -> None:
    from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get

    from easyscale.backends.ray.cluster import connect
    from easyscale.backends.ray.demand import Demand

    connect(ray_cluster.address)

    def asked() -> bytes | None:
        found: bytes | None = _internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL)
        return found

    demand = Demand()
    demand.want({"v100": 1}, {"v100": 1, "t4": 1})
    assert asked() == b'[{"t4": 1.0}, {"v100": 1.0}, {"v100": 1.0}]'
    demand.withdraw()
    assert asked() == b"[]"


def test_ray_is_told_of_a_wish_once_and_again_when_it_changes(ray_cluster: RayCluster) -> None:
    from easyscale.backends.ray.cluster import connect
    from easyscale.backends.ray.demand import Demand

    connect(ray_cluster.address)
    calls: list[Any] = []
    demand = Demand(lambda **wish: calls.append(wish))
    demand.want({"v100": 3}, {})
    assert calls == [], "nothing more is wanted than what is held"
    for _ in range(2):
        demand.want({"v100": 1}, {"v100": 1})
    demand.want({"v100": 2}, {})
    demand.withdraw()
    assert calls == [{"bundles": [{"v100": 1.0}, {"v100": 1.0}]}, {"bundles": []}]
