"""A job whose length and pace a test chooses: batch norm, dropout, momentum, a schedule; the sleep is in the loop."""

from __future__ import annotations

SCRIPT = '''
import argparse, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import easyscale as es

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
es.init(seed=options.seed)
inputs = torch.randn(128, 16)
labels = (inputs[:, :4].sum(1) > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(16, options.width), nn.BatchNorm1d(options.width), nn.ReLU(), nn.Dropout(0.2),
                      nn.Linear(options.width, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler)
for _epoch in es.epochs(options.epochs):
    for x, y in loader:
        time.sleep(options.sleep)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
    scheduler.step()
'''
