"""Who may do what: a viewer reads the jobs of the own team, a user also submits and changes them, an admin may all."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Annotated

from fastapi import Depends, Request

from easyscale.service.errors import ForbiddenError
from easyscale.service.models import RecordView
from easyscale.service.ports import Desk, Person

MOST_TEAMS = 50_000  # of jobs whose team is remembered


def forbidden(why: str, now: str) -> ForbiddenError:
    return ForbiddenError("You may not do that.", why, now)


async def anyone(request: Request) -> Person:
    """Whoever has a token; those without one are turned away at the gate."""
    person = request.scope["state"]["person"]
    assert isinstance(person, Person)
    return person


async def changer(request: Request) -> Person:
    person = await anyone(request)
    if person.role == "viewer":
        raise forbidden(f"{person.user} is a viewer and may only look.", "ask an admin for the role user.")
    return person


async def admin(request: Request) -> Person:
    person = await anyone(request)
    if person.role != "admin":
        raise forbidden(f"{person.user} has the role {person.role}; this takes an admin.", "ask an admin to do it.")
    return person


Anyone = Annotated[Person, Depends(anyone)]
Changer = Annotated[Person, Depends(changer)]
Admin = Annotated[Person, Depends(admin)]


class Rights:
    """Which team a job is of, remembered since it never changes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._teams: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def team(self, job: str) -> str:
        """`NotFoundError` for a job that there is not."""
        with self._lock:
            known = self._teams.get(job)
        if known is None:
            known = self._desk.job(job).team
            self._remember(job, known)
        return known

    def check(self, who: Person, job: str) -> None:
        """That `who` may see all of the job, and change it if the role allows changes."""
        team = self.team(job)
        if who.role != "admin" and team != who.team:
            raise forbidden(f"{job} is a job of the team {team}, you are in {who.team}.", f"ask {team} or an admin.")

    def team_of(self, record: RecordView) -> str | None:
        """Whose record it is; None: everybody's, as it is about no job."""
        if record.job is None:
            return None
        if record.kind == "job-submitted" and isinstance(team := record.body.get("team"), str):
            self._remember(record.job, team)
            return team
        return self.team(record.job)

    def sees(self, who: Person, record: RecordView) -> bool:
        return may_see(who, self.team_of(record))

    def _remember(self, job: str, team: str) -> None:
        with self._lock:
            self._teams[job] = team
            while len(self._teams) > MOST_TEAMS:
                self._teams.popitem(last=False)


def may_see(who: Person, team: str | None) -> bool:
    return team is None or who.role == "admin" or team == who.team
