/* Random numbers by Philox 4x32-10 (Salmon et al., 2011): word i of a stream is word i % 4 of block i / 4, so every
 * thread computes its own part from nothing but the key. */
#include <stdint.h>

struct block {
    uint32_t word[4];
};

static inline struct block philox(uint64_t counter, uint64_t key)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)0xD2511F53u * c0, second = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct block){{c0, c1, c2, c3}};
}

enum { BLOCKS = 16, WORDS = 4 * BLOCKS, PARALLEL = 1 << 14 };

/* For each group of WORDS words from `first` on: fill `words` with them, then run the statement for i < n. */
#define EACH_GROUP(count, statement)                                                                                   \
    _Pragma("omp parallel for num_threads(threads) if (threads > 1 && (count) > PARALLEL)") for (long group = 0;       \
        group < ((count) + WORDS - 1) / WORDS; group++)                                                                \
    {                                                                                                                  \
        uint32_t words[WORDS];                                                                                         \
        long base = group * WORDS, n = (count) - base < WORDS ? (count) - base : WORDS;                                \
        for (int lane = 0; lane < BLOCKS; lane++) {                                                                    \
            struct block made = philox((uint64_t)(base / 4 + start / 4 + lane), (uint64_t)key);                        \
            for (int part = 0; part < 4; part++)                                                                       \
                words[4 * lane + part] = made.word[part];                                                              \
        }                                                                                                              \
        for (long i = 0; i < n; i++)                                                                                   \
            statement;                                                                                                 \
    }

/* The words themselves, from word `start` (a multiple of 4) on. */
int d2_philox_words(int64_t *out, long count, long start, long key, int threads)
{
    EACH_GROUP(count, out[base + i] = words[i])
    return 0;
}

/* fp32 from + u * (to - from), u of 24 bits, in fp64 and rounded once; what rounds up to `to` becomes `from`. */
int d2_philox_uniform(float *out, long count, long key, double from, double to, int threads)
{
    const long start = 0;
    const double range = to - from;
    EACH_GROUP(count, {
        float value = (float)((double)(words[i] >> 8) * 0x1p-24 * range + from);
        out[base + i] = value < (float)to || range == 0.0 ? value : (float)from;
    })
    return 0;
}

/* fp32 1 where the word is below the limit (2^32 times the probability), else 0. */
int d2_philox_bernoulli(float *out, long count, long key, long limit, int threads)
{
    const long start = 0;
    EACH_GROUP(count, out[base + i] = (int64_t)words[i] < limit ? 1.0f : 0.0f)
    return 0;
}
