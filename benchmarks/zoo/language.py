"""BERT-base that answers questions and ELECTRA-base in pre-training, of transformers, with random weights.

BERT's question answering head is built without the pooler, which would get no gradient. transformers is imported when
a model is built, so that the other models of the zoo do without it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo.record import Size
from torch import nn
from torch.utils.data import Dataset

PAD, CLS, SEP, MASK, FIRST_WORD = 0, 101, 102, 103, 104  # BERT's own numbers
WORDS = {"full": 30_522, "small": 150}
LENGTH = {"full": 384, "small": 24}
MASKED = 0.15
DISCRIMINATOR_WEIGHT = 50.0  # ELECTRA's paper


class Questions(Dataset[Any]):
    """[CLS] question [SEP] context [SEP], padded to one length as SQuAD is; the answer lies in the context."""

    def __init__(self, count: int, words: int, length: int) -> None:
        g = torch.Generator().manual_seed(3)

        def between(low: int, high: int) -> torch.Tensor:
            return torch.randint(low, high + 1, (count, 1), generator=g)

        place = torch.arange(length)
        question = between(length // 24, length // 8)  # words of it; the separator follows
        end = between(length // 2, length - 1)  # the last separator
        words_of = torch.randint(FIRST_WORD, words, (count, length), generator=g)
        words_of = words_of.where((place != question + 1) & (place != end), SEP).where(place <= end, PAD)
        self.ids = words_of.where(place != 0, CLS)
        self.mask = (place <= end).long()
        self.kind = ((place > question + 1) & (place <= end)).long()
        self.start = (question + 2 + torch.rand((count, 1), generator=g) * (end - question - 2)).long().squeeze(1)
        self.stop = torch.minimum(self.start + 3, end.squeeze(1) - 1)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.ids[i], "attention_mask": self.mask[i], "token_type_ids": self.kind[i],
            "start_positions": self.start[i], "end_positions": self.stop[i],
        }  # fmt: skip


def questions(size: Size, count: int) -> Questions:
    return Questions(count, WORDS[size], LENGTH[size])


def bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForQuestionAnswering

    if size == "full":
        return BertForQuestionAnswering(BertConfig())
    narrow = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForQuestionAnswering(BertConfig(vocab_size=WORDS[size], max_position_embeddings=32, **narrow))


def answer(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


class Electra(nn.Module):
    """Replaced token detection (Clark et al., 2020): a small generator fills masked places, the discriminator says
    which tokens are not the original ones. Both share the tables of words, positions and segments."""

    def __init__(self, generator: Any, discriminator: Any) -> None:
        from transformers import ElectraForMaskedLM, ElectraForPreTraining

        super().__init__()
        self.discriminator = ElectraForPreTraining(discriminator)
        self.generator = ElectraForMaskedLM(generator)
        ours, theirs = self.generator.electra.embeddings, self.discriminator.electra.embeddings
        for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            setattr(ours, table, getattr(theirs, table))
        self.generator.generator_lm_head.weight = ours.word_embeddings.weight

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        chosen = (torch.rand(input_ids.shape, device=input_ids.device) < MASKED) & (input_ids >= FIRST_WORD)
        rest = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        logits = self.generator(input_ids.masked_fill(chosen, MASK), **rest).logits
        labels = input_ids.masked_fill(~chosen, -100)
        guess = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / chosen.sum().clamp(min=1)
        with torch.no_grad():  # a sample from the generator's distribution, by Gumbel's trick
            sampled = (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)
        shown = input_ids.where(~chosen, sampled)
        replaced = (shown != input_ids).to(logits.dtype)
        verdict = self.discriminator(shown, **rest).logits
        seen = attention_mask.to(logits.dtype)
        detect = F.binary_cross_entropy_with_logits(verdict, replaced, weight=seen, reduction="sum") / seen.sum()
        return guess + DISCRIMINATOR_WEIGHT * detect


def electra(size: Size) -> nn.Module:
    """The generator has a third of the discriminator's width, as ELECTRA-base's."""
    from transformers import ElectraConfig

    if size == "full":
        shared = {"vocab_size": WORDS[size], "embedding_size": 768, "num_hidden_layers": 12}
        big = ElectraConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, **shared)
        little = ElectraConfig(hidden_size=256, num_attention_heads=4, intermediate_size=1024, **shared)
    else:
        shared = {
            "vocab_size": WORDS[size], "embedding_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 32,
        }  # fmt: skip
        big = ElectraConfig(hidden_size=24, num_attention_heads=3, intermediate_size=48, **shared)
        little = ElectraConfig(hidden_size=8, num_attention_heads=1, intermediate_size=16, **shared)
    return Electra(little, big)


def detection(model: nn.Module, batch: Any) -> torch.Tensor:
    names = ("input_ids", "attention_mask", "token_type_ids")
    loss: torch.Tensor = model(**{name: batch[name] for name in names})
    return loss
