// What the kernel files share: exports, run-time dispatch, and the counter-based random numbers.
#pragma once
#include <stdint.h>
#include <string.h>

#define EXPORT  // all that is not static; clang has no clones of functions with a visibility
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#if defined(__clang__) || __GNUC__ >= 12  // knows the levels; v4 has the AVX-512 instructions that work on bytes
#define DISPATCHED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCHED __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define DISPATCHED EXPORT
#endif

#define INLINE static inline __attribute__((always_inline))
#define MAX_BLOCK 4096  // elements of a block, so that what is worked on stays in the L1 cache

#define INFINITE_BITS 0x7f800000u  // |x| as an integer is at least this for Inf and NaN

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// 32 random bits for element i: the finalizer of MurmurHash3 over a Weyl sequence. codecs/kernels/reference.py has the same.
static inline uint32_t random_bits(uint32_t seed, uint32_t i) {
    uint32_t h = i * 0x9E3779B1u + seed;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

// Asks for the next bytes while the current block is computed: the two then take the time of the longer one.
INLINE void prefetch(const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i, 0, 3);
}

// Bits of the largest |x|; NaN is larger than all numbers.
INLINE uint32_t largest(const float *x, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = bits_of(x[i]) & 0x7fffffffu;
        most = a > most ? a : most;
    }
    return most;
}

// What is to be encoded: x itself, or, in y, its sum with the residual.
INLINE const float *with_residual(const float *x, const float *residual, float *y, int64_t n) {
    if (!residual) return x;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + residual[i];
    return y;
}

// Puts codes of 2 or 4 bits into bytes, the first in the lowest bits.
INLINE void pack(const uint8_t *codes, uint8_t *out, int64_t n, int bits) {
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

// Takes them out again; writes up to the end of the last byte.
INLINE void unpack(const uint8_t *packed, uint8_t *codes, int64_t n, int bits) {
    int per = 8 / bits, mask = (1 << bits) - 1;
    for (int64_t i = 0; i < (n + per - 1) / per; i++)
        for (int k = 0; k < per; k++) codes[i * per + k] = (uint8_t)((packed[i] >> (k * bits)) & mask);
}
