/* Layer norm, group norm and RMS norm over rows, forward and backward; the definitions are in norms.py.
 *
 * Value i of row r belongs to weight number (r % groups) * (n / inner) + i / inner: layer and RMS norm have one group and
 * inner 1; for group norm a row is one group of one sample and inner its pixels. */
#include <math.h>
#include <stdlib.h>

#include "tree.h"

static double *weights(const void *base, int dtype, long n, double otherwise)
{
    double *out = malloc((n ? n : 1) * sizeof(double));
    if (out && base)
        d2_load(base, dtype, 0, n, out);
    else if (out)
        for (long i = 0; i < n; i++)
            out[i] = otherwise;
    return out;
}

/* v = (v * scale) * w + b */
static void affine(double *restrict v, double scale, const double *restrict w, const double *restrict b, long n,
                   long inner)
{
    if (inner == 1)
        for (long i = 0; i < n; i++)
            v[i] = (v[i] * scale) * w[i] + b[i];
    else
        for (long c = 0; c < n / inner; c++)
            for (long i = c * inner; i < (c + 1) * inner; i++)
                v[i] = (v[i] * scale) * w[c] + b[c];
}

/* mean (left out for RMS norm: null) and rstd are written as doubles. */
int d2_row_norm(const void *x, int x_dtype, const void *w_base, int w_dtype, const void *b_base, int b_dtype, long rows,
                long n, long groups, long inner, double eps, double *mean, double *rstd, void *y, int y_dtype,
                int threads)
{
    long parameters = groups * (n / inner);
    double *w = weights(w_base, w_dtype, parameters, 1.0), *b = weights(b_base, b_dtype, parameters, -0.0);
    int failed = !w || !b;
    if (!failed) {
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1 && rows * n > 4096)
        {
            double *v = malloc((n + d2_power(n)) * sizeof(double)), *work = v + n;
            if (!v)
#pragma omp atomic write
                failed = 1;
#pragma omp for
            for (long r = 0; r < rows; r++) {
                if (!v)
                    continue;
                d2_load(x, x_dtype, r * n, n, v);
                if (mean) {
                    double center = d2_sum_of(v, n, work) / (double)n;
                    mean[r] = center;
                    for (long i = 0; i < n; i++)
                        v[i] = v[i] - center;
                }
                rstd[r] = 1.0 / sqrt(d2_sum_of_products(v, v, n, work) / (double)n + eps);
                long first = r % groups * (n / inner);
                affine(v, rstd[r], w + first, b + first, n, inner);
                d2_store(y, y_dtype, r * n, n, v);
            }
            free(v);
        }
    }
    free(w);
    free(b);
    return failed;
}

/* dx = ((gw - s1 / n) - xhat * (s2 / n)) * rstd; without a mean (RMS norm) there is no s1. */
int d2_row_norm_backward(const void *g, int g_dtype, const void *x, int x_dtype, const void *w_base, int w_dtype,
                         long rows, long n, long groups, long inner, const double *mean, const double *rstd, void *dx,
                         int dx_dtype, int threads)
{
    double *w = weights(w_base, w_dtype, groups * (n / inner), 1.0);
    int failed = !w;
    if (!failed) {
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1 && rows * n > 4096)
        {
            double *xhat = malloc((2 * n + d2_power(n)) * sizeof(double)), *gw = xhat + n, *work = gw + n;
            if (!xhat)
#pragma omp atomic write
                failed = 1;
#pragma omp for
            for (long r = 0; r < rows; r++) {
                if (!xhat)
                    continue;
                double center = mean ? mean[r] : 0.0, scale = rstd[r];
                const double *own = w + r % groups * (n / inner);
                d2_load(x, x_dtype, r * n, n, xhat);
                d2_load(g, g_dtype, r * n, n, gw);
                for (long i = 0; i < n; i++)
                    xhat[i] = (xhat[i] - center) * scale;
                if (inner == 1)
                    for (long i = 0; i < n; i++)
                        gw[i] = gw[i] * own[i];
                else
                    for (long c = 0; c < n / inner; c++)
                        for (long i = c * inner; i < (c + 1) * inner; i++)
                            gw[i] = gw[i] * own[c];
                double s2 = d2_sum_of_products(gw, xhat, n, work) / (double)n;
                double s1 = mean ? d2_sum_of(gw, n, work) / (double)n : 0.0; /* v - 0 is v */
                for (long i = 0; i < n; i++)
                    gw[i] = ((gw[i] - s1) - xhat[i] * s2) * scale;
                d2_store(dx, dx_dtype, r * n, n, gw);
            }
            free(xhat);
        }
    }
    free(w);
    return failed;
}

struct table {
    const void *g, *x;
    int g_dtype, x_dtype;
    const double *mean, *rstd;
    long first, n, lanes;
};

static void leaf_normalized(void *context, long row, double *restrict out)
{
    const struct table *table = context;
    double x[D2_LANES], center = table->mean ? table->mean[row] : 0.0, scale = table->rstd[row];
    d2_load(table->x, table->x_dtype, row * table->n + table->first, table->lanes, x);
    d2_load(table->g, table->g_dtype, row * table->n + table->first, table->lanes, out);
    for (long i = 0; i < table->lanes; i++)
        out[i] = out[i] * ((x[i] - center) * scale);
}

/* dw[i] = the tree over rows of g * xhat, as doubles. rows is at least 1. */
int d2_row_norm_weights(const void *g, int g_dtype, const void *x, int x_dtype, long rows, long n, const double *mean,
                        const double *rstd, double *dw, int threads)
{
    long tile = 256;
    while (threads > 1 && tile > 16 && (n + tile - 1) / tile < threads)
        tile /= 2;
    long tiles = (n + tile - 1) / tile;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tiles > 1 && rows * n > 8192)
    for (long task = 0; task < tiles; task++) {
        long first = task * tile, lanes = n - first < tile ? n - first : tile;
        struct table table = {g, x, g_dtype, x_dtype, mean, rstd, first, n, lanes};
        double spare[D2_SPARE];
        d2_tree(leaf_normalized, &table, lanes, rows, 0, 1, d2_power(rows), dw + first, spare);
    }
    return 0;
}

struct channel {
    const void *g, *x;
    int g_dtype, x_dtype, plain;
    long offset, samples, pixels, apart, lanes, group, groups;
    const double *mean, *rstd;
};

/* g * xhat, or g alone where `plain`, of one channel: values are numbered by (sample, pixel) */
static void leaf_channel(void *context, long block, double *restrict out)
{
    const struct channel *channel = context;
    long start = block * channel->lanes, left = channel->samples * channel->pixels - start;
    long n = left < channel->lanes ? left : channel->lanes;
    double x[D2_LANES];
    d2_gather(channel->g, channel->g_dtype, channel->offset, channel->pixels, channel->apart, start, n, out);
    for (long i = n; i < channel->lanes; i++)
        out[i] = 0.0;
    if (channel->plain)
        return;
    d2_gather(channel->x, channel->x_dtype, channel->offset, channel->pixels, channel->apart, start, n, x);
    long sample = start / channel->pixels, end = (sample + 1) * channel->pixels - start;
    for (long i = 0; i < n; sample++, end += channel->pixels) {
        double center = channel->mean[sample * channel->groups + channel->group];
        double scale = channel->rstd[sample * channel->groups + channel->group];
        for (long stop = end < n ? end : n; i < stop; i++)
            out[i] = out[i] * ((x[i] - center) * scale);
    }
}

/* dw and db of group norm, as doubles; mean and rstd are [samples, groups]. Everything is at least 1. */
int d2_group_norm_weights(const void *g, int g_dtype, const void *x, int x_dtype, long samples, long channels,
                          long pixels, long groups, const double *mean, const double *rstd, double *dw, double *db,
                          int threads)
{
    long padded = d2_power(samples * pixels), lanes = padded < D2_LANES ? padded : D2_LANES;
    long valid = (samples * pixels + lanes - 1) / lanes;
#pragma omp parallel for num_threads(threads) if (threads > 1 && channels > 1 && samples * channels * pixels > 8192)
    for (long c = 0; c < channels; c++) {
        struct channel channel = {g, x, g_dtype, x_dtype, 0, c * pixels, samples, pixels, channels * pixels, lanes,
                                  c / (channels / groups), groups, mean, rstd};
        double block[D2_LANES], spare[D2_SPARE];
        for (channel.plain = 0; channel.plain < 2; channel.plain++) {
            d2_tree(leaf_channel, &channel, lanes, valid, 0, 1, padded / lanes, block, spare);
            d2_fold(block, lanes, 1);
            (channel.plain ? db : dw)[c] = block[0];
        }
    }
    return 0;
}
