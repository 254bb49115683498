"""The audit log, when a token was last used, and which service may write."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("used", sa.Double))
    op.create_table(
        "audit",
        sa.Column("id", Number, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    claims = op.create_table(
        "claims",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("turn", Number, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
    )
    op.bulk_insert(claims, [{"id": 1, "turn": 0, "holder": ""}])
