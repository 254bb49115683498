/* Register tiles: R rows by V vectors of outputs, each lane a chain of fused multiply-adds over k, in order.

   a[i * a_row + k * a_step] is broadcast, b[k * b_step ..] is a row of V vectors, c[i * c_row ..] holds the outputs.
   `start`: GO_ON continues the chains that are in c, FRESH begins new ones from +0, ADDED begins new ones and adds them to
   what is in c when they are complete. */
#ifndef D2_TILE_H
#define D2_TILE_H

#include "vector.h"

#if LANES == 16
#define ROWS 14 /* 28 sums, 2 of b, 1 of a: 31 of 32 registers */
#elif LANES == 8
#define ROWS 6 /* 12 sums, 2 of b, 1 of a: 15 of 16 registers */
#else
#define ROWS 4
#endif

enum { GO_ON, FRESH, ADDED };

typedef void tile_function(long k, const float *a, long a_row, long a_step, const float *b, long b_step, float *c,
                           long c_row, int start);

/* A macro and not a function: the sums stay in registers only if their array has a constant size. */
#define UNROLL _Pragma("GCC unroll 16")
#define TILE(NAME, R, V, A_ROW, A_STEP, B_STEP)                                                                      \
    static void NAME(long k, const float *a, long a_row, long a_step, const float *b, long b_step, float *c,         \
                     long c_row, int start) {                                                                        \
        vec sum[R][V], line[V];                                                                                      \
        if (start != GO_ON) {                                                                                        \
            UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < V; j++) sum[i][j] = (vec){};               \
        } else {                                                                                                     \
            UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < V; j++) sum[i][j] =                        \
                vec_load(c + i * c_row + j * LANES);                                                                 \
        }                                                                                                            \
        for (; k > 0; k--, a += A_STEP, b += B_STEP) {                                                               \
            UNROLL for (int j = 0; j < V; j++) line[j] = vec_load(b + j * LANES);                                    \
            UNROLL for (int i = 0; i < R; i++) {                                                                     \
                vec x = vec_of(a[i * A_ROW]);                                                                        \
                UNROLL for (int j = 0; j < V; j++) sum[i][j] = vec_fma(x, line[j], sum[i][j]);                       \
            }                                                                                                        \
        }                                                                                                            \
        if (start == ADDED) {                                                                                        \
            UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < V; j++) sum[i][j] =                        \
                vec_load(c + i * c_row + j * LANES) + sum[i][j];                                                     \
        }                                                                                                            \
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < V; j++)                                        \
            vec_store(c + i * c_row + j * LANES, sum[i][j]);                                                         \
    }

/* One with a packed, one with a as it lies in memory. */
#define TILES(R, V)                                \
    TILE(packed_##R##_##V, R, V, 1, R, b_step)     \
    TILE(strided_##R##_##V, R, V, a_row, a_step, b_step)

/* Thin ones are wide, so that there are enough chains to fill the pipeline. */
TILES(1, 1) TILES(2, 1) TILES(3, 1) TILES(4, 1)
TILES(1, 2) TILES(2, 2) TILES(3, 2) TILES(4, 2)
TILES(1, 4) TILES(2, 4) TILES(1, 8)
#if LANES >= 8
TILES(5, 1) TILES(6, 1)
TILES(5, 2) TILES(6, 2)
#endif
#if LANES == 16
TILES(7, 1) TILES(8, 1) TILES(9, 1) TILES(10, 1) TILES(11, 1) TILES(12, 1) TILES(13, 1) TILES(14, 1)
TILES(7, 2) TILES(8, 2) TILES(9, 2) TILES(10, 2) TILES(11, 2) TILES(12, 2) TILES(13, 2) TILES(14, 2)
TILES(3, 4) TILES(4, 4) TILES(2, 8)
#define MOST_ROWS_OF_8 2
#define MOST_ROWS_OF_4 4
#else
#define MOST_ROWS_OF_8 1
#define MOST_ROWS_OF_4 2
#endif

#define BOTH(R, V) {strided_##R##_##V, packed_##R##_##V}
#if LANES == 16
#define COLUMN(V)                                                                                                    \
    {{0}, BOTH(1, V), BOTH(2, V), BOTH(3, V), BOTH(4, V), BOTH(5, V), BOTH(6, V), BOTH(7, V), BOTH(8, V),            \
     BOTH(9, V), BOTH(10, V), BOTH(11, V), BOTH(12, V), BOTH(13, V), BOTH(14, V)}
static tile_function *const tiles[9][ROWS + 1][2] = {
    [1] = COLUMN(1), [2] = COLUMN(2), [4] = {{0}, BOTH(1, 4), BOTH(2, 4), BOTH(3, 4), BOTH(4, 4)},
    [8] = {{0}, BOTH(1, 8), BOTH(2, 8)}};
#elif LANES == 8
#define COLUMN(V) {{0}, BOTH(1, V), BOTH(2, V), BOTH(3, V), BOTH(4, V), BOTH(5, V), BOTH(6, V)}
static tile_function *const tiles[9][ROWS + 1][2] = {
    [1] = COLUMN(1), [2] = COLUMN(2), [4] = {{0}, BOTH(1, 4), BOTH(2, 4)}, [8] = {{0}, BOTH(1, 8)}};
#else
#define COLUMN(V) {{0}, BOTH(1, V), BOTH(2, V), BOTH(3, V), BOTH(4, V)}
static tile_function *const tiles[9][ROWS + 1][2] = {
    [1] = COLUMN(1), [2] = COLUMN(2), [4] = {{0}, BOTH(1, 4), BOTH(2, 4)}, [8] = {{0}, BOTH(1, 8)}};
#endif

#endif
