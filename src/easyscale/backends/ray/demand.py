"""Tells Ray's autoscaler which devices the jobs hold and which they would use beside them.

Ray understands a request as the size that the cluster should have, in use or not, and keeps the last one until the
next. So the devices that are held are part of it: without them, a wish for two more would be met by two that are busy.
There is one such request in a cluster: whoever else makes one takes the place of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from easyscale.backends.ray.cluster import ask_for
from easyscale.core.cluster import Devices, key, plus

Request = Callable[..., None]


class Demand:
    """`want` what is now so as often as one likes: Ray is told when it changes, and when nothing is wanted any more."""

    def __init__(self, request: Request | None = None) -> None:
        self._request = request or _request_resources
        self._told: tuple[tuple[str, int], ...] = ()

    def want(self, held: Devices, more: Devices) -> None:
        """`more`: beside what is held. Nothing more: the autoscaler is free to do what it thinks best."""
        wanted = plus(held, more) if any(count > 0 for count in more.values()) else {}
        if key(wanted) == self._told:
            return
        bundles = [dict(ask_for(kind).bundle) for kind, count in key(wanted) for _ in range(count)]
        self._request(bundles=bundles)
        self._told = key(wanted)

    def withdraw(self) -> None:
        self.want({}, {})


def _request_resources(**wish: Any) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(**wish)
