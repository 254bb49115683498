"""Shorter functions for results that are rounded to fp32 or less, each a fixed sequence of fp64 operations.

An fp32 keeps 24 bits, so an error of 1e-11 before the rounding is seen in one result of ten thousand, as 0.5002 units
in the last place instead of 0.5. That saves half of the operations. Polynomials as in `formula_functions`. Special
values are those of the long functions. Standard library only.
"""

from __future__ import annotations

from easyscale.numerics.kernels.formula_functions import LOG2_E, MAGIC, maximum, minimum, polynomial, with_sign_of
from easyscale.numerics.kernels.tracing import Value, bits_of, where

LN2_SINGLE = 0.6931471805599453
# (e^r - 1 - r) / r^2 on |r| <= ln2 / 2, to 4e-12 of e^r
EXP_SINGLE = (0.5, 0.16666666718997508, 0.041666666718980845, 0.008333298483754886, 0.001388885404961482,
              0.0001989927395864936, 2.4859578222625295e-05)  # fmt: skip
# the normal distribution up to -t, times e^(t^2 / 2) * (t + 3.5), in (t - 3.5) / (t + 3.5), on 0 <= t <= 15, to 6e-12
NORMAL = (0.7444160754313113, -0.565561816037567, 0.31542497061184055, -0.1160509296971232, 0.017407813648878754,
          0.006476231507224325, -0.0031889099795498707, -0.0004450490936614354, 0.0004757230601989758,
          6.685832221231459e-05, -7.324073325683386e-05, -1.7622630491727988e-05, 8.686678351235797e-06,
          3.4463535494568325e-06)  # fmt: skip


def exp_parts_single(x: Value) -> tuple[Value, Value]:
    """(m, s) with e^x = (1 + m) s, s a power of two, or 0 for x < -708.75, or infinity for x > 709.5, within -709 and
    710."""
    shifted = x * LOG2_E + MAGIC
    r = x - (shifted - MAGIC) * LN2_SINGLE
    m = r + r * r * polynomial(r, EXP_SINGLE)
    return m, ((shifted.bits() - (bits_of(MAGIC) - 1023)) << 52).from_bits()


def exp_single(x: Value) -> Value:
    bounded = minimum(maximum(x, -709.0), 710.0)
    m, s = exp_parts_single(bounded)
    return (1.0 + m) * s


def tanh_single(x: Value) -> Value:
    m, s = exp_parts_single(2.0 * minimum(abs(x), 22.0))
    e = (s - 1.0) + m * s
    return with_sign_of(e / (e + 2.0), x)


def sigmoid_single(x: Value) -> Value:
    return 1.0 / (1.0 + exp_single(-x))


def normal_single(x: Value) -> tuple[Value, Value]:
    """The normal distribution up to x, and e^(-x^2 / 2), which is 0 from |x| = 37.65 on."""
    t = minimum(abs(x), 37.65)
    m, s = exp_parts_single((t * t) * -0.5)
    e = (1.0 + m) * s
    w = 1.0 / (t + 3.5)
    tail = e * (w * polynomial((t - 3.5) * w, NORMAL))
    return where(x < 0.0, tail, 1.0 - tail), e
