// Short floating-point formats: powers of two (natural) and e4m3 (fp8), both with one scale per block.
#include "kernels.h"

// ---- natural: the power of two that no element exceeds, float32 per block; then sign and places below it plus one.

// Adding 23 random bits to the significand carries into the exponent with the probability that makes it unbiased,
// also for denormals. What lies below the least power that a code can name becomes that power or zero.
INLINE uint8_t natural_code(float x, uint32_t top, float to_unit, uint32_t random) {
    uint32_t a = bits_of(x) & 0x7fffffffu, sign = bits_of(x) >> 31 << 7;
    uint32_t least = top > 127 ? top - 126 : 1;
    uint32_t e = (a + (random & 0x7fffffu)) >> 23;
    e = e < top ? e : top;
    float u = (float)(int32_t)(random >> 8) * 0x1p-24f;
    uint32_t rare = float_of(a) * to_unit > u ? top + 1 - least : 0;
    uint32_t code = a < least << 23 ? rare : top + 1 - e;
    return (uint8_t)(code | sign);
}

INLINE float natural_value(uint8_t code, uint32_t top) {
    uint32_t places = code & 127u;
    uint32_t power = places ? (top + 1 - places) << 23 : 0;
    return float_of(power | (uint32_t)(code >> 7) << 31);
}

DISPATCHED void natural_encode(const float *x, float *restrict residual, uint8_t *restrict out, int64_t n,
                               int64_t block, uint32_t seed) {
    int64_t blocks = (n + block - 1) / block;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const float *from = with_residual(x + first, residual ? residual + first : 0, y, m);
        uint8_t *codes = out + 4 * blocks + first;
        uint32_t most = largest(from, m), top = (most >> 23) + 1;
        top = top < 254 ? top : 254;
        uint32_t header = most >= INFINITE_BITS ? 0x7fc00000u : top << 23;
        memcpy(out + 4 * b, &header, 4);
        if (most >= INFINITE_BITS) {
            for (int64_t i = 0; i < m; i++) codes[i] = 0;
            continue;  // where the sum overflowed, the residual stays
        }
        float to_unit = float_of((254 - (top > 127 ? top - 126 : 1)) << 23);  // 1 / the least power
        for (int64_t i = 0; i < m; i++)
            codes[i] = natural_code(from[i], top, to_unit, random_bits(seed, (uint32_t)(first + i)));
        if (residual)
            for (int64_t i = 0; i < m; i++) residual[first + i] = y[i] - natural_value(codes[i], top);
    }
}

DISPATCHED void natural_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const uint8_t *codes = in + 4 * blocks + first;
        float *a = acc + first;
        uint32_t header;
        memcpy(&header, in + 4 * b, 4);
        uint32_t top = header >> 23;
        if (header >= INFINITE_BITS)
            for (int64_t i = 0; i < m; i++) a[i] = float_of(header);
        else if (add)
            for (int64_t i = 0; i < m; i++) a[i] += natural_value(codes[i], top);
        else
            for (int64_t i = 0; i < m; i++) a[i] = natural_value(codes[i], top);
    }
}

// ---- fp8: max |x| / 448 as float32 per block, then e4m3 codes: sign, 4 bits of exponent (bias 7), 3 of significand.

INLINE uint8_t e4m3_code(float x, float inverse) {
    float v = float_of(bits_of(x) & 0x7fffffffu) * inverse;
    v = v < 448 ? v : 448;
    uint32_t b = bits_of(v);
    uint32_t normal = ((b + 0x7ffffu + (b >> 20 & 1)) >> 20) - (120u << 3);  // to nearest, half to even
    uint32_t denormal = bits_of(v + 0x1p14f) & 0xfu;                         // multiples of 2^-9
    return (uint8_t)((v < 0x1p-6f ? denormal : normal) | bits_of(x) >> 31 << 7);
}

INLINE float e4m3_value(uint8_t code, float step) {
    uint32_t a = code & 127u;
    float normal = float_of((a << 20) + (120u << 23)), denormal = (float)(int32_t)a * 0x1p-9f;
    float v = (a < 8 ? denormal : normal) * step;
    return float_of(bits_of(v) | (uint32_t)(code >> 7) << 31);
}

DISPATCHED void fp8_encode(const float *x, float *restrict residual, uint8_t *restrict out, int64_t n, int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const float *from = with_residual(x + first, residual ? residual + first : 0, y, m);
        uint8_t *codes = out + 4 * blocks + first;
        uint32_t most = largest(from, m);
        float step = 0, inverse = 0;
        if (most >= INFINITE_BITS)
            step = float_of(0x7fc00000u);
        else if (float_of(most) >= 1e-34f) {  // below, 448 / max would overflow
            step = float_of(most) / 448;
            inverse = 448 / float_of(most);
        }
        memcpy(out + 4 * b, &step, 4);
        if (inverse == 0)
            for (int64_t i = 0; i < m; i++) codes[i] = 0;
        else
            for (int64_t i = 0; i < m; i++) codes[i] = e4m3_code(from[i], inverse);
        if (residual && most < INFINITE_BITS)  // where the sum overflowed, the residual stays
            for (int64_t i = 0; i < m; i++) residual[first + i] = y[i] - e4m3_value(codes[i], step);
    }
}

DISPATCHED void fp8_decode(const uint8_t *in, float *restrict acc, int64_t n, int64_t block, int32_t add) {
    int64_t blocks = (n + block - 1) / block;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block;
        const uint8_t *codes = in + 4 * blocks + first;
        float *a = acc + first, step;
        memcpy(&step, in + 4 * b, 4);
        if (add)
            for (int64_t i = 0; i < m; i++) a[i] += e4m3_value(codes[i], step);
        else
            for (int64_t i = 0; i < m; i++) a[i] = e4m3_value(codes[i], step);
    }
}
