// What the kernel files share: exports, run-time dispatch, and the counter-based random numbers.
#pragma once
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12  // knows the levels; v4 has the AVX-512 instructions that work on bytes
#define DISPATCHED EXPORT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCHED EXPORT __attribute__((target_clones("avx512f", "avx2", "default")))
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
