"""Which service a command speaks to: `--server`, the environment, or the file that `easyscale up` and `login` write.

The standard library alone: commands about local jobs read this too, and must stay fast.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.master.files import write_json

DEFAULT_PORT = 8470
SERVER, TOKEN, CACERT, PLAIN = "EASYSCALE_SERVER", "EASYSCALE_TOKEN", "EASYSCALE_CACERT", "EASYSCALE_PLAIN_HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A service, and who we are there. `fingerprint`: sha256 of its certificate, where no authority signed that."""

    url: str
    token: str | None = field(default=None, repr=False)
    fingerprint: str | None = None
    cacert: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", clean_url(self.url))
        if self.fingerprint is not None:
            object.__setattr__(self, "fingerprint", clean_fingerprint(self.fingerprint))

    @property
    def loopback(self) -> bool:
        """The service runs on this machine, so that paths mean the same there."""
        return is_loopback(urlsplit(self.url).hostname or "")


# ---------------------------------------------------------------------------------------- which one


def configured(server: str | None = None, environment: Mapping[str, str] | None = None) -> Connection | None:
    """The service that is meant; None: there is none. `server`: the URL of the flag, which counts most.

    What the file knows of that URL (token, certificate) holds for it too. A token of the environment counts more
    than the file's. Another address never gets the file's token.
    """
    environment = os.environ if environment is None else environment
    stored = load(environment)
    url = server or environment.get(SERVER) or None
    if url is not None:
        url = clean_url(url)
        stored = stored if stored is not None and stored.url == url else Connection(url=url)
    if stored is None:
        return None
    token = environment.get(TOKEN, "").strip() or stored.token
    found = replace(stored, token=token, cacert=environment.get(CACERT) or stored.cacert)
    check_plain(found, environment)
    return found


def needed(server: str | None = None, environment: Mapping[str, str] | None = None) -> Connection:
    """As `configured`; an error if there is none."""
    found = configured(server, environment)
    if found is None:
        raise UsageError(
            "No service is known.",
            f"there is no --server, no {SERVER}, and no file {connection_file(environment)}.",
            "start one with `easyscale up`, or name one with `easyscale login URL`.",
        )
    return found


def check_plain(connection: Connection, environment: Mapping[str, str] | None = None) -> None:
    """A token does not travel without TLS, but on this machine."""
    environment = os.environ if environment is None else environment
    if connection.token and connection.url.startswith("http:") and not connection.loopback:
        if environment.get(PLAIN) == "1":
            return
        raise UsageError(
            f"The token is not sent to {connection.url}.",
            "without TLS everybody on the way could read it.",
            f"use https://, or set {PLAIN}=1 if the network between is yours alone.",
        )


def clean_url(text: str) -> str:
    """`http://host:port` without a trailing slash. A name alone is http on the loopback, https elsewhere, and gets our
    port; an address with http:// or https:// keeps the port that these have."""
    text = text.strip()
    ours = "" if "://" in text else f":{DEFAULT_PORT}"
    if ours:
        host = text if text.count(":") > 1 and not text.startswith("[") else urlsplit(f"//{text}").hostname or ""
        text = f"{'http' if is_loopback(host) else 'https'}://{_bracketed(text)}"
    try:
        parts = urlsplit("" if re.search(r"[^!-~]", text) else text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise UsageError(
            f"{text!r} is no address of a service.",
            "it is http:// or https://, a name or number of a machine, and a port.",
            f"write it like http://127.0.0.1:{DEFAULT_PORT}.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{ours if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _bracketed(text: str) -> str:
    return f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clean_fingerprint(text: str) -> str:
    """sha256 in lower-case hex; colons between the bytes and `sha256:` before them are taken off."""
    plain = re.sub(r"^sha-?256[:=]", "", text.strip().lower()).replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise UsageError(
            f"{text!r} is no fingerprint of a certificate.",
            "it is the sha256 of the certificate: 64 hexadecimal digits, with or without colons.",
            "copy it from what `easyscale up` printed.",
        )
    return plain


# ---------------------------------------------------------------------------------------- the file


def connection_file(environment: Mapping[str, str] | None = None) -> Path:
    """$XDG_CONFIG_HOME/easyscale/connection.json, by default under ~/.config."""
    config = (os.environ if environment is None else environment).get("XDG_CONFIG_HOME", "")
    return (Path(config) if os.path.isabs(config) else Path.home() / ".config") / "easyscale" / "connection.json"


def load(environment: Mapping[str, str] | None = None) -> Connection | None:
    """What the file says; None: there is none. A damaged file and one that others can read are errors."""
    path = connection_file(environment)
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            text = file.read(1 << 20)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _unreadable(path, f"{problem.strerror or problem}.") from None
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise EasyScaleError(
            f"{path} is not safe.",
            f"it holds a token, and others may read or change it (owner {facts.st_uid}, mode "
            f"{stat.S_IMODE(facts.st_mode):o}).",
            f"`chmod 600 {path}` if it is yours; else remove it and run `easyscale login` again.",
        )
    try:
        raw = json.loads(text)
        known = {name: raw.get(name) for name in ("url", "token", "fingerprint", "cacert")}
    except (ValueError, AttributeError):
        raise _unreadable(path, "it is not a JSON object.") from None
    if not isinstance(known["url"], str) or not all(isinstance(value, str | None) for value in known.values()):
        raise _unreadable(path, "it has no `url`, or a field in it is no text.")
    return Connection(**known)


def save(connection: Connection, environment: Mapping[str, str] | None = None) -> Path:
    """Write the file, whole or not at all, for this user alone."""
    path = connection_file(environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, {name: value for name, value in asdict(connection).items() if value is not None})
    except OSError as problem:
        raise EasyScaleError(
            f"{path} cannot be written.",
            f"{problem.strerror or problem}.",
            f"free some room, or set XDG_CONFIG_HOME to a folder of yours; or use {SERVER} and {TOKEN} instead.",
        ) from None
    return path


def forget(url: str | None = None, environment: Mapping[str, str] | None = None) -> bool:
    """Remove the file; with `url` only if it is of that service. Says whether one was removed."""
    path = connection_file(environment)
    if url is not None:
        stored = load(environment)
        if stored is None or stored.url != clean_url(url):
            return False
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _unreadable(path: Path, why: str) -> EasyScaleError:
    return EasyScaleError(
        f"{path} cannot be used.", why, "remove it, then `easyscale login URL`; `easyscale up` also writes it anew."
    )
