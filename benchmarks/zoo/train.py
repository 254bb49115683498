"""Train one model of the zoo with EasyScale. An ordinary user's script:

    easyscale run --ests 4 --workers 2 benchmarks/zoo/train.py --model resnet50 --size small --steps 12
    easyscale run --ests 4 --engine ddp benchmarks/zoo/train.py --model resnet50 --size small --steps 12

Two epochs, so that the data is shuffled twice. `stock.py` does the same by hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import easyscale as es

sys.path.insert(0, str(Path(__file__).parents[2]))  # the script's own folder is a package of this project

from benchmarks.zoo import MODELS, Size, Workload

SEED = 7
EPOCHS = 2


def train(work: Workload, size: Size, steps: int) -> nn.Module:
    es.init(seed=SEED)
    model = work.build(size)
    optimizer = work.optimizer(model)
    batch = work.batch_of(size)
    data = work.data(size, samples(steps, batch, es.world_size()))
    model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=batch, shuffle=True))
    for _epoch in es.epochs(EPOCHS):
        for part in loader:
            loss = work.loss(model, part)
            loss.backward()
            if work.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip)
            optimizer.step()
            optimizer.zero_grad()
            es.log(loss=loss)
    return model


def samples(steps: int, batch: int, ranks: int) -> int:
    """How much data an epoch needs, so that all epochs together have this many global steps."""
    if steps < 1 or steps % EPOCHS:
        raise ValueError(f"{steps} steps do not make {EPOCHS} equal epochs")
    return steps // EPOCHS * batch * ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--steps", type=int, default=12)
    chosen = parser.parse_args()
    model = train(MODELS[chosen.model], chosen.size, chosen.steps)
    if es.is_main():
        print(es.fingerprint(model))


if __name__ == "__main__":
    main()
