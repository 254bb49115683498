"""The per-job master: turns the wanted plan into living workers, hears them, writes the report.

Imports no torch; speaks to workers only through back ends and `core.messages`.
"""
