"""What `easyscale up` is told. What cannot work is refused here, before anything starts."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from easyscale.core.cluster import parse_devices
from easyscale.core.errors import UsageError
from easyscale.service.connection import DEFAULT_PORT, is_loopback

Backend = Literal["local", "ray"]
STORES = ("sqlite", "postgresql", "postgres", "postgresql+psycopg")
ANYWHERE = ("0.0.0.0", "::")
MOST_DEVICES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """All of it fits together once it is made. `detach` is the command's affair: it starts `up` again without it."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT  # 0: any that is free
    names: tuple[str, ...] = ()  # by which others call this machine, beside `host`
    devices: Mapping[str, int] | None = None  # declared, as slots on the CPU; None: those that are found
    policy: str = "easyscale"
    store: str | None = None  # a URL; None: SQLite in the data directory
    backend: Backend = "local"
    ray_address: str = "auto"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    self_signed: bool = False  # a certificate of its own, kept in the data directory
    open_metrics: bool = False  # /metrics without a token; on the loopback alone
    detach: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_dir", Path(os.path.abspath(self.data_dir.expanduser())))
        _check_data_dir(self.data_dir)
        _check_address(self.host, self.port, self.names)
        _check_devices(self.devices)
        _check_policy(self.policy)
        _check_store(self.store)
        self._check_backend()
        self._check_tls()
        if self.open_metrics and not self.loopback:
            raise UsageError(
                "--open-metrics does not go with this --host.",
                "figures about all teams would be open to the network.",
                "let Prometheus send a token of a viewer (docs/howto), or listen on 127.0.0.1.",
            )

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        return self.self_signed or self.tls_cert is not None

    def url(self, port: int | None = None) -> str:
        """For commands on this machine. `port`: the one that was found, where any would do."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port if port is None else port}"

    def _check_backend(self) -> None:
        if self.backend not in ("local", "ray"):
            raise UsageError(f"There is no back end {self.backend!r}.", "they are local and ray.", "name one of these.")
        if self.backend == "ray":
            from importlib.util import find_spec

            if find_spec("ray") is None:
                raise UsageError(
                    "The back end ray cannot be used here.", "Ray is not installed.",
                    "pip install 'easyscale-torch[ray]'.",
                )  # fmt: skip

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "A certificate needs its key, and a key its certificate.", "only one of the two is named.",
                "give both --tls-cert and --tls-key.",
            )  # fmt: skip
        if self.self_signed and self.tls_cert is not None:
            raise UsageError(
                "--tls self-signed stands beside --tls-cert.", "there is one certificate.", "keep one of them."
            )
        if not self.loopback and not self.tls:
            raise UsageError(
                f"The service does not listen on {self.host} without TLS.",
                "others can reach it there, and tokens would travel in clear.",
                "add --tls self-signed, or --tls-cert and --tls-key; or leave --host out.",
            )
        if self.tls_cert is not None and self.tls_key is not None:
            _check_certificate(self.tls_cert, self.tls_key)


def up_options(*, devices: str | None = None, tls: str | None = None, **given: object) -> UpOptions:
    """From what stands on the command line."""
    if tls not in (None, "self-signed"):
        raise UsageError(
            f"--tls {tls} is not known.", "it can be self-signed.",
            "write --tls self-signed, or name files with --tls-cert and --tls-key.",
        )  # fmt: skip
    counted = None if devices is None else parse_devices(devices)
    return UpOptions(devices=counted, self_signed=tls is not None, **given)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------- checks


def _check_data_dir(folder: Path) -> None:
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        why = f"{at} is a file." if not at.is_dir() else f"{at} may not be written to."
        raise UsageError(f"The data directory {folder} cannot be used.", why, "name another one with --data-dir.")


def _check_address(host: str, port: int, names: tuple[str, ...]) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(
            f"{port} is no port.", "ports are 1 to 65535; 0 takes any that is free.", f"such as {DEFAULT_PORT}."
        )
    for name in (host, *names):
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*", name):
            raise UsageError(
                f"{name!r} is no name or address of a machine.", "it is a name, or an address such as 127.0.0.1.",
                "write it without http:// and without a port.",
            )  # fmt: skip


def _check_devices(devices: Mapping[str, int] | None) -> None:
    if devices is None:
        return
    for kind in devices:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", kind):
            raise UsageError(
                f"{kind!r} is no type of device.", "a type has letters, digits, dots, - and _.", "such as v100:2."
            )
    if sum(devices.values()) > MOST_DEVICES:
        raise UsageError(
            f"{sum(devices.values()):,} devices are declared.", f"there can be {MOST_DEVICES:,}.", "declare fewer."
        )


def _check_policy(name: str) -> None:
    from easyscale.scheduler.policies import make

    make(name)  # says which there are, and which are near


def _check_store(url: str | None) -> None:
    if url is not None and urlsplit(url).scheme not in STORES:
        raise UsageError(
            f"{hide_password(url)!r} is no store.", "a store is SQLite or PostgreSQL, by URL.",
            "such as sqlite:////var/lib/easyscale/store.db or postgresql://user@host/easyscale.",
        )  # fmt: skip


def _check_certificate(cert: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as problem:
        raise UsageError(
            f"The certificate {cert} and the key {key} cannot be used.",
            f"{getattr(problem, 'strerror', None) or problem}.",
            "both are files in PEM form, the key has no password, and they belong together.",
        ) from None


def hide_password(url: str) -> str:
    """A store's URL, fit to be shown."""
    return re.sub(r"(://[^/@:]*:)[^@/]*@", r"\1***@", url)
