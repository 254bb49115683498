"""Pre-training with statistics that are neither model nor optimizer: McMisP (arXiv 2012.08789) on a small ELECTRA.

    python train.py                                            # one worker, 4 ESTs
    easyscale run --ests 4 --workers 2 train.py                # two workers
    easyscale run --ests 4 --schedule 0:4,7:2,15:3 train.py    # the statistics travel when the workers change
    easyscale run --ests 4 --engine ddp train.py               # the stock reference: the same last line

A generator fills masked words, a discriminator finds the wrong ones. Where the generator said a wrong word, some
attention heads learn to look less at the words that often stand together with it, and more at those that conflict with
it. For that, training counts which words stand together and which are said by mistake. The counts decide the loss, so
losing them at a change of workers would change the model.

Whose are they? Under DDP they are a plain object of each rank, which counts the rank's own batches. So each EST has its
own: `per_est=True`. The sentences, the networks and the counts are in electra.py, which knows nothing of EasyScale.
"""

import torch
from electra import Electra, Statistics, corpus
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=0, ests=4)
loader = DataLoader(TensorDataset(corpus(256)), batch_size=8, shuffle=True)
model = Electra()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = es.prepare(model, optimizer, loader)
statistics = Statistics(es.device())
es.register("statistics", statistics, per_est=True)

for _epoch in es.epochs(3):
    for (tokens,) in loader:
        masked = torch.rand(tokens.shape, device=tokens.device) < 0.2
        read = model(tokens, masked, statistics.guide())
        loss = read.generator_loss + 10 * read.discriminator_loss + read.harm
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        statistics.record(tokens, read)
        es.log(loss=loss)

if es.is_main():
    print(es.fingerprint(model))
