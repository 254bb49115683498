/* Softmax and its logarithm over dense rows, forward and backward; the definitions are in softmax.py. */
#include <stdlib.h>

#include "formulas.h"
#include "tree.h"

static double largest(const double *x, long n) /* NaN is passed over: it comes back by exp(x - m) */
{
    enum { WIDE = 16 };
    double best[WIDE];
    for (int j = 0; j < WIDE; j++)
        best[j] = -__builtin_inf();
    long i = 0;
    for (; i + WIDE <= n; i += WIDE)
        for (int j = 0; j < WIDE; j++)
            best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
    for (; i < n; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    for (int j = 1; j < WIDE; j++)
        best[0] = best[j] > best[0] ? best[j] : best[0];
    return best[0];
}

static void exponentials(double *restrict v, long n)
{
    for (long i = 0; i < n; i++)
        v[i] = f_exp(v[i]);
}

static void softmax_row(double *v, double *e, double *work, long n, int logarithm)
{
    double top = largest(v, n);
    for (long i = 0; i < n; i++)
        v[i] = v[i] - top;
    memcpy(e, v, n * sizeof(double));
    exponentials(e, n);
    double sum = d2_sum_of(e, n, work);
    if (logarithm) {
        double minus = f_log(sum);
        for (long i = 0; i < n; i++)
            v[i] = v[i] - minus;
    } else {
        for (long i = 0; i < n; i++)
            v[i] = e[i] / sum;
    }
}

int d2_softmax(const void *x, int x_dtype, long rows, long n, int logarithm, void *y, int y_dtype, int threads)
{
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && rows > 1 && rows * n > 1024)
    {
        double *v = malloc((2 * n + d2_power(n)) * sizeof(double)), *e = v + n, *work = e + n;
        if (!v)
#pragma omp atomic write
            failed = 1;
#pragma omp for
        for (long r = 0; r < rows; r++) {
            if (!v)
                continue;
            d2_load(x, x_dtype, r * n, n, v);
            softmax_row(v, e, work, n, logarithm);
            d2_store(y, y_dtype, r * n, n, v);
        }
        free(v);
    }
    return failed;
}

static void gradient_row(double *restrict g, double *restrict y, double *work, long n, int logarithm)
{
    if (logarithm) {
        double sum = d2_sum_of(g, n, work);
        exponentials(y, n);
        for (long i = 0; i < n; i++)
            g[i] = g[i] - y[i] * sum;
    } else {
        double sum = d2_sum_of_products(g, y, n, work);
        for (long i = 0; i < n; i++)
            g[i] = (g[i] - sum) * y[i];
    }
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
            gradient_row(v, outputs, work, n, logarithm);
            d2_store(dx, dx_dtype, r * n, n, v);
        }
        free(v);
    }
    return failed;
}
