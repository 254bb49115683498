"""What can be set about the HTTP side, with the defaults."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "dashboard"  # its files are under /static; `/` is its index.html
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    host: str = "127.0.0.1"  # that is listened on
    port: int = 0
    names: tuple[str, ...] = ()  # further names that people may call this host by
    tls: bool = False
    open_metrics: bool = False  # /metrics without a token; on loopback only
    page: Path = PAGE
    spool: Path | None = None  # where uploads are written first; None: the system's temporary folder

    body_kb: int = 1024  # of a JSON body
    snapshot_mb: float = 256.0
    body_seconds: float = 20.0  # a JSON body must be there by then; an upload must not be silent for longer
    rate: float = 50.0  # requests a second of a token, or of an address without one
    burst: int = 200
    table: int = 10_000  # of tokens and addresses that are remembered for the rate
    login_failures: int = 10  # of an address, then one more every `login_seconds`
    login_seconds: float = 6.0
    audit_refusals: int = 10  # of an address in a minute that are written down, of those without a token
    what_ifs: int = 2  # at a time
    uploads: int = 4  # at a time

    streams: int = 20  # event streams of a user at a time
    heartbeat: float = 15.0  # seconds between comment lines; the token is checked as often
    stall_seconds: float = 30.0  # a client that takes nothing for so long is dropped
    stream_seconds: float = 3600.0  # then a stream ends; clients come back by themselves
    recent: int = 2000  # records kept for all streams; who is further behind reads from the log

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """Cookies do not know ports: two services on one host must not share one."""
        name = f"easyscale-{self.port}" if self.port else "easyscale"
        return f"__Host-{name}" if self.tls else name

    @property
    def hosts(self) -> frozenset[str] | None:
        """What `Host:` may say. None: anything, where all addresses are listened on and no names are given."""
        if self.host in ANY and not self.names:
            return None
        own = () if self.host in ANY else (self.host,)
        return frozenset(name.lower().strip("[]") for name in (*LOOPBACK, *own, *self.names))


def is_loopback(host: str) -> bool:
    bare = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"
