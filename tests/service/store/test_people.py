"""Teams, users, tokens and the audit log, on both engines."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from easyscale.core.errors import UsageError
from easyscale.service.errors import ConflictError, NotFoundError
from easyscale.service.models import TeamIn, UserIn
from easyscale.service.people import People
from easyscale.service.ports import Person
from easyscale.service.store import Store, open_store


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def people(store: Store, clock: Clock) -> People:
    made = People(store, clock)
    made.add_team("vision", quota=4, borrow=False)
    made.add_user("root", "vision", "admin")
    made.add_user("ann", "vision")
    return made


def test_the_first_start_makes_an_admin_with_a_token_and_later_ones_do_not(where: str | Path) -> None:
    with open_store(where) as store:
        token = People(store).first_admin("root")
        assert token is not None
        assert People(store).authenticate(token) == Person("root", "default", "admin")
        assert People(store).first_admin("root") is None
        assert People(store).first_admin("other") is None
    with open_store(where) as store:
        assert People(store).first_admin("root") is None
        assert People(store).authenticate(token) == Person("root", "default", "admin")
        assert People(store).users() == [UserIn(name="root", team="default", role="admin")]


def test_teams_are_listed_by_name_and_may_get_another_quota(people: People) -> None:
    people.add_team("audio")
    people.add_team("vision", quota=9)
    assert people.teams() == [TeamIn(name="audio"), TeamIn(name="vision", quota=9, borrow=True)]


def test_a_user_needs_a_team_and_a_name_of_its_own(people: People) -> None:
    with pytest.raises(NotFoundError, match="team 'nowhere'"):
        people.add_user("bob", "nowhere")
    with pytest.raises(ConflictError, match="'ann' already"):
        people.add_user("ann", "vision", "admin")
    assert people.users() == [
        UserIn(name="ann", team="vision", role="user"),
        UserIn(name="root", team="vision", role="admin"),
    ]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a\x00", "x" * 64, "-a"])
def test_names_that_no_path_or_page_could_show_are_refused(people: People, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        people.add_user(name, "vision")
    with pytest.raises(UsageError, match="cannot be used"):
        people.add_team(name)
    with pytest.raises(UsageError, match="cannot be used"):
        people.first_admin(name)


def test_a_token_says_whose_it_is(people: People) -> None:
    new = people.add_token("ann", "laptop")
    assert re.fullmatch(r"est_[0-9a-f]{12}_[0-9a-f]{64}", new.token)
    assert new.token.split("_")[1] == new.id
    assert people.authenticate(new.token) == Person("ann", "vision", "user")
    assert people.add_token("ann").token != new.token


def test_a_token_is_stored_as_its_hash_alone(people: People, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = people.add_token("ann").token
    people.authenticate(token)
    with store.read() as connection:
        rows = "\n".join(str(row) for row in connection.execute(text("SELECT * FROM tokens")).all())
    secret = token.split("_")[2]
    assert hashlib.sha256(token.encode()).hexdigest() in rows
    assert secret not in rows
    assert secret not in caplog.text
    assert all(secret not in str(view) for view in people.tokens())
    if store.place.file:
        for file in store.place.file.parent.iterdir():
            assert secret.encode() not in file.read_bytes()


def test_what_is_not_a_token_is_nobodys(people: People) -> None:
    good = people.add_token("ann").token
    other = people.add_token("root").token
    swapped = f"est_{good.split('_')[1]}_{other.split('_')[2]}"
    wrong = ["", "est", "est__", "est_x_y", "Bearer " + good, good[:-1], good + "0", good.upper(), swapped, "é" * 10]
    wrong += [good.replace("est", "esx"), "est_" + "a" * 1000, good + "\x00", "est_\ud800_x"]
    assert [people.authenticate(token) for token in wrong] == [None] * len(wrong)


def test_a_revoked_token_stops_at_once_and_others_go_on(people: People) -> None:
    one, two = people.add_token("ann"), people.add_token("ann")
    assert people.authenticate(one.token)
    people.revoke(one.id)
    assert people.authenticate(one.token) is None
    assert people.authenticate(two.token)
    people.revoke(one.id)
    with pytest.raises(NotFoundError, match="no token"):
        people.revoke("nothing")


def test_revoking_twice_keeps_the_first_time(people: People, clock: Clock) -> None:
    one = people.add_token("ann")
    people.revoke(one.id)
    clock.now += 100
    people.revoke(one.id)
    assert people.tokens("ann")[0].revoked == clock.now - 100


def test_a_token_ends_after_its_days(people: People, clock: Clock) -> None:
    new = people.add_token("ann", days=2)
    assert new.expires == clock.now + 2 * 86_400
    clock.now += 2 * 86_400 - 1
    assert people.authenticate(new.token)
    clock.now += 1
    assert people.authenticate(new.token) is None


def test_a_removed_users_tokens_stop_at_once_and_do_not_come_back_with_the_name(people: People) -> None:
    old = people.add_token("ann").token
    assert people.authenticate(old)
    people.remove_user("ann")
    assert people.authenticate(old) is None
    assert [user.name for user in people.users()] == ["root"]
    people.add_team("audio")
    people.add_user("ann", "audio", "viewer")
    assert people.authenticate(old) is None
    assert people.authenticate(people.add_token("ann").token) == Person("ann", "audio", "viewer")


def test_a_removed_user_gets_no_token(people: People) -> None:
    people.remove_user("ann")
    for name in ("ann", "nobody", "a\x00b"):
        with pytest.raises(NotFoundError, match="no user"):
            people.add_token(name)
        with pytest.raises(NotFoundError, match="no user"):
            people.remove_user(name)


def test_the_last_admin_stays(people: People) -> None:
    with pytest.raises(ConflictError, match="cannot be removed") as refused:
        people.remove_user("root")
    assert "last admin" in refused.value.why
    people.add_user("boss", "vision", "admin")
    people.remove_user("root")
    with pytest.raises(ConflictError):
        people.remove_user("boss")


def test_of_two_admins_who_remove_each_other_at_once_one_stays(people: People) -> None:
    people.add_user("boss", "vision", "admin")
    start = threading.Barrier(2)

    def remove(name: str) -> None:
        start.wait()
        with contextlib.suppress(ConflictError):
            people.remove_user(name)

    threads = [threading.Thread(target=remove, args=(name,)) for name in ("root", "boss")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([user for user in people.users() if user.role == "admin"]) == 1


def test_authentication_reads_the_store_once_a_minute_at_most(people: People, store: Store, clock: Clock) -> None:
    token = people.add_token("ann").token
    people.authenticate(token)
    asked = count_statements(store)
    for _ in range(100):
        assert people.authenticate(token)
    people.authenticate("est_unknown_x")
    assert asked == []
    clock.now += 61
    people.authenticate(token)
    assert len(asked) > 0


def count_statements(store: Store) -> list[str]:
    from sqlalchemy import event

    asked: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    return asked


def test_the_last_use_is_written_at_most_once_a_minute(people: People, clock: Clock) -> None:
    new = people.add_token("ann")
    assert people.tokens("ann")[0].used is None
    first = clock.now
    people.authenticate(new.token)
    clock.now += 59
    people.authenticate(new.token)
    assert people.tokens("ann")[0].used == first
    clock.now += 1
    people.authenticate(new.token)
    assert people.tokens("ann")[0].used == first + 60


def test_a_wrong_secret_is_no_use_of_the_token(people: People) -> None:
    new = people.add_token("ann")
    people.authenticate(new.token[:-1] + "x")
    assert people.tokens("ann")[0].used is None


def test_a_store_that_cannot_be_written_turns_nobody_away(people: People, store: Store) -> None:
    token = people.add_token("ann").token
    refuse_updates(store)
    assert people.authenticate(token) == Person("ann", "vision", "user")


def refuse_updates(store: Store) -> None:
    """As a full disk would, with the engines' own error."""
    with store.write() as connection:
        if store.place.file:
            connection.execute(
                text("CREATE TRIGGER full BEFORE UPDATE ON tokens BEGIN SELECT RAISE(ABORT, 'no'); END")
            )
        else:
            raises = "BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END"
            connection.execute(text(f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$"))
            connection.execute(text("CREATE TRIGGER f BEFORE UPDATE ON tokens FOR EACH ROW EXECUTE FUNCTION no()"))


def test_another_processes_changes_are_seen_within_a_minute(people: People, store: Store, clock: Clock) -> None:
    token = people.add_token("ann")
    other = People(store, clock)
    assert other.authenticate(token.token)
    people.revoke(token.id)
    clock.now += 61
    assert other.authenticate(token.token) is None


def test_tokens_are_listed_the_newest_first_with_the_revoked_ones(people: People, clock: Clock) -> None:
    first = people.add_token("ann", "one")
    clock.now += 1
    second = people.add_token("root", "two\x00", days=1)
    people.revoke(first.id)
    views = people.tokens()
    assert [(view.id, view.user, view.note) for view in views] == [
        (second.id, "root", "two\ufffd"),
        (first.id, "ann", "one"),
    ]
    assert views[1].revoked == clock.now
    assert [view.id for view in people.tokens("ann")] == [first.id]


def test_the_audit_log_keeps_everything_and_shows_the_newest_first(people: People, clock: Clock) -> None:
    for number in range(5):
        clock.now += 1
        people.audit("ann", "job-cancel", f"j{number}", ok=number % 2 == 0, address="127.0.0.1", detail="d")
    shown = people.audit_list(limit=3)
    assert [(entry.target, entry.ok) for entry in shown] == [("j4", True), ("j3", False), ("j2", True)]
    assert shown[0].time == clock.now
    assert len(people.audit_list()) == 5
    assert people.audit_list(limit=0) == []


def test_the_audit_log_takes_any_words(people: People) -> None:
    people.audit("", "GET", "/jobs/\x00\ud800\n../x", ok=False, address="", detail="ü" * 5000)
    entry = people.audit_list()[0]
    assert entry.target == "/jobs/\ufffd?\n../x"
    assert entry.detail == "ü" * 5000
