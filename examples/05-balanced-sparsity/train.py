"""Pruning while training: balanced sparsity (arXiv 1811.00206), whose masks are state of their own.

    python train.py                                             # one worker, 4 ESTs
    easyscale run --ests 4 --workers 2 train.py                 # two workers
    easyscale run --ests 4 --schedule 0:4,10:2,19:3 train.py    # the masks travel when the workers change
    easyscale run --ests 4 --engine ddp train.py                # the stock reference: the same last line

Each block of 16 weights of a row keeps the same number of them, 16 at the start and 4 at the end. The masks are made
anew from the weights every few steps and hold what was pruned at zero in between.

Whose are they? They follow from the weights after the optimizer's step, which are the same on all ranks of DDP. So all
ESTs share them: `per_est` stays False. The pruner's method is called `step`, so once it is registered it takes effect
once a global step, after the optimizer really stepped. The network and the pruner are in balanced.py, which knows
nothing of EasyScale.
"""

import torch
from balanced import BalancedPruner, network, task
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=0, ests=4)
loader = DataLoader(TensorDataset(*task(512)), batch_size=16, shuffle=True)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
model, optimizer, loader = es.prepare(model, optimizer, loader)
pruner = BalancedPruner(model)  # after prepare: the weights are on their device
es.register("pruner", pruner)

for _epoch in es.epochs(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()  # takes effect once a global step
        es.log(loss=loss)

if es.is_main():
    print(es.fingerprint(model))
