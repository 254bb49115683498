"""Mini-batches of one user `DataLoader` for the ESTs of this worker, to the bit what N stock loaders would give.

What decides which samples an EST gets, in which random state they are made, and how that place is kept in a
checkpoint lives here. Nothing here knows the model, the other workers or the clock.
"""

from easyscale.runtime.data.feed import Feed
from easyscale.runtime.data.lane import closed
from easyscale.runtime.data.sampling import ShardedBatchSampler, ShardedSampler
from easyscale.runtime.data.stock import set_epoch, stock_loader

__all__ = ["Feed", "ShardedBatchSampler", "ShardedSampler", "closed", "set_epoch", "stock_loader"]
