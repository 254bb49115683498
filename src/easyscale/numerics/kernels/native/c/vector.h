/* The widest vectors of the instruction set that is compiled for, with a fused multiply-add that is exactly fmaf. */
#ifndef D2_VECTOR_H
#define D2_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { FP32 = 0, BF16 = 1, FP16 = 2 };

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));

INLINE vec vec_load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void vec_store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec vec_of(float x) { return x - (vec){}; } /* x - 0 is x, also for -0 */

#if defined(__AVX512F__)
INLINE vec vec_fma(vec a, vec b, vec c) { return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__) && defined(__FMA__)
INLINE vec vec_fma(vec a, vec b, vec c) { return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__FP_FAST_FMAF)
INLINE vec vec_fma(vec a, vec b, vec c) {
    for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#else
/* No FMA in this instruction set. The product is exact in fp64; the sum is rounded to odd there (its last bit is set if
   anything was lost), after which rounding to fp32 cannot be misled. */
typedef double pair __attribute__((vector_size(16)));

INLINE pair odd_sum(pair p, pair q) {
    typedef int64_t bits __attribute__((vector_size(16)));
    pair s = p + q, t = s - p, lost = (p - (s - t)) + (q - t);
    bits sum = (bits)s;
    bits apart = (bits)(lost > 0) | (bits)(lost < 0); /* not for NaN: infinities and NaN stay as they are */
    bits toward = ((sum ^ (bits)lost) >> 63) | 1;     /* +1: the exact sum lies further from zero */
    return (pair)(sum + (toward & apart & ((sum & 1) - 1)));
}

INLINE vec vec_fma(vec a, vec b, vec c) {
    typedef double wide __attribute__((vector_size(LANES * 8)));
    wide p = __builtin_convertvector(a, wide) * __builtin_convertvector(b, wide);
    wide q = __builtin_convertvector(c, wide);
    pair ps[2], qs[2];
    memcpy(ps, &p, sizeof ps);
    memcpy(qs, &q, sizeof qs);
    ps[0] = odd_sum(ps[0], qs[0]);
    ps[1] = odd_sum(ps[1], qs[1]);
    memcpy(&p, ps, sizeof p);
    return __builtin_convertvector(p, vec);
}
#endif

INLINE float bf16_to_fp32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

INLINE float fp16_to_fp32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff, u;
    float f;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 is exact */
        f = (float)fraction * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    } else if (exponent == 31) {
        u = sign | 0x7f800000u | (fraction << 13);
    } else {
        u = sign | ((exponent + 112) << 23) | (fraction << 13);
    }
    memcpy(&f, &u, 4);
    return f;
}

/* Element i of an array of one of the three types, as fp32. */
INLINE float element(const void *p, int dtype, long i) {
    if (dtype == FP32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return dtype == BF16 ? bf16_to_fp32(h) : fp16_to_fp32(h);
}

INLINE const void *shifted(const void *p, int dtype, long i) {
    return (const char *)p + i * (dtype == FP32 ? 4 : 2);
}

#endif
