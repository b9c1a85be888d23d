// Quantizers, one block at a time: a block is read from memory once and worked on in the L1 cache.
// Feedback variants encode x + residual and leave in residual what the payload does not carry.
#include "kernels.h"

#define MAX_BLOCK 4096

// ---- minmax8: header (low, step, offset) as float32 per block, then one byte per element: (q + low) step + offset

typedef struct { float low, step, offset, inverse; } grid_t;

static inline __attribute__((always_inline)) grid_t minmax_grid(const float *x, int64_t n) {
    int32_t least = INT32_MAX, most = INT32_MIN;  // floats in the order of integers, so that the loop vectorizes
    for (int64_t i = 0; i < n; i++) {
        int32_t b = (int32_t)bits_of(x[i]);
        int32_t ordered = b ^ ((b >> 31) & 0x7fffffff);
        least = ordered < least ? ordered : least;
        most = ordered > most ? ordered : most;
    }
    grid_t g = {0, 0, 0, 0};
    if (most >= (int32_t)INFINITE_BITS || least <= (int32_t)0x807fffff) {
        g.offset = float_of(0x7fc00000u);  // a non-finite element poisons its block
        return g;
    }
    float mn = float_of((uint32_t)(least ^ ((least >> 31) & 0x7fffffff)));
    float mx = float_of((uint32_t)(most ^ ((most >> 31) & 0x7fffffff)));
    int zero_inside = mn <= 0 && mx >= 0;
    g.step = mx / 255 - mn / 255;  // mx - mn could overflow
    if (g.step < 1.1754944e-38f) {  // constant, or a range too small to divide by
        g.step = 0;
        g.offset = zero_inside ? 0 : mn;
        return g;
    }
    g.inverse = 1 / g.step;
    if (zero_inside) {  // a grid of multiples of the step, so that zero stays zero
        float high = (float)(int32_t)(mx * g.inverse + 0.5f);
        g.low = high - 255;
    } else {
        g.offset = mn;
    }
    return g;
}

static inline __attribute__((always_inline)) uint8_t minmax_code(float x, grid_t g) {
    float v = (x - g.offset) * g.inverse - g.low;
    v = v > 0 ? v : 0;  // also for NaN
    v = v < 255 ? v : 255;
    return (uint8_t)(int32_t)(v + 0.5f);
}

DISPATCHED void minmax8_encode(const float *x, uint8_t *out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 12 * blocks;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        grid_t g = minmax_grid(x + first, m);
        memcpy(out + 12 * b, &g, 12);
        for (int64_t i = 0; i < m; i++) codes[first + i] = minmax_code(x[first + i], g);
    }
}

DISPATCHED void minmax8_encode_feedback(const float *x, float *residual, uint8_t *out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 12 * blocks;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float *r = residual + first;
        for (int64_t i = 0; i < m; i++) y[i] = x[first + i] + r[i];
        grid_t g = minmax_grid(y, m);
        memcpy(out + 12 * b, &g, 12);
        for (int64_t i = 0; i < m; i++) {
            uint8_t q = minmax_code(y[i], g);
            codes[first + i] = q;
            r[i] = y[i] - (((float)q + g.low) * g.step + g.offset);
        }
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

// ---- sign: mean |x| as float32 per block, then one bit per element, set where x is negative; block % 32 == 0

static inline __attribute__((always_inline)) float mean_abs(const float *x, int64_t n) {
    double lanes[16] = {0}, sum = 0;  // doubles: 4096 values of 1e38 must not overflow
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lanes[j] += (double)float_of(bits_of(x[i + j]) & 0x7fffffffu);
    for (int j = 0; j < 16; j++) sum += lanes[j];
    for (; i < n; i++) sum += (double)float_of(bits_of(x[i]) & 0x7fffffffu);
    return (float)(sum / (double)n);
}

static inline __attribute__((always_inline)) void pack_signs(const float *x, uint8_t *out, int64_t n) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t word = 0;
        for (int k = 0; k < 32; k++) word |= (bits_of(x[i + k]) >> 31) << k;
        memcpy(out + i / 8, &word, 4);
    }
    for (; i < n; i += 8) {
        uint8_t byte = 0;
        for (int k = 0; k < 8 && i + k < n; k++) byte |= (uint8_t)((bits_of(x[i + k]) >> 31) << k);
        out[i / 8] = byte;
    }
}

DISPATCHED void sign_encode(const float *x, uint8_t *out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 4 * blocks;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float scale = mean_abs(x + first, m);
        memcpy(out + 4 * b, &scale, 4);
        pack_signs(x + first, codes + first / 8, m);
    }
}

DISPATCHED void sign_encode_feedback(const float *x, float *residual, uint8_t *out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 4 * blocks;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float *r = residual + first;
        for (int64_t i = 0; i < m; i++) y[i] = x[first + i] + r[i];
        float scale = mean_abs(y, m);
        memcpy(out + 4 * b, &scale, 4);
        pack_signs(y, codes + first / 8, m);
        uint32_t magnitude = bits_of(scale);
        for (int64_t i = 0; i < m; i++) r[i] = y[i] - float_of(magnitude | (bits_of(y[i]) & 0x80000000u));
    }
}

DISPATCHED void sign_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    const uint8_t *codes = in + 4 * blocks;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        uint32_t magnitude;
        memcpy(&magnitude, in + 4 * b, 4);
        float *a = acc + first;
        int64_t i = 0;
        for (; i + 32 <= m; i += 32) {
            uint32_t word;
            memcpy(&word, codes + (first + i) / 8, 4);
            if (add)
                for (int k = 0; k < 32; k++) a[i + k] += float_of(magnitude | ((word >> k) << 31));
            else
                for (int k = 0; k < 32; k++) a[i + k] = float_of(magnitude | ((word >> k) << 31));
        }
        for (; i < m; i++) {
            float v = float_of(magnitude | ((uint32_t)(codes[(first + i) / 8] >> (i % 8)) << 31));
            a[i] = add ? a[i] + v : v;
        }
    }
}

// ---- levels: max |x| / s as float32 per block, then codes 0..2s of 2, 4 or 8 bits: (q - s) step; block % 32 == 0

static inline __attribute__((always_inline)) void level_grid(const float *x, int64_t n, int32_t s, float *step,
                                                             float *inverse) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = bits_of(x[i]) & 0x7fffffffu;
        most = a > most ? a : most;
    }
    *step = *inverse = 0;
    if (most >= INFINITE_BITS)
        *step = float_of(0x7fc00000u);
    else if (float_of(most) >= 1e-35f) {  // below, s / max would overflow
        *step = float_of(most) / (float)s;
        *inverse = (float)s / float_of(most);
    }
}

static inline __attribute__((always_inline)) uint8_t level_code(float x, float inverse, int32_t s, int32_t stochastic,
                                                                uint32_t seed, uint32_t i) {
    float u = stochastic ? (float)(random_bits(seed, i) >> 8) * 0x1p-24f : 0.5f;
    float v = x * inverse + (float)s + u;
    v = v > 0 ? v : 0;
    float top = (float)(2 * s);
    v = v < top ? v : top;
    return (uint8_t)(int32_t)v;
}

static inline __attribute__((always_inline)) void pack(const uint8_t *codes, uint8_t *out, int64_t n, int bits) {
    int per = 8 / bits;
    for (int64_t i = 0; i < n / per; i++) {
        uint8_t byte = 0;
        for (int k = 0; k < per; k++) byte |= (uint8_t)(codes[i * per + k] << (k * bits));
        out[i] = byte;
    }
    if (n % per) {
        uint8_t byte = 0;
        for (int k = 0; k < n % per; k++) byte |= (uint8_t)(codes[n / per * per + k] << (k * bits));
        out[n / per] = byte;
    }
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
        const float *from = x + first;
        if (residual) {
            for (int64_t i = 0; i < m; i++) y[i] = x[first + i] + residual[first + i];
            from = y;
        }
        float step, inverse;
        level_grid(from, m, s, &step, &inverse);
        memcpy(out + 4 * b, &step, 4);
        for (int64_t i = 0; i < m; i++)
            codes[i] = level_code(from[i], inverse, s, stochastic, seed, (uint32_t)(first + i));
        if (residual)
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
    int per = 8 / bits, mask = (1 << bits) - 1;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        float step;
        memcpy(&step, in + 4 * b, 4);
        const uint8_t *q = packed + first;
        if (bits != 8) {
            const uint8_t *from = packed + first / per;
            for (int64_t i = 0; i < (m + per - 1) / per; i++)
                for (int k = 0; k < per; k++) codes[i * per + k] = (uint8_t)((from[i] >> (k * bits)) & mask);
            q = codes;
        }
        float *a = acc + first;
        if (add)
            for (int64_t i = 0; i < m; i++) a[i] += ((float)q[i] - s) * step;
        else
            for (int64_t i = 0; i < m; i++) a[i] = ((float)q[i] - s) * step;
    }
}
