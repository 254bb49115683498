"""People of two teams, kept in memory."""

from __future__ import annotations

import secrets
import threading
import time

from easyscale.service.errors import ConflictError, NotFoundError
from easyscale.service.models import AuditView, NewToken, Role, TeamIn, TokenView, UserIn
from easyscale.service.ports import Person

EVERYBODY: tuple[tuple[str, str, Role], ...] = (
    ("root", "vision", "admin"),
    ("ann", "vision", "user"),
    ("vic", "vision", "viewer"),
    ("bob", "speech", "user"),
)


class FakePeople:
    """Users `root` (admin), `ann` (user) and `vic` (viewer) of vision, `bob` (user) of speech."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._teams = {name: TeamIn(name=name) for name in ("vision", "speech")}
        self._tokens: dict[str, NewToken] = {}
        self._audit: list[AuditView] = []
        self.audit_fails = False
        self._users = {name: UserIn(name=name, team=team, role=role) for name, team, role in EVERYBODY}

    def authenticate(self, token: str) -> Person | None:
        with self._lock:
            for known in self._tokens.values():
                if secrets.compare_digest(known.token.encode(), token.encode()) and known.revoked is None:
                    user = self._users.get(known.user)
                    return Person(user.name, user.team, user.role) if user else None
        return None

    def add_user(self, name: str, team: str, role: Role) -> UserIn:
        if team not in self._teams:
            raise NotFoundError(f"There is no team {team}.", "", "add the team first.")
        if name in self._users:
            raise ConflictError(f"There is a user {name} already.", "", "choose another name.")
        self._users[name] = user = UserIn(name=name, team=team, role=role)
        return user

    def remove_user(self, name: str) -> None:
        self._known(name)
        del self._users[name]

    def users(self) -> list[UserIn]:
        return list(self._users.values())

    def add_team(self, name: str, quota: int | None, borrow: bool) -> TeamIn:
        self._teams[name] = team = TeamIn(name=name, quota=quota, borrow=borrow)
        return team

    def teams(self) -> list[TeamIn]:
        return list(self._teams.values())

    def add_token(self, user: str, note: str, days: float | None) -> NewToken:
        self._known(user)
        now = time.time()
        new = NewToken(
            id=secrets.token_hex(4),
            user=user,
            note=note,
            made=now,
            expires=None if days is None else now + days * 86_400,
            revoked=None,
            used=None,
            token=f"est_{secrets.token_urlsafe(24)}",
        )
        with self._lock:
            self._tokens[new.id] = new
        return new

    def revoke(self, id: str) -> None:
        if id not in self._tokens:
            raise NotFoundError(f"There is no token {id}.", "", "see the list of tokens.")
        with self._lock:
            self._tokens[id] = self._tokens[id].model_copy(update={"revoked": time.time()})

    def tokens(self) -> list[TokenView]:
        return list(self._tokens.values())

    def audit(self, user: str, action: str, target: str, *, ok: bool, address: str, detail: str) -> None:
        if self.audit_fails:
            raise OSError("the disk is full")
        entry = AuditView(
            time=time.time(), user=user, action=action, target=target, ok=ok, address=address, detail=detail
        )
        with self._lock:
            self._audit.append(entry)

    def audit_list(self, limit: int) -> list[AuditView]:
        return self._audit[::-1][:limit]

    def _known(self, name: str) -> None:
        if name not in self._users:
            raise NotFoundError(f"There is no user {name}.", "", "see the list of users.")
