/* Sums over any dimensions by the halving tree (tree.h); whole numbers modulo 2^64.
 *
 * A tensor is seen as [A, R, B], R reduced. B = 1: rows, which may lie in pieces (batch and pixels of one channel).
 * B > 1 narrow: several neighbouring values of r make one block. B wide: columns are cut into tiles, a row is a block. */
#include "tree.h"

static void square(double *values, long n)
{
    for (long i = 0; i < n; i++)
        values[i] = values[i] * values[i];
}

struct rows {
    const void *base;
    int dtype;
    long offset, length, segment, apart, lanes;
    int squares;
};

static void rows_leaf(void *context, long block, double *out)
{
    const struct rows *rows = context;
    long start = block * rows->lanes, left = rows->length - start;
    long n = left < rows->lanes ? left : rows->lanes;
    d2_gather(rows->base, rows->dtype, rows->offset, rows->segment, rows->apart, start, n, out);
    if (rows->squares)
        square(out, n);
    for (long i = n; i < rows->lanes; i++)
        out[i] = 0.0;
}

struct columns {
    const void *base;
    int dtype;
    long offset, width, lanes;
    int squares;
};

static void columns_leaf(void *context, long block, double *out)
{
    const struct columns *columns = context;
    d2_load(columns->base, columns->dtype, columns->offset + block * columns->width, columns->lanes, out);
    if (columns->squares)
        square(out, columns->lanes);
}

/* One long row (or narrow group of columns): the lowest bits of the block number are shared out over threads. */
static void split_tree(d2_leaf leaf, void *context, long lanes, long valid, long count, double *out, int threads)
{
    enum { MOST = 64 };
    double parts[MOST][D2_LANES];
    long ways = d2_power(threads < MOST ? threads : MOST);
    while (ways > count || ways > valid)
        ways /= 2;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (long way = 0; way < ways; way++) {
        double spare[D2_SPARE];
        d2_tree(leaf, context, lanes, valid, way, ways, count / ways, parts[way], spare);
    }
    for (long half = ways / 2; half; half /= 2)
        for (long way = 0; way < half; way++)
            for (long i = 0; i < lanes; i++)
                parts[way][i] = parts[way][i] + parts[way + half][i];
    memcpy(out, parts[0], lanes * sizeof(double));
}

static void sum_narrow(const void *x, int dtype, long outputs, long reduced, long width, long apart_outputs,
                       long segment, long apart, int squares, double *out, int threads)
{
    long rows = 1, padded = d2_power(reduced);
    while (rows < padded && 2 * rows * width <= D2_LANES)
        rows *= 2;
    long lanes = rows * width, valid = (reduced + rows - 1) / rows, count = padded / rows;
    int split = threads > 1 && outputs < threads && reduced * width > 65536;
#pragma omp parallel for num_threads(threads) if (!split && threads > 1 && outputs > 1 && outputs * reduced * width > 32768)
    for (long a = 0; a < outputs; a++) {
        struct rows rows_of = {x, dtype, a * apart_outputs, reduced * width, segment, apart, lanes, squares};
        double block[D2_LANES], spare[D2_SPARE];
        if (split)
            split_tree(rows_leaf, &rows_of, lanes, valid, count, block, threads);
        else
            d2_tree(rows_leaf, &rows_of, lanes, valid, 0, 1, count, block, spare);
        d2_fold(block, rows, width);
        memcpy(out + a * width, block, width * sizeof(double));
    }
}

static void sum_wide(const void *x, int dtype, long outputs, long reduced, long width, int squares, double *out,
                     int threads)
{
    long tile = D2_LANES / 2, count = d2_power(reduced);
    while (threads > 1 && tile > 32 && outputs * ((width + tile - 1) / tile) < threads)
        tile /= 2;
    long tiles = (width + tile - 1) / tile;
#pragma omp parallel for num_threads(threads) if (threads > 1 && outputs * tiles > 1 && outputs * reduced * width > 32768)
    for (long task = 0; task < outputs * tiles; task++) {
        long a = task / tiles, first = task % tiles * tile;
        long lanes = width - first < tile ? width - first : tile;
        struct columns columns = {x, dtype, a * reduced * width + first, width, lanes, squares};
        double spare[D2_SPARE];
        d2_tree(columns_leaf, &columns, lanes, reduced, 0, 1, count, out + a * width + first, spare);
    }
}

/* out[a, b] = the tree over r of x[a, r, b], or of its square. Row a begins at a * apart_outputs; with width 1 it may lie in pieces of
 * `segment`, `apart` from each other; with width > 1 everything is dense. reduced and outputs are at least 1. */
void d2_sum(const void *x, int dtype, long outputs, long reduced, long width, long apart_outputs, long segment,
            long apart, int squares, double *out, int threads)
{
    if (width >= 64 || width > D2_LANES / 2)
        sum_wide(x, dtype, outputs, reduced, width, squares, out, threads);
    else
        sum_narrow(x, dtype, outputs, reduced, width, apart_outputs, segment, apart, squares, out, threads);
}

/* Whole numbers: any order gives the same. x is dense [A, R, B]. */
void d2_sum_whole(const uint64_t *x, long outputs, long reduced, long width, uint64_t *out, int threads)
{
    if (width == 1 && outputs == 1) {
        uint64_t total = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1 && reduced > 65536) reduction(+ : total)
        for (long r = 0; r < reduced; r++)
            total += x[r];
        out[0] = total;
        return;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1 && outputs > 1 && outputs * reduced * width > 65536)
    for (long a = 0; a < outputs; a++) {
        const uint64_t *rows = x + a * reduced * width;
        uint64_t *sums = out + a * width;
        if (width == 1) {
            uint64_t total = 0;
            for (long r = 0; r < reduced; r++)
                total += rows[r];
            sums[0] = total;
            continue;
        }
        memset(sums, 0, width * sizeof(uint64_t));
        for (long r = 0; r < reduced; r++)
            for (long b = 0; b < width; b++)
                sums[b] += rows[r * width + b];
    }
}
