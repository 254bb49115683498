"""A job that scales itself up and down, and loses a worker by SIGKILL, while it trains on small pictures of digits.

    easyscale run --ests 4 --workers 2 train.py           # 3 workers, one killed, shares of 1 and 3, 1 worker
    easyscale run --ests 4 --engine ddp train.py          # the stock reference, undisturbed: the same last line

The events are in drill.py. A script needs nothing for this: what follows is a plain training loop, but for one line.
"""

import torch
from drill import drill
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import easyscale as es


class Digits(Dataset):
    """Ten shapes of 8 by 8 points; each picture is one of them, shifted by chance and noisy."""

    def __init__(self, count: int) -> None:
        self.shapes = (torch.rand(10, 8, 8) > 0.6).float()
        self.labels = torch.randint(10, (count,))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = tuple(torch.randint(-1, 2, (2,)).tolist())
        picture = self.shapes[self.labels[i]].roll(shift, (0, 1))
        return (picture + 0.3 * torch.randn(8, 8)).unsqueeze(0), self.labels[i]


es.init(seed=0, ests=4)
loader = DataLoader(Digits(500), batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler)

for epoch in es.epochs(4):
    for x, y in loader:
        if es.is_main():
            drill(step=epoch * len(loader) + loader.batch_index)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
    scheduler.step()

if es.is_main():
    print(es.fingerprint(model))
