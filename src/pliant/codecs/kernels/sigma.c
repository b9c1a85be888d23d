// sigma2: the mean |x| inside and outside of a limit as two float32 per block, then 2 bits per element: whether x is
// negative, and whether |x| is above the limit; block % 32 == 0.
#include "kernels.h"

#define LANES 16
#define LIMIT 0.9635362f  // of the mean square: the square of the border of a normal distribution's best four levels
#define HUGE_BITS 0x79000000u  // 2^115: above, a sum of MAX_BLOCK magnitudes might overflow, and is made of 2^-12 of them

INLINE float magnitude_in(float x, float unit) { return float_of(bits_of(x) & 0x7fffffffu) * unit; }

// The sum of 16 lanes, folded in halves.
INLINE float fold(float *lanes) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

INLINE float mean_of(float sum, int64_t count, float most, float unit) {
    float mean = count ? sum / (float)count : 0;
    return (mean < most ? mean : most) * (1 / unit);  // a rounded sum must not exceed what it is a mean of
}

// Finds the limit of |x| unit squared, and the two levels. Element i is added in lane i % 16.
INLINE float find_levels(const float *x, int64_t n, float most, float unit, float *level) {
    float squares[LANES] = {0}, within[LANES] = {0}, beyond[LANES] = {0};
    int64_t i = 0, outside = 0, whole = n / LANES * LANES;
    for (; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) squares[j] += magnitude_in(x[i + j], unit) * magnitude_in(x[i + j], unit);
    for (; i < n; i++) squares[i % LANES] += magnitude_in(x[i], unit) * magnitude_in(x[i], unit);
    float limit = fold(squares) / (float)n * LIMIT;
    for (i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float a = magnitude_in(x[i + j], unit);
            int above = a * a > limit;
            within[j] += above ? 0 : a;
            beyond[j] += above ? a : 0;
            outside += above;
        }
    for (; i < n; i++) {
        float a = magnitude_in(x[i], unit);
        *(a * a > limit ? &beyond[i % LANES] : &within[i % LANES]) += a;
        outside += a * a > limit;
    }
    level[0] = mean_of(fold(within), n - outside, most, unit);
    level[1] = mean_of(fold(beyond), outside, most, unit);
    return limit;
}

INLINE float sigma_value(uint32_t code, uint32_t inner, uint32_t outer) {
    return float_of((inner ^ ((inner ^ outer) & (0u - (code >> 1)))) | code << 31);
}

DISPATCHED void sigma_encode(const float *x, float *restrict residual, uint8_t *restrict out, int64_t n,
                             int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *packed = out + 8 * blocks;
    float y[MAX_BLOCK];
    uint8_t codes[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const float *from = with_residual(x + first, residual ? residual + first : 0, y, m);
        uint32_t most = largest(from, m);
        float level[2] = {float_of(0x7fc00000u), float_of(0x7fc00000u)};
        for (int64_t i = 0; i < m; i++) codes[i] = 0;
        if (most < INFINITE_BITS) {  // where the sum overflowed, the residual stays
            float unit = most >= HUGE_BITS ? 0x1p-12f : 1;
            float limit = find_levels(from, m, float_of(most) * unit, unit, level);
            for (int64_t i = 0; i < m; i++) {
                float a = magnitude_in(from[i], unit);
                codes[i] = (uint8_t)((a * a > limit) << 1 | bits_of(from[i]) >> 31);
            }
            if (residual)
                for (int64_t i = 0; i < m; i++) residual[first + i] = y[i] - sigma_value(codes[i], bits_of(level[0]), bits_of(level[1]));
        }
        memcpy(out + 8 * b, level, 8);
        pack(codes, packed + first / 4, m, 2);
    }
}

DISPATCHED void sigma_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    const uint8_t *packed = in + 8 * blocks;
    uint8_t codes[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        uint32_t level[2];
        float *a = acc + first;
        memcpy(level, in + 8 * b, 8);
        unpack(packed + first / 4, codes, m, 2);
        if (add)
            for (int64_t i = 0; i < m; i++) a[i] += sigma_value(codes[i], level[0], level[1]);
        else
            for (int64_t i = 0; i < m; i++) a[i] = sigma_value(codes[i], level[0], level[1]);
    }
}
