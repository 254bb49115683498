/* Matrix products as chains of fused multiply-adds.

   out[b][m][n] = acc after acc = fmaf(a[b][m][k], b[b][k][n], acc) for k = 0 .. K-1, from acc = +0.

   Everything here is about speed: which outputs are computed side by side (vectors run over outputs, never over k),
   how operands are packed, who computes what. A chain that is cut into blocks of k goes on from its fp32 value, which is
   exact. So the bits are those of the definition for every shape, instruction set and number of threads. */
#include <pthread.h>
#include <stdlib.h>

#include "pack.h"
#include "tile.h"

#define MOST_DEPTH 320    /* of a block, in k: a panel of b stays in the first cache */
#define THIN_DEPTH 64     /* the same, where panels are wide because a is thin */
#define MOST_HEIGHT 224   /* of a block of a, which stays in the second */
#define MOST_BREADTH 2048 /* of a block of b */

/* Memory for packing that a thread keeps for the next product, freed when it ends. */
static __thread struct { float *p; size_t size; } kept;
static pthread_key_t kept_key;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;
static void make_key(void) { pthread_key_create(&kept_key, free); }

static float *workspace(size_t floats) {
    if (kept.size < floats) {
        pthread_once(&kept_once, make_key);
        free(kept.p);
        kept.size = 0;
        kept.p = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        pthread_setspecific(kept_key, kept.p);
        if (!kept.p) return 0;
        kept.size = floats;
    }
    return kept.p;
}

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long up_to(long n, long unit) { return (n + unit - 1) / unit * unit; }

/* Vectors in a panel of b that covers this many columns. */
INLINE long vectors_for(long columns, long most) {
    long v = 1;
    while (v < most && v * LANES < columns) v *= 2;
    return v;
}

/* One tile whose outputs are not whole vectors side by side: computed next to them. */
static void tile_apart(tile_function *f, long depth, const float *a, long a_row, long a_step, const float *b, long b_step,
                       float *c, long c_row, long c_column, long rows, long columns, long v, int start) {
    float apart[448] __attribute__((aligned(64)));
    long width = v * LANES;
    if (start != FRESH)
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < columns; j++) apart[i * width + j] = c[i * c_row + j * c_column];
    f(depth, a, a_row, a_step, b, b_step, apart, width, start);
    if (c_column == 1) {
        for (long i = 0; i < rows; i++) memcpy(c + i * c_row, apart + i * width, columns * sizeof(float));
    } else {
        for (long j = 0; j < columns; j++)
            for (long i = 0; i < rows; i++) c[i * c_row + j * c_column] = apart[i * width + j];
    }
}

/* A rectangle of outputs, by one thread. c[m * c_row + n * c_column]. With a `block`, a chain for each so many steps of k,
   added up one after the other. Returns 1 if there is no memory. */
static int rectangle(operand a, operand b, float *c, long c_row, long c_column, long M, long N, long K, long block) {
    long most_v = M <= MOST_ROWS_OF_8 ? 8 : M <= MOST_ROWS_OF_4 ? 4 : 2, width = most_v * LANES;
    int pack_a = a.dtype != FP32 || N > 4 * width;
    int pack_b = b.line_at || b.dtype != FP32 || b.line != 1 || M > 2 * ROWS;
    long depth_limit = pack_b && most_v > 2 ? THIN_DEPTH : MOST_DEPTH;
    long blocks = (K + depth_limit - 1) / depth_limit, most_depth = (K + blocks - 1) / blocks;
    if (block) most_depth = least(K, block);
    long most_breadth = least(up_to(N, width), MOST_BREADTH), most_height = least(up_to(M, ROWS), MOST_HEIGHT);
    size_t a_size = pack_a ? up_to(most_height * most_depth + LANES, LANES) : 0;
    size_t b_size = up_to((pack_b ? most_breadth : width) * most_depth + LANES, LANES);
    float *packed_a = workspace(a_size + b_size), *packed_b = packed_a + a_size;
    if (!packed_a) return 1;

    for (long n0 = 0; n0 < N; n0 += most_breadth) {
        long breadth = least(N - n0, most_breadth);
        for (long k0 = 0; k0 < K; k0 += most_depth) {
            long depth = least(K - k0, most_depth);
            int start = k0 == 0 ? FRESH : block ? ADDED : GO_ON;
            for (long n = 0; n < breadth; n += width) {
                long columns = least(breadth - n, width), v = vectors_for(columns, most_v);
                if (pack_b || columns < v * LANES)
                    pack(packed_b + (pack_b ? n * depth : 0), moved(b, n0 + n, k0), columns, N - n0 - n, v * LANES, depth);
            }
            for (long m0 = 0; m0 < M; m0 += most_height) {
                long height = least(M - m0, most_height);
                for (long m = 0; pack_a && m < height; m += ROWS) {
                    long rows = least(height - m, ROWS);
                    pack(packed_a + m * depth, moved(a, m0 + m, k0), rows, M - m0 - m, rows, depth);
                }
                for (long n = 0; n < breadth; n += width) {
                    long columns = least(breadth - n, width), v = vectors_for(columns, most_v);
                    int from_packed = pack_b || columns < v * LANES;
                    const float *lines = from_packed ? packed_b + (pack_b ? n * depth : 0) : moved(b, n0 + n, k0).p;
                    long b_step = from_packed ? v * LANES : b.k;
                    for (long m = 0; m < height; m += ROWS) {
                        long rows = least(height - m, ROWS);
                        const float *values = pack_a ? packed_a + m * depth : moved(a, m0 + m, k0).p;
                        float *to = c + (m0 + m) * c_row + (n0 + n) * c_column;
                        tile_function *f = tiles[v][rows][pack_a];
                        if (c_column == 1 && columns == v * LANES)
                            f(depth, values, a.line, a.k, lines, b_step, to, c_row, start);
                        else
                            tile_apart(f, depth, values, a.line, a.k, lines, b_step, to, c_row, c_column, rows, columns,
                                       v, start);
                    }
                }
            }
        }
    }
    return 0;
}

/* One output. */
static float chain(operand a, operand b, long K, long block) {
    float total = 0, acc = 0;
    for (long k = 0; k < K; k++) {
        if (block && k && k % block == 0) total = k == block ? acc : total + acc, acc = 0;
        acc = __builtin_fmaf(element(a.p, a.dtype, k * a.k), element(b.p, b.dtype, k * b.k), acc);
    }
    return block && K > block ? total + acc : acc;
}

/* Into how many parts M is cut for this many threads (N into parts / that): the least work for the busiest. */
static long parts_of_rows(long M, long N, long parts) {
    long best = 1, least_work = -1;
    for (long rows = 1; rows <= parts; rows++) {
        if (parts % rows) continue;
        long columns = parts / rows;
        long work = up_to((M + rows - 1) / rows, ROWS) * up_to((N + columns - 1) / columns, 2 * LANES);
        if (least_work < 0 || work < least_work) best = rows, least_work = work;
    }
    return best;
}

int d2_block_product(const void *a_p, int a_dtype, long a_sb, long a_sm, long a_sk, const void *b_p, int b_dtype,
                     long b_sb, long b_sk, long b_sn, float *out, long B, long M, long N, long K, long block,
                     int threads) {
    if (B * M * N == 0) return 0;
    if (K == 0) {
        memset(out, 0, B * M * N * sizeof(float));
        return 0;
    }
    operand a = {a_p, a_dtype, a_sm, a_sk, 0, 0}, b = {b_p, b_dtype, b_sn, b_sk, 0, 0};
    if (B > 1 && b_sb == 0 && a_sb == M * a_sm) M *= B, B = 1; /* one b for all: one taller product */
    long c_matrix = M * N, c_row = N, c_column = 1;
    if (N <= LANES && M > N) { /* vectors run over the longer side; fmaf does not mind which factor is first */
        operand o = a;
        a = b, b = o;
        long s = a_sb, n = M;
        a_sb = b_sb, b_sb = s;
        M = N, N = n;
        c_row = 1, c_column = M;
    }
    double work = (double)B * M * N * K;
    if (threads > work / 5e5) threads = work < 1e6 ? 1 : (int)(work / 5e5);
    long parts = B >= threads ? 1 : (threads + B - 1) / B;
    if (B == 1 && parts == 1 && M * N > 1) /* not even a region of one thread: a small product takes as long as that */
        return rectangle(a, b, out, c_row, c_column, M, N, K, block);
    long rows = parts_of_rows(M, N, parts), columns = parts / rows;
    long height = up_to((M + rows - 1) / rows, ROWS), breadth = up_to((N + columns - 1) / columns, LANES);
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(| : failed)
    for (long task = 0; task < B * parts; task++) {
        long matrix = task / parts, m = task % parts / columns * height, n = task % parts % columns * breadth;
        if (m >= M || n >= N) continue;
        operand x = a, y = b;
        x.p = shifted(a.p, a.dtype, matrix * a_sb + m * a.line);
        y.p = shifted(b.p, b.dtype, matrix * b_sb + n * b.line);
        float *c = out + matrix * c_matrix + m * c_row + n * c_column;
        if (M == 1 && N == 1) *c = chain(x, y, K, block);
        else failed |= rectangle(x, y, c, c_row, c_column, least(M - m, height), least(N - n, breadth), K,
                                 block);
    }
    return failed;
}

/* The same, of matrices whose dtypes, strides and sizes are `of` (the arguments above, in their order, without places and
   threads): a caller that multiplies such matrices again and again passes a few words instead of seventeen. The `bias`,
   if there is one, [N] of fp32, is added last, in fp32. */
int d2_known_product(const long *of, const void *a_p, const void *b_p, const float *bias, float *out, int threads) {
    long M = of[9], N = of[10];
    int failed = d2_block_product(a_p, (int)of[0], of[1], of[2], of[3], b_p, (int)of[4], of[5], of[6], of[7], out, of[8], M,
                                  N, of[11], of[12], threads);
    if (bias && !failed)
        for (long m = 0; m < M; m++)
            for (long n = 0; n < N; n++) out[m * N + n] += bias[n];
    return failed;
}

int d2_product(const void *a_p, int a_dtype, long a_sb, long a_sm, long a_sk, const void *b_p, int b_dtype, long b_sb,
               long b_sk, long b_sn, float *out, long B, long M, long N, long K, int threads) {
    return d2_block_product(a_p, a_dtype, a_sb, a_sm, a_sk, b_p, b_dtype, b_sb, b_sk, b_sn, out, B, M, N, K, 0, threads);
}

/* Where the elements of some dimensions lie, in row-major order; the count. */
static long walk(long *at, const long *sizes, const long *strides, int dims) {
    long count = 1;
    at[0] = 0;
    for (int d = dims - 1; d >= 0; d--) { /* what is there already is one step of dimension d */
        for (long i = 1; i < sizes[d]; i++)
            for (long j = 0; j < count; j++) at[i * count + j] = at[j] + i * strides[d];
        count *= sizes[d];
    }
    return count;
}

/* Products with a view of windows, read where it lies: out[g][s][m][n] over span s of k, chains by blocks as above. The
   view is [G, k dimensions, n dimensions]; `shape` holds the sizes of both, then their strides. */
int d2_view_product(const void *a_p, int a_dtype, long a_sg, long a_sm, long a_sk, const void *b_p, int b_dtype, long b_sg,
                    const long *shape, int k_dims, int n_dims, float *out, long G, long M, long N, long K, long block,
                    long span, int threads) {
    long *at = malloc((N + K) * sizeof(long)), *n_at = at + K, spans = (K + span - 1) / span;
    if (!at) return 1;
    walk(at, shape, shape + k_dims + n_dims, k_dims);
    walk(n_at, shape + k_dims, shape + k_dims + n_dims + k_dims, n_dims);
    double work = (double)G * M * N * K;
    if (threads > work / 5e5) threads = work < 1e6 ? 1 : (int)(work / 5e5);
    long matrices = G * spans, parts = matrices >= threads ? 1 : (threads + matrices - 1) / matrices;
    long rows = parts_of_rows(M, N, parts), columns = parts / rows;
    long height = up_to((M + rows - 1) / rows, ROWS), breadth = up_to((N + columns - 1) / columns, LANES);
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(| : failed)
    for (long task = 0; task < matrices * parts; task++) {
        long matrix = task / parts, g = matrix / spans, k = matrix % spans * span;
        long m = task % parts / columns * height, n = task % parts % columns * breadth;
        if (m >= M || n >= N) continue;
        operand a = {shifted(a_p, a_dtype, g * a_sg + m * a_sm + k * a_sk), a_dtype, a_sm, a_sk, 0, 0};
        operand b = {shifted(b_p, b_dtype, g * b_sg), b_dtype, 0, 0, n_at + n, at + k};
        failed |= rectangle(a, b, out + (matrix * M + m) * N + n, N, 1, least(M - m, height), least(N - n, breadth),
                            least(K - k, span), block);
    }
    free(at);
    return failed;
}
