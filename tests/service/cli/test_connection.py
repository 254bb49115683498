"""Which service is meant, and what is never sent where."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.service.connection import (
    Connection,
    clean_fingerprint,
    clean_url,
    configured,
    connection_file,
    forget,
    is_loopback,
    load,
    needed,
    save,
)

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        (" http://localhost:1/ ", "http://localhost:1"),
        ("localhost", "http://localhost:8470"),
        ("127.0.0.1:99", "http://127.0.0.1:99"),
        ("::1", "http://[::1]:8470"),
        ("cluster.example.org", "https://cluster.example.org:8470"),
        ("cluster.example.org:99", "https://cluster.example.org:99"),
        ("https://cluster.example.org", "https://cluster.example.org"),
        ("https://cluster.example.org/easyscale/", "https://cluster.example.org/easyscale"),
    ],
)
def test_an_address_is_made_whole(text: str, url: str) -> None:
    assert clean_url(text) == url
    assert clean_url(url) == url


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "http://a:99999", "http://u:p@host", "http://h/?q=1", "a b"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        clean_url(text)
    assert refusal.value.now


def test_fingerprints_are_read_in_all_usual_forms() -> None:
    assert clean_fingerprint(f"SHA256:{SHA.upper()}") == SHA
    assert clean_fingerprint(":".join(["AB"] * 32)) == SHA
    with pytest.raises(UsageError, match="no fingerprint"):
        clean_fingerprint("abcd")


def test_the_loopback_is_known_by_name_and_number() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("example.org", "10.0.0.1", "0.0.0.0", "localhost.example.org")))


def test_what_is_saved_is_loaded_and_is_for_its_user_alone() -> None:
    assert load() is None
    given = Connection(url="https://host:1", token="est_secret", fingerprint=SHA, cacert="/ca.pem")
    path = save(given)
    assert path == connection_file()
    assert load() == given
    assert path.stat().st_mode & 0o777 == 0o600
    assert "est_secret" not in repr(given)
    assert forget("https://other:1") is False
    assert forget("https://host:1") is True
    assert load() is None


def test_a_file_that_others_can_read_is_refused() -> None:
    path = save(Connection(url="http://localhost:1", token="est_secret"))
    path.chmod(0o644)
    with pytest.raises(EasyScaleError, match="not safe") as refusal:
        load()
    assert "est_secret" not in str(refusal.value)
    assert "chmod 600" in refusal.value.now


@pytest.mark.parametrize("text", ["", "[]", "{", '{"token": "x"}', '{"url": 3}', '{"url": "http://h", "token": 5}'])
def test_a_damaged_file_is_told(text: str) -> None:
    path = save(Connection(url="http://localhost:1"))
    path.write_text(text)
    with pytest.raises(EasyScaleError, match="cannot be used"):
        load()


def test_a_folder_that_cannot_be_written_is_told(home: Path) -> None:
    (home / "config").write_text("a file")
    with pytest.raises(EasyScaleError, match="cannot be written") as refusal:
        save(Connection(url="http://localhost:1"))
    assert "EASYSCALE_SERVER" in refusal.value.now


def test_the_flag_counts_more_than_the_environment_and_that_more_than_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert configured() is None
    with pytest.raises(UsageError, match="No service is known"):
        needed()
    save(Connection(url="http://localhost:1", token="est_file"))
    assert needed() == Connection(url="http://localhost:1", token="est_file")
    monkeypatch.setenv("EASYSCALE_SERVER", "http://localhost:2")
    assert needed().url == "http://localhost:2"
    assert needed("http://localhost:3").url == "http://localhost:3"
    monkeypatch.setenv("EASYSCALE_TOKEN", "est_environment")
    assert needed("http://localhost:3").token == "est_environment"


def test_the_files_token_goes_to_its_own_address_alone() -> None:
    save(Connection(url="https://host:1", token="est_file", fingerprint=SHA))
    assert needed("https://host:1").token == "est_file"
    assert needed("https://host:1").fingerprint == SHA
    assert needed("https://elsewhere:1") == Connection(url="https://elsewhere:1")


def test_a_token_does_not_travel_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_TOKEN", "est_secret")
    with pytest.raises(UsageError, match="not sent") as refusal:
        needed("http://10.0.0.1:8470")
    assert "est_secret" not in str(refusal.value)
    monkeypatch.setenv("EASYSCALE_PLAIN_HTTP", "1")
    assert needed("http://10.0.0.1:8470").token == "est_secret"


def test_a_file_of_another_version_with_more_fields_is_read() -> None:
    path = save(Connection(url="http://localhost:1", token="est_a"))
    path.write_text(json.dumps({"url": "http://localhost:1", "token": "est_a", "colour": "red"}))
    assert load() == Connection(url="http://localhost:1", token="est_a")
    assert os.access(path, os.R_OK)
