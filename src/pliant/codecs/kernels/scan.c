// One read of a tensor: is all of it finite, and what is its hash.
#include "kernels.h"

// Whether every float32 is finite; stops at the first 4096 elements that are not.
DISPATCHED int32_t all_finite(const float *x, int64_t n) {
    for (int64_t first = 0; first < n; first += 4096) {
        int64_t m = n - first < 4096 ? n - first : 4096;
        uint32_t most = 0;
        for (int64_t i = 0; i < m; i++) {
            uint32_t a = bits_of(x[first + i]) & 0x7fffffffu;
            most = a > most ? a : most;
        }
        if (most >= INFINITE_BITS) return 0;
    }
    return 1;
}

static inline uint64_t mix(uint64_t h) {
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return h ^ (h >> 33);
}

// 64-bit hash of bytes: eight independent multiply-and-add lanes over 64-byte rows, then a mix of lanes and length.
DISPATCHED uint64_t hash_bytes(const uint8_t *x, int64_t n) {
    uint64_t lanes[8], row[8];
    for (int j = 0; j < 8; j++) lanes[j] = 0x9E3779B97F4A7C15ull * (uint64_t)(2 * j + 1);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        memcpy(row, x + i, 64);
        for (int j = 0; j < 8; j++) lanes[j] = (lanes[j] ^ row[j]) * 0x100000001B3ull + 0x632BE59BD9B4E019ull;
        for (int j = 0; j < 8; j++) lanes[j] ^= lanes[j] >> 29;
    }
    memset(row, 0, 64);
    memcpy(row, x + i, (size_t)(n - i));
    uint64_t h = mix((uint64_t)n);
    for (int j = 0; j < 8; j++) h = mix(h ^ lanes[j] ^ mix(row[j] + (uint64_t)j));
    return h;
}
