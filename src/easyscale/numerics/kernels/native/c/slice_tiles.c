/* Products of slices on the tiles of bytes that some CPUs have (AMX): 16 lines by 64 k times 64 k by 16 lines in one
   instruction, with signed bytes and sums of 32 bits. Whole numbers: the bits are those of slices.c. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "slices.h"

#if LANES == 16 && defined(__linux__) && defined(__x86_64__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIDE 16         /* lines of a panel: outputs of a tile in each direction */
#define DEEP (1024 / 4) /* words of k at a time. Sums in 32 bits: 4 pairs * 2^14 * 2^10 */
#define PANELS 8        /* of a, and of b, at a time: what is read again and again stays in the cache next to the core */

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} WHOLE __attribute__((aligned(64))) = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
};

static int tiles_are_here(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!(d >> 24 & 1) || !(d >> 25 & 1)) return 0; /* tiles, and bytes in them */
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

const unit *d2_tiles(void) {
    static const unit tiles = {.height = SIDE, .breadth = SIDE, .words = 16, .offset = 0, .by_lines = 1};
    static int known; /* 1: none, 2: there. Whoever writes it writes the same. */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) __atomic_store_n(&known, found = 1 + tiles_are_here(), __ATOMIC_RELAXED);
    return found == 2 ? &tiles : NULL;
}

#define OF_TILES __attribute__((target("amx-tile,amx-int8")))
#define A(i) (a + (i) * step + k)
#define B(j) (b + (j) * step + k)

/* sums[g] = products of slices i and g - i of a and b, for all i, over `blocks` of 64 k. Four sums, one tile of a and
   three of b: the fourth of b is multiplied first, in the place of the first. */
OF_TILES static inline __attribute__((always_inline)) void multiply(
    int slices, const uint32_t *a, const uint32_t *b, long step, long blocks, int32_t sums[MOST_SLICES][SIDE * SIDE]) {
    _tile_zero(0);
    if (slices > 1) _tile_zero(1);
    if (slices > 2) _tile_zero(2);
    if (slices > 3) _tile_zero(3);
    for (long k = 0; k < blocks * 256; k += 256) {
        _tile_loadd(4, A(0), 64);
        if (slices > 3) {
            _tile_loadd(5, B(3), 64);
            _tile_dpbssd(3, 4, 5);
        }
        _tile_loadd(5, B(0), 64);
        _tile_dpbssd(0, 4, 5);
        if (slices > 1) {
            _tile_loadd(6, B(1), 64);
            _tile_dpbssd(1, 4, 6);
        }
        if (slices > 2) {
            _tile_loadd(7, B(2), 64);
            _tile_dpbssd(2, 4, 7);
        }
        if (slices > 1) {
            _tile_loadd(4, A(1), 64);
            _tile_dpbssd(1, 4, 5);
            if (slices > 2) _tile_dpbssd(2, 4, 6);
            if (slices > 3) _tile_dpbssd(3, 4, 7);
        }
        if (slices > 2) {
            _tile_loadd(4, A(2), 64);
            _tile_dpbssd(2, 4, 5);
            if (slices > 3) _tile_dpbssd(3, 4, 6);
        }
        if (slices > 3) {
            _tile_loadd(4, A(3), 64);
            _tile_dpbssd(3, 4, 5);
        }
    }
    _tile_stored(0, sums[0], 64);
    if (slices > 1) _tile_stored(1, sums[1], 64);
    if (slices > 2) _tile_stored(2, sums[2], 64);
    if (slices > 3) _tile_stored(3, sums[3], 64);
}

/* total[i] += what one pair of panels gives over `blocks` of k. */
#define ADD(NAME, SLICES)                                                                                            \
    OF_TILES static void NAME(const uint32_t *a, const uint32_t *b, long step, long blocks, int64_t *total) {        \
        int32_t sums[MOST_SLICES][SIDE * SIDE] __attribute__((aligned(64)));                                         \
        multiply(SLICES, a, b, step, blocks, sums);                                                                  \
        for (int i = 0; i < SIDE * SIDE; i++) {                                                                      \
            int64_t sum = sums[0][i];                                                                                \
            for (int g = 1; g < SLICES; g++) sum = sum * 256 + sums[g][i];                                           \
            total[i] += sum;                                                                                         \
        }                                                                                                            \
    }
ADD(add_1, 1)
ADD(add_2, 2)
ADD(add_3, 3)
ADD(add_4, 4)

OF_TILES static void start(void) { _tile_loadconfig(&WHOLE); }
OF_TILES static void end(void) { _tile_release(); }

static void outputs(const sliced *a, const sliced *b, long panel_a, long panel_b, const int64_t *total, float *out,
                    long M, long N) {
    for (long i = 0; i < least(M - panel_a * SIDE, SIDE); i++)
        for (long j = 0; j < least(N - panel_b * SIDE, SIDE); j++) {
            long m = panel_a * SIDE + i, n = panel_b * SIDE + j;
            if (a->exponent[m] == NOT_FINITE || b->exponent[n] == NOT_FINITE) continue;
            double scale = power_of_two(a->exponent[m] + b->exponent[n] - 14 - 8 * (a->slices - 1));
            out[m * N + n] = (float)((double)total[i * SIDE + j] * scale);
        }
}

int d2_tile_outputs(const sliced *a, const sliced *b, float *out, long M, long N, int threads) {
    void (*add)(const uint32_t *, const uint32_t *, long, long, int64_t *) =
        (void (*[])(const uint32_t *, const uint32_t *, long, long, int64_t *)){add_1, add_2, add_3, add_4}[a->slices - 1];
    long step = a->K4 * SIDE, down = (a->panels + PANELS - 1) / PANELS, across = (b->panels + PANELS - 1) / PANELS;
    int failed = 0;
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1) reduction(| : failed)
    for (long at_b = 0; at_b < across; at_b++)
        for (long at_a = 0; at_a < down; at_a++) {
            long rows = least(a->panels - at_a * PANELS, PANELS), columns = least(b->panels - at_b * PANELS, PANELS);
            int64_t *total = aligned_alloc(64, PANELS * PANELS * SIDE * SIDE * sizeof(int64_t));
            if (!total) {
                failed = 1;
                continue;
            }
            memset(total, 0, rows * PANELS * SIDE * SIDE * sizeof(int64_t));
            start();
            for (long k = 0; k < a->K4; k += DEEP)
                for (long i = 0; i < rows; i++)
                    for (long j = 0; j < columns; j++)
                        add(a->data + (at_a * PANELS + i) * a->slices * step + k * SIDE,
                            b->data + (at_b * PANELS + j) * a->slices * step + k * SIDE, step,
                            least(a->K4 - k, DEEP) / 16, total + (i * PANELS + j) * SIDE * SIDE);
            end();
            for (long i = 0; i < rows; i++)
                for (long j = 0; j < columns; j++)
                    outputs(a, b, at_a * PANELS + i, at_b * PANELS + j, total + (i * PANELS + j) * SIDE * SIDE, out, M,
                            N);
            free(total);
        }
    return failed;
}
#else
const unit *d2_tiles(void) { return NULL; }
int d2_tile_outputs(const sliced *a, const sliced *b, float *out, long M, long N, int threads) { return 1; }
#endif
