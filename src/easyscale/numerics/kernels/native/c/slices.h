/* Operands of a product by slices, cut and laid out for what multiplies them. */
#ifndef D2_SLICES_H
#define D2_SLICES_H

#include "pack.h"

#define MOST_SLICES 4 /* sums over up to 2^17 k of all slices fit into 63 bits */
#define NOT_FINITE INT32_MIN

/* What multiplies bytes. Panels of a and b have so many lines; along k, words of four bytes are padded to `words`. The
   bytes of a are kept as q + `offset`: what that adds is 128 times the sums of b's slices, and is taken off again. */
typedef struct {
    long height, breadth, words;
    int offset;
    int by_lines; /* panels of a: 16 words of a line side by side, else the words of all lines */
} unit;

/* Lines of one operand, sliced: words of slice s, panel p at data + (p * slices + s) * K4 * width. */
typedef struct {
    operand from;
    const unit *by;
    int of_b;
    long lines, width, panels, K, K4; /* K4: words along k */
    int slices;
    const int32_t *most; /* bits of the value that each line is scaled by; NULL: of its largest */
    uint32_t *data;
    int64_t *sums; /* of b's slices over k, where an offset wants them: [slices][panels * width] */
    int *exponent; /* of each line; NOT_FINITE where a value is not */
} sliced;

INLINE long least(long a, long b) { return a < b ? a : b; }

INLINE double power_of_two(long exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* Whether this CPU and this system have tiles of bytes (AMX), and what they want of panels. */
const unit *d2_tiles(void);

/* All outputs of finite lines. 0, or 1 without memory. */
int d2_tile_outputs(const sliced *a, const sliced *b, float *out, long M, long N, int threads);

#endif
