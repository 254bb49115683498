"""The log, the keys of submissions, teams, users and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "records",
        sa.Column("seq", Number, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("records_by_job", "records", ["job", "seq"])
    op.create_table(
        "keys",
        sa.Column("user", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("jobs", sa.Text, nullable=False),
    )
    op.create_table(
        "teams",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("quota", sa.Integer),
        sa.Column("borrow", sa.Boolean, nullable=False),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("team", sa.Text, sa.ForeignKey("teams.name"), nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("made", sa.Double, nullable=False),
        sa.Column("removed", sa.Double),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("user", sa.Text, sa.ForeignKey("users.name"), nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("made", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("revoked", sa.Double),
    )
