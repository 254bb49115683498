"""What the service remembers: the log of all that happened, and who may do what. SQLite in a folder, or PostgreSQL.

Nothing here decides anything. `open_store` opens, upgrades and checks; `Store` is the log (`ports.Log`) and lends
connections to `service.people`; `backup` copies a store while it is in use.
"""

from easyscale.service.store.store import Store, open_store

__all__ = ["Store", "open_store"]
