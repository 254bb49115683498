"""How often somebody may ask."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from easyscale.service.http.problems import RefusedError


class Buckets:
    """A token bucket for each key. The table is bounded: the keys that were quiet the longest are forgotten first."""

    def __init__(self, rate: float, burst: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._most, self._clock = rate, burst, most, clock
        self._table: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, at what time

    def wait(self, key: str) -> float:
        """Seconds until one may be taken; 0: now."""
        return max(0.0, (1.0 - self._left(key)) / self._rate)

    def take(self, key: str) -> float:
        """Take one if there is one; else the seconds until there is."""
        left = self._left(key)
        if left < 1.0:
            return (1.0 - left) / self._rate
        self._table[key] = (left - 1.0, self._clock())
        self._table.move_to_end(key)
        while len(self._table) > self._most:
            self._table.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._table)

    def _left(self, key: str) -> float:
        left, at = self._table.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._clock() - at) * self._rate)


def too_often(seconds: float, why: str) -> RefusedError:
    wait = max(1, math.ceil(seconds))
    headers = {"Retry-After": str(wait)}
    return RefusedError(429, "Too many requests.", why, f"wait {wait} s and ask again, less often.", headers)


def neighbourhood(address: str) -> str:
    """What counts as one address: of IPv6 the network, as a customer of a provider has all of it."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 6 and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network(f"{ip}/64", strict=False))
    return str(ip)
