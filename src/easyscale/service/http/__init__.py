"""The service over HTTP: who asks, may they, is it well formed, and what the desk answered. Nothing is decided here.

`app` puts the parts together; `jobs`, `cluster`, `people`, `stream` and `meta` are the paths by subject; `front`,
`gate` and `body` stand before them; `server` listens.
"""
