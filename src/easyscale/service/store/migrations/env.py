"""Alembic's entry: runs the steps in the transaction of the connection that it is given."""

from __future__ import annotations

from alembic import context

VERSION_TABLE = "easyscale_version"  # a database may also hold another program's `alembic_version`


def run() -> None:
    # SQLite can undo changes of tables as well; Alembic has to be told so.
    context.configure(
        connection=context.config.attributes["connection"], version_table=VERSION_TABLE, transactional_ddl=True
    )
    with context.begin_transaction():
        context.run_migrations()


run()
