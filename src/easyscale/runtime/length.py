"""How many global steps a job has in all, as far as its script has said: for whoever watches it, never for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


def steps_in_all(session: EstSession) -> int | None:
    """es.epochs(count), times the steps of an epoch of the one loader. None: nobody can tell yet.

    Asked after a first round. A script that leaves its loop early has fewer.
    """
    loader = session.loader
    if session.epoch_count is None or len(session.loaders) != 1 or loader is None or session.window < 1:
        return None
    if isinstance(loader.feed.pattern.dataset, IterableDataset):  # stock would remember that it was asked
        return None
    try:
        batches = len(loader.feed.pattern)
    except Exception:  # a sampler of the user's own without a length, or whose length fails: not our concern here
        return None
    return session.epoch_count * -(-batches // session.window)
