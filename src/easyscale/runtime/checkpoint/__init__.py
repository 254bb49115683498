"""Checkpoints: what they hold (`folder`), how their files are written and checked (`tensorfile`), which are kept and
which is the newest good one (`store`), and weights for others (`export`).

Knows nothing of sessions, workers and plans: it is given a `Snapshot` and gives one back.
"""

from easyscale.runtime.checkpoint.export import export_weights
from easyscale.runtime.checkpoint.folder import Snapshot
from easyscale.runtime.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore", "Snapshot", "export_weights"]
