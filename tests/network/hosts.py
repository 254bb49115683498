"""Test hosts: network namespaces on one bridge, with an address each, and a way to lose packets between any two.

The master stays outside, at the bridge's own address. A packet is lost in one direction by telling its sender that the
receiver has a hardware address which nobody has: no error, no answer, as with a cable that is cut. It needs iproute2
and the rights to make namespaces; a test is left out where one of them is missing, and says which.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec

CLONE_NEWNET = 0x40000000
NOBODY = "02:00:00:00:de:ad"
MASTER = -1  # the host on which the test itself runs


class Hosts:
    """`with Hosts(3) as hosts`: worker w runs on host w modulo their number."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._name = f"es{os.getpid()}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Hosts:
        if shutil.which("ip") is None:
            pytest.skip("iproute2's `ip` is not installed")
        if self._fails("netns", "attach", self._space(MASTER), str(os.getpid())):
            pytest.skip("no right to name network namespaces (CAP_SYS_ADMIN, and /run/netns to mount in)")
        if self._fails("link", "add", self._device(MASTER), "type", "bridge"):
            self.__exit__()
            pytest.skip("no right to make network devices (CAP_NET_ADMIN), or no bridge in this kernel")
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in (MASTER, *range(self.count)):
            self._fails("link", "del", self._device(host))
            self._fails("netns", "del", self._space(host))

    def address(self, host: int) -> str:
        return f"{self._net}.{host + 2}"

    def move_in(self, spec: WorkerSpec) -> None:
        """This process, a worker that begins, goes to its host. Its peers reach it there."""
        host = spec.worker % self.count
        descriptor = os.open(Path("/run/netns") / self._space(host), os.O_RDONLY)
        if self._libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)
        assert spec.control is not None
        moved = replace(spec, control=replace(spec.control, address=self.address(host)))
        os.environ[WORKER_VARIABLE] = moved.to_json()

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """From now on nothing that `senders` send comes to `receivers`. From any process, on any host."""
        self._neighbours(senders, receivers, "replace", "lladdr", NOBODY, "nud", "permanent")

    def heal(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        self._neighbours(senders, receivers, "del")

    def part(self, here: Iterable[int], there: Iterable[int]) -> None:
        """Neither direction."""
        here, there = list(here), list(there)
        self.cut(here, there)
        self.cut(there, here)

    def join(self, here: Iterable[int], there: Iterable[int]) -> None:
        here, there = list(here), list(there)
        self.heal(here, there)
        self.heal(there, here)

    def _build(self) -> None:
        self._ip("addr", "add", f"{self.address(MASTER)}/24", "dev", self._device(MASTER))
        self._ip("link", "set", self._device(MASTER), "up")
        for host in range(self.count):
            space, device = self._space(host), self._device(host)
            self._ip("netns", "add", space)
            self._ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip("link", "set", device, "master", self._device(MASTER), "up")
            self._ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self._ip("-n", space, "link", "set", "eth0", "up")
            self._ip("-n", space, "link", "set", "lo", "up")

    def _neighbours(self, senders: Iterable[int], receivers: Iterable[int], verb: str, *what: str) -> None:
        receivers = list(receivers)
        for sender in senders:
            device = self._device(MASTER) if sender == MASTER else "eth0"
            for receiver in receivers:
                if sender != receiver:
                    self._ip(
                        "-n", self._space(sender), "neigh", verb, self.address(receiver), *what, "dev", device
                    )  # fmt: skip

    def _space(self, host: int) -> str:
        return f"{self._name}-{'master' if host == MASTER else host}"

    def _device(self, host: int) -> str:
        return f"{self._name}{'b' if host == MASTER else f'h{host}'}"

    def _ip(self, *command: str) -> None:
        subprocess.run(["ip", *command], check=True, capture_output=True, text=True, timeout=60)

    def _fails(self, *command: str) -> bool:
        return subprocess.run(["ip", *command], check=False, capture_output=True, timeout=60).returncode != 0
