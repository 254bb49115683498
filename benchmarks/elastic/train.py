"""The measured script, with EasyScale's lines: `train.py MODEL`. It trains until it is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import model_of
from parts.workload import Batches, est_steps
from torch.utils.data import DataLoader

import easyscale as es

es.init(seed=0)
model, optimizer, x, y = model_of(sys.argv[1])
device = es.device()
model.to(device)
loader = DataLoader(Batches(x.to(device), y.to(device), 10**6), batch_size=None)
model, optimizer, loader = es.prepare(model, optimizer, loader)
for _ in es.epochs(10**3):
    for _ in est_steps(model, optimizer, loader):
        pass
