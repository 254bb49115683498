/* Matrix products by exact whole-number products of int8 slices; the definition is in native/products.py.

   Whole numbers have no order of summation, so everything may be blocked and vectorized as is fast. Lines (rows of a,
   columns of b) are cut into slices once and laid into panels: four k of one line in one 32-bit word, the words of a
   panel's lines side by side. Where there are tiles of bytes, they multiply (slice_tiles.c). Else vectors do, whose
   instruction for bytes (vpdpbusd) wants those of a unsigned. */
#include <math.h>
#include <stdlib.h>

#include "slices.h"

int d2_product(const void *, int, long, long, long, const void *, int, long, long, long, float *, long, long, long, long,
               int);

#if LANES == 16
#define HEIGHT 12 /* lines in a panel of a */
#else
#define HEIGHT 4
#endif
#define BREADTH (2 * LANES) /* lines in a panel of b */
#define CHUNK 1024          /* k at a time: sums in 32 bits stay below 2^15 * 2^10 * slices */
#define WIDEST BREADTH      /* lines of any panel */

typedef int32_t words __attribute__((vector_size(LANES * 4)));

static const unit VECTORS = {.height = HEIGHT, .breadth = BREADTH, .words = 1, .offset = 128};

enum { BY_PAIRS_ALONE, BY_BYTES_TOO, BY_TILES_TOO };
static int allowed = BY_TILES_TOO;

/* What may multiply slices: pairs of 16 bits only (0), bytes too (1), tiles of bytes too (2). What was cut before must
   not be used after a change. */
void d2_allow_slices_by(int most) { allowed = most; }

static const unit *best_unit(void) {
    const unit *tiles = allowed >= BY_TILES_TOO ? d2_tiles() : NULL;
    return tiles ? tiles : &VECTORS;
}

/* ------------------------------------------------------------------------------------------------------- cutting */

/* Exponents of a panel's lines: the smallest e with |v| < 127/128 2^e. `scratch`: a packed block. */
static void find_exponents(sliced *x, long first, long lines, float *scratch) {
    uint32_t largest[WIDEST] = {0};
    if (x->most)
        for (long i = 0; i < lines; i++) largest[i] = (uint32_t)x->most[first + i];
    else for (long k0 = 0; k0 < x->K; k0 += CHUNK) {
        long depth = least(x->K - k0, CHUNK);
        pack(scratch, moved(x->from, first, k0), lines, x->lines - first, x->width, depth);
        for (long k = 0; k < depth; k++)
            for (long i = 0; i < x->width; i++) {
                uint32_t bits;
                memcpy(&bits, scratch + k * x->width + i, 4);
                bits &= 0x7fffffff;
                largest[i] = bits > largest[i] ? bits : largest[i];
            }
    }
    for (long i = 0; i < x->width; i++) {
        float v;
        memcpy(&v, &largest[i], 4);
        double d = v; /* never subnormal, it came from fp32 */
        int64_t bits;
        memcpy(&bits, &d, 8);
        int field = (int)((bits + ((int64_t)1 << 46)) >> 52);
        x->exponent[first + i] = largest[i] >= 0x7f800000 ? NOT_FINITE : largest[i] == 0 ? 0 : field - 1022;
    }
}

/* To the nearest whole number, ties to even: of values below 2^31. */
INLINE words nearest(vec v) {
#if LANES == 16
    return (words)_mm512_cvtps_epi32((__m512)v);
#elif LANES == 8
    return (words)_mm256_cvtps_epi32((__m256)v);
#else
    words w;
    for (int i = 0; i < LANES; i++) w[i] = (int32_t)lrintf(v[i]);
    return w;
#endif
}

/* What the lines of a panel are scaled by: 2^p = one * other, each a normal number. Products of a value by both are
   exact, but for those that come out far below 1 and are rounded to 0 anyway. */
typedef struct {
    float one[WIDEST], other[WIDEST];
    int32_t finite[WIDEST]; /* all bits, or none: such lines count as zeros */
} scales;

static void find_scales(scales *to, const sliced *x, long first) {
    memset(to, 0, sizeof *to);
    for (long i = 0; i < x->width; i++) {
        if (x->exponent[first + i] == NOT_FINITE) continue;
        long power = 8 * x->slices - 1 - x->exponent[first + i];
        to->one[i] = (float)power_of_two(power / 2);
        to->other[i] = (float)power_of_two(power - power / 2);
        to->finite[i] = -1;
    }
}

/* Digits to the base 256 of a vector of values, in the bytes of words: the lowest digit in the lowest byte. Half is
   added to each digit but the uppermost, so that what is carried is right, and taken off in the byte alone. */
INLINE words digits(vec v, const scales *by, long i, int32_t halves) {
    words finite, whole;
    memcpy(&finite, by->finite + i, sizeof finite);
    vec kept = (vec)((words)v & finite);
    whole = nearest(kept * vec_load(by->one + i) * vec_load(by->other + i));
    return (words)((whole + halves) ^ halves);
}

/* Sums of the four bytes of each word, as the instruction for products of bytes gives them. */
INLINE words sums_of_bytes(words w) { return (w << 24 >> 24) + (w << 16 >> 24) + (w << 8 >> 24) + (w >> 24); }

/* The words of 16 k4 by 16 lines, of each slice, turned over: those of a line side by side. */
static void store_by_lines(sliced *x, long panel, long k4, words block[MOST_SLICES][16]) {
#if LANES == 16
    for (int s = 0; s < x->slices; s++) {
        vec square[LANES];
        memcpy(square, block[s], sizeof square);
        transpose(square);
        memcpy(x->data + ((panel * x->slices + s) * x->K4 + k4) * x->width, square, sizeof square);
    }
#endif
}

/* Slices of one panel. */
static void cut(sliced *x, long panel, float *scratch) {
    const unit *by = x->by;
    const int slices = x->slices, turned = by->by_lines && !x->of_b;
    const long width = x->width, first = panel * width, lines = least(x->lines - first, width), all = x->panels * width;
    const int32_t halves = 0x808080 >> 8 * (MOST_SLICES - slices);
    const int32_t flipped = by->offset && !x->of_b ? (int32_t)0x80808080 : 0;
    const int summed = by->offset && x->of_b;
    find_exponents(x, first, lines, scratch);
    scales scale;
    find_scales(&scale, x, first);
    int64_t *sums = x->sums + first;
    for (int s = 0; s < slices; s++)
        for (long i = 0; i < width; i++) sums[s * all + i] = 0;
    words block[MOST_SLICES][16];
    for (long k0 = 0; k0 < x->K; k0 += CHUNK) {
        long depth = least(x->K - k0, CHUNK), padded = (depth + 4 * by->words - 1) / (4 * by->words) * (4 * by->words);
        pack(scratch, moved(x->from, first, k0), lines, x->lines - first, width, depth);
        memset(scratch + depth * width, 0, (padded - depth) * width * sizeof(float));
        for (long i = 0; i < width; i += LANES) {
            long mine = least(width - i, LANES);
            words some[MOST_SLICES] = {0};
            for (long k = 0; k < padded; k += 4) {
                words d[4];
                for (int t = 0; t < 4; t++) d[t] = digits(vec_load(scratch + (k + t) * width + i), &scale, i, halves);
                long k4 = (k0 + k) / 4;
                for (int s = 0; s < slices; s++) {
                    int low = 8 * (slices - 1 - s);
                    words w = (d[0] >> low & 255) | (d[1] >> low & 255) << 8 | (d[2] >> low & 255) << 16 | d[3] >> low << 24;
                    if (summed) some[s] += sums_of_bytes(w);
                    w ^= flipped;
                    if (turned) block[s][k4 % 16] = w;
                    else memcpy(x->data + ((panel * slices + s) * x->K4 + k4) * width + i, &w, mine * sizeof(int32_t));
                }
                if (turned && k4 % 16 == 15) store_by_lines(x, panel, k4 - 15, block);
            }
            for (int s = 0; s < slices; s++)
                for (long j = 0; j < mine; j++) sums[s * all + i + j] += some[s][j];
        }
    }
}

/* What the slices of so many lines take, and where they lie in it: words, then sums, then exponents. */
static long lay_out(sliced *x, int of_b, long lines, long K, int slices, const unit *by, void *memory) {
    long width = of_b ? by->breadth : by->height, panels = (lines + width - 1) / width, all = panels * width;
    long K4 = ((K + 3) / 4 + by->words - 1) / by->words * by->words;
    long data = (all * slices * K4 * 4 + 63) / 64 * 64, sums = all * slices * (long)sizeof(int64_t);
    *x = (sliced){.by = by, .of_b = of_b, .lines = lines, .width = width, .panels = panels, .K = K, .K4 = K4,
                  .slices = slices, .data = memory};
    if (memory) {
        x->sums = (int64_t *)((char *)memory + data);
        x->exponent = (int *)((char *)x->sums + sums);
    }
    return (data + sums + all * (long)sizeof(int) + 63) / 64 * 64;
}

static int cut_all(sliced *x, int threads) {
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1 && x->lines * x->K > 100000) reduction(| : failed)
    for (long panel = 0; panel < x->panels; panel++) {
        float *scratch = aligned_alloc(64, (CHUNK + 4) * WIDEST * sizeof(float));
        if (scratch) cut(x, panel, scratch);
        else failed = 1;
        free(scratch);
    }
    return failed;
}

/* Bytes of the slices of a factor; `of_b` says of which. */
long d2_cut_bytes(int of_b, long lines, long K, int slices) {
    sliced x;
    return lay_out(&x, of_b, lines, K, slices, best_unit(), NULL);
}

/* Slices of a factor, to be kept and given to d2_sliced_product, into d2_cut_bytes aligned to 64. */
int d2_cut(int of_b, const void *p, int dtype, long line, long k, long lines, long K, int slices, void *into,
           int threads) {
    sliced x;
    lay_out(&x, of_b, lines, K, slices, best_unit(), into);
    x.from = (operand){p, dtype, line, k};
    return cut_all(&x, threads);
}

/* --------------------------------------------------------------------------------------- multiplying by vectors */

/* sum[i][j] += bytes of a's line i times bytes of b's line j, over `depth` words: HEIGHT by two vectors. */
typedef void tile_function(long depth, const uint32_t *a, const uint32_t *b, int32_t *sums);

#define UNROLL _Pragma("GCC unroll 16")
#define TILE(NAME, TARGET, MULTIPLY_ADD)                                                                             \
    TARGET static void NAME(long depth, const uint32_t *a, const uint32_t *b, int32_t *sums) {                       \
        words sum[HEIGHT][2], line[2];                                                                               \
        UNROLL for (int i = 0; i < HEIGHT; i++) UNROLL for (int j = 0; j < 2; j++)                                   \
            memcpy(&sum[i][j], sums + i * BREADTH + j * LANES, sizeof(words));                                       \
        for (; depth > 0; depth--, a += HEIGHT, b += BREADTH) {                                                      \
            UNROLL for (int j = 0; j < 2; j++) memcpy(&line[j], b + j * LANES, sizeof(words));                       \
            UNROLL for (int i = 0; i < HEIGHT; i++) {                                                                \
                words x = (int32_t)a[i] + (words){};                                                                 \
                UNROLL for (int j = 0; j < 2; j++) sum[i][j] = MULTIPLY_ADD(sum[i][j], x, line[j]);                  \
            }                                                                                                        \
        }                                                                                                            \
        UNROLL for (int i = 0; i < HEIGHT; i++) UNROLL for (int j = 0; j < 2; j++)                                   \
            memcpy(sums + i * BREADTH + j * LANES, &sum[i][j], sizeof(words));                                       \
    }

#if LANES == 16
#define BY_BYTES(sum, x, y) ((words)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(x), (__m512i)(y)))
TILE(tile_of_bytes, __attribute__((target("avx512vnni"))), BY_BYTES)
/* Even and odd bytes by themselves, as 16 bits: sums of two products of bytes do not fit into 16. */
#define BY_PAIRS(sum, x, y)                                                                                    \
    ((sum) +                                                                                                   \
     (words)_mm512_madd_epi16(_mm512_and_si512((__m512i)(x), _mm512_set1_epi16(255)),                          \
                              _mm512_srai_epi16(_mm512_slli_epi16((__m512i)(y), 8), 8)) +                      \
     (words)_mm512_madd_epi16(_mm512_srli_epi16((__m512i)(x), 8), _mm512_srai_epi16((__m512i)(y), 8)))
#elif LANES == 8
#define BY_PAIRS(sum, x, y)                                                                                    \
    ((sum) +                                                                                                   \
     (words)_mm256_madd_epi16(_mm256_and_si256((__m256i)(x), _mm256_set1_epi16(255)),                          \
                              _mm256_srai_epi16(_mm256_slli_epi16((__m256i)(y), 8), 8)) +                      \
     (words)_mm256_madd_epi16(_mm256_srli_epi16((__m256i)(x), 8), _mm256_srai_epi16((__m256i)(y), 8)))
#else
INLINE words by_pairs(words sum, words x, words y) {
    for (int t = 0; t < 32; t += 8) sum += ((x >> t) & 255) * ((y << (24 - t)) >> 24);
    return sum;
}
#define BY_PAIRS by_pairs
#endif
TILE(tile_of_pairs, , BY_PAIRS)

static tile_function *best_tile(void) {
#if LANES == 16
    if (allowed >= BY_BYTES_TOO && __builtin_cpu_supports("avx512vnni")) return tile_of_bytes;
#endif
    return tile_of_pairs;
}

/* HEIGHT by BREADTH outputs. */
static void outputs(tile_function *f, const sliced *a, const sliced *b, long panel_a, long panel_b, float *out, long M,
                    long N) {
    int64_t total[MOST_SLICES][HEIGHT * BREADTH];
    int slices = a->slices;
    long K4 = a->K4, all = b->panels * b->width;
    memset(total, 0, sizeof total[0] * slices);
    for (long k = 0; k < K4; k += CHUNK / 4) {
        long depth = least(K4 - k, CHUNK / 4);
        for (int g = 0; g < slices; g++) {
            int32_t sums[HEIGHT * BREADTH] __attribute__((aligned(64))) = {0};
            for (int i = 0; i <= g; i++)
                f(depth, a->data + ((panel_a * slices + i) * K4 + k) * HEIGHT,
                  b->data + ((panel_b * slices + g - i) * K4 + k) * BREADTH, sums);
            for (long i = 0; i < HEIGHT * BREADTH; i++) total[g][i] += sums[i];
        }
    }
    int64_t excess[MOST_SLICES][BREADTH]; /* 128 * sums of b's slices 0 .. g */
    for (int g = 0; g < slices; g++)
        for (long j = 0; j < BREADTH; j++)
            excess[g][j] = (g ? excess[g - 1][j] : 0) + 128 * b->sums[g * all + panel_b * BREADTH + j];
    for (long i = 0; i < least(M - panel_a * HEIGHT, HEIGHT); i++)
        for (long j = 0; j < least(N - panel_b * BREADTH, BREADTH); j++) {
            long m = panel_a * HEIGHT + i, n = panel_b * BREADTH + j;
            if (a->exponent[m] == NOT_FINITE || b->exponent[n] == NOT_FINITE) continue; /* a chain, or NaN, is there already */
            int64_t sum = 0;
            for (int g = 0; g < slices; g++) sum = sum * 256 + (total[g][i * BREADTH + j] - excess[g][j]);
            out[m * N + n] = (float)((double)sum * power_of_two(a->exponent[m] + b->exponent[n] - 14 - 8 * (slices - 1)));
        }
}

static void vector_outputs(const sliced *a, const sliced *b, float *out, long M, long N, int threads) {
    tile_function *f = best_tile();
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1)
    for (long panel_b = 0; panel_b < b->panels; panel_b++)
        for (long panel_a = 0; panel_a < a->panels; panel_a++) outputs(f, a, b, panel_a, panel_b, out, M, N);
}

/* ----------------------------------------------------------------------------------------------------- products */

static int any_not_finite(const sliced *x) {
    for (long i = 0; i < x->lines; i++)
        if (x->exponent[i] == NOT_FINITE) return 1;
    return 0;
}

/* A factor, cut here unless its slices were `kept`; *own is to be freed. */
static int prepare(sliced *x, int of_b, operand from, long lines, long K, int slices, const int32_t *most,
                   const void *kept, void **own, int threads) {
    const unit *by = best_unit();
    *own = NULL;
    void *memory = (void *)kept;
    if (!memory) memory = *own = aligned_alloc(64, lay_out(x, of_b, lines, K, slices, by, NULL));
    if (!memory) return 1;
    lay_out(x, of_b, lines, K, slices, by, memory);
    x->from = from;
    x->most = most;
    return kept ? 0 : cut_all(x, threads);
}

/* `most_a`, `most_b`: bits of the values that rows and columns are scaled by, not below their largest; NULL: those.
   Where one is given, what is not finite gives NaN instead of chains. `cut_a`, `cut_b`: what d2_cut gave, or NULL. */
int d2_sliced_product(const void *a_p, int a_dtype, long a_sm, long a_sk, const int32_t *most_a, const void *cut_a,
                      const void *b_p, int b_dtype, long b_sk, long b_sn, const int32_t *most_b, const void *cut_b,
                      float *out, long M, long N, long K, int slices, int threads) {
    if (M * N == 0) return 0;
    if (K == 0) {
        memset(out, 0, M * N * sizeof(float));
        return 0;
    }
    if (slices < 1 || slices > MOST_SLICES) return 2;
    if ((double)M * N * K < 1e6) threads = 1;
    sliced a, b;
    void *own_a, *own_b = NULL;
    int failed = prepare(&a, 0, (operand){a_p, a_dtype, a_sm, a_sk}, M, K, slices, most_a, cut_a, &own_a, threads);
    failed = failed ||
             prepare(&b, 1, (operand){b_p, b_dtype, b_sn, b_sk}, N, K, slices, most_b, cut_b, &own_b, threads);
    if (!failed && (most_a || most_b))
        for (long i = 0; i < M * N; i++) out[i] = (float)NAN;
    else if (!failed && (any_not_finite(&a) || any_not_finite(&b)))
        failed = d2_product(a_p, a_dtype, 0, a_sm, a_sk, b_p, b_dtype, 0, b_sk, b_sn, out, 1, M, N, K, threads);
    if (!failed && a.by->by_lines) failed = d2_tile_outputs(&a, &b, out, M, N, threads);
    else if (!failed) vector_outputs(&a, &b, out, M, N, threads);
    free(own_a);
    free(own_b);
    return failed;
}
