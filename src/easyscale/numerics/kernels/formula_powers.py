"""Powers, and the products in two parts that they need, as formulas (see `tracing`). Standard library only."""

from __future__ import annotations

from easyscale.numerics.kernels.formula_functions import (
    INF,
    LN2_HIGH,
    LN2_LOW,
    LOG_LONG,
    NAN,
    exp,
    log_parts,
    maximum,
    minimum,
    polynomial,
    split,
    with_sign_of,
)
from easyscale.numerics.kernels.tracing import Value, where


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """(rounded, error): their exact sum is a + b."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """(rounded, error): their sum is a * b but for the last bit of the error."""
    product = a * b
    a_high, a_low = split(a)
    b_high, b_low = split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def log_in_two(x: Value) -> tuple[Value, Value]:
    """(high, low): log x to about 2^-62, for finite x > 0."""
    k, f, s = log_parts(x)
    divisor, divisor_low = two_sum(f.like(2.0), f)
    product, product_low = two_product(s, divisor)
    s_low = ((f - product) - product_low - s * divisor_low) / divisor
    z = s * s
    tail = 2.0 * s_low + s * z * polynomial(z, LOG_LONG)
    high, low = two_sum(k * LN2_HIGH, 2.0 * s)
    return two_sum(high, low + (tail + k * LN2_LOW))


def rounded(a: Value) -> Value:
    """The nearest whole number, for 0 <= a <= 2^52."""
    return (a + 2.0**52) - 2.0**52


def power(x: Value, y: Value) -> Value:
    """C's pow. Powers 1, 2, 3, -1 and 1/2 are x, x * x, (x * x) * x, 1 / x and sqrt x: squares of fp32 are exact."""
    a, exponent = abs(x), minimum(maximum(y, -(2.0**70)), 2.0**70)
    high, low = log_in_two(where((a > 0.0) & (a < INF), a, 1.0))
    product, product_low = two_product(high, exponent)
    # beyond 2^20 it is over- or underflow, whatever the lower part
    far = abs(product) > 2.0**20
    result = exp(product, where(far, 0.0, product_low + low * exponent))

    size = abs(y)
    whole = (size >= 2.0**53) | rounded(minimum(size, 2.0**52)).equals(size) | (size > 2.0**52)
    half = size * 0.5
    odd = whole & (size < 2.0**53) & ~rounded(minimum(half, 2.0**52)).equals(half)

    up = y > 0.0
    infinite = (a.equals(INF) & up) | (a.equals(0.0) & (y < 0.0)) | (y.equals(INF) & (a > 1.0))
    infinite = infinite | (y.equals(-INF) & (a < 1.0))
    zero = (a.equals(0.0) & up) | (a.equals(INF) & (y < 0.0)) | (y.equals(INF) & (a < 1.0))
    zero = zero | (y.equals(-INF) & (a > 1.0))
    result = where(infinite, INF, where(zero, 0.0, result))
    result = where(size.equals(INF) & a.equals(1.0), 1.0, result)
    result = where((x < 0.0) & (a < INF) & ~whole, NAN, result)
    result = where(odd, with_sign_of(result, x), result)

    result = where(y.equals(2.0), x * x, where(y.equals(3.0), x * x * x, where(y.equals(1.0), x, result)))
    result = where(y.equals(-1.0), 1.0 / x, result)
    result = where(y.equals(0.5) & (x > 0.0), x.sqrt(), result)
    result = where(x.is_nan() | y.is_nan(), x + y, result)
    return where(y.equals(0.0) | x.equals(1.0), 1.0, result)


def to_odd(total: Value, error: Value) -> Value:
    """A sum that was rounded, and what was lost, as the neighbour of the exact sum with an odd last bit (the sum itself
    where nothing was lost): it cannot be taken for a tie when it is rounded again."""
    bits = total.bits()
    inward = error * where(total < 0.0, -1.0, 1.0) < 0.0
    odd = (where(inward, bits - 1, bits) | 1).from_bits()
    exact = error.equals(0.0) | error.is_nan() | abs(total).equals(INF)
    return where(exact, total, odd)


def fused_for_single(a: Value, b: Value, factor: Value) -> Value:
    """a + factor * b, for fp32 a, b and factor: rounded to fp32 it is fmaf(factor, b, a). The product is exact."""
    return to_odd(*two_sum(a, factor * b))


def fused(a: Value, b: Value, factor: Value) -> Value:
    """fma(factor, b, a) of fp64, where nothing over- or underflows on the way (Boldo and Melquiond's way)."""
    product, product_low = exact_product(factor, b)
    middle, middle_low = two_sum(a, product_low)
    total, total_low = two_sum(product, middle)
    result = total + to_odd(*two_sum(middle_low, total_low))
    plain = a + product
    return where(abs(plain) < INF, result, plain)


def exact_product(a: Value, b: Value) -> tuple[Value, Value]:
    """`two_product` with an exact error, by Veltkamp's splitting, for sizes below 2^995."""
    parts = []
    for x in (a, b):
        stretched = x * 134217729.0
        high = stretched - (stretched - x)
        parts += [high, x - high]
    a_high, a_low, b_high, b_low = parts
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
