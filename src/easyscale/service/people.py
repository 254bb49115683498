"""Who may do what: teams, users, tokens and the audit log. A token is shown once; only its sha256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, func, insert, select, update

from easyscale.core.errors import UsageError
from easyscale.service.errors import ConflictError, NotFoundError, StoreError
from easyscale.service.models import AuditView, NewToken, Role, TeamIn, TokenView, UserIn
from easyscale.service.ports import Person
from easyscale.service.store import Store
from easyscale.service.store.tables import audit, teams, tokens, users

DAY = 86_400.0
USED_EVERY = 60.0  # seconds: how exactly we know when a token was last used
STALE = 60.0  # seconds after which another process's changes are seen
FIRST_TEAM = "default"
PREFIX = "est"
LONGEST = 200  # signs of a token: what is longer is none

Form = TypeVar("Form", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Key:
    """What authentication needs of a token that is not revoked and whose user is there."""

    hash: bytes
    expires: float | None
    person: Person


class People:
    """May be used by many threads. What one changes here holds at once in this process.

    Another process sees it within a minute; the service is the only one that changes it (`Store.claim`).
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._changing = threading.RLock()
        self._keys: Mapping[str, _Key] = {}
        self._used: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        self._noting = threading.Lock()
        self._read = float("-inf")

    # ------------------------------------------------------------------------------------------ authentication

    def authenticate(self, token: str) -> Person | None:
        """Whose token it is. None: nobody's, or it is revoked or too old, or its user was removed."""
        parts = token.split("_", 2)
        if len(parts) != 3 or parts[0] != PREFIX or len(token) > LONGEST or not token.isascii():
            return None
        now = self._clock()
        if self._stale(now):
            self._refresh(now)
        known = self._keys.get(parts[1])
        # Compared even if there is none: the time says nothing about which ids exist.
        same = hmac.compare_digest(_hash(token), known.hash if known else bytes(32))
        if known is None or not same or (known.expires is not None and now >= known.expires):
            return None
        self._note_use(parts[1], now)
        return known.person

    def _note_use(self, token_id: str, now: float) -> None:
        """At most once a minute, and never a reason to turn someone away."""
        last = self._used.get(token_id)
        if last is not None and 0 <= now - last < USED_EVERY:
            return
        self._used[token_id] = now  # before it is written: other threads need not do it too
        self._unwritten[token_id] = now
        if not self._noting.acquire(blocking=False):
            return  # whoever writes now writes this too: of many who come at once, none waits for all the others
        try:
            while self._unwritten:
                rows = [self._unwritten.popitem() for _ in range(len(self._unwritten))]
                with suppress(StoreError), self._store.write() as connection:
                    for name, at in rows:
                        connection.execute(update(tokens).where(tokens.c.id == name).values(used=at))
        finally:
            self._noting.release()

    def _stale(self, now: float) -> bool:
        return not 0 <= now - self._read < STALE

    def _refresh(self, now: float) -> None:
        with self._changing:  # a change that is under way is read after it
            if not self._stale(now):  # another thread did it while we waited
                return
            joined = select(tokens, users.c.team, users.c.role).join(users, tokens.c.user == users.c.name)
            with self._store.read() as connection:
                rows = connection.execute(joined.where(tokens.c.revoked.is_(None), users.c.removed.is_(None))).all()
            self._keys = {
                row.id: _Key(bytes.fromhex(row.hash), row.expires, Person(row.user, row.team, row.role)) for row in rows
            }
            self._read = now

    @contextmanager
    def _change(self) -> Iterator[Connection]:
        """A transaction, after which the next authentication reads everything anew, however it ended."""
        with self._changing:
            try:
                with self._store.write() as connection:
                    yield connection
            finally:
                self._read = float("-inf")

    # ------------------------------------------------------------------------------------------ teams and users

    def add_team(self, name: str, quota: int | None = None, borrow: bool = True) -> TeamIn:
        """Make it, or give it another quota."""
        team = _valid(TeamIn, name=name, quota=quota, borrow=borrow)
        with self._change() as connection:
            _set_team(connection, team)
        return team

    def teams(self) -> list[TeamIn]:
        with self._store.read() as connection:
            rows = connection.execute(select(teams)).all()
        return sorted((TeamIn(name=row.name, quota=row.quota, borrow=row.borrow) for row in rows), key=lambda t: t.name)

    def add_user(self, name: str, team: str, role: Role = "user") -> UserIn:
        """A name that was removed may come back; its old tokens do not."""
        user = _valid(UserIn, name=name, team=team, role=role)
        with self._change() as connection:
            self._add_user(connection, user)
        return user

    def _add_user(self, connection: Connection, user: UserIn) -> None:
        if connection.execute(select(teams.c.name).where(teams.c.name == user.team)).first() is None:
            raise NotFoundError(
                f"There is no team {user.team!r}.", "a user belongs to a team.", "make the team first, or name another."
            )
        before = connection.execute(select(users.c.removed).where(users.c.name == user.name)).first()
        if before is not None and before.removed is None:
            raise ConflictError(
                f"There is a user {user.name!r} already.", "names are unique.", "use another name, or remove that user."
            )
        row = {"team": user.team, "role": user.role, "made": self._clock(), "removed": None}
        if before is None:
            connection.execute(insert(users), [{"name": user.name, **row}])
        else:
            connection.execute(update(users).where(users.c.name == user.name).values(row))

    def remove_user(self, name: str) -> None:
        """The tokens stop working at once. What the user did stays in the log."""
        now = self._clock()
        with self._change() as connection:
            row = _present_user(connection, name)
            others = (users.c.role == "admin", users.c.removed.is_(None), users.c.name != name)
            left = connection.execute(select(func.count()).select_from(users).where(*others)).scalar_one()
            if row.role == "admin" and not left:
                raise ConflictError(
                    f"The user {name!r} cannot be removed.",
                    "it is the last admin, and nobody could manage the service any more.",
                    "make another admin first.",
                )
            connection.execute(update(users).where(users.c.name == name).values(removed=now))
            theirs = update(tokens).where(tokens.c.user == name, tokens.c.revoked.is_(None))
            connection.execute(theirs.values(revoked=now))

    def users(self) -> list[UserIn]:
        """Those who were not removed."""
        with self._store.read() as connection:
            rows = connection.execute(select(users).where(users.c.removed.is_(None))).all()
        return sorted((UserIn(name=row.name, team=row.team, role=row.role) for row in rows), key=lambda u: u.name)

    def first_admin(self, name: str) -> str | None:
        """At the first start: an admin, and the token to begin with. None: there is an admin already."""
        user = _valid(UserIn, name=name, team=FIRST_TEAM, role="admin")
        with self._change() as connection:
            admins = select(users.c.name).where(users.c.role == "admin", users.c.removed.is_(None))
            if connection.execute(admins).first() is not None:
                return None
            if connection.execute(select(teams.c.name).where(teams.c.name == FIRST_TEAM)).first() is None:
                _set_team(connection, TeamIn(name=FIRST_TEAM))
            self._add_user(connection, user)
            new = self._add_token(connection, name, "made at the first start", None)
        return new.token

    # ------------------------------------------------------------------------------------------ tokens

    def add_token(self, user: str, note: str = "", days: float | None = None) -> NewToken:
        """The only time that the token is to be seen. `days`: how long it is good for; None: until it is revoked."""
        with self._change() as connection:
            _present_user(connection, user)
            return self._add_token(connection, user, note, days)

    def _add_token(self, connection: Connection, user: str, note: str, days: float | None) -> NewToken:
        now = self._clock()
        name = secrets.token_hex(6)
        token = f"{PREFIX}_{name}_{secrets.token_hex(32)}"
        facts = {
            "id": name, "user": user, "note": _text(note), "made": now,
            "expires": None if days is None else now + days * DAY, "revoked": None, "used": None,
        }  # fmt: skip
        connection.execute(insert(tokens), [{**facts, "hash": _hash(token).hex()}])
        return NewToken.model_validate({**facts, "token": token})

    def revoke(self, token_id: str) -> None:
        """Stops working at once. To revoke it again changes nothing."""
        now = self._clock()
        with self._change() as connection:
            mine = tokens.c.id == _text(token_id)
            if connection.execute(select(tokens.c.id).where(mine)).first() is None:
                raise NotFoundError(
                    f"There is no token {token_id!r}.", "none has this id.", "see `GET /tokens` for the ids."
                )
            connection.execute(update(tokens).where(mine, tokens.c.revoked.is_(None)).values(revoked=now))

    def tokens(self, user: str | None = None) -> list[TokenView]:
        """The newest first, revoked ones too."""
        query = select(tokens).order_by(tokens.c.made.desc(), tokens.c.id)
        if user is not None:
            query = query.where(tokens.c.user == _text(user))
        with self._store.read() as connection:
            rows = connection.execute(query).all()
        return [TokenView.model_validate({name: getattr(row, name) for name in TokenView.model_fields}) for row in rows]

    # ------------------------------------------------------------------------------------------ audit

    def audit(self, user: str, action: str, target: str, ok: bool, address: str, detail: str = "") -> None:
        """Write down who tried what. Durable when it returns; never removed."""
        words = {"user": user, "action": action, "target": target, "address": address, "detail": detail}
        row = {name: _text(word) for name, word in words.items()}
        with self._store.write() as connection:
            connection.execute(insert(audit), [{**row, "time": self._clock(), "ok": ok}])

    def audit_list(self, limit: int = 100) -> list[AuditView]:
        """The newest first."""
        with self._store.read() as connection:
            rows = connection.execute(select(audit).order_by(audit.c.id.desc()).limit(max(limit, 0))).all()
        return [AuditView.model_validate({name: getattr(row, name) for name in AuditView.model_fields}) for row in rows]


def _valid(form: type[Form], **fields: object) -> Form:
    try:
        return form.model_validate(fields)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise UsageError(
            f"The {first['loc'][0]} {first['input']!r} cannot be used.", f"{first['msg']}.", "choose another."
        ) from None


def _hash(token: str) -> bytes:
    """Not a slow hash: a token has 256 random bits, and nobody can go through them."""
    return hashlib.sha256(token.encode()).digest()


def _set_team(connection: Connection, team: TeamIn) -> None:
    row = team.model_dump()
    done = connection.execute(update(teams).where(teams.c.name == team.name).values(row))
    if not done.rowcount:
        connection.execute(insert(teams), [row])


def _present_user(connection: Connection, name: str) -> Any:
    query = select(users).where(users.c.name == _text(name), users.c.removed.is_(None))
    row = connection.execute(query).first()
    if row is None:
        raise NotFoundError(f"There is no user {name!r}.", "none has this name.", "see `GET /users` for the names.")
    return row


def _text(word: str) -> str:
    """What both engines can hold. A NUL and half a surrogate pair come from people who try things out."""
    return word.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
