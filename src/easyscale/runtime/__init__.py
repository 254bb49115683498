"""One worker process: EST contexts, data, reduction, optimizer, checkpoints, membership.

`session.py` composes the parts; each part knows only what it is given. Starts no workers and makes
no plans: it carries out the one it was told (`core.spec.WorkerSpec`).
"""
