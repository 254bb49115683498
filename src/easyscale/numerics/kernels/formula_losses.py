"""Losses of single elements, and their gradients, as formulas over fp64 (see `tracing`). Standard library only.

x is the input, t the target, g the gradient of the loss, and `share` the factor of a backward: 1 or 2, divided by the
number of elements where losses are averaged.
"""

from __future__ import annotations

from easyscale.numerics.kernels import formula_functions as fn
from easyscale.numerics.kernels.tracing import Value, where


def square_loss(x: Value, t: Value) -> Value:
    apart = x - t
    return apart * apart


def square_loss_backward(g: Value, x: Value, t: Value, share: Value) -> Value:
    return ((x - t) * g) * share


def smooth_l1(x: Value, t: Value, beta: Value) -> Value:
    z = abs(x - t)
    return where(z < beta, ((z * 0.5) * z) / beta, z - 0.5 * beta)


def smooth_l1_backward(g: Value, x: Value, t: Value, beta: Value, share: Value) -> Value:
    apart = x - t
    outside = g * share
    result = where(apart >= beta, outside, ((apart * share) * g) / beta)
    return where(apart <= -beta, -outside, result)


def huber(x: Value, t: Value, delta: Value) -> Value:
    z = abs(x - t)
    return where(z < delta, (z * 0.5) * z, (z - 0.5 * delta) * delta)


def huber_backward(g: Value, x: Value, t: Value, delta: Value, share: Value) -> Value:
    apart = x - t
    outside = (g * share) * delta
    result = where(apart > delta, outside, (apart * share) * g)
    return where(apart < -delta, -outside, result)


def entropy(x: Value, t: Value) -> Value:
    """Of two classes: logarithms are at least -100."""
    return (t - 1.0) * fn.maximum(fn.log1p(-x), -100.0) - t * fn.maximum(fn.log(x), -100.0)


def entropy_backward(g: Value, x: Value, t: Value) -> Value:
    return (g * (x - t)) / fn.maximum((1.0 - x) * x, 1e-12)


def _softplus_of(x: Value) -> Value:
    """log(1 + e^-x)."""
    return fn.log1p(fn.exp(-abs(x))) + where(x < 0.0, -x, 0.0)


def entropy_of_logits(x: Value, t: Value) -> Value:
    return (1.0 - t) * x + _softplus_of(x)


def entropy_of_logits_weighed(x: Value, t: Value, positive: Value) -> Value:
    return (1.0 - t) * x + ((positive - 1.0) * t + 1.0) * _softplus_of(x)


def soft_margin(x: Value, t: Value) -> Value:
    return fn.log1p(fn.exp(-(x * t)))


def soft_margin_backward(g: Value, x: Value, t: Value, share: Value) -> Value:
    return (((-t) / (1.0 + fn.exp(x * t))) * g) * share
