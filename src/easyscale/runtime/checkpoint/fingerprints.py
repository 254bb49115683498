"""The sha256 of the models in checkpoints: `python -m easyscale.runtime.checkpoint.fingerprints FOLDER...`.

Prints a JSON object from folder to sha256, or to null for a checkpoint that is damaged. For commands that do not load
torch themselves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from easyscale.core.errors import CheckpointError
from easyscale.numerics.fingerprint import fingerprint
from easyscale.runtime.checkpoint.store import CheckpointStore


def main(folders: list[str]) -> int:
    found: dict[str, str | None] = {}
    for folder in folders:
        try:
            found[folder] = fingerprint(CheckpointStore.load(Path(folder)).model)
        except CheckpointError:
            found[folder] = None
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
