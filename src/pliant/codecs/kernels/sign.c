// sign: mean |x| as float32 per block, then one bit per element, set where x is negative; block % 32 == 0.
#include "kernels.h"

#define LANES 16
#define PIECE 128  // elements worked on between two requests for memory

INLINE float absolute(float x) { return float_of(bits_of(x) & 0x7fffffffu); }

// The mean of sums in 16 lanes, element i in lane i % 16, which are then folded in halves.
INLINE float mean_of_lanes(float *lanes, const float *x, int64_t n) {
    for (int64_t width = LANES / 2; width > 0; width /= 2)
        for (int64_t j = 0; j < width; j++) lanes[j] += lanes[j + width];
    float mean = lanes[0] / (float)n;
    if (bits_of(mean) < INFINITE_BITS) return mean;
    double sum = 0;  // too large for a float, or not finite at all
    for (int64_t i = 0; i < n; i++) sum += (double)absolute(x[i]);
    return (float)(sum / (double)n);
}

INLINE void pack_signs(const float *x, uint8_t *out, int64_t n) {
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
        int64_t first = b * block, m = n - first < block ? n - first : block, i = 0;
        const float *y = x + first;
        float lanes[LANES] = {0};
        for (; i + LANES <= m; i += LANES)
            for (int j = 0; j < LANES; j++) lanes[j] += absolute(y[i + j]);
        for (; i < m; i++) lanes[i % LANES] += absolute(y[i]);
        float scale = mean_of_lanes(lanes, y, m);
        memcpy(out + 4 * b, &scale, 4);
        pack_signs(y, codes + first / 8, m);
    }
}

INLINE void keep_piece(const float *y, float *r, int64_t n, uint32_t magnitude) {
    for (int64_t i = 0; i < n; i++) r[i] = y[i] - float_of(magnitude | (bits_of(y[i]) & 0x80000000u));
}

DISPATCHED void sign_encode_feedback(const float *x, float *restrict residual, uint8_t *restrict out, int64_t n,
                                     int64_t block) {
    int64_t blocks = (n + block - 1) / block;
    uint8_t *codes = out + 4 * blocks;
    float y[MAX_BLOCK];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, m = n - first < block ? n - first : block, i = 0;
        float *r = residual + first;
        float lanes[LANES] = {0};
        for (; i + LANES <= m; i += LANES)
            for (int j = 0; j < LANES; j++) {
                y[i + j] = x[first + i + j] + r[i + j];
                lanes[j] += absolute(y[i + j]);
            }
        for (; i < m; i++) {
            y[i] = x[first + i] + r[i];
            lanes[i % LANES] += absolute(y[i]);
        }
        float scale = mean_of_lanes(lanes, y, m);
        memcpy(out + 4 * b, &scale, 4);
        uint32_t magnitude = bits_of(scale);
        if ((magnitude & 0x7fffffffu) >= INFINITE_BITS) {  // where the sum overflowed, the residual stays
            pack_signs(y, codes + first / 8, m);
            continue;
        }
        for (i = 0; i + PIECE <= m; i += PIECE) {
            prefetch(x + first + i + block, PIECE * sizeof *x);
            prefetch(r + i + block, PIECE * sizeof *r);
            pack_signs(y + i, codes + (first + i) / 8, PIECE);
            keep_piece(y + i, r + i, PIECE, magnitude);
        }
        pack_signs(y + i, codes + (first + i) / 8, m - i);
        keep_piece(y + i, r + i, m - i, magnitude);
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
