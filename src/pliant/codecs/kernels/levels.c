// Integer levels of a block's maximum: qsgd, ternary, int4. A block is read once and worked on in the L1 cache.
// Header max |x| / s as float32 per block, then codes 0..2s of 2, 4 or 8 bits: (q - s) step; block % 32 == 0.
#include "kernels.h"

INLINE void level_grid(const float *x, int64_t n, int32_t s, float *step, float *inverse) {
    uint32_t most = largest(x, n);
    *step = *inverse = 0;
    if (most >= INFINITE_BITS)
        *step = float_of(0x7fc00000u);
    else if (float_of(most) >= 1e-35f) {  // below, s / max would overflow
        *step = float_of(most) / (float)s;
        if (float_of(most) > 1e38f) *step = float_of(bits_of(*step) - 1);  // s steps must not round to infinity
        *inverse = (float)s / float_of(most);
    }
}

// Rounds |x| / step and gives it the sign of x, so that zero stays zero and errors are symmetric.
INLINE uint8_t level_code(float x, float inverse, int32_t s, int32_t stochastic, uint32_t seed, uint32_t i) {
    // An odd multiple of 2^-17: never 0 or 1, and exact when added to a level.
    float u = stochastic ? (float)(int32_t)(random_bits(seed, i) >> 16 << 1 | 1) * 0x1p-17f : 0.5f;
    float v = float_of(bits_of(x) & 0x7fffffffu) * inverse + u;
    v = v < (float)s ? v : (float)s;
    int32_t level = (int32_t)v, negative = -(int32_t)(bits_of(x) >> 31);
    return (uint8_t)(s + ((level ^ negative) - negative));
}

DISPATCHED void levels_encode(const float *x, float *residual, uint8_t *out, int64_t n, int64_t block, int32_t bits,
                              int32_t stochastic, uint32_t seed) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *packed = out + 4 * blocks;
    int32_t s = (1 << (bits - 1)) - 1;
    float y[MAX_BLOCK];
    uint8_t codes[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const float *from = with_residual(x + first, residual ? residual + first : 0, y, m);
        float step, inverse;
        level_grid(from, m, s, &step, &inverse);
        memcpy(out + 4 * b, &step, 4);
        for (int64_t i = 0; i < m; i++)
            codes[i] = level_code(from[i], inverse, s, stochastic, seed, (uint32_t)(first + i));
        if (residual && step == step)  // where the sum overflowed, the residual stays
            for (int64_t i = 0; i < m; i++) residual[first + i] = y[i] - ((float)codes[i] - (float)s) * step;
        if (bits == 8)
            memcpy(packed + first, codes, (size_t)m);
        else if (bits == 4)
            pack(codes, packed + first / 2, m, 4);
        else
            pack(codes, packed + first / 4, m, 2);
    }
}

DISPATCHED void levels_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t bits,
                              int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    const uint8_t *packed = in + 4 * blocks;
    float s = (float)((1 << (bits - 1)) - 1);
    uint8_t codes[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float step;
        memcpy(&step, in + 4 * b, 4);
        const uint8_t *q = packed + first;
        if (bits != 8) {
            unpack(packed + first * bits / 8, codes, m, bits);
            q = codes;
        }
        float *a = acc + first;
        if (add)
            for (int64_t i = 0; i < m; i++) a[i] += ((float)q[i] - s) * step;
        else
            for (int64_t i = 0; i < m; i++) a[i] = ((float)q[i] - s) * step;
    }
}
