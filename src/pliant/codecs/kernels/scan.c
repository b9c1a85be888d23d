// One pass over a tensor: is all of it finite, also while scaling it, and what is its hash.
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

// x <- factor x; whether every float32 is finite.
DISPATCHED int32_t scale(float *x, int64_t n, float factor) {
    uint32_t all = 0;
    for (int64_t first = 0; first < n; first += 4096) {
        int64_t m = n - first < 4096 ? n - first : 4096;
        uint32_t most = 0;
        for (int64_t i = 0; i < m; i++) {
            x[first + i] *= factor;
            uint32_t a = bits_of(x[first + i]) & 0x7fffffffu;
            most = a > most ? a : most;
        }
        all = most > all ? most : all;
    }
    return all < INFINITE_BITS;
}

// Every bit of a word on every bit of the result, one to one: the finalizer of MurmurHash3 (Austin Appleby, public
// domain). A multiplication alone would leave the highest bit, a sign, where it is, and two of them would cancel out.
static inline uint64_t mixed(uint64_t h) {
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

// 64-bit hash of bytes: a sum over 8-byte words, each first mixed with its place, so that it can be taken in parallel.
// A change of one word always changes the sum. The last word is filled up with zeros; the length is mixed in.
DISPATCHED uint64_t hash_bytes(const uint8_t *x, int64_t n) {
    uint64_t sum = 0, word;
    for (int64_t i = 0; i < n / 8; i++) {
        memcpy(&word, x + 8 * i, 8);
        sum += mixed(word ^ ((uint64_t)i + 1) * 0x9E3779B97F4A7C15ull);
    }
    word = 0;
    if (n % 8) memcpy(&word, x + n / 8 * 8, (size_t)(n % 8)); // of no bytes, x may be null
    return sum + mixed(word ^ ((uint64_t)n + 1) * 0xD1B54A32D192ED03ull);
}
