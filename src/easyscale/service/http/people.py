"""Login, and for admins: users, teams, tokens, the audit."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response

from easyscale.service.http.gate import unknown_person
from easyscale.service.http.limits import neighbourhood, too_often
from easyscale.service.http.parts import API, Parts, problems
from easyscale.service.http.rights import Admin, Anyone
from easyscale.service.models import AuditView, Login, NewToken, TeamIn, TokenIn, TokenView, UserIn, You

COOKIE_DAYS = 30
UserName = Annotated[str, Path(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
TokenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def add_people(app: FastAPI, parts: Parts) -> None:
    _add_login(app, parts)
    _add_teams(app, parts)
    _add_users(app, parts)
    _add_tokens(app, parts)


def _add_login(app: FastAPI, parts: Parts) -> None:
    settings = parts.settings

    @app.post(f"{API}/login", responses=problems(401, open=True), tags=["people"])
    async def login(given: Login, request: Request, response: Response) -> You:
        """Exchange a token for a cookie, for the dashboard."""
        address = neighbourhood(request.state.address)
        if wait := parts.failures.wait(address):
            raise too_often(wait, "this address has failed to log in too often.")
        person = await asyncio.to_thread(parts.people.authenticate, given.token)
        if person is None:
            parts.failures.take(address)
            raise unknown_person("the token is not valid: it is wrong, revoked or too old.")
        request.state.person = person
        response.set_cookie(
            settings.cookie,
            given.token,
            max_age=COOKIE_DAYS * 86_400,
            httponly=True,
            samesite="strict",
            secure=settings.tls,
            path="/",
        )
        return You(user=person.user, team=person.team, role=person.role)

    @app.post(f"{API}/logout", status_code=204, responses=problems(), tags=["people"])
    async def logout(who: Anyone, response: Response) -> None:
        """Drop the cookie. The token stays valid."""
        response.delete_cookie(settings.cookie, httponly=True, samesite="strict", secure=settings.tls, path="/")


def _add_teams(app: FastAPI, parts: Parts) -> None:
    people = parts.people

    @app.get(f"{API}/teams", responses=problems(), tags=["people"])
    def teams(who: Admin) -> list[TeamIn]:
        return people.teams()

    @app.post(f"{API}/teams", status_code=201, responses=problems(404, 409), tags=["people"])
    def add_team(who: Admin, team: TeamIn, request: Request) -> TeamIn:
        """Add a team, or give it another quota."""
        request.state.target = team.name
        people.add_team(team.name, team.quota, team.borrow)
        parts.desk.set_team(team.name, team.quota, team.borrow, who)
        return team


def _add_users(app: FastAPI, parts: Parts) -> None:
    people = parts.people

    @app.get(f"{API}/users", responses=problems(), tags=["people"])
    def users(who: Admin) -> list[UserIn]:
        return people.users()

    @app.post(f"{API}/users", status_code=201, responses=problems(404, 409), tags=["people"])
    def add_user(who: Admin, user: UserIn, request: Request) -> UserIn:
        request.state.target = user.name
        people.add_user(user.name, user.team, user.role)
        return user

    @app.delete(f"{API}/users/{{name}}", status_code=204, responses=problems(404, 409), tags=["people"])
    def remove_user(who: Admin, name: UserName) -> None:
        """The user's tokens end with it; the jobs stay."""
        people.remove_user(name)


def _add_tokens(app: FastAPI, parts: Parts) -> None:
    people = parts.people

    @app.get(f"{API}/tokens", responses=problems(), tags=["people"])
    def tokens(who: Admin) -> list[TokenView]:
        """Without the tokens themselves, which nobody can read again."""
        return [TokenView(**token.model_dump(include=set(TokenView.model_fields))) for token in people.tokens()]

    @app.post(f"{API}/tokens", status_code=201, responses=problems(404, 409), tags=["people"])
    def add_token(who: Admin, wish: TokenIn, request: Request) -> NewToken:
        """The token is shown this once."""
        new = people.add_token(wish.user, wish.note, wish.days)
        request.state.target = f"{new.id} of {new.user}"
        return new

    @app.delete(f"{API}/tokens/{{id}}", status_code=204, responses=problems(404, 409), tags=["people"])
    def revoke(who: Admin, id: TokenId) -> None:
        people.revoke(id)

    @app.get(f"{API}/audit", responses=problems(), tags=["people"])
    def audit(who: Admin, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> list[AuditView]:
        """Who did or tried what, the newest first."""
        return people.audit_list(limit)
