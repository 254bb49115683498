"""State of your own: an average of the weights that all ESTs share, and a counter that each EST has for itself.

    python train.py
    easyscale run --ests 4 --workers 2 train.py
    easyscale run --ests 4 --schedule 0:4,5:1,12:3 train.py      # both travel when the workers change
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es


class HardSamples:
    """How many samples with a high loss this EST has seen. Its batches decide it, so each EST has its own."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


es.init(seed=0, ests=4)
inputs = torch.randn(512, 16)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = es.prepare(model, optimizer, loader)

average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
hard = HardSamples()
es.register("average", average)
es.register("hard", hard, per_est=True)

for _epoch in es.epochs(3):
    for x, y in loader:
        losses = F.mse_loss(model(x), y, reduction="none")
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)  # takes effect once a global step
        hard.count += int((losses > 1).sum())
        es.log(loss=losses.mean(), hard=hard.count)

if es.is_main():
    print(es.fingerprint(average))
