"""`easyscale login`, `logout`, `whoami`: which service, and who we are there."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.remote import Json, Server, client_for, the_service
from easyscale.core.errors import UsageError
from easyscale.service import connection
from easyscale.service.connection import Connection

if TYPE_CHECKING:
    from easyscale.service.models import Info


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as https://cluster.example.org:8470.")],
    *,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Of a self-signed certificate, as `easyscale up` prints it.")
    ] = None,
    cacert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates of the authority that signed its certificate.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Store a service and your token, for all commands. The token is asked for without echo, or read from stdin."""
    if fingerprint is not None and cacert is not None:
        raise UsageError("--fingerprint stands beside --cacert.", "one of them says whom to trust.", "keep one.")
    wanted = Connection(
        url=url, fingerprint=fingerprint, cacert=None if cacert is None else os.path.abspath(cacert)
    )
    connection.check_plain(replace(wanted, token="-"))
    wanted = replace(wanted, token=_token(wanted.url))
    with client_for(wanted) as client:
        info = client.info()
    path = connection.save(wanted)
    if json_output:
        _print(info)
    else:
        print(f"You are {info.you.user} ({info.you.role} of team {info.you.team}) at {wanted.url}. Stored in {path}.")
    if os.environ.get(connection.SERVER) or os.environ.get(connection.TOKEN):
        print(
            f"{connection.SERVER} or {connection.TOKEN} is set here and counts more than what was stored.",
            file=sys.stderr,
        )


def _token(url: str) -> str:
    """Never from the command line: others can read that in the list of processes."""
    if sys.stdin.isatty():
        from getpass import getpass

        text = getpass(f"Token for {url}: ")
    else:
        text = sys.stdin.readline(4096)
    token = text.strip()
    if not token or not token.isascii() or any(char.isspace() for char in token):
        raise UsageError(
            "No token was given.", "it is one word, such as est_...",
            "paste it when asked, or pipe it in: `easyscale login URL < token.txt`. An admin makes one with `easyscale "
            "token add USER`.",
        )  # fmt: skip
    return token


def logout() -> None:
    """Forget the stored service and token. The token stays valid until it is revoked."""
    path = connection.connection_file()
    print(f"{path} is removed." if connection.forget() else "No service was stored.")


def whoami(*, server: Server = None, json_output: Json = False) -> None:
    """Show which service is meant, its version, and who you are there."""
    with the_service(server) as client:
        info = client.info()
    if json_output:
        _print(info)
    else:
        print(f"{info.you.user} ({info.you.role} of team {info.you.team}) at {client.connection.url}")
        print(f"version {info.version}, policy {info.policy}, back end {info.backend}")


def _print(info: Info) -> None:
    from easyscale.cli.printing import print_json

    print_json(info)
