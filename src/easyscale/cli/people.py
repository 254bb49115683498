"""`easyscale team`, `user`, `token`, `audit`: who may use the service. For admins."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from easyscale.cli.remote import Json, Server, the_service
from easyscale.cli.tables import moment, table
from easyscale.core.errors import UsageError


def _group(name: str, about: str) -> typer.Typer:
    return typer.Typer(
        name=name, help=about, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


team = _group("team", "Teams and their quotas.")
user = _group("user", "Users, their teams and roles.")
token = _group("token", "Tokens, by which the service knows its users.")
Role = Literal["admin", "user", "viewer"]


@team.command("list")
def team_list(*, server: Server = None, json_output: Json = False) -> None:
    """List the teams."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        teams = client.teams()
    if json_output:
        print_json(teams)
    else:
        rows = [
            (one.name, "no limit" if one.quota is None else str(one.quota), "yes" if one.borrow else "no")
            for one in teams
        ]
        print("\n".join(table(("TEAM", "DEVICES", "BORROWS"), rows)))


@team.command("set")
def team_set(
    name: str,
    *,
    quota: Annotated[int | None, typer.Option(min=0, help="Devices that it may hold. Default: no limit.")] = None,
    borrow: Annotated[
        bool, typer.Option("--borrow/--no-borrow", help="May use idle devices above its quota until others need them.")
    ] = True,
    server: Server = None,
) -> None:
    """Make a team, or give one another quota."""
    with the_service(server) as client:
        client.set_team(name, quota, borrow)
    limit = "no limit" if quota is None else f"{quota} devices{', borrows idle ones' * borrow}"
    print(f"{name}: {limit}")


@user.command("list")
def user_list(*, server: Server = None, json_output: Json = False) -> None:
    """List the users."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        users = client.users()
    if json_output:
        print_json(users)
    else:
        print("\n".join(table(("USER", "TEAM", "ROLE"), [(one.name, one.team, one.role) for one in users])))


@user.command("add")
def user_add(
    name: str,
    *,
    team: Annotated[str, typer.Option(help="The user's team; `easyscale team set` makes one.")],
    role: Annotated[
        Role, typer.Option(help="viewer: sees the team's jobs. user: also submits and changes them. admin: all.")
    ] = "user",
    server: Server = None,
) -> None:
    """Make a user. `easyscale token add` then makes a token for them."""
    with the_service(server) as client:
        client.set_user(name, team, role)
    print(f"{name} is {role} of team {team}; `easyscale token add {name}` makes a token.")


@user.command("remove")
def user_remove(name: str, *, server: Server = None) -> None:
    """Remove a user, with all tokens. Their jobs stay."""
    with the_service(server) as client:
        client.remove_user(name)
    print(f"{name} is removed; the jobs stay.")


@token.command("list")
def token_list(*, server: Server = None, json_output: Json = False) -> None:
    """List the tokens, without themselves: nobody can read them again."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        tokens = client.tokens()
    if json_output:
        print_json(tokens)
        return
    rows = [
        (
            one.id, one.user, moment(one.made), "never" if one.expires is None else moment(one.expires),
            "never" if one.used is None else moment(one.used), "" if one.revoked is None else moment(one.revoked),
            one.note,
        )
        for one in tokens
    ]  # fmt: skip
    print("\n".join(table(("ID", "USER", "MADE", "EXPIRES", "USED", "REVOKED", "NOTE"), rows)))


@token.command("add")
def token_add(
    name: Annotated[str, typer.Argument(metavar="USER")],
    *,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    days: Annotated[float | None, typer.Option(min=0.001, max=3650, help="Then it ends. Default: never.")] = None,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Make a token for a user. It is shown this once."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        made = client.make_token(name, note, days)
    if json_output:
        print_json(made)
        return
    print(made.token)
    print(
        f"This is the token {made.id} of {made.user}, shown this once. They run `easyscale login "
        f"{client.connection.url}` and paste it.",
        file=sys.stderr,
    )


@token.command("revoke")
def token_revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As in `easyscale token list`, not the token itself.")],
    *,
    server: Server = None,
) -> None:
    """End a token at once."""
    if token_id.startswith("est_"):
        raise UsageError(
            "That is a token, not its id.", "the service keeps no tokens, only what tells them apart.",
            "name the id that `easyscale token list` shows.",
        )  # fmt: skip
    with the_service(server) as client:
        client.revoke_token(token_id)
    print(f"{token_id} is revoked.")


def audit(
    *,
    limit: Annotated[int, typer.Option("-n", "--last", min=1, max=10_000, help="The last so many.")] = 50,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Show who changed, or tried to change, what. For admins."""
    from easyscale.cli.printing import print_json

    with the_service(server) as client:
        entries = client.audit(limit)
    if json_output:
        print_json(entries)
        return
    rows = [
        (
            moment(one.time), one.user or "-", one.address, "done" if one.ok else "refused", one.action, one.target,
            one.detail,
        )
        for one in entries
    ]  # fmt: skip
    print("\n".join(table(("TIME", "USER", "FROM", "", "ACTION", "TARGET", "DETAIL"), rows)))
