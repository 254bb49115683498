"""CTC in plain Python, state by state, as docs/numerics.md has it; ours must have its bits. Its exp and log are the
formulas of D2, each number for itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from d2_rows import fp32
from easyscale.numerics.kernels import ctc, native, primitives

INF = math.inf


@pytest.fixture(params=["portable", "native"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    primitives.use_portable(request.param == "portable")
    assert request.param == "portable" or native.available()
    yield request.param
    primitives.use_portable(False)


# ---------------------------------------------------------------------------------------------- the definition


@functools.cache
def formula(name: str, x: float) -> float:
    return float(primitives.evaluate(name, [torch.tensor(x, dtype=torch.float64)], dtype=torch.float64))


def log_sum(*terms: float) -> float:
    most = max(terms)
    if most == -INF:
        return -INF
    total = 0.0
    for term in terms:
        total = total + formula("exp", term - most)
    return formula("log", total) + most


class Sample:
    """One sample: log-probabilities by time and class, and its targets."""

    def __init__(self, scores: list[list[float]], targets: list[int], blank: int) -> None:
        self.labels = [blank]
        for target in targets:
            self.labels += [target, blank]
        self.y = [[row[label] for label in self.labels] for row in scores]
        self.scores, self.targets, self.blank = scores, targets, blank
        self.states, self.steps = range(len(self.labels)), len(scores)

    def skips(self, s: int) -> bool:
        """Whether the label before the last may come right before label s."""
        return s >= 2 and self.labels[s] != self.blank and self.labels[s] != self.labels[s - 2]

    @functools.cached_property
    def a(self) -> list[list[float]]:
        rows = [[self.y[0][s] if s < 2 else -INF for s in self.states]]
        for t in range(1, self.steps):
            before = [*rows[-1], -INF, -INF]  # at -1 and -2
            rows.append([
                log_sum(before[s], before[s - 1], before[s - 2] if self.skips(s) else -INF) + self.y[t][s]
                for s in self.states
            ])  # fmt: skip
        return rows

    @functools.cached_property
    def b(self) -> list[list[float]]:
        last = len(self.labels) - 1
        rows = [[(0.0 if s >= last - 1 else -INF) + self.y[-1][s] for s in self.states]]
        for t in reversed(range(self.steps - 1)):
            after = [*rows[0], -INF, -INF]
            rows.insert(0, [
                log_sum(after[s], after[s + 1], after[s + 2] if s + 2 <= last and self.skips(s + 2) else -INF)
                + self.y[t][s]
                for s in self.states
            ])  # fmt: skip
        return rows

    @functools.cached_property
    def loss(self) -> float:
        if not self.steps:
            return INF if self.targets else 0.0
        return -log_sum(self.a[-1][-1], self.a[-1][-2] if self.targets else -INF)

    def gradient(self, t: int, c: int, g: float) -> float:
        expected = 0.0
        for s in self.states:
            if self.labels[s] == c and self.a[t][s] + self.b[t][s] != -INF:
                expected = expected + formula("exp", ((self.a[t][s] + self.b[t][s]) + self.loss) - self.y[t][s])
        return (formula("exp", self.scores[t][c]) - expected) * g


# ---------------------------------------------------------------------------------------------- ours

TARGETS = [[1, 2, 2], [3, 1], [4], [], [5, 5, 5, 5], [1, 2], [2]]
INPUTS = [9, 7, 2, 4, 6, 0, 1]  # the fifth is too short for its labels, the sixth has nothing to be heard
CLASSES = 7
BLANKS = pytest.mark.parametrize("blank", [0, 3])


def batch(blank: int) -> tuple[Tensor, Tensor, list[Sample]]:
    generator = torch.Generator().manual_seed(5)
    scores = (2 * torch.randn(9, len(TARGETS), CLASSES, generator=generator)).log_softmax(2)
    targets = [[t + (t >= blank > 0) for t in row] for row in TARGETS]  # none is the blank
    padded = torch.tensor([row + [0] * (4 - len(row)) for row in targets])
    samples = [Sample(scores[: INPUTS[i], i].tolist(), row, blank) for i, row in enumerate(targets)]
    return scores, padded, samples


def bits_of(values: list[float]) -> list[str]:
    return [value.hex() for value in values]


@BLANKS
def test_losses_are_the_definition_to_the_bit(blank: int) -> None:
    scores, targets, samples = batch(blank)
    lengths = [len(row) for row in TARGETS]
    losses, _ = ctc.ctc_loss(scores, targets, INPUTS, lengths, blank)
    assert bits_of(losses.tolist()) == bits_of([fp32(sample.loss) for sample in samples])
    assert losses.tolist()[4:6] == [INF, INF]
    flat = torch.tensor([t for sample in samples for t in sample.targets])
    again, _ = ctc.ctc_loss(scores, flat, torch.tensor(INPUTS), torch.tensor(lengths), blank)
    assert torch.equal(again, losses)


@BLANKS
@pytest.mark.parametrize("zero_infinity", [True, False])
def test_gradients_are_the_definition_to_the_bit(blank: int, zero_infinity: bool) -> None:
    scores, targets, samples = batch(blank)
    lengths = [len(row) for row in TARGETS]
    slopes = torch.tensor([0.5, -1.0, 2.0, 1.0, 3.0, 1.0, 0.1])
    losses, states = ctc.ctc_loss(scores, targets, INPUTS, lengths, blank)
    made = ctc.ctc_loss_backward(
        slopes, scores, targets, INPUTS, lengths, losses, states, blank, zero_infinity
    )  # fmt: skip
    for i, sample in enumerate(samples):
        assert not made[sample.steps :, i].any(), "beyond the sample's inputs"
        if zero_infinity and sample.loss == INF:
            assert not made[:, i].any()
            continue
        for t in range(sample.steps):
            wanted = [fp32(sample.gradient(t, c, slopes[i].item())) for c in range(CLASSES)]
            assert bits_of(made[t, i].tolist()) == bits_of(wanted)


def test_another_order_of_states_is_seen() -> None:
    """The blank's share is a sum over every other state, and of two orders one is the definition."""
    scores = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    targets = [1, 2] * 6
    sample = Sample(scores.tolist(), targets, 0)
    sizes = [40], [len(targets)]
    losses, states = ctc.ctc_loss(scores[:, None].double(), torch.tensor([targets]), *sizes)
    made = ctc.ctc_loss_backward(
        torch.ones(1, dtype=torch.float64), scores[:, None].double(), torch.tensor([targets]), *sizes, losses, states, 0
    )[:, 0, 0]  # fmt: skip
    assert made.tolist() == [sample.gradient(t, 0, 1.0) for t in range(40)]
    sample.states = sample.states[::-1]
    assert made.tolist() != [sample.gradient(t, 0, 1.0) for t in range(40)]
