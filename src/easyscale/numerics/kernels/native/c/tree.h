/* Sums by the halving tree, in fp64.
 *
 * n values, padded with +0 to P, the next power of two: x[i] + x[i + P/2] for i < P/2, again and again until one is
 * left. The values are cut into blocks of `lanes` neighbours: all lanes of a block go through the same folds, so a block
 * is a SIMD vector, and the folds of the high bits of i run over whole blocks, depth first, so that what is between them
 * stays in the cache. Neither the width of the blocks nor the number of threads changes any addition. */
#ifndef D2_TREE_H
#define D2_TREE_H

#include <stdint.h>
#include <string.h>

enum { D2_F32 = 0, D2_BF16 = 1, D2_F16 = 2, D2_F64 = 3 };
enum { D2_LANES = 512, D2_SPARE = 40 * D2_LANES }; /* 2^40 blocks are enough */

static inline long d2_power(long n) /* the next power of two */
{
    long p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static inline float d2_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float d2_from_f16(uint16_t h) /* exact; without a branch, for SIMD */
{
    uint32_t size = h & 0x7fffu, bits = size << 13;
    float f;
    memcpy(&f, &bits, 4);
    f = f * 0x1p112f; /* subnormals of fp16 are normal in fp32: no rounding */
    memcpy(&bits, &f, 4);
    bits = (size >= 0x7c00u ? bits | 0x7f800000u : bits) | (uint32_t)(h & 0x8000u) << 16;
    memcpy(&f, &bits, 4);
    return f;
}

/* n neighbours of 16 bits to `out`, be it fp32 or fp64 */
#define D2_LOAD_SHORT                                                                                                  \
    const uint16_t *restrict x = (const uint16_t *)base + offset;                                                      \
    if (dtype == D2_BF16)                                                                                              \
        for (long i = 0; i < n; i++)                                                                                   \
            out[i] = d2_from_bf16(x[i]);                                                                               \
    else                                                                                                               \
        for (long i = 0; i < n; i++)                                                                                   \
            out[i] = d2_from_f16(x[i]);

/* n neighbours as fp64 */
static inline void d2_load(const void *base, int dtype, long offset, long n, double *restrict out)
{
    if (dtype == D2_F32) {
        const float *restrict x = (const float *)base + offset;
        for (long i = 0; i < n; i++)
            out[i] = x[i];
    } else if (dtype == D2_F64) {
        memcpy(out, (const double *)base + offset, n * sizeof(double));
    } else {
        D2_LOAD_SHORT
    }
}

/* n neighbours of at most 32 bits as fp32 */
static inline void d2_load_float(const void *base, int dtype, long offset, long n, float *restrict out)
{
    if (dtype == D2_F32) {
        memcpy(out, (const float *)base + offset, n * sizeof(float));
    } else {
        D2_LOAD_SHORT
    }
}

/* n neighbours rounded to fp32, or kept as fp64 */
static inline void d2_store(void *base, int dtype, long offset, long n, const double *restrict values)
{
    if (dtype == D2_F64) {
        memcpy((double *)base + offset, values, n * sizeof(double));
    } else {
        float *restrict out = (float *)base + offset;
        for (long i = 0; i < n; i++)
            out[i] = (float)values[i];
    }
}

/* n values from number `start` on, of a row that lies in pieces of `segment` neighbours, `apart` from each other */
static inline void d2_gather(const void *base, int dtype, long offset, long segment, long apart, long start, long n,
                             double *out)
{
    long piece = start / segment, within = start % segment;
    while (n > 0) {
        long take = segment - within < n ? segment - within : n;
        d2_load(base, dtype, offset + piece * apart + within, take, out);
        out += take, n -= take, piece++, within = 0;
    }
}

/* Writes block number `block` to out: all `lanes` of them, +0 where there is no value. */
typedef void (*d2_leaf)(void *context, long block, double *out);

/* The tree over blocks start, start + step, ... (`count` of them, a power of two); blocks from `valid` on are +0.
 * `start` itself is valid. */
static inline void d2_tree(d2_leaf leaf, void *context, long lanes, long valid, long start, long step, long count,
                    double *restrict out, double *restrict spare)
{
    if (count == 1) {
        leaf(context, start, out);
        return;
    }
    d2_tree(leaf, context, lanes, valid, start, 2 * step, count / 2, out, spare);
    if (start + step >= valid) {
        for (long i = 0; i < lanes; i++)
            out[i] = out[i] + 0.0; /* -0 becomes +0, as by adding the padding */
        return;
    }
    d2_tree(leaf, context, lanes, valid, start + step, 2 * step, count / 2, spare, spare + lanes);
    for (long i = 0; i < lanes; i++)
        out[i] = out[i] + spare[i];
}

/* Folds a block of rows * width lanes to width; rows is a power of two. */
static inline void d2_fold(double *values, long rows, long width)
{
    for (long half = rows / 2; half; half /= 2) {
        const double *upper = values + half * width;
#pragma GCC ivdep
        for (long i = 0; i < half * width; i++)
            values[i] = values[i] + upper[i];
    }
}

/* The sum of n values; `work` holds the next power of two of doubles. */
static inline double d2_sum_of(const double *restrict x, long n, double *restrict work)
{
    if (n == 0)
        return 0.0;
    if (n == 1)
        return x[0];
    long half = d2_power(n) / 2;
    for (long i = 0; i < n - half; i++)
        work[i] = x[i] + x[i + half];
    for (long i = n - half; i < half; i++)
        work[i] = x[i] + 0.0;
    d2_fold(work, half, 1);
    return work[0];
}

/* The sum of n products, each rounded to fp64 before it is added. */
static inline double d2_sum_of_products(const double *restrict x, const double *restrict y, long n,
                                        double *restrict work)
{
    if (n == 0)
        return 0.0;
    if (n == 1)
        return x[0] * y[0];
    long half = d2_power(n) / 2;
    for (long i = 0; i < n - half; i++)
        work[i] = x[i] * y[i] + x[i + half] * y[i + half];
    for (long i = n - half; i < half; i++)
        work[i] = x[i] * y[i] + 0.0;
    d2_fold(work, half, 1);
    return work[0];
}

#endif
