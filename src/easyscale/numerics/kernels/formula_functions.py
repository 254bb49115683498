"""The mathematical functions of the formulas, each a fixed sequence of fp64 operations (see `tracing`).

Error against the true value: at most about 2e-16 times a small whole number, so that the one rounding to fp32 at the
end nearly always gives the correctly rounded fp32. Polynomials are Chebyshev interpolations (degree + 1 nodes on the
interval named beside them), computed in 300-bit arithmetic, coefficients rounded to fp64, lowest power first, evaluated
by Horner's rule. Special values are those of C's <math.h>. Standard library only.
"""

from __future__ import annotations

import math

from easyscale.numerics.kernels.tracing import Value, bits_of, where

INF = math.inf
NAN = math.nan
MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to a whole number, to even on ties
LN2_HIGH, LN2_LOW = 0.693147180559663, 2.8235290563031577e-13  # 41 bits and the rest: k * high is exact
LOG2_E = 1.4426950408889634
LOG10_E = 0.4342944819032518
LOG10_2_HIGH, LOG10_2_LOW = 0.30102999566383914, 1.42050232272661e-13
LN2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476
TWO_OVER_PI = 0.6366197723675814
# pi/2 in parts of 22 bits, so that whole numbers below 2^31 times a part are exact; the last is in full
PI_2_PARTS = (1.570796012878418, 3.139164164167596e-07, 6.223371969669989e-14, 2.0222659584103533e-21,
              2.9038559739793605e-28)  # fmt: skip
PI_2, PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17
PI_4, PI_4_LOW = 0.7853981633974483, 3.061616997868383e-17
PI, PI_LOW = 3.141592653589793, 1.2246467991473532e-16
TAN_PI_8, TAN_3PI_8 = 0.41421356237309503, 2.414213562373095

# (e^r - 1 - r) / r^2 on |r| <= ln2 / 2
EXP = (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326136, 0.0013888888888883748,
       0.00019841269874820627, 2.4801587325547743e-05, 2.7557255400206422e-06, 2.75572736431103e-07,
       2.5105217004720745e-08, 2.0914686968086876e-09)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, on |s| <= 3 - 2 sqrt 2
LOG = (0.6666666666666666, 0.4000000000000088, 0.2857142857080323, 0.2222222239180047, 0.18181795630884753,
       0.15386240205813478, 0.13268759668560612, 0.13086767009948175)  # fmt: skip
# the same, for the logarithm in two parts
LOG_LONG = (0.6666666666666666, 0.4, 0.28571428571428503, 0.22222222222252955, 0.181818181750467, 0.15384616240665697,
            0.13333267554759004, 0.11767825745236031, 0.10437362638966984, 0.10909707786470813)  # fmt: skip
# (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4 in r^2, on |r| <= pi / 4
SIN = (-0.16666666666666666, 0.008333333333333331, -0.00019841269841265063, 2.7557319219337312e-06,
       -2.5052106231802837e-08, 1.6058531516797758e-10, -7.586691094197958e-13)  # fmt: skip
COS = (0.041666666666666664, -0.0013888888888888887, 2.4801587301584645e-05, -2.755731922140179e-07,
       2.0876755790721963e-09, -1.1470460830795304e-11, 4.7458685530816656e-14)  # fmt: skip
# (atan t - t) / t^3 in t^2, on |t| <= tan(pi / 8)
ATAN = (-0.3333333333333333, 0.19999999999999804, -0.14285714285659779, 0.11111111105150588, -0.09090908753259112,
        0.07692296368042296, -0.0666642476020052, 0.05878927554473807, -0.05230443640686948, 0.045515447340221615,
        -0.03456931506332609, 0.016284375050043393)  # fmt: skip
# erf x / x - 1 in x^2, on |x| <= 1
ERF = (0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
       -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
       -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11)  # fmt: skip
# erfc x * e^(x^2) * (x + 2) in (x - 4) / (x + 4), on 1 <= x <= 28
ERFC = (0.8219967457503683, -0.4584126315605385, 0.33576934442870976, -0.21233819791864958, 0.11292523308002483,
        -0.04779530595899059, 0.013783401876717317, -0.000682161308100304, -0.0020084716547115306,
        0.0013172951093307758, -0.00041152880448325343, 1.8844093491869355e-05, 4.147528360589613e-05,
        -1.5044605070722508e-05, -1.192174441739387e-06, 2.2166706808343264e-06, -2.762118405972682e-07,
        -2.3202952534007647e-07, 6.23095304819269e-08, 7.2430506212363e-09)  # fmt: skip


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result


def minimum(x: Value, bound: float) -> Value:
    """NaN stays NaN."""
    return where(x > bound, bound, x)


def maximum(x: Value, bound: float) -> Value:
    """NaN stays NaN."""
    return where(x < bound, bound, x)


def with_sign_of(magnitude: Value, shown: Value) -> Value:
    """magnitude >= 0, with the sign of the other."""
    return (magnitude.bits() | (shown.bits() & (1 << 63))).from_bits()


def scaled(x: Value, power: Value) -> Value:
    """x * 2^power with one rounding, for |x| in [1/4, 4] (any x where power = 0) and -2046 <= power <= 2046: in two
    steps, the first exact."""
    half = ((power + 4096) >> 1) - 2048
    return x * ((half + 1023) << 52).from_bits() * ((power - half + 1023) << 52).from_bits()


# ------------------------------------------------------------------------------------------------ exponentials


def exp_parts(x: Value, low: Value | None = None) -> tuple[Value, Value]:
    """(m, k) with e^(x + low) = (1 + m) 2^k, |m| < 0.42; for |x| < 2000."""
    shifted = x * LOG2_E + MAGIC
    k = shifted - MAGIC
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    if low is not None:
        r = r + low
    return r + r * r * polynomial(r, EXP), shifted.bits() - bits_of(MAGIC)


def exp(x: Value, low: Value | None = None) -> Value:
    m, k = exp_parts(minimum(maximum(x, -800.0), 800.0), low)
    return scaled(1.0 + m, k)


def expm1(x: Value) -> Value:
    m, k = exp_parts(minimum(maximum(x, -50.0), 800.0))
    # e^x - 1 = 2^k ((1 - 2^-k) + m); far up 2^-k is nothing beside 1
    one = where(x > 44.0, 1.0, 1.0 - ((1023 - k) << 52).from_bits())
    return where(abs(x) < 2.0**-54, x, scaled(one + m, k))


def from_whole(k: Value) -> Value:
    """int64 -> fp64, for |k| < 2^51."""
    return (k + bits_of(MAGIC)).from_bits() - MAGIC


def exp2(x: Value) -> Value:
    bounded = minimum(maximum(x, -1100.0), 1100.0)
    shifted = bounded + MAGIC
    k = shifted - MAGIC
    r = (bounded - k) * LN2
    return scaled(1.0 + (r + r * r * polynomial(r, EXP)), shifted.bits() - bits_of(MAGIC))


def half_exp(x: Value) -> Value:
    """e^x / 2, which overflows later than e^x."""
    m, k = exp_parts(minimum(maximum(x, -800.0), 800.0))
    return scaled(1.0 + m, k - 1)


def sinh(x: Value) -> Value:
    a = abs(x)
    m = expm1(minimum(a, 40.0))
    return with_sign_of(where(a < 22.0, 0.5 * (m + m / (m + 1.0)), half_exp(a)), x)


def cosh(x: Value) -> Value:
    half = half_exp(abs(x))
    return half + 0.25 / half


def tanh(x: Value) -> Value:
    m = expm1(2.0 * minimum(abs(x), 22.0))
    return with_sign_of(m / (m + 2.0), x)


def sigmoid(x: Value) -> Value:
    return 1.0 / (1.0 + exp(-x))


# -------------------------------------------------------------------------------------------------- logarithms


def log_parts(x: Value) -> tuple[Value, Value, Value]:
    """(k, f, s) with x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt 2, s = f / (2 + f); for finite x > 0."""
    small = x < 2.0**-1022
    bits = where(small, x * 2.0**54, x).bits()
    lifted = bits - bits_of(SQRT_HALF) + (1024 << 52)
    k = (lifted >> 52) - 1024
    f = (bits - (k << 52)).from_bits() - 1.0
    return where(small, from_whole(k) - 54.0, from_whole(k)), f, f / (2.0 + f)


def log_special(x: Value, result: Value) -> Value:
    result = where(x.equals(0.0), -INF, where(x < 0.0, NAN, result))
    return where(x.equals(INF) | x.is_nan(), x, result)


def log_of_mantissa(f: Value, s: Value) -> tuple[Value, Value]:
    """(f, c) with log(1 + f) = f - c."""
    z = s * s
    return f, s * (f - z * polynomial(z, LOG))


def log_finite(x: Value) -> Value:
    k, f, s = log_parts(x)
    f, c = log_of_mantissa(f, s)
    return k * LN2_HIGH + (f - (c - k * LN2_LOW))


def log(x: Value) -> Value:
    return log_special(x, log_finite(x))


def log2(x: Value) -> Value:
    k, f, s = log_parts(x)
    f, c = log_of_mantissa(f, s)
    return log_special(x, k + (f - c) * LOG2_E)


def log10(x: Value) -> Value:
    k, f, s = log_parts(x)
    f, c = log_of_mantissa(f, s)
    return log_special(x, k * LOG10_2_HIGH + ((f - c) * LOG10_E + k * LOG10_2_LOW))


def log1p(x: Value) -> Value:
    u = 1.0 + x
    lost = where(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    result = log_special(u, log_finite(u) + lost / where(u > 0.0, u, 1.0))
    return where(abs(x) < 2.0**-54, x, where(x.equals(INF), x, result))


def asinh(x: Value) -> Value:
    a = abs(x)
    b = minimum(a, 2.0**500)
    squared = b * b
    result = log1p(b + squared / (1.0 + (squared + 1.0).sqrt()))
    return with_sign_of(where(a > 2.0**28, log(a) + LN2, result), x)


def acosh(x: Value) -> Value:
    t = x - 1.0
    b = minimum(t, 2.0**500)
    result = log1p(b + (b * 2.0 + b * b).sqrt())
    return where(x < 1.0, NAN, where(x > 2.0**28, log(x) + LN2, result))


def atanh(x: Value) -> Value:
    a = abs(x)
    result = 0.5 * log1p(2.0 * a / (1.0 - a))
    return with_sign_of(where(a.equals(1.0), INF, where(a > 1.0, NAN, result)), x)


# ------------------------------------------------------------------------------------------------ trigonometry


def reduced(x: Value) -> tuple[Value, Value]:
    """(r, quadrant): x = quadrant * pi/2 + r. Exact to the last places of fp64 for |x| <= 2^30; beyond that r is kept
    within pi/4 and means less and less (docs/numerics.md)."""
    shifted = x * TWO_OVER_PI + MAGIC
    k = shifted - MAGIC
    r = x
    for part in PI_2_PARTS:
        r = r - k * part
    return minimum(maximum(r, -0.7855), 0.7855), shifted.bits() & 3


def sin_cos(r: Value) -> tuple[Value, Value]:
    z = r * r
    return r + r * z * polynomial(z, SIN), 1.0 - (z * 0.5 - z * z * polynomial(z, COS))


def by_quadrant(r: Value, quadrant: Value) -> Value:
    """The sine of the angle."""
    s, c = sin_cos(r)
    odd = from_whole(quadrant & 1).equals(1.0)
    return (where(odd, c, s).bits() ^ ((quadrant & 2) << 62)).from_bits()


def sin(x: Value) -> Value:
    r, quadrant = reduced(x)
    return where(abs(x) < 2.0**-27, x, where(abs(x).equals(INF), NAN, by_quadrant(r, quadrant)))


def cos(x: Value) -> Value:
    r, quadrant = reduced(x)
    return where(abs(x).equals(INF), NAN, by_quadrant(r, quadrant + 1))


def tan(x: Value) -> Value:
    r, quadrant = reduced(x)
    s, c = sin_cos(r)
    odd = from_whole(quadrant & 1).equals(1.0)
    result = where(odd, -c, s) / where(odd, s, c)
    return where(abs(x) < 2.0**-27, x, where(abs(x).equals(INF), NAN, result))


def angle(y: Value, x: Value) -> Value:
    """The angle in [0, pi/2] of a point with y >= 0, x >= 0, not both 0 or infinite."""
    steep = y > x * TAN_3PI_8
    middle = (y > x * TAN_PI_8) & ~steep
    t = where(steep, -x, where(middle, y - x, y)) / where(steep, y, where(middle, y + x, x))
    z = t * t
    tail = t * z * polynomial(z, ATAN)
    high = where(steep, PI_2, where(middle, PI_4, 0.0))
    low = where(steep, PI_2_LOW, where(middle, PI_4_LOW, 0.0))
    return where(steep | middle, high + (t + (tail + low)), t + tail)


def atan(x: Value) -> Value:
    a = abs(x)
    return where(a < 2.0**-27, x, with_sign_of(angle(minimum(a, 2.0**60), a.like(1.0)), x))


def atan2(y: Value, x: Value) -> Value:
    a, b = abs(y), abs(x)
    both = a.equals(INF) & b.equals(INF)
    a, b = where(both, 1.0, a), where(both, 1.0, b)
    large = (a > 2.0**1000) | (b > 2.0**1000)
    a, b = where(large, a * 2.0**-54, a), where(large, b * 2.0**-54, b)
    first = where(a.equals(0.0), 0.0, where(b.equals(INF), 0.0, where(a.equals(INF), PI_2, angle(a, b))))
    first = where(b.equals(0.0) & (a > 0.0), PI_2, first)
    left = x.bits() >> 63
    result = where(from_whole(left).equals(1.0), PI - (first - PI_LOW), first)
    return where(x.is_nan() | y.is_nan(), x + y, with_sign_of(result, y))


def asin(x: Value) -> Value:
    a = abs(x)
    result = with_sign_of(angle(a, ((1.0 - a) * (1.0 + a)).sqrt()), x)
    return where(a < 2.0**-27, x, where(a > 1.0, NAN, result))


def acos(x: Value) -> Value:
    a = abs(x)
    first = angle(((1.0 - a) * (1.0 + a)).sqrt(), a)
    return where(a > 1.0, NAN, where(x < 0.0, PI - (first - PI_LOW), first))


# -------------------------------------------------------------------------------------------- the error function


def split(x: Value) -> tuple[Value, Value]:
    """x = high + low, high with the upper 26 bits."""
    high = (x.bits() & -(1 << 27)).from_bits()
    return high, x - high


def gauss(a: Value) -> Value:
    """e^(-a^2), a^2 in two parts."""
    high, low = split(a)
    return exp(-(high * high), -(low * (high + a)))


def erf_parts(x: Value) -> tuple[Value, Value, Value]:
    """(erf |x| for |x| < 1, erfc |x| for |x| >= 1, e^(-x^2)). NaN gives NaN."""
    a = minimum(abs(x), 28.0)
    z = a * a
    e = gauss(a)
    return a + a * polynomial(z, ERF), e * polynomial((a - 4.0) / (a + 4.0), ERFC) / (a + 2.0), e


def erf(x: Value) -> Value:
    near, far, _ = erf_parts(x)
    return with_sign_of(where(abs(x) < 1.0, near, 1.0 - far), x)


def erfc_from(x: Value, near: Value, far: Value) -> Value:
    left = x < 0.0
    middle = where(left, 1.0 + near, 1.0 - near)
    return where(abs(x) < 1.0, middle, where(left, 2.0 - far, far))


def erfc(x: Value) -> Value:
    near, far, _ = erf_parts(x)
    return erfc_from(x, near, far)


def erfinv(x: Value) -> Value:
    """Winitzki's closed approximation and three of Halley's steps."""
    a = abs(x)
    rest = 1.0 - a
    safe = where(a < 1.0, a, 0.5)
    logarithm = log_finite((1.0 - safe) * (1.0 + safe))
    b = 4.330746750799873 + 0.5 * logarithm
    y = maximum((b * b - logarithm * 6.802721088435375).sqrt() - b, 0.0).sqrt()
    for _ in range(3):
        near, far, e = erf_parts(y)
        error = where(y < 1.0, near - a, rest - far)
        step = error / (e * 1.1283791670955126)
        y = y - step / (1.0 + y * step)
    y = where(a < 2.0**-30, a * 0.886226925452758, y)
    return with_sign_of(where(a.equals(1.0), INF, where(a > 1.0, NAN, y)), x)
