"""Connectionist temporal classification: the forward and backward recursions over the labels with blanks, in fp64.

    a[t, s] = log-sum of a[t-1, s], a[t-1, s-1] and, where a label may be skipped, a[t-1, s-2]; plus log p[t, label s]
    log-sum of x, y, z = log((exp(x - m) + exp(y - m)) + exp(z - m)) + m, m the largest; -inf where all are
The derivative is (p[t, c] - sum over the s with label c of exp(a + b + loss - log p), in the order of s) times the
gradient; b is the same recursion from the end. Both are in fp64 throughout: the backward pass computes a once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import evaluate
from easyscale.numerics.kernels.reductions import rounded
from easyscale.numerics.kernels.registry import form

Lengths = Sequence[int] | Tensor


@dataclass(frozen=True, slots=True)
class Problem:
    """One batch: log-probabilities of the labels [T, N, L], lengths [N], and which labels [N, L] may skip a blank."""

    scores: Tensor
    labels: Tensor
    inputs: Tensor
    targets: Tensor
    skips: Tensor


def _problem(log_probs: Tensor, targets: Tensor, inputs: Lengths, lengths: Lengths, blank: int) -> Problem:
    device, (steps, batch, _) = log_probs.device, log_probs.shape
    sizes = torch.as_tensor(inputs, device=device).long(), torch.as_tensor(lengths, device=device).long()
    longest = int(sizes[1].max()) if batch else 0
    targets = targets.to(device).long()
    if targets.dim() == 1:  # one after the other
        starts = torch.cumsum(sizes[1], dim=0) - sizes[1]
        places = starts[:, None] + torch.arange(longest, device=device)
        padded = targets[places.clamp(max=max(targets.numel() - 1, 0))] if targets.numel() else places
    else:
        padded = targets[:, :longest]
    there = torch.arange(longest, device=device) < sizes[1][:, None]
    padded = torch.where(there, padded, blank)
    labels = torch.full((batch, 2 * longest + 1), blank, dtype=torch.int64, device=device)
    labels[:, 1::2] = padded
    skips = torch.zeros_like(labels, dtype=torch.bool)
    skips[:, 2:] = (labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank)
    scores = log_probs.double().gather(2, labels.expand(steps, batch, -1))
    return Problem(scores, labels, *sizes, skips)


def _log_sum(*terms: Tensor) -> Tensor:
    most = torch.stack(terms).amax(0)
    base = torch.where(most == -math.inf, 0.0, most)
    total = torch.zeros_like(base)
    for term in terms:
        total = total + evaluate("exp", [term - base], dtype=torch.float64)
    return evaluate("log", [total], dtype=torch.float64) + base


def _shifted(x: Tensor, places: int) -> Tensor:
    """x[:, s - places], -inf before the first (after the last for negative places)."""
    filled = torch.full_like(x, -math.inf)
    if places > 0:
        filled[:, places:] = x[:, :-places]
    else:
        filled[:, :places] = x[:, -places:]
    return filled


def _step(before: Tensor, skips: Tensor, way: int) -> Tensor:
    nothing = torch.full_like(before, -math.inf)
    one = _shifted(before, way) if before.shape[1] > 1 else nothing
    two = torch.where(skips, _shifted(before, 2 * way), -math.inf) if before.shape[1] > 2 else nothing
    return _log_sum(before, one, two)


def _forward(problem: Problem) -> Tensor:
    """a as [T, N, L]."""
    scores = problem.scores
    start = torch.full_like(scores[0], -math.inf)
    start[:, :2] = scores[0, :, :2]
    start[:, 1:] = torch.where((problem.targets > 0)[:, None], start[:, 1:], -math.inf)
    rows = [start]
    for t in range(1, scores.shape[0]):
        rows.append(_step(rows[-1], problem.skips, 1) + scores[t])
    return torch.stack(rows)


def _loss(problem: Problem, a: Tensor) -> Tensor:
    """fp64 [N]"""
    last = (problem.inputs - 1).clamp(min=0)[None, :, None].expand(1, -1, a.shape[2])
    final = a.gather(0, last)[0]
    end = 2 * problem.targets[:, None]
    blank = final.gather(1, end)
    label = torch.where(end > 0, final.gather(1, (end - 1).clamp(min=0)), -math.inf)
    loss = -_log_sum(blank, label).squeeze(1)
    empty = torch.where(problem.targets > 0, math.inf, 0.0).double()
    return torch.where(problem.inputs > 0, loss, empty)


def _backward(problem: Problem) -> Tensor:
    """b as [T, N, L], each sample's from its own end."""
    scores, end = problem.scores, 2 * problem.targets[:, None]
    places = torch.arange(scores.shape[2], device=scores.device)
    ending = (places == end) | ((places == end - 1) & (end > 0))
    inside = places <= end
    ahead = torch.zeros_like(problem.skips)
    if ahead.shape[1] > 2:
        ahead[:, :-2] = problem.skips[:, 2:]
    after = torch.full_like(scores[0], -math.inf)
    rows = []
    for t in reversed(range(scores.shape[0])):
        step = torch.where(inside, _step(after, ahead, -1), -math.inf)
        first = (problem.inputs == t + 1)[:, None]
        after = torch.where(first, torch.where(ending, 0.0, -math.inf), step) + scores[t]
        rows.append(after)
    return torch.stack(rows[::-1])


@form("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    problem = _problem(log_probs, targets, input_lengths, target_lengths, blank)
    a = _forward(problem)
    return rounded(_loss(problem, a), log_probs.dtype), rounded(a.transpose(0, 1).contiguous(), log_probs.dtype)


@form("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths,
    neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    problem = _problem(log_probs, targets, input_lengths, target_lengths, blank)
    a = _forward(problem)
    loss = _loss(problem, a)
    both = a + _backward(problem)
    share = evaluate("exp", [(both + loss[None, :, None]) - problem.scores], dtype=torch.float64)
    share = torch.where(both == -math.inf, 0.0, share)
    labels = problem.labels.expand(share.shape)
    expected = torch.zeros(log_probs.shape, dtype=torch.float64, device=log_probs.device).scatter_add(2, labels, share)
    made = (evaluate("exp", [log_probs], dtype=torch.float64) - expected) * grad.double()[:, None]
    steps = torch.arange(log_probs.shape[0], device=log_probs.device)[:, None]
    dropped = steps >= problem.inputs
    if zero_infinity:
        dropped = dropped | (loss == math.inf)
    return rounded(torch.where(dropped[..., None], 0.0, made), log_probs.dtype)
