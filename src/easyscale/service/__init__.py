"""The service that a team runs: jobs are submitted over HTTP, wait, start on whatever is free, grow, shrink and finish.

`live` decides and acts, `store` remembers, `http` answers; the dashboard is a page that `http` serves. Everything that
happened is a record in an append-only log, and what the service knows is folded from it.
"""
