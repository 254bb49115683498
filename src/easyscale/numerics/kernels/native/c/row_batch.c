/* Batch norm, forward and backward; the definition is in norms.py.
 *
 * A channel's values are numbered by (n, pixel). Memory is [N, C, L] or, channels last, [N * L, C]; for the first a task is
 * one channel, whose lanes are neighbouring pixels, for the second a tile of channels, one lane each. */
#include <math.h>
#include <stdlib.h>

#include "tree.h"

struct operand {
    const void *base;
    int dtype;
};

struct part { /* the channels of one task */
    struct operand x, g;
    long first;                  /* the first channel */
    long wide;                   /* channels in this task: 1 unless channels last */
    long channels, pixels;       /* C, L */
    long length;                 /* N * L */
    long lanes, valid, count;    /* of the tree */
    int last;
    double mean[D2_LANES];
};

static void part_load(const struct part *part, struct operand from, long block, double *out)
{
    if (part->last) {
        d2_load(from.base, from.dtype, block * part->channels + part->first, part->wide, out);
        return;
    }
    long start = block * part->lanes, left = part->length - start, n = left < part->lanes ? left : part->lanes;
    d2_gather(from.base, from.dtype, part->first * part->pixels, part->pixels, part->channels * part->pixels, start, n, out);
    for (long i = n; i < part->lanes; i++)
        out[i] = 0.0;
}

static long part_valid_lanes(const struct part *part, long block)
{
    long left = part->length - block * part->lanes;
    return part->last || left > part->lanes ? part->lanes : left;
}

static void leaf_x(void *context, long block, double *out)
{
    part_load(context, ((struct part *)context)->x, block, out);
}

static void leaf_g(void *context, long block, double *out)
{
    part_load(context, ((struct part *)context)->g, block, out);
}

static void leaf_squares(void *context, long block, double *restrict out)
{
    const struct part *part = context;
    part_load(part, part->x, block, out);
    long n = part_valid_lanes(part, block);
    for (long i = 0; i < n; i++) {
        double apart = out[i] - part->mean[part->last ? i : 0];
        out[i] = apart * apart;
    }
}

static void leaf_products(void *context, long block, double *restrict out)
{
    const struct part *part = context;
    double x[D2_LANES];
    part_load(part, part->x, block, x);
    part_load(part, part->g, block, out);
    long n = part_valid_lanes(part, block);
    for (long i = 0; i < n; i++)
        out[i] = out[i] * (x[i] - part->mean[part->last ? i : 0]);
}

static void part_sum(struct part *part, d2_leaf leaf, double *sums)
{
    double block[D2_LANES], spare[D2_SPARE];
    d2_tree(leaf, part, part->lanes, part->valid, 0, 1, part->count, block, spare);
    if (!part->last)
        d2_fold(block, part->lanes, 1);
    memcpy(sums, block, part->wide * sizeof(double));
}

static long tile_of(int last, long channels, int threads)
{
    long tile = 1;
    if (last) {
        tile = 128;
        while (threads > 1 && tile > 16 && (channels + tile - 1) / tile < threads)
            tile /= 2;
    }
    return tile;
}

static void part_begin(struct part *part, struct operand x, struct operand g, long first, long tile, long batch,
                       long channels, long pixels, int last)
{
    part->x = x, part->g = g, part->first = first, part->channels = channels, part->pixels = pixels, part->last = last;
    part->wide = channels - first < tile ? channels - first : tile;
    part->length = batch * pixels;
    long padded = d2_power(part->length), rows = last ? 1 : padded < D2_LANES ? padded : D2_LANES;
    part->lanes = last ? part->wide : rows;
    part->valid = (part->length + rows - 1) / rows;
    part->count = padded / rows;
}

/* One run of neighbours: y = ((x - mean) * rstd) * w + b, all values of one channel, or one channel each. */
static void normalize(struct operand x, long at, long n, int last, const double *mean, const double *rstd,
                      const double *w, const double *b, void *y, int y_dtype)
{
    double values[D2_LANES];
    for (long i = 0; i < n; i += D2_LANES) {
        long some = n - i < D2_LANES ? n - i : D2_LANES;
        d2_load(x.base, x.dtype, at + i, some, values);
        if (last)
            for (long j = 0; j < some; j++)
                values[j] = ((values[j] - mean[j]) * rstd[j]) * w[j] + b[j];
        else
            for (long j = 0; j < some; j++)
                values[j] = ((values[j] - *mean) * *rstd) * *w + *b;
        d2_store(y, y_dtype, at + i, some, values);
    }
}

static void parameters(struct operand from, long n, double otherwise, double *out)
{
    if (from.base)
        d2_load(from.base, from.dtype, 0, n, out);
    else
        for (long i = 0; i < n; i++)
            out[i] = otherwise;
}

/* With `training`, mean and rstd are those of the batch (saved, rounded as y is), and var is its biased variance;
 * otherwise mean and var are given. Always mean, var: C doubles. */
int d2_batch_norm(const void *x_base, int x_dtype, const void *w_base, int w_dtype, const void *b_base, int b_dtype,
                  long batch, long channels, long pixels, int last, int training, double eps, double *mean, double *var,
                  double *rstd, void *y, int y_dtype, int threads)
{
    struct operand x = {x_base, x_dtype};
    double *w = malloc(2 * channels * sizeof(double)), *b = w + channels;
    if (!w)
        return 1;
    parameters((struct operand){w_base, w_dtype}, channels, 1.0, w);
    parameters((struct operand){b_base, b_dtype}, channels, -0.0, b); /* v + -0 is v */
    long tile = tile_of(last, channels, threads), tiles = (channels + tile - 1) / tile;
    double size = (double)(batch * pixels);
#pragma omp parallel for num_threads(threads) if (threads > 1 && tiles > 1 && batch * channels * pixels > 8192)
    for (long task = 0; task < tiles; task++) {
        struct part part;
        long c = task * tile;
        part_begin(&part, x, x, c, tile, batch, channels, pixels, last);
        if (training) {
            part_sum(&part, leaf_x, part.mean);
            for (long i = 0; i < part.wide; i++)
                mean[c + i] = part.mean[i] = part.mean[i] / size;
            part_sum(&part, leaf_squares, var + c);
            for (long i = 0; i < part.wide; i++)
                var[c + i] = var[c + i] / size;
        }
        for (long i = 0; i < part.wide; i++)
            rstd[c + i] = 1.0 / sqrt(var[c + i] + eps);
        long runs = last ? batch * pixels : batch, run = last ? part.wide : pixels;
        for (long n = 0; n < runs; n++)
            normalize(x, last ? n * channels + c : (n * channels + c) * pixels, run, last, mean + c, rstd + c, w + c,
                      b + c, y, y_dtype);
    }
    free(w);
    return 0;
}

/* One run of neighbours: dx = ((g - k1) - (x - mean) * k2) * k3, or g * k3. */
static void gradient(struct operand g, struct operand x, long at, long n, int last, int training, const double *mean,
                     const double *k1, const double *k2, const double *k3, void *dx, int dx_dtype)
{
    double values[D2_LANES], inputs[D2_LANES];
    for (long i = 0; i < n; i += D2_LANES) {
        long some = n - i < D2_LANES ? n - i : D2_LANES;
        d2_load(g.base, g.dtype, at + i, some, values);
        if (training)
            d2_load(x.base, x.dtype, at + i, some, inputs);
        if (training && last)
            for (long j = 0; j < some; j++)
                values[j] = ((values[j] - k1[j]) - (inputs[j] - mean[j]) * k2[j]) * k3[j];
        else if (training)
            for (long j = 0; j < some; j++)
                values[j] = ((values[j] - *k1) - (inputs[j] - *mean) * *k2) * *k3;
        else
            for (long j = 0; j < some; j++)
                values[j] = values[j] * k3[last ? j : 0];
        d2_store(dx, dx_dtype, at + i, some, values);
    }
}

/* mean and rstd: C doubles, the saved ones or those of the running statistics. Writes dw and db as doubles. */
int d2_batch_norm_backward(const void *g_base, int g_dtype, const void *x_base, int x_dtype, const void *w_base,
                           int w_dtype, long batch, long channels, long pixels, int last, int training,
                           const double *mean, const double *rstd, double *dw, double *db, void *dx, int dx_dtype,
                           int threads)
{
    struct operand x = {x_base, x_dtype}, g = {g_base, g_dtype};
    double *w = malloc(channels * sizeof(double));
    if (!w)
        return 1;
    parameters((struct operand){w_base, w_dtype}, channels, 1.0, w);
    long tile = tile_of(last, channels, threads), tiles = (channels + tile - 1) / tile;
    double size = (double)(batch * pixels);
#pragma omp parallel for num_threads(threads) if (threads > 1 && tiles > 1 && batch * channels * pixels > 8192)
    for (long task = 0; task < tiles; task++) {
        struct part part;
        double k1[D2_LANES], k2[D2_LANES], k3[D2_LANES];
        long c = task * tile;
        part_begin(&part, x, g, c, tile, batch, channels, pixels, last);
        memcpy(part.mean, mean + c, part.wide * sizeof(double));
        part_sum(&part, leaf_g, db + c);
        part_sum(&part, leaf_products, dw + c);
        for (long i = 0; i < part.wide; i++) {
            k1[i] = db[c + i] / size;
            k2[i] = ((dw[c + i] / size) * rstd[c + i]) * rstd[c + i];
            k3[i] = rstd[c + i] * w[c + i];
            dw[c + i] = dw[c + i] * rstd[c + i];
        }
        long runs = last ? batch * pixels : batch, run = last ? part.wide : pixels;
        for (long n = 0; dx && n < runs; n++)
            gradient(g, x, last ? n * channels + c : (n * channels + c) * pixels, run, last, training, mean + c, k1, k2,
                     k3, dx, dx_dtype);
    }
    free(w);
    return 0;
}
