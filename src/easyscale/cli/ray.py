"""`--backend ray`: what was asked of the cluster, refused before any process starts if it cannot work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from easyscale.core.errors import EasyScaleError, UsageError

if TYPE_CHECKING:
    from easyscale.cli.checks import PlanWish
    from easyscale.core.ports import ElasticLauncher
    from easyscale.core.spec import Engine
    from easyscale.master.registry import JobFolder

SETTING = "ray"  # in a job's record: what its next master needs to know


@dataclass(frozen=True, kw_only=True)
class RayWish:
    """The cluster, and what of it may be used."""

    address: str = "auto"
    types: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        return {SETTING: asdict(self)}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RayWish | None:
        raw = settings.get(SETTING)
        if not isinstance(raw, Mapping):
            return None
        return cls(
            address=str(raw.get("address", "auto")),
            types=tuple(map(str, raw.get("types", ()))),
            labels={str(name): str(value) for name, value in dict(raw.get("labels", {})).items()},
        )


def wish_of(
    backend: str, engine: Engine, address: str | None, types: str | None, labels: str | None, *, wait: bool
) -> RayWish | None:
    """None: not on Ray. Returns when the cluster is reached and has what was asked for."""
    if backend != "ray":
        given = {"ray-address": address, "types": types, "ray-labels": labels, "ray-wait": wait}
        for flag, value in given.items():
            if value:
                raise UsageError(
                    f"--{flag} was given without --backend ray.",
                    "it says which devices of a Ray cluster to use.",
                    f"add --backend ray, or leave --{flag} out.",
                )
        return None
    if engine == "ddp":
        raise UsageError(
            "--backend ray does not go with --engine ddp.",
            "the reference is stock DistributedDataParallel on this machine, under a plain launcher.",
            "leave --backend out, or use --engine est.",
        )
    cluster = _cluster()
    wish = RayWish(
        address=cluster.connect(address or "auto"),
        types=tuple(part.strip() for part in types.split(",") if part.strip()) if types else (),
        labels=parse_labels(labels),
    )
    if not wait:
        cluster.check_types(wish.types)
    return wish


def parse_labels(text: str | None) -> dict[str, str]:
    """`zone=a,disk=ssd` -> {"zone": "a", "disk": "ssd"}"""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.strip().partition("=")
        if not (name and equals and value):
            raise UsageError(
                f"--ray-labels {text!r} does not name labels of nodes.",
                f"{part.strip()!r} is not NAME=VALUE.",
                "write it like zone=a,disk=ssd.",
            )
        found[name] = value
    return found


def with_workers(plan: PlanWish, wish: RayWish | None) -> PlanWish:
    """Where no number of workers was asked for: one on each device of the type, at most as many as ESTs."""
    if wish is None or any(given is not None for given in (plan.workers, plan.split, plan.schedule)):
        return plan
    cluster = _cluster()
    have = cluster.kinds()
    kinds = wish.types or (cluster.default_kind() if plan.device != "cpu" else "cpu",)
    count = next((have[kind] for kind in kinds if have.get(kind)), 1)
    return replace(plan, workers=str(min(plan.ests, count)))


def own_address() -> str:
    """Of the node on which this process runs, as its workers reach it."""
    return str(_cluster().own_address())


def launcher_of(folder: JobFolder, wish: RayWish | None = None) -> ElasticLauncher:
    """What starts the workers of a job: as its command says, else as its folder does."""
    record = folder.record()
    wish = wish or (RayWish.of(record.settings) if record is not None else None)
    if wish is None:
        from easyscale.backends.local import LocalLauncher

        return LocalLauncher(os.environ)
    _cluster()
    from easyscale.backends.ray.launcher import RayLauncher

    return RayLauncher(folder.id, os.environ, address=wish.address, types=wish.types, labels=wish.labels)


def _cluster() -> Any:
    try:
        from easyscale.backends.ray import cluster
    except ImportError as problem:
        if problem.name is None or not problem.name.startswith("ray"):
            raise
        raise EasyScaleError(
            "Ray is not installed.",
            "--backend ray needs the package ray, which is an extra.",
            "`pip install 'easyscale-torch[ray]'`, on all nodes in the same version.",
        ) from None
    return cluster
