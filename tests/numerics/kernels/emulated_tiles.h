/* Tiles of bytes (AMX) in plain C, by the published description of the instructions, for CPUs without them: included
   before slice_tiles.c (-include), which then believes that they are there. A tile that was not configured, or that is
   loaded after the release, traps. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static __thread struct {
    int rows[8], bytes[8];
    int8_t tile[8][16][64];
} emulated;

static inline int emulated_cpuid(unsigned *d) {
    *d = 3u << 24;
    return 1;
}

static inline void emulated_loadconfig(const void *from) {
    const uint8_t *config = from;
    if (config[0] != 1 || config[1]) abort();
    for (int i = 2; i < 16; i++)
        if (config[i]) abort(); /* reserved */
    memset(&emulated, 0x55, sizeof emulated);
    for (int t = 0; t < 8; t++) {
        uint16_t bytes;
        memcpy(&bytes, config + 16 + 2 * t, 2);
        emulated.bytes[t] = bytes;
        emulated.rows[t] = config[48 + t];
        if (bytes > 64 || config[48 + t] > 16) abort();
    }
}

static inline void emulated_release(void) { memset(&emulated, 0, sizeof emulated); }

static inline void emulated_check(int t) {
    if (!emulated.rows[t] || !emulated.bytes[t]) abort();
}

static inline void emulated_zero(int t) {
    emulated_check(t);
    memset(emulated.tile[t], 0, sizeof emulated.tile[t]);
}

static inline void emulated_loadd(int t, const void *from, long stride) {
    emulated_check(t);
    for (int i = 0; i < emulated.rows[t]; i++)
        memcpy(emulated.tile[t][i], (const char *)from + i * stride, emulated.bytes[t]);
}

static inline void emulated_stored(int t, void *to, long stride) {
    emulated_check(t);
    for (int i = 0; i < emulated.rows[t]; i++) memcpy((char *)to + i * stride, emulated.tile[t][i], emulated.bytes[t]);
}

/* c[m][n] += a[m][4k + i] * b[k][4n + i], signed bytes, sums of 32 bits that wrap. */
static inline void emulated_dpbssd(int c, int a, int b) {
    emulated_check(c), emulated_check(a), emulated_check(b);
    for (int m = 0; m < emulated.rows[c]; m++)
        for (int n = 0; n < emulated.bytes[c] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &emulated.tile[c][m][4 * n], 4);
            for (int k = 0; k < emulated.bytes[a] / 4; k++)
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)(emulated.tile[a][m][4 * k + i] * emulated.tile[b][k][4 * n + i]);
            memcpy(&emulated.tile[c][m][4 * n], &sum, 4);
        }
}

#undef __get_cpuid_count
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define __get_cpuid_count(leaf, part, a, b, c, d) emulated_cpuid(d)
#define syscall(...) 0
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbssd emulated_dpbssd
