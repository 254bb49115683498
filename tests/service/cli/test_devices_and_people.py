"""devices, whatif, team, user, token, audit, login, logout, whoami."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service import connection
from easyscale.service.client import ServiceClient
from easyscale.service.errors import ConflictError, ForbiddenError, NotFoundError
from easyscale.service.models import AuditView, ClusterView, Comparison, Info, NewToken, TeamIn, TokenView, UserIn
from easyscale.service.wire import ServiceUnreachableError, TokenError
from service.cli.conftest import Cluster, done, easyscale, refused


def line_of(word: str, text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(word))


# ---------------------------------------------------------------------------------------- devices


def test_devices_are_listed_with_who_holds_them(login: Cluster) -> None:
    text = done("devices").stdout
    assert "policy easyscale-heter, back end local" in text
    assert line_of("v100 ", text).split()[:3] == ["v100", "4", "4"]
    assert login.named("vision-running") in line_of("v100-0", text)
    assert "32 GB" in line_of("v100-0", text)
    assert ClusterView.model_validate_json(done("devices", "--json").stdout) == login.desk.cluster()


def test_devices_are_drained_lost_lent_and_called_back(admin: Cluster) -> None:
    assert "drained" in done("devices", "drain", "t4-3").stdout
    assert "free" in done("devices", "undrain", "t4-3").stdout
    assert "lost" in done("devices", "lost", "t4-3", "--why", "fire").stdout
    assert admin.desk.records(0, 1, newest=True).records[0].text == "t4-3 is lost: fire."
    assert "free, lent" in line_of("t4-3", done("devices", "lend", "--device", "t4-3").stdout)
    back = done("devices", "call-back", "--device", "t4-3", "--types", "t4:1", "--within", "60").stdout
    assert "leaving, lent, back in" in line_of("t4-3", back)
    view = ClusterView.model_validate_json(done("devices", "drain", "t4-3", "--json").stdout)
    assert view.types
    assert [call[0] for call in admin.desk.calls][:3] == ["device-drain", "device-undrain", "device-lost"]


def test_devices_that_cannot_be_are_refused(admin: Cluster) -> None:
    refused("devices", "drain", "none", kind=NotFoundError)
    assert "No device is named" in refused("devices", "lend").what
    assert "TYPE:COUNT" in refused("devices", "lend", "--types", "v100").what
    assert easyscale("devices", "call-back", "--types", "v100:1", "--within", "0").exit_code == 2
    assert "write them after" in refused("devices", "--json", "drain", "t4-3").now


def test_only_admins_change_devices(login: Cluster) -> None:
    for command in (("drain", "t4-3"), ("undrain", "t4-3"), ("lost", "t4-3"), ("lend", "--types", "v100:1")):
        refused("devices", *command, kind=ForbiddenError)
    assert login.desk.calls == []


def test_whatif_compares_policies(login: Cluster) -> None:
    text = done("whatif", "--policy", "gavel, fifo").stdout
    assert line_of("gavel", text).split()[1:] == ["4,000", "s", "3,000", "s", "9,000", "s", "93.0%", "40.0"]
    found = Comparison.model_validate_json(done("whatif", "--policy", "gavel,fifo,gavel", "--json").stdout)
    assert [one.policy for one in found.figures] == ["gavel", "fifo"]
    assert "fifo" in refused("whatif", "--policy", "fifoo").now
    assert "0 policies" in refused("whatif", "--policy", ",").what


# ---------------------------------------------------------------------------------------- people


def test_a_team_a_user_and_a_token_are_made_and_ended(admin: Cluster) -> None:
    assert done("team", "set", "robots", "--quota", "4").stdout == "robots: 4 devices, borrows idle ones\n"
    assert done("team", "set", "robots", "--quota", "4", "--no-borrow").stdout == "robots: 4 devices\n"
    teams = [TeamIn(**one) for one in json.loads(done("team", "list", "--json").stdout)]
    assert TeamIn(name="robots", quota=4, borrow=False) in teams
    assert line_of("robots", done("team", "list").stdout).split() == ["robots", "4", "no"]
    assert "token add eve" in done("user", "add", "eve", "--team", "robots", "--role", "viewer").stdout
    assert UserIn(name="eve", team="robots", role="viewer") in [
        UserIn(**one) for one in json.loads(done("user", "list", "--json").stdout)
    ]
    assert line_of("eve", done("user", "list").stdout).split() == ["eve", "robots", "viewer"]
    made = done("token", "add", "eve", "--note", "laptop", "--days", "7")
    assert made.stdout.startswith("est_")
    assert "shown this once" in made.stderr
    assert made.stdout.strip() not in made.stderr
    done("login", admin.url, stdin=made.stdout)
    assert "eve (viewer of team robots)" in done("whoami").stdout
    connection.save(connection.Connection(url=admin.url, token=admin.tokens["root"]))
    text = done("token", "list").stdout
    token_id = next(line.split()[0] for line in text.splitlines() if "laptop" in line)
    assert "est_" not in text
    assert [TokenView(**one) for one in json.loads(done("token", "list", "--json").stdout)]
    done("token", "revoke", token_id)
    with ServiceClient(admin.url, made.stdout.strip()) as client, pytest.raises(TokenError):
        client.info()
    assert "removed" in done("user", "remove", "eve").stdout
    new = NewToken.model_validate_json(done("token", "add", "ann", "--json").stdout)
    assert new.user == "ann"


def test_people_that_cannot_be_are_refused(admin: Cluster) -> None:
    refused_by_service("user", "add", "ann", "--team", "vision", kind=ConflictError)
    refused_by_service("user", "add", "eve", "--team", "nobody", kind=NotFoundError)
    refused_by_service("user", "remove", "nobody", kind=NotFoundError)
    refused_by_service("token", "add", "nobody", kind=NotFoundError)
    refused_by_service("token", "revoke", "nothing", kind=NotFoundError)
    assert "not its id" in refused("token", "revoke", "est_secret").what
    assert "est_secret" not in str(refused("token", "revoke", "est_secret"))
    assert easyscale("user", "add", "eve", "--team", "vision", "--role", "king").exit_code == 2
    assert easyscale("token", "add", "ann", "--days", "0").exit_code == 2
    assert easyscale("team", "set", "x", "--quota", "-1").exit_code == 2


def refused_by_service(*args: str, kind: type[EasyScaleError]) -> None:
    """The fake people say what is wrong; not always why."""
    result = easyscale(*args)
    assert isinstance(result.exception, kind), (result.output, result.exception)


def test_a_name_that_cannot_be_is_refused_with_a_reason(admin: Cluster) -> None:
    for command in (("team", "set", "a b"), ("user", "add", "a/b", "--team", "vision"), ("token", "add", "x y")):
        result = easyscale(*command)
        assert isinstance(result.exception, UsageError), result.exception
        assert result.exception.why


def test_the_audit_is_shown_to_admins_alone(admin: Cluster) -> None:
    done("devices", "drain", "t4-3")
    text = done("audit", "-n", "5").stdout
    assert "drain" in text
    assert " root " in text
    first, *_ = json.loads(done("audit", "--json").stdout)
    assert AuditView(**first).action == "drain"
    connection.save(connection.Connection(url=admin.url, token=admin.tokens["ann"]))
    refused("audit", kind=ForbiddenError)
    refused("token", "list", kind=ForbiddenError)


# ---------------------------------------------------------------------------------------- login


def test_login_checks_and_stores_and_logout_forgets(cluster: Cluster) -> None:
    result = done("login", cluster.url, stdin=f"{cluster.tokens['ann']}\n")
    assert f"You are ann (user of team vision) at {cluster.url}" in result.stdout
    assert cluster.tokens["ann"] not in result.output
    assert connection.connection_file().stat().st_mode & 0o777 == 0o600
    assert done("whoami").stdout.startswith(f"ann (user of team vision) at {cluster.url}\nversion ")
    assert Info.model_validate_json(done("whoami", "--json").stdout).you.user == "ann"
    assert done("logout").stdout.endswith("is removed.\n")
    assert done("logout").stdout == "No service was stored.\n"


def test_a_wrong_token_is_not_stored(cluster: Cluster) -> None:
    refused("login", cluster.url, stdin="est_wrong\n", kind=TokenError)
    refused("login", cluster.url, stdin="\n")
    refused("login", cluster.url, stdin="two words\n")
    refused("login", "http://127.0.0.1:9", stdin="est_a\n", kind=ServiceUnreachableError)
    refused("login", "ftp://x", stdin="est_a\n")
    assert not connection.connection_file().exists()


def test_a_token_is_not_asked_for_where_it_would_travel_in_clear() -> None:
    assert "not sent" in refused("login", "http://10.0.0.1", stdin="est_a\n").what


def test_login_takes_one_kind_of_trust(cluster: Cluster, tmp_path: Path) -> None:
    refused("login", cluster.url, "--fingerprint", "0" * 64, "--cacert", "x", stdin="est_a\n")
    assert "no fingerprint" in refused("login", cluster.url, "--fingerprint", "abc", stdin="est_a\n").what
    missing = str(tmp_path / "none.pem")
    assert "cannot be used" in refused("login", "https://localhost:1", "--cacert", missing, stdin="est_a\n").what


def test_the_environment_counts_more_and_login_says_so(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_TOKEN", cluster.tokens["bob"])
    result = done("login", cluster.url, stdin=cluster.tokens["ann"])
    assert "counts more" in result.stderr
    assert "bob" in done("whoami").stdout
    assert "bob" in done("whoami", "--server", cluster.url).stdout


def test_login_prints_who_one_is_as_json(cluster: Cluster) -> None:
    told = Info.model_validate_json(done("login", cluster.url, "--json", stdin=cluster.tokens["bob"]).stdout)
    assert told.you.team == "speech"
