"""A small convolutional network on the handwritten digits of scikit-learn: 75 global steps on 4 ESTs.

Batch norm and dropout are here on purpose: running statistics and random states are what elastic
training usually gets wrong.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es


def digits() -> TensorDataset:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(data.target))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 10),
    )


def main(epochs: int = 5) -> None:
    es.init(seed=0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    loader = DataLoader(digits(), batch_size=32, shuffle=True)
    model, optimizer, loader, scheduler = es.prepare(model, optimizer, loader, scheduler)

    for _ in es.epochs(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            es.log(loss=loss)
        scheduler.step()


if __name__ == "__main__":
    main()
