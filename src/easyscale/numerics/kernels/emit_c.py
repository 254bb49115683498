"""Writes the formulas as C: `formulas.h`, one inline function for each, and `elementwise*.c`, loops over arrays.

The loops work on blocks: inputs are converted to fp64 (exactly; for formulas of fp32 they are rounded to that),
computed in a loop that the compiler makes SIMD code of, one element beside another, and rounded to the output's dtype.
Needs gcc or clang with -ffp-contract=off. Standard library only: runs at build time, before torch is there.

    void ew_NAME(const void *const *in, const int *in_types, void *out, int out_type,
                 const double *scalars, long n, int threads)

Types: 0 fp32, 1 fp64, 2 bf16, 3 fp16, 4 uint8 and bool, 5 int8, 6 int16, 7 int32, 8 int64; 16 more for an input that is
a single element, the same everywhere. Outputs are floating point. fp64 is rounded to fp32 to nearest, ties to even, and
fp32 in the same way to bf16 and fp16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from easyscale.numerics.kernels.tracing import Formula, Node

FILES = 4  # C files the loops are spread over, so that they are compiled beside one another

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "iadd": "+", "isub": "-", "iand": "&", "ior": "|", "ixor": "^", "ishl": "<<", "ishr": ">>", "and": "&", "or": "|",
    "sadd": "+", "ssub": "-", "smul": "*",
}  # fmt: skip
_COMPARISONS = {"lt": "<", "le": "<=", "eq": "==", "slt": "<"}
_CALLS = {
    "sqrt": "sqrt", "abs": "fabs", "neg": "-", "bits": "d2_bits", "from_bits": "d2_from_bits", "not": "~",
    "sabs": "fabsf", "sneg": "-", "sfma": "d2_fused", "ssign": "copysignf", "spower": "d2_power_of_two",
    "swhere": "d2_select_single", "sguess": "d2_guess",
}  # fmt: skip
# a truth value is a mask of as many bits: selection is then arithmetic, and no branch can come in the way of SIMD code
_TYPES = {"f": "double", "i": "uint64_t", "b": "uint64_t", "s": "float", "t": "uint32_t"}

_HEADER = """\
/* Written by emit_c.py from formulas.py. Compile with -ffp-contract=off. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define D2_INLINE static inline __attribute__((always_inline))

D2_INLINE uint64_t d2_bits(double x) { uint64_t b; memcpy(&b, &x, 8); return b; }
D2_INLINE double d2_from_bits(uint64_t b) { double x; memcpy(&x, &b, 8); return x; }
D2_INLINE uint64_t d2_choose(uint64_t mask, uint64_t yes, uint64_t no) { return (yes & mask) | (no & ~mask); }
D2_INLINE double d2_select(uint64_t mask, double yes, double no) {
    return d2_from_bits(d2_choose(mask, d2_bits(yes), d2_bits(no)));
}

D2_INLINE uint32_t d2_bits_single(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
D2_INLINE float d2_from_bits_single(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
D2_INLINE float d2_select_single(uint32_t mask, float yes, float no) {
    return d2_from_bits_single((d2_bits_single(yes) & mask) | (d2_bits_single(no) & ~mask));
}
/* 2^k of 1.5 * 2^23 + k */
D2_INLINE float d2_power_of_two(float x) { return d2_from_bits_single((d2_bits_single(x) + 127u) << 23); }
D2_INLINE float d2_guess(float x) { return d2_from_bits_single(0x7ef311c7u - d2_bits_single(x)); }
#ifdef __FP_FAST_FMAF
D2_INLINE float d2_fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
/* The product is exact in fp64; the sum is rounded to odd there (its last bit is set if anything was lost), after which
   rounding to fp32 cannot be misled. */
D2_INLINE float d2_fused(float a, float b, float c) {
    const double p = (double)a * b, q = c, s = p + q, t = s - p, lost = (p - (s - t)) + (q - t);
    const uint64_t sum = d2_bits(s), rest = d2_bits(lost) << 1, infinite = (((sum >> 52) & 0x7ff) + 1) >> 11;
    const uint64_t cut = ((rest | -rest) >> 63) & ~(sum | infinite) & 1; /* SSE2 cannot compare these */
    const uint64_t toward = -((sum ^ d2_bits(lost)) >> 63) | 1; /* +1: the exact sum lies further from zero */
    return (float)d2_from_bits(sum + (toward & -cut));
}
#endif
"""

_BLOCKS_HEADER = """\
/* Written by emit_c.py: blocks of one dtype to and from fp64. */
#pragma once
#include "formulas.h"

#define D2_BLOCK 512
#define D2_SINGLE 16

void d2_load(double *restrict to, const void *in, int type, long start, int count);
void d2_store(const double *restrict from, void *out, int type, long start, int count);
void d2_spread(double *to, const void *in, int type);
void d2_load_single(float *restrict to, const void *in, int type, long start, int count);
void d2_store_single(const float *restrict from, void *out, int type, long start, int count);
void d2_spread_single(float *to, const void *in, int type);
"""

_BLOCKS = """\
/* Written by emit_c.py: blocks of one dtype to and from fp64. */
#include "elementwise_blocks.h"

static inline double d2_from_half(uint16_t h) {
    /* exponent and mantissa moved into fp64's places, then scaled by the difference of the biases: exact */
    uint64_t magnitude = (uint64_t)(h & 0x7fffu) << 42;
    double x = d2_from_bits(magnitude) * 0x1p+1008;
    x = (h & 0x7c00u) == 0x7c00u ? d2_from_bits(magnitude | 0x7ff0000000000000u) : x;
    return d2_from_bits(d2_bits(x) | (uint64_t)(h & 0x8000u) << 48);
}

static inline uint16_t d2_to_bfloat(float x) {
    uint32_t b = d2_bits_single(x);
    uint32_t up = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : up);
}

static inline uint16_t d2_to_half(float x) {
    uint32_t b = d2_bits_single(x), sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
    /* normal: the exponent moved, 13 bits rounded away; subnormal: adding 1/2 leaves the bits in the last places */
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    uint32_t small = d2_bits_single(d2_from_bits_single(a) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? small : normal;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? 0x7e00u : r;
    return (uint16_t)(sign | r);
}

#define D2_LOAD(T, EXPRESSION) { \\
        const T *p = (const T *)in + start; \\
        for (int i = 0; i < count; i++) { to[i] = EXPRESSION; } \\
        return; \\
    }

void d2_load(double *restrict to, const void *in, int type, long start, int count) {
    switch (type) {
    case 0: D2_LOAD(float, (double)p[i])
    case 1: D2_LOAD(double, p[i])
    case 2: D2_LOAD(uint16_t, (double)d2_from_bits_single((uint32_t)p[i] << 16))
    case 3: D2_LOAD(uint16_t, d2_from_half(p[i]))
    case 4: D2_LOAD(uint8_t, (double)p[i])
    case 5: D2_LOAD(int8_t, (double)p[i])
    case 6: D2_LOAD(int16_t, (double)p[i])
    case 7: D2_LOAD(int32_t, (double)p[i])
    case 8: D2_LOAD(int64_t, (double)p[i])
    }
}

#define D2_STORE(T, EXPRESSION) { \\
        T *p = (T *)out + start; \\
        for (int i = 0; i < count; i++) { p[i] = EXPRESSION; } \\
        return; \\
    }

void d2_store(const double *restrict from, void *out, int type, long start, int count) {
    switch (type) {
    case 0: D2_STORE(float, (float)from[i])
    case 1: D2_STORE(double, from[i])
    case 2: D2_STORE(uint16_t, d2_to_bfloat((float)from[i]))
    case 3: D2_STORE(uint16_t, d2_to_half((float)from[i]))
    }
}

/* A single element is spread over its buffer before the loop; `d2_load` then leaves it alone. */
void d2_spread(double *to, const void *in, int type) {
    if (type < D2_SINGLE) return;
    d2_load(to, in, type - D2_SINGLE, 0, 1);
    for (int i = 1; i < D2_BLOCK; i++) to[i] = to[0];
}

/* The same of fp32; what is wider is rounded, whole numbers by way of fp64. */
void d2_load_single(float *restrict to, const void *in, int type, long start, int count) {
    switch (type) {
    case 0: D2_LOAD(float, p[i])
    case 1: D2_LOAD(double, (float)p[i])
    case 2: D2_LOAD(uint16_t, d2_from_bits_single((uint32_t)p[i] << 16))
    case 3: D2_LOAD(uint16_t, (float)d2_from_half(p[i]))
    case 4: D2_LOAD(uint8_t, (float)(double)p[i])
    case 5: D2_LOAD(int8_t, (float)(double)p[i])
    case 6: D2_LOAD(int16_t, (float)(double)p[i])
    case 7: D2_LOAD(int32_t, (float)(double)p[i])
    case 8: D2_LOAD(int64_t, (float)(double)p[i])
    }
}

void d2_store_single(const float *restrict from, void *out, int type, long start, int count) {
    switch (type) {
    case 0: D2_STORE(float, from[i])
    case 1: D2_STORE(double, (double)from[i])
    case 2: D2_STORE(uint16_t, d2_to_bfloat(from[i]))
    case 3: D2_STORE(uint16_t, d2_to_half(from[i]))
    }
}

void d2_spread_single(float *to, const void *in, int type) {
    if (type < D2_SINGLE) return;
    d2_load_single(to, in, type - D2_SINGLE, 0, 1);
    for (int i = 1; i < D2_BLOCK; i++) to[i] = to[0];
}
"""


def expression(node: Node) -> str:
    """One operation as a C expression of v0, v1, ..."""
    args = [f"v{arg}" for arg in node.args]
    if node.op == "tensor":
        return f"t{node.value}"
    if node.op == "scalar":
        return f"s{node.value}"
    if node.op == "constant":
        if node.kind == "i":
            return f"0x{int(node.value) % (1 << 64):x}u"
        return literal(node.value) if node.kind == "f" else f"(float){literal(node.value)}"
    if node.op == "where":
        return f"d2_{'select' if node.kind == 'f' else 'choose'}({', '.join(args)})"
    if node.op in _COMPARISONS:
        return f"-({_TYPES[node.kind]})({args[0]} {_COMPARISONS[node.op]} {args[1]})"
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    return f"{_CALLS[node.op]}({', '.join(args)})"


def literal(value: float) -> str:
    """A double constant, to the bit."""
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return value.hex()


def c_function(formula: Formula) -> str:
    """`static inline double f_NAME(double t0, ..., double s0, ...)`; of float, if the formula is `single`."""
    real = _real(formula)
    inputs = [f"{real} t{i}" for i in range(formula.tensors)] + [f"{real} s{i}" for i in range(formula.scalars)]
    lines = [f"D2_INLINE {real} f_{formula.name}({', '.join(inputs)}) {{"]
    for number, node in enumerate(formula.nodes):
        lines.append(f"    const {_TYPES[node.kind]} v{number} = {expression(node)};")
    return "\n".join([*lines, f"    return v{len(formula.nodes) - 1};", "}", ""])


def _real(formula: Formula) -> str:
    return "float" if formula.single else "double"


def c_loop(formula: Formula) -> str:
    """`void ew_NAME(...)`, see the head of this file."""
    real, width = _real(formula), "_single" if formula.single else ""
    tensors, scalars = range(formula.tensors), range(formula.scalars)
    call = ", ".join([f"b{i}[i]" for i in tensors] + [f"s{i}" for i in scalars])
    lines = [
        f"void ew_{formula.name}(const void *const *in, const int *in_types, void *out, int out_type,",
        "        const double *scalars, long n, int threads) {",
        *[f"    const {real} s{i} = scalars[{i}];" for i in scalars],
        "    const long blocks = (n + D2_BLOCK - 1) / D2_BLOCK;",
        "#pragma omp parallel num_threads(threads) if (threads > 1)",
        "    {",
        *[f"        {real} b{i}[D2_BLOCK] __attribute__((aligned(64)));" for i in tensors],
        f"        {real} result[D2_BLOCK] __attribute__((aligned(64)));",
        *[f"        d2_spread{width}(b{i}, in[{i}], in_types[{i}]);" for i in tensors],
        "#pragma omp for schedule(static)",
        "        for (long block = 0; block < blocks; block++) {",
        "            const long start = block * D2_BLOCK;",
        "            const int count = n - start < D2_BLOCK ? (int)(n - start) : D2_BLOCK;",
        *[f"            d2_load{width}(b{i}, in[{i}], in_types[{i}], start, count);" for i in tensors],
        f"            for (int i = 0; i < count; i++) result[i] = f_{formula.name}({call});",
        f"            d2_store{width}(result, out, out_type, start, count);",
        "        }",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def write(folder: Path, formulas: Mapping[str, Formula]) -> None:
    """Write the headers and the C files into the folder."""
    (folder / "formulas.h").write_text("\n".join([_HEADER, *map(c_function, formulas.values())]))
    (folder / "elementwise_blocks.h").write_text(_BLOCKS_HEADER)
    (folder / "elementwise_blocks.c").write_text(_BLOCKS)
    for number, part in enumerate(spread(formulas.values())):
        name = "elementwise.c" if number == 0 else f"elementwise_{number}.c"
        (folder / name).write_text("\n".join(['#include "elementwise_blocks.h"', "", *map(c_loop, part)]))


def spread(formulas: Iterable[Formula]) -> list[list[Formula]]:
    """The formulas in parts of about the same length."""
    parts: list[list[Formula]] = [[] for _ in range(FILES)]
    for formula in sorted(formulas, key=lambda one: (-len(one.nodes), one.name)):
        min(parts, key=lambda part: sum(len(one.nodes) for one in part)).append(formula)
    return parts
