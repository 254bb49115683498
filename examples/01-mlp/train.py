"""The smallest job: a small network on generated data. Five lines differ from a single-process script.

    python train.py                                       # one worker, 4 ESTs
    easyscale run --ests 4 --workers 2 train.py           # two workers
    easyscale run --ests 4 --engine ddp train.py          # the stock reference: the same last line
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=0, ests=4)

inputs = torch.randn(512, 16)
labels = (inputs[:, :4].sum(1) > 0).long() + (inputs[:, 4:8].sum(1) > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler)

for _epoch in es.epochs(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
    scheduler.step()

if es.is_main():
    print(es.fingerprint(model))
