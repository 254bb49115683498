"""The service on a real Ray cluster: a job trains across nodes, loses one, gets another, and keeps its bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycluster import RayCluster
from service.real import Service, stock, until
from service.training import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_job_of_the_service_follows_the_nodes_of_a_ray_cluster(tmp_path: Path, ray_cluster: RayCluster) -> None:
    script = tmp_path / "work" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    args = ["--epochs", "12", "--sleep", "0.15"]
    with Service(tmp_path, None, "--backend", "ray", "--ray-address", ray_cluster.address) as service:
        cluster = service.client.cluster()
        assert cluster.backend == "ray"
        assert [device.kind for device in cluster.devices] == ["v100"] * 3
        assert len({device.node for device in cluster.devices}) == 3
        job = service.submit(script, args, name="nodes", ests=3)
        service.until(job, lambda view: view.step >= 2 and len(seats(view)) == 3)
        ray_cluster.remove("two")
        service.until(job, lambda view: len(seats(view)) == 2, 60)
        until(lambda: "lost" in states(service), 60, service.said)
        ray_cluster.add("four", v100=1)
        service.until(job, lambda view: len(seats(view)) == 3, 90)
        view = service.finished(job)
        assert len({seat.device for plan in view.plans for seat in plan.seats}) == 4
    assert view.fingerprint == stock(script, 3, args, service.environment)


def seats(view: object) -> list[object]:
    plans = getattr(view, "plans", [])
    return list(plans[-1].seats) if plans else []


def states(service: Service) -> list[str]:
    return [device.state for device in service.client.cluster().devices]
