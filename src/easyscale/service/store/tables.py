"""The tables, as the newest version has them. `migrations` says how a store gets there; a test sees that both agree."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()

# SQLite makes a column its own row number only if it is called INTEGER.
Number = BigInteger().with_variant(Integer(), "sqlite")

records = Table(
    "records",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("job", Text),
    Column("body", Text, nullable=False),  # JSON, in ASCII: PostgreSQL's text cannot hold a NUL
    Index("records_by_job", "job", "seq"),
)

keys = Table(
    "keys",
    metadata,
    Column("user", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("time", Double, nullable=False),
    Column("jobs", Text, nullable=False),  # JSON
)

teams = Table(
    "teams",
    metadata,
    Column("name", Text, primary_key=True),
    Column("quota", Integer),
    Column("borrow", Boolean, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("team", Text, ForeignKey("teams.name"), nullable=False),
    Column("role", Text, nullable=False),
    Column("made", Double, nullable=False),
    Column("removed", Double),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user", Text, ForeignKey("users.name"), nullable=False),
    Column("hash", Text, nullable=False),  # sha256 of the token, in hex; the token itself is nowhere
    Column("note", Text, nullable=False),
    Column("made", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("used", Double),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("user", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("address", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

# One row. `turn` rises with each service that claims the store, so that an older one cannot write any more.
claims = Table(
    "claims",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("turn", Number, nullable=False),
    Column("holder", Text, nullable=False),
)
