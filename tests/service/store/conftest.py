"""Each test that takes `where` or `store` runs twice: on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.postgres import Server, postgres

from easyscale.service.store import Store, open_store

__all__ = ["postgres"]


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | Path]:
    """A place for a store in which nothing is yet."""
    if request.param == "sqlite":
        yield tmp_path / "data"
    else:
        yield request.getfixturevalue("database")


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with postgres.database() as url:
        yield url


@pytest.fixture
def store(where: str | Path) -> Iterator[Store]:
    with open_store(where) as opened:
        yield opened
