// minmax8: header (low, step, offset) as float32 per block, then one byte per element: (q + low) step + offset.
// Compiled for finite numbers, so that minima vectorize; whether a block is finite is asked of the bits.
#include "kernels.h"

#define ROUNDER 12582912.0f  // 1.5 * 2^23: adding it rounds to the nearest integer, half to even, in the low bits

typedef struct { float low, step, offset, inverse; } grid_t;

INLINE grid_t poisoned(void) {
    grid_t g = {0, 0, float_of(0x7fc00000u), 0};
    return g;
}

// The grid between two finite numbers.
INLINE grid_t grid_between(float mn, float mx) {
    grid_t g = {0, 0, 0, 0};
    int zero_inside = mn <= 0 && mx >= 0;
    // With different signs mx - mn could overflow; with equal ones the quotients' difference would be rounded.
    g.step = zero_inside ? mx / 255 - mn / 255 : (mx - mn) / 255;
    if (g.step < 1.1754944e-38f) {  // constant, or a range too small to divide by
        g.step = 0;
        g.offset = zero_inside ? 0 : mn;
        return g;
    }
    int huge = mx > 1e38f || mn < -1e38f;  // then no end of the grid may round to infinity
    if (huge && zero_inside) g.step = (mx > -mn ? mx : -mn) / 127;
    if (huge) g.step *= 0.999999f;
    g.inverse = 1 / g.step;
    if (!zero_inside) {
        g.offset = mn;
        return g;
    }
    float high = (float)(int32_t)(mx * g.inverse + 0.5f);  // a grid of multiples of the step: zero stays zero
    g.low = huge ? -128 : high - 255;
    return g;
}

INLINE grid_t grid_of(const float *x, int64_t n) {
    float mn = x[0], mx = x[0];
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        mn = x[i] < mn ? x[i] : mn;
        mx = x[i] > mx ? x[i] : mx;
        uint32_t a = bits_of(x[i]) & 0x7fffffffu;
        most = a > most ? a : most;
    }
    return most >= INFINITE_BITS ? poisoned() : grid_between(mn, mx);
}

// ROUNDER + code; the code is its low byte. Only below can rounding leave the grid: x / step < high + 1/2.
INLINE float rounded(float x, grid_t g) {
    float v = (x - g.offset) * g.inverse;
    v = v > g.low ? v : g.low;
    return v + (ROUNDER - g.low);
}

// The grid, its offset known to the compiler where it is zero, as it is nearly always.
#define EACH_OFFSET(g, what)  \
    do {                      \
        if ((g).offset == 0) { \
            (g).offset = 0;   \
            what;             \
        } else {              \
            what;             \
        }                     \
    } while (0)

INLINE void encode_block(const float *x, uint8_t *codes, int64_t n, grid_t g) {
    for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)bits_of(rounded(x[i], g));
}

DISPATCHED void minmax8_encode(const float *restrict x, uint8_t *restrict out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 12 * blocks;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        grid_t g = grid_of(x + first, m);
        memcpy(out + 12 * b, &g, 12);
        if (g.inverse == 0) {  // constant, or poisoned
            memset(codes + first, 0, (size_t)m);
            continue;
        }
        EACH_OFFSET(g, encode_block(x + first, codes + first, m, g));
    }
}

INLINE void encode_and_keep(const float *y, float *r, uint8_t *codes, int64_t n, grid_t g) {
    for (int64_t i = 0; i < n; i++) {
        float v = rounded(y[i], g);
        codes[i] = (uint8_t)bits_of(v);
        r[i] = y[i] - (((v - ROUNDER) + g.low) * g.step + g.offset);
    }
}

DISPATCHED void minmax8_encode_feedback(const float *x, float *restrict residual, uint8_t *restrict out, int64_t n,
                                        int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 12 * blocks;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float *r = residual + first;
        for (int64_t i = 0; i < m; i++) y[i] = x[first + i] + r[i];
        grid_t g = grid_of(y, m);
        memcpy(out + 12 * b, &g, 12);
        if (g.inverse == 0) {
            memset(codes + first, 0, (size_t)m);
            if (bits_of(g.offset) == 0x7fc00000u) continue;  // where the sum overflowed, the residual stays
            for (int64_t i = 0; i < m; i++) r[i] = y[i] - g.offset;
            continue;
        }
        EACH_OFFSET(g, encode_and_keep(y, r, codes + first, m, g));
    }
}

DISPATCHED void minmax8_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    const uint8_t *codes = in + 12 * blocks;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float head[3];
        memcpy(head, in + 12 * b, 12);
        float *a = acc + first;
        const uint8_t *q = codes + first;
        if (add)
            for (int64_t i = 0; i < m; i++) a[i] += ((float)q[i] + head[0]) * head[1] + head[2];
        else
            for (int64_t i = 0; i < m; i++) a[i] = ((float)q[i] + head[0]) * head[1] + head[2];
    }
}
