/* Matrix products by exact whole-number products of int8 slices; the definition is in native/products.py.

   Whole numbers have no order of summation, so everything may be blocked and vectorized as is fast. Lines (rows of a,
   columns of b) are cut into slices once and laid into panels: four k of one line in one 32-bit word, the words of a
   panel's lines side by side. The bytes of a are kept as q + 128, which makes them unsigned as the instruction for
   bytes wants it (vpdpbusd); 128 times the sums of b's slices is taken off again at the end. */
#include <math.h>
#include <stdlib.h>

#include "pack.h"

int d2_product(const void *, int, long, long, long, const void *, int, long, long, long, float *, long, long, long, long,
               int);

#if LANES == 16
#define HEIGHT 12 /* lines in a panel of a */
#else
#define HEIGHT 4
#endif
#define BREADTH (2 * LANES) /* lines in a panel of b */
#define CHUNK 1024          /* k at a time: sums in 32 bits stay below 2^15 * 2^10 * slices */
#define MOST_SLICES 4       /* sums over up to 2^17 k of all slices fit into 63 bits */

typedef int32_t words __attribute__((vector_size(LANES * 4)));

/* Lines of one operand, sliced. Words of slice s, panel p at data + ((p * slices + s) * K4) * width. */
typedef struct {
    operand from;
    long lines, width, panels, K, K4; /* K4: words along k, a multiple of CHUNK / 4 only in its last block */
    int slices, offset;
    const int32_t *most; /* bits of the value that each line is scaled by; NULL: of its largest */
    uint32_t *data;
    int *exponent; /* of each line; INT32_MIN where a value is not finite */
    int64_t *sums; /* of each slice of each line, over k: [slices][panels * width] */
} sliced;

#define NOT_FINITE INT32_MIN

INLINE long least(long a, long b) { return a < b ? a : b; }

static double power_of_two(long exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* Exponents of a panel's lines: the smallest e with |v| < 127/128 2^e. `scratch`: a packed block. */
static void find_exponents(sliced *x, long first, long lines, float *scratch) {
    uint32_t largest[BREADTH] = {0};
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

/* Slices of one panel. */
static void cut(sliced *x, long panel, float *scratch) {
    const double round = 0x1.8p52; /* the low bits of x + round are rint(x) */
    long first = panel * x->width, lines = least(x->lines - first, x->width), all = x->panels * x->width;
    find_exponents(x, first, lines, scratch);
    double scale[BREADTH];
    for (long i = 0; i < x->width; i++)
        scale[i] = x->exponent[first + i] == NOT_FINITE ? 0 : power_of_two(8 * x->slices - 1 - x->exponent[first + i]);
    uint32_t *to = x->data + panel * x->slices * x->K4 * x->width;
    long width = x->width, slice = x->K4 * width;
    for (int s = 0; s < x->slices; s++)
        for (long i = 0; i < width; i++) x->sums[s * all + first + i] = 0;
    for (long k0 = 0; k0 < x->K; k0 += CHUNK) {
        long depth = least(x->K - k0, CHUNK);
        pack(scratch, moved(x->from, first, k0), lines, x->lines - first, width, depth);
        for (long k = depth; k % 4; k++)
            for (long i = 0; i < width; i++) scratch[k * width + i] = 0;
        for (long k = 0; k < depth; k += 4, to += width) {
            int64_t whole[4][BREADTH];
            for (int t = 0; t < 4; t++)
                for (long i = 0; i < width; i++) {
                    double v = scale[i] == 0 ? 0 : (double)scratch[(k + t) * width + i] * scale[i];
                    v += round;
                    memcpy(&whole[t][i], &v, 8);
                    whole[t][i] -= 0x4338000000000000; /* round itself: the whole number is left */
                }
            for (int s = x->slices - 1; s >= 0; s--) { /* digits to the base 256, the lowest first */
                int64_t *sums = x->sums + s * all + first;
                for (long i = 0; i < width; i++) {
                    uint64_t word = 0;
                    for (int t = 0; t < 4; t++) {
                        int64_t above = (whole[t][i] + 128) >> 8;
                        int64_t digit = s ? whole[t][i] - above * 256 : whole[t][i];
                        sums[i] += digit;
                        word |= (uint64_t)((digit + x->offset) & 255) << (8 * t);
                        whole[t][i] = above;
                    }
                    to[s * slice + i] = (uint32_t)word;
                }
            }
        }
    }
}

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
    if (__builtin_cpu_supports("avx512vnni")) return tile_of_bytes;
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

static int prepare(sliced *x, const void *p, int dtype, long line, long k, long lines, long width, long K, int slices,
                   int offset, const int32_t *most) {
    *x = (sliced){.from = {p, dtype, line, k}, .lines = lines, .width = width, .panels = (lines + width - 1) / width,
                  .K = K, .K4 = (K + 3) / 4, .slices = slices, .offset = offset, .most = most};
    size_t all = x->panels * width;
    x->data = aligned_alloc(64, (all * slices * x->K4 * 4 + 63) / 64 * 64);
    x->exponent = malloc(all * sizeof(int));
    x->sums = malloc(all * slices * sizeof(int64_t));
    return !x->data || !x->exponent || !x->sums;
}

static void release(sliced *x) {
    free(x->data);
    free(x->exponent);
    free(x->sums);
}

static int any_not_finite(const sliced *x) {
    for (long i = 0; i < x->lines; i++)
        if (x->exponent[i] == NOT_FINITE) return 1;
    return 0;
}

/* `most_a`, `most_b`: bits of the values that rows and columns are scaled by, not below their largest; NULL: those.
   Where one is given, what is not finite gives NaN instead of chains. */
int d2_sliced_product(const void *a_p, int a_dtype, long a_sm, long a_sk, const int32_t *most_a, const void *b_p,
                      int b_dtype, long b_sk, long b_sn, const int32_t *most_b, float *out, long M, long N, long K,
                      int slices, int threads) {
    if (M * N == 0) return 0;
    if (K == 0) {
        memset(out, 0, M * N * sizeof(float));
        return 0;
    }
    if (slices < 1 || slices > MOST_SLICES) return 2;
    int parallel = threads > 1 && (double)M * N * K >= 1e6;
    sliced a = {0}, b = {0};
    int failed = prepare(&a, a_p, a_dtype, a_sm, a_sk, M, HEIGHT, K, slices, 128, most_a) |
                 prepare(&b, b_p, b_dtype, b_sn, b_sk, N, BREADTH, K, slices, 0, most_b);
    if (!failed) {
#pragma omp parallel for num_threads(threads) if (parallel) reduction(| : failed)
        for (long panel = 0; panel < a.panels + b.panels; panel++) {
            float *scratch = aligned_alloc(64, (CHUNK + 4) * BREADTH * sizeof(float));
            if (!scratch) failed = 1;
            else if (panel < a.panels) cut(&a, panel, scratch);
            else cut(&b, panel - a.panels, scratch);
            free(scratch);
        }
    }
    if (!failed && (most_a || most_b))
        for (long i = 0; i < M * N; i++) out[i] = (float)NAN;
    else if (!failed && (any_not_finite(&a) || any_not_finite(&b)))
        failed = d2_product(a_p, a_dtype, 0, a_sm, a_sk, b_p, b_dtype, 0, b_sk, b_sn, out, 1, M, N, K, threads);
    if (!failed) {
        tile_function *f = best_tile();
#pragma omp parallel for collapse(2) num_threads(threads) if (parallel)
        for (long panel_b = 0; panel_b < b.panels; panel_b++)
            for (long panel_a = 0; panel_a < a.panels; panel_a++) outputs(f, &a, &b, panel_a, panel_b, out, M, N);
    }
    release(&a);
    release(&b);
    return failed;
}
