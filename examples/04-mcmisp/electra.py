"""Plain PyTorch: a small language, a small ELECTRA, and the co-occurrence statistics that guide its attention."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The words: [MASK], two that say the number of a sentence, fillers, and nouns and verbs of each topic.
MASK, NUMBER, FILLERS, NOUNS = 0, 1, 3, 7
TOPICS, NOUNS_A_TOPIC, CLAUSES = 6, 3, 4
VERBS = NOUNS + TOPICS * NOUNS_A_TOPIC
VOCABULARY = VERBS + 2 * TOPICS * NOUNS_A_TOPIC
LENGTH = 1 + 3 * CLAUSES


def corpus(sentences: int) -> Tensor:
    """Sentences with an easy pattern and a hard one.

    Easy: all nouns and verbs are of the sentence's topic, so they stand together often. Hard: each verb belongs to its
    noun, and its form agrees with the number, which only the first word tells.
    """
    topic, number = torch.randint(TOPICS, (sentences, 1)), torch.randint(2, (sentences, 1))
    noun = topic * NOUNS_A_TOPIC + torch.randint(NOUNS_A_TOPIC, (sentences, CLAUSES))
    filler = torch.randint(FILLERS, NOUNS, (sentences, CLAUSES))
    clauses = torch.stack([NOUNS + noun, filler, VERBS + 2 * noun + number], -1).flatten(1)
    return torch.cat([NUMBER + number, clauses], 1)


class Block(nn.Module):
    """A transformer layer that also returns where it looked."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.look, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.look(self.first(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = parts.unbind(2)  # each: batch, heads, words, width of a head
        attention = (query @ key.transpose(-1, -2) / math.sqrt(key.shape[-1])).softmax(-1)
        x = x + self.drop(self.join((attention @ value).transpose(1, 2).flatten(2)))
        return x + self.drop(self.think(self.second(x))), attention


class Encoder(nn.Module):
    def __init__(self, words: nn.Embedding, depth: int, heads: int = 4) -> None:
        super().__init__()
        width = words.embedding_dim
        self.words, self.places = words, nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, looks = self.words(tokens) + self.places, []
        for block in self.blocks:
            x, attention = block(x)
            looks.append(attention)
        return self.norm(x), looks


class Read(NamedTuple):
    """What the model made of a batch."""

    generator_loss: Tensor
    discriminator_loss: Tensor
    harm: Tensor  # how much the guided heads look at words that go with a mistake
    said: Tensor  # the sentences with the generator's words in the masked places
    wrong: Tensor  # where these are mistakes


class Electra(nn.Module):
    """A generator fills masked places; a discriminator finds the words that are not the original ones."""

    def __init__(self, width: int = 32, guided_heads: int = 2) -> None:
        super().__init__()
        words = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(words.weight, std=0.1)
        self.guided_heads = guided_heads
        self.generator, self.discriminator = Encoder(words, depth=1), Encoder(words, depth=2)
        self.speak, self.judge = nn.Linear(width, VOCABULARY), nn.Linear(width, 1)

    def forward(self, tokens: Tensor, masked: Tensor, guide: Tensor) -> Read:
        """`guide[w, c]`: how little to look at the word c where the generator wrongly said w."""
        heard, generator_looks = self.generator(tokens.masked_fill(masked, MASK))
        logits = self.speak(heard)
        noise = -torch.empty_like(logits).exponential_().log()  # makes the largest a sample (Gumbel)
        said = torch.where(masked, (logits + noise).argmax(-1), tokens)
        wrong = said != tokens
        judged, discriminator_looks = self.discriminator(said)
        pairs = [(look, tokens) for look in generator_looks] + [(look, said) for look in discriminator_looks]
        harm = torch.stack([self._harm(look, guide[said.unsqueeze(2), c.unsqueeze(1)], wrong) for look, c in pairs])
        told = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
        return Read(
            told.masked_fill(~masked, 0).sum() / masked.sum().clamp(min=1),
            F.binary_cross_entropy_with_logits(self.judge(judged).squeeze(-1), wrong.float()),
            harm.mean(),
            said,
            wrong,
        )

    def _harm(self, look: Tensor, weights: Tensor, wrong: Tensor) -> Tensor:
        """What the guided heads give, at the mistakes, to words that go with the mistake."""
        given = (look[:, : self.guided_heads].mean(1) * weights).sum(-1)
        return given.masked_fill(~wrong, 0).sum() / wrong.sum().clamp(min=1)


class Statistics:
    """Which words stand together in the sentences read so far, and which words were said by mistake."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.together = torch.zeros(VOCABULARY, VOCABULARY, device=device)
        self.mistakes = torch.zeros(VOCABULARY, device=device)

    def record(self, tokens: Tensor, read: Read) -> None:
        """Counts are whole numbers, so that their sum has no order."""
        present = F.one_hot(tokens, VOCABULARY).amax(1).float()
        self.together += present.T @ present
        self.mistakes += torch.bincount(read.said[read.wrong], minlength=VOCABULARY)

    def guide(self) -> Tensor:
        """[w, c]: the share of w's sentences that have c too; heavier for words that are often a mistake."""
        share = self.together / self.together.diagonal().clamp(min=1).unsqueeze(1)
        return share * (self.mistakes / self.mistakes.max().clamp(min=1)).unsqueeze(1)

    def state_dict(self) -> dict[str, Any]:
        return {"together": self.together, "mistakes": self.mistakes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.together.copy_(state["together"])
        self.mistakes.copy_(state["mistakes"])
