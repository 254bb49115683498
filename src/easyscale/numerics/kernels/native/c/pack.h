/* Operands of a product, brought into panels: fp32, the `width` values of one k side by side, ready for tiles. */
#ifndef D2_PACK_H
#define D2_PACK_H

#include "vector.h"

/* A matrix of lines (rows of a, columns of b) over k, anywhere in memory; strides count elements. A view of windows has no
   strides but tables: its element is at line_at[i] + k_at[k]. */
typedef struct {
    const void *p;
    int dtype;
    long line, k;
    const long *line_at, *k_at;
} operand;

INLINE operand moved(operand x, long lines, long k) {
    if (x.line_at) x.line_at += lines, x.k_at += k;
    else x.p = shifted(x.p, x.dtype, lines * x.line + k * x.k);
    return x;
}

/* LANES elements that lie side by side, as fp32. */
INLINE vec vec_convert(const void *p, int dtype) {
    if (dtype == FP32) return vec_load(p);
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
    vec v;
#if LANES == 16
    if (dtype == FP16) return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif LANES == 8
    if (dtype == FP16) return (vec)_mm256_cvtph_ps(_mm_loadu_si128(p));
#endif
    if (dtype == FP16) {
        for (int i = 0; i < LANES; i++) v[i] = fp16_to_fp32(h[i]);
    } else {
        uint32_t u[LANES];
        for (int i = 0; i < LANES; i++) u[i] = (uint32_t)h[i] << 16;
        memcpy(&v, u, sizeof v);
    }
    return v;
}

/* LANES vectors as a square matrix, turned over. Each round moves the highest bit of the row's number to the end of the
   column's; after log2(LANES) rounds the two numbers have changed places. */
INLINE void transpose(vec r[LANES]) {
    typedef int32_t index __attribute__((vector_size(LANES * 4)));
#if LANES == 16
    const index low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif LANES == 8
    const index low = {0, 8, 1, 9, 2, 10, 3, 11};
#else
    const index low = {0, 4, 1, 5};
#endif
    const index high = low + LANES / 2;
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
        vec s[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            s[2 * i] = __builtin_shuffle(r[i], r[i + LANES / 2], low);
            s[2 * i + 1] = __builtin_shuffle(r[i], r[i + LANES / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) r[i] = s[i];
    }
}

/* k lies side by side: squares of LANES lines by LANES k are turned over. */
INLINE void pack_across(float *to, operand x, int dtype, long lines, long width, long depth) {
    for (long first = 0; first < width; first += LANES)
        for (long k = 0; k < depth; k += LANES) {
            long ks = depth - k < LANES ? depth - k : LANES;
            vec square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                const void *p = shifted(x.p, dtype, (first + i) * x.line + k);
                square[i] = (vec){};
                if (first + i < lines) {
                    if (ks == LANES) square[i] = vec_convert(p, dtype);
                    else for (int j = 0; j < ks; j++) square[i][j] = element(p, dtype, j);
                }
            }
            transpose(square);
            /* a width that is no multiple of LANES: the next k overwrites what is too much */
            float *line = to + k * width + first;
            if (ks == LANES) {
#pragma GCC unroll 16
                for (int j = 0; j < LANES; j++) vec_store(line + j * width, square[j]);
            } else {
                for (int j = 0; j < ks; j++) vec_store(line + j * width, square[j]);
            }
        }
}

/* Lines lie side by side: rows are copied. `readable`: lines up to the end of the matrix. */
INLINE void pack_along(float *to, operand x, int dtype, long lines, long readable, long width, long depth) {
    long whole = 0; /* lines that can be copied by whole vectors */
    while (whole < lines && whole + LANES <= readable) whole += LANES;
    for (long k = 0; k < depth; k++, to += width) {
        const void *p = shifted(x.p, dtype, k * x.k);
        for (long i = 0; i < whole; i += LANES) vec_store(to + i, vec_convert(shifted(p, dtype, i), dtype));
        for (long i = whole; i < lines; i++) to[i] = element(p, dtype, i);
        for (long i = lines; i < width; i++) to[i] = 0;
    }
}

INLINE void pack_any(float *to, operand x, int dtype, long lines, long width, long depth) {
    for (long k = 0; k < depth; k++, to += width) {
        for (long i = 0; i < lines; i++) to[i] = element(x.p, dtype, i * x.line + k * x.k);
        for (long i = lines; i < width; i++) to[i] = 0;
    }
}

/* How many values from here lie side by side. */
INLINE long run_of(const long *at, long most) {
    long n = 1;
    while (n < most && at[n] == at[0] + n) n++;
    return n;
}

/* LANES lines of a view whose k lie side by side, where they do: turned over like pack_across. */
INLINE void pack_view_across(float *to, operand x, int dtype, long lines, long width, long depth) {
    for (long k = 0; k < depth;) {
        long run = run_of(x.k_at + k, depth - k), ks = run < LANES ? run : LANES;
        if (ks < LANES / 2) {
            for (long i = 0; i < LANES; i++)
                to[k * width + i] = i < lines ? element(x.p, dtype, x.line_at[i] + x.k_at[k]) : 0;
            k++;
            continue;
        }
        vec square[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            square[i] = (vec){};
            if (i < lines) {
                const void *p = shifted(x.p, dtype, x.line_at[i] + x.k_at[k]);
                if (ks == LANES) square[i] = vec_convert(p, dtype);
                else for (int j = 0; j < ks; j++) square[i][j] = element(p, dtype, j);
            }
        }
        transpose(square);
        for (int j = 0; j < ks; j++) vec_store(to + (k + j) * width, square[j]);
        k += ks;
    }
}

INLINE void pack_view(float *to, operand x, int dtype, long lines, long width, long depth) {
    for (long first = 0; first < width; first += LANES, to += LANES) {
        operand y = x;
        y.line_at += first;
        long mine = lines - first < LANES ? lines - first : LANES;
        if (mine <= 0) {
            for (long k = 0; k < depth; k++) vec_store(to + k * width, (vec){});
            continue;
        }
        long run = run_of(y.line_at, mine);
        if (run == LANES) {
            for (long k = 0; k < depth; k++)
                vec_store(to + k * width, vec_convert(shifted(y.p, dtype, y.line_at[0] + y.k_at[k]), dtype));
        } else if (dtype == FP32 && mine == LANES && LANES >= 8 && run == LANES / 2 &&
                   run_of(y.line_at + LANES / 2, LANES / 2) == LANES / 2) { /* two rows of a small picture */
            const float *p = y.p;
            for (long k = 0; k < depth; k++) {
                memcpy(to + k * width, p + y.line_at[0] + y.k_at[k], LANES / 2 * sizeof(float));
                memcpy(to + k * width + LANES / 2, p + y.line_at[LANES / 2] + y.k_at[k], LANES / 2 * sizeof(float));
            }
        } else if (depth > 1 && y.k_at[1] == y.k_at[0] + 1) {
            pack_view_across(to, y, dtype, mine, width, depth);
        } else {
            for (long k = 0; k < depth; k++) {
                for (long i = 0; i < mine; i++) to[k * width + i] = element(y.p, dtype, y.line_at[i] + y.k_at[k]);
                for (long i = mine; i < LANES; i++) to[k * width + i] = 0;
            }
        }
    }
}

INLINE void pack_dtype(float *to, operand x, int dtype, long lines, long readable, long width, long depth) {
    if (x.line_at) pack_view(to, x, dtype, lines, width, depth);
    else if (x.line == 1) pack_along(to, x, dtype, lines, readable, width, depth);
    else if (x.k == 1) pack_across(to, x, dtype, lines, width, depth);
    else pack_any(to, x, dtype, lines, width, depth);
}

/* to[k * width + i] = line i at k, for i < lines; zeros up to width. Writes up to LANES - 1 floats past the panel. */
static void pack(float *to, operand x, long lines, long readable, long width, long depth) {
    if (x.dtype == FP32) pack_dtype(to, x, FP32, lines, readable, width, depth);
    else if (x.dtype == BF16) pack_dtype(to, x, BF16, lines, readable, width, depth);
    else pack_dtype(to, x, FP16, lines, readable, width, depth);
}

#endif
