"""The functions that results of fp32 or less are computed by: each a fixed sequence of fp32 operations, with FMA.

On a GPU an fp32 operation takes half the time of one of fp64, or a quarter where a multiplication and an addition are
one FMA; on a CPU a vector holds twice as many. So these take no longer than reading and writing the values does.
Errors are those of good fp32 libraries: at most 1 unit in the last place for exp, 2.5 for tanh and sigmoid, 6 for the
normal distribution (below -2 up to 1e-7 x^2 of it, where stock's has few digits right); a half at the root of the mean
square. Polynomials as in `formula_functions`, coefficients rounded to fp32. Special values are those of the long
functions; numbers below 1e-36 may be 0. Standard library only.
"""

from __future__ import annotations

from easyscale.numerics.kernels.tracing import Value, fused, guessed_inverse, power_of_two, signed, where

MAGIC_SINGLE = 12582912.0  # 1.5 * 2^23: adding and subtracting it rounds to a whole number
LOG2_E_SINGLE = 1.4426950216293335
HALF_LOG2_E_SINGLE = 0.7213475108146667
LN2_SINGLE, LN2_SINGLE_LOW = 0.693145751953125, 1.428606765330187e-06  # 15 bits and the rest
RSQRT_2PI_SINGLE = 0.3989422917366028
# (e^r - 1 - r) / r^2 on |r| <= ln2 / 2, to 8e-10 of e^r
EXP_SINGLE = (0.5, 0.1666666716337204, 0.041666463017463684, 0.00833331048488617, 0.0013933731243014336,
              0.000198910798644647)  # fmt: skip
# (2^r - 1) / r on |r| <= 1 / 2, to 9e-9 of 2^r
EXP2_SINGLE = (0.6931471824645996, 0.24022650718688965, 0.055503569543361664, 0.009618082083761692,
               0.0013390978565439582, 0.00015453262312803417)  # fmt: skip
# (tanh x - x) / x^3 in x^2 on |x| <= 0.55, to 6e-9 of tanh x
TANH_SINGLE = (-0.3333333134651184, 0.13333113491535187, -0.05390942841768265, 0.021309388801455498,
               -0.00661022774875164)  # fmt: skip
# (the normal distribution up to x - 1 / 2) / x in x^2, on |x| <= 1, to 4e-8
NORMAL_NEAR = (0.3989422917366028, -0.06649035960435867, 0.009973328560590744, -0.001186343957670033,
               0.0001135022976086475, -7.66053835832281e-06)  # fmt: skip
# that up to -t, times e^(t^2 / 2) * (t + 3.5), in (t - 3.5) / (t + 3.5), on 1 <= t <= 15, to 3e-8
NORMAL_FAR = (0.7444160580635071, -0.565561830997467, 0.31542494893074036, -0.11605019867420197,
              0.017407741397619247, 0.0064673335291445255, -0.0031822952441871166, -0.00040437819552607834,
              0.0004344751941971481)  # fmt: skip


def polynomial_single(x: Value, coefficients: tuple[float, ...]) -> Value:
    result = fused(x, coefficients[-1], coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        result = fused(result, x, coefficient)
    return result


def below(x: Value, bound: float) -> Value:
    """The smaller one. NaN stays NaN."""
    return where(x > bound, bound, x)


def between(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    return below(where(x < low, low, x), high)


def inverse(d: Value) -> Value:
    """1 / d for 1 <= d <= 2^126: a guess from the bits, which is within 6 percent, and two steps that take the error to
    its third power."""
    minus, w = -d, guessed_inverse(d)
    for _ in range(2):
        rest = fused(minus, w, 1.0)
        w = fused(w, fused(rest, rest, rest), w)
    return w


def exp_parts_single(x: Value) -> tuple[Value, Value]:
    """(m, 1.5 * 2^23 + k) with e^x = (1 + m) 2^k, |m| < 0.42; for |x| < 2000."""
    shifted = fused(x, LOG2_E_SINGLE, MAGIC_SINGLE)
    k = shifted - MAGIC_SINGLE
    r = fused(k, -LN2_SINGLE_LOW, fused(k, -LN2_SINGLE, x))
    return fused(r * r, polynomial_single(r, EXP_SINGLE), r), shifted


def exp_between(x: Value) -> Value:
    """e^x for |x| <= 87."""
    m, shifted = exp_parts_single(x)
    scale = power_of_two(shifted)
    return fused(m, scale, scale)


def exp_single(x: Value) -> Value:
    """2^k is taken in two halves: results may be subnormal, or overflow."""
    m, shifted = exp_parts_single(between(x, -104.0, 89.0))
    k = shifted - MAGIC_SINGLE
    half = fused(k, 0.5, MAGIC_SINGLE)
    scale = power_of_two((k - (half - MAGIC_SINGLE)) + MAGIC_SINGLE)
    return fused(m, scale, scale) * power_of_two(half)


def tanh_single(x: Value) -> Value:
    """1 - 2 / (e^(2 |x|) + 1), or x + x^3 P(x^2)."""
    a = below(abs(x), 10.0)
    square = a * a
    near = fused(a * square, polynomial_single(square, TANH_SINGLE), a)
    far = fused(inverse(exp_between(2.0 * a) + 1.0), -2.0, 1.0)
    return signed(where(a < 0.546875, near, far), x)


def sigmoid_single(x: Value) -> Value:
    """0 for x < -87."""
    result = inverse(1.0 + exp_between(-between(x, -87.0, 87.0)))
    return where(x < -87.0, 0.0, result)


def normal_single(x: Value) -> tuple[Value, Value]:
    """The normal distribution up to x, and e^(-x^2 / 2). From |x| = 13 on they are 0 or 1."""
    t = below(abs(x), 13.0)
    square = t * t
    power = square * -HALF_LOG2_E_SINGLE
    shifted = power + MAGIC_SINGLE
    r = power - (shifted - MAGIC_SINGLE)
    scale = power_of_two(shifted)
    e = where(t < 13.0, fused(r * polynomial_single(r, EXP2_SINGLE), scale, scale), 0.0)
    w = inverse(t + 3.5)
    tail = e * (w * polynomial_single(fused(w, -7.0, 1.0), NORMAL_FAR))
    near = fused(x, polynomial_single(square, NORMAL_NEAR), 0.5)
    return where(t < 1.0, near, where(x < 0.0, tail, 1.0 - tail)), e
