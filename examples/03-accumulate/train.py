"""Gradient accumulation: each EST runs two mini-batches before its gradients take part in the global step.

    python train.py
    easyscale run --ests 4 --workers 2 train.py
    easyscale run --ests 4 --engine ddp train.py
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

ACCUMULATE = 2

es.init(seed=0, ests=4)
inputs = torch.randn(512, 16)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = es.prepare(model, optimizer, loader)

for _epoch in es.epochs(3):
    for x, y in loader:
        last = (loader.batch_index + 1) % ACCUMULATE == 0 or loader.batch_index + 1 == len(loader)
        with nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(x), y) / ACCUMULATE
            loss.backward()
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            es.log(loss=loss)

if es.is_main():
    print(es.fingerprint(model))
