/* Softmax and its logarithm over dense rows, forward and backward; the definitions are in softmax.py. */
#include <stdlib.h>

#include "formulas.h"
#include "tree.h"

enum { WIDE = 16 };

/* NaN is passed over: it comes back by exp(x - m) */
#define LARGEST(REAL, NAME)                                                                                            \
    static REAL NAME(const REAL *x, long n)                                                                            \
    {                                                                                                                  \
        REAL best[WIDE];                                                                                               \
        for (int j = 0; j < WIDE; j++)                                                                                 \
            best[j] = -__builtin_inf();                                                                                \
        long i = 0;                                                                                                    \
        for (; i + WIDE <= n; i += WIDE)                                                                               \
            for (int j = 0; j < WIDE; j++)                                                                             \
                best[j] = x[i + j] > best[j] ? x[i + j] : best[j];                                                     \
        for (; i < n; i++)                                                                                             \
            best[0] = x[i] > best[0] ? x[i] : best[0];                                                                 \
        for (int j = 1; j < WIDE; j++)                                                                                 \
            best[0] = best[j] > best[0] ? best[j] : best[0];                                                           \
        return best[0];                                                                                                \
    }

LARGEST(double, largest)
LARGEST(float, largest_single)

/* e becomes exp(x - m); m is returned */
static double powers(const double *restrict x, double *restrict e, long n)
{
    double top = largest(x, n);
    for (long i = 0; i < n; i++)
        e[i] = f_exp(x[i] - top);
    return top;
}

static double powers_single(const float *restrict x, double *restrict e, long n)
{
    float top = largest_single(x, n);
    for (long i = 0; i < n; i++)
        e[i] = f_exp_single(x[i] - top);
    return top;
}

/* what the powers are multiplied by; or what is taken from x for the logarithm */
static double scale_of(double top, const double *e, double *work, long n, int logarithm)
{
    double sum = d2_sum_of(e, n, work);
    return logarithm ? top + f_log(sum) : 1.0 / sum;
}

int d2_softmax(const void *x, int x_dtype, long rows, long n, int logarithm, void *y, int y_dtype, int threads)
{
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1 && rows * n > 1024)
    {
        double *v = malloc((2 * n + d2_power(n)) * sizeof(double)), *e = v + n, *work = e + n;
        float *s = (float *)v;
        if (!v)
#pragma omp atomic write
            failed = 1;
#pragma omp for
        for (long r = 0; r < rows; r++) {
            if (!v)
                continue;
            double scale;
            if (x_dtype == D2_F64) {
                d2_load(x, x_dtype, r * n, n, v);
                scale = scale_of(powers(v, e, n), e, work, n, logarithm);
                for (long i = 0; i < n; i++)
                    e[i] = logarithm ? v[i] - scale : e[i] * scale;
            } else {
                d2_load_float(x, x_dtype, r * n, n, s);
                scale = scale_of(powers_single(s, e, n), e, work, n, logarithm);
                for (long i = 0; i < n; i++)
                    e[i] = logarithm ? s[i] - scale : e[i] * scale;
            }
            d2_store(y, y_dtype, r * n, n, e);
        }
        free(v);
    }
    return failed;
}

static void gradient_row(double *restrict g, const double *restrict y, double *work, long n, int logarithm, int single)
{
    if (!logarithm) {
        double sum = d2_sum_of_products(g, y, n, work);
        for (long i = 0; i < n; i++)
            g[i] = (g[i] - sum) * y[i];
        return;
    }
    double sum = d2_sum_of(g, n, work);
    if (single)
        for (long i = 0; i < n; i++)
            g[i] = g[i] - (double)f_exp_single((float)y[i]) * sum;
    else
        for (long i = 0; i < n; i++)
            g[i] = g[i] - f_exp(y[i]) * sum;
}

int d2_softmax_backward(const void *g, int g_dtype, const void *y, int y_dtype, long rows, long n, int logarithm,
                        void *dx, int dx_dtype, int threads)
{
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1 && rows * n > 1024)
    {
        double *v = malloc((2 * n + d2_power(n)) * sizeof(double)), *outputs = v + n, *work = outputs + n;
        if (!v)
#pragma omp atomic write
            failed = 1;
#pragma omp for
        for (long r = 0; r < rows; r++) {
            if (!v)
                continue;
            d2_load(g, g_dtype, r * n, n, v);
            d2_load(y, y_dtype, r * n, n, outputs);
            gradient_row(v, outputs, work, n, logarithm, y_dtype != D2_F64);
            d2_store(dx, dx_dtype, r * n, n, v);
        }
        free(v);
    }
    return failed;
}
