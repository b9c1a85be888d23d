// Choosing elements: exact top-k by radix over the bits of |x|, and stratified random-k.
#include <math.h>
#include <stdlib.h>

#include "kernels.h"

EXPORT int32_t all_finite(const float *x, int64_t n);  // scan.c

static inline uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffffu; }

// The largest bin such that bins at or above it hold at least k; *above gets the count strictly above it.
static int64_t bin_of_kth(const uint32_t *counts, int64_t bins, int64_t k, int64_t *above) {
    int64_t seen = 0, bin = bins - 1;
    while (bin > 0 && seen + counts[bin] < k) seen += counts[bin--];
    *above = seen;
    return bin;
}

// |x| bits of the k-th largest of every stride-th element; *ties gets how many equal ones to take.
static uint32_t kth_magnitude(const float *x, int64_t n, int64_t stride, int64_t k, int64_t *ties) {
    static _Thread_local uint32_t counts[65536];
    int64_t above, above_low;
    memset(counts, 0, sizeof counts);
    for (int64_t i = 0; i < n; i += stride) counts[magnitude(x[i]) >> 15]++;
    uint32_t high = (uint32_t)bin_of_kth(counts, 65536, k, &above);
    memset(counts, 0, 32768 * sizeof(uint32_t));
    for (int64_t i = 0; i < n; i += stride) {
        uint32_t a = magnitude(x[i]);
        if (a >> 15 == high) counts[a & 0x7fff]++;
    }
    uint32_t low = (uint32_t)bin_of_kth(counts, 32768, k - above, &above_low);
    *ties = k - above - above_low;
    return high << 15 | low;
}

INLINE uint32_t most_of_16(const float *x) {
    uint32_t most = 0;
    for (int j = 0; j < 16; j++) most = magnitude(x[j]) > most ? magnitude(x[j]) : most;
    return most;
}

// Writes up to `room` places with |x| bits of at least `least`, in ascending order, and their values.
// Returns how many were written; most groups of 16 hold none and are passed over at once.
DISPATCHED int64_t collect_from(const float *x, int64_t n, uint32_t least, int32_t *indices, float *values,
                                int64_t room) {
    int64_t found = 0, i = 0;
    for (; i + 16 <= n && found + 16 <= room; i += 16) {
        if (most_of_16(x + i) < least) continue;
        for (int j = 0; j < 16; j++) {  // without branches: written always, counted if large
            indices[found] = (int32_t)(i + j);
            values[found] = x[i + j];
            found += magnitude(x[i + j]) >= least;
        }
    }
    for (; i < n && found < room; i++)
        if (magnitude(x[i]) >= least) {
            indices[found] = (int32_t)i;
            values[found++] = x[i];
        }
    return found;
}

// Of `count` candidates at places `from` (or 0, 1, ...), keep the k largest, ties to the lower place.
static void keep_largest(const int32_t *from, const float *x, int64_t count, int32_t *indices, float *values,
                         int64_t k) {
    int64_t ties, taken = 0;
    uint32_t least = kth_magnitude(x, count, 1, k, &ties);
    for (int64_t i = 0; i < count && taken < k; i++) {
        uint32_t a = magnitude(x[i]);
        if (a > least || (a == least && ties-- > 0)) {
            indices[taken] = from ? from[i] : (int32_t)i;
            values[taken++] = x[i];
        }
    }
}

// The exact k largest. A sample gives a threshold that about 5/4 k elements pass; if at least k do, the k largest are
// among them, and only those are sorted out; otherwise all elements are.
static void select_exact(const float *x, int32_t *indices, float *values, int64_t n, int64_t k) {
    int64_t ties, stride = 31, wanted = k / stride + k / (4 * stride) + 16, room = 2 * k + 64 * stride;
    if (n >= 64 * stride && wanted < n / stride / 4) {
        uint32_t least = kth_magnitude(x, n, stride, wanted, &ties);
        int32_t *places = malloc((size_t)room * 8);
        if (places) {
            float *kept = (float *)(places + room);
            int64_t found = collect_from(x, n, least, places, kept, room);
            int whole = found >= k && found <= room - 16;  // all candidates were seen
            if (whole) keep_largest(places, kept, found, indices, values, k);
            free(places);
            if (whole) return;
        }
    }
    keep_largest(NULL, x, n, indices, values, k);
}

// Writes k indices in ascending order and their values. Ties go to the lower index. NaN counts as largest.
// With stride > 1 the threshold comes from a sample; slots that stay empty get index -1 and value 0.
EXPORT void topk_encode(const float *x, int32_t *indices, float *values, int64_t n, int64_t k, int64_t stride) {
    if (stride == 1) {
        select_exact(x, indices, values, n, k);
        return;
    }
    int64_t ties, sample = (n + stride - 1) / stride, of_sample = k / stride > 0 ? k / stride : 1;
    uint32_t least = kth_magnitude(x, n, stride, of_sample < sample ? of_sample : sample, &ties);
    int64_t taken = collect_from(x, n, least, indices, values, k);
    if (taken == k) {  // more may have reached the threshold; of those, what is not finite takes the last slot
        int64_t rest = indices[k - 1] + 1;
        if (all_finite(x + rest, n - rest)) return;
        collect_from(x + rest, n - rest, INFINITE_BITS, indices + k - 1, values + k - 1, 1);
        indices[k - 1] += (int32_t)rest;
    }
    for (; taken < k; taken++) {
        indices[taken] = -1;
        values[taken] = 0;
    }
}

// How many of n magnitudes are above `bound`; all are below 2^31, and signed numbers compare faster.
INLINE int32_t count_above(const float *x, int64_t n, int32_t bound) {
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++) count += (int32_t)magnitude(x[i]) > bound;
    return count;
}

// Of `count` candidates at places `from` (or first, first + 1, ...), writes the k largest, ties to the lower place; returns
// the least magnitude taken. It is found bit by bit; where exactly k reach it, the lower bits do not matter.
INLINE uint32_t choose(const float *x, const int32_t *from, int64_t count, int64_t first, int32_t k, int32_t *indices,
                       float *values) {
    uint32_t least = 0;
    int32_t reached = (int32_t)count, taken = 0;
    for (uint32_t bit = 1u << 30; bit && reached != k; bit >>= 1) {
        int32_t with = count_above(x, count, (int32_t)(least | bit) - 1);
        if (with < k) continue;
        least |= bit;
        reached = with;
    }
    int32_t ties = k - count_above(x, count, (int32_t)least);  // a NaN of all bits has none above it
    for (int64_t i = 0; taken < k; i++) {
        while (i % 16 == 0 && i + 16 <= count && most_of_16(x + i) < least) i += 16;
        uint32_t a = magnitude(x[i]);
        if (a < least || (a == least && ties-- <= 0)) continue;
        indices[taken] = (int32_t)(first + (from ? from[i] : i));
        values[taken++] = x[i];
    }
    return least;
}

#define ROOM 2048  // candidates of a chunk

// The k largest of each chunk, fewer of a last one that is shorter: places in ascending order, and values. Neighbouring
// chunks are alike: what reaches a part of the last one's threshold are candidates, if they are enough and not too many.
DISPATCHED void chunks_encode(const float *x, int32_t *indices, float *values, int64_t n, int64_t count, int64_t block,
                              int64_t k) {
    int32_t places[ROOM];
    float kept[ROOM];
    uint32_t least = 0;
    for (int64_t first = 0, found = 0; first < n; first += block, found += k) {
        int64_t m = n - first < block ? n - first : block;
        int32_t wanted = (int32_t)(found + k < count ? k : count - found);
        uint32_t enough = least - (1u << 22);  // half an octave lower
        int64_t candidates = least >> 22 ? collect_from(x + first, m, enough, places, kept, ROOM) : 0;
        if (candidates >= wanted && candidates <= ROOM - 16)
            least = choose(kept, places, candidates, first, wanted, indices + found, values + found);
        else
            least = choose(x + first, 0, m, first, wanted, indices + found, values + found);
    }
}

// Payloads come from other ranks: places outside of the vector are not touched but counted, and the caller raises.
EXPORT int64_t add_at(float *acc, int64_t n, const int32_t *indices, const float *values, int64_t k) {
    int64_t strays = 0;
    for (int64_t i = 0; i < k; i++) {
        if (indices[i] >= 0 && indices[i] < n)
            acc[indices[i]] += values[i];
        else
            strays += indices[i] != -1;
    }
    return strays;
}

EXPORT void clear_at(float *x, int64_t n, const int32_t *indices, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        if (indices[i] >= 0 && indices[i] < n) x[indices[i]] = 0;
}

// Root mean square of each block, added up in float64; the last block may be shorter and counts as filled with zeros.
DISPATCHED void block_rms(const float *x, float *rms, int64_t n, int64_t block) {
    for (int64_t first = 0; first < n; first += block) {
        int64_t m = n - first < block ? n - first : block, i = 0;
        double lanes[8] = {0}, sum = 0;
        for (; i + 8 <= m; i += 8)
            for (int j = 0; j < 8; j++) lanes[j] += (double)x[first + i + j] * (double)x[first + i + j];
        for (; i < m; i++) sum += (double)x[first + i] * (double)x[first + i];
        for (int j = 0; j < 8; j++) sum += lanes[j];
        rms[first / block] = (float)sqrt(sum / (double)block);
    }
}

EXPORT void blocks_gather(const float *x, const int32_t *indices, float *values, int64_t n, int64_t k, int64_t block) {
    for (int64_t i = 0; i < k; i++) {
        int64_t first = indices[i] * block, m = n - first < block ? n - first : block;
        memcpy(values + i * block, x + first, (size_t)m * 4);
        memset(values + i * block + m, 0, (size_t)(block - m) * 4);
    }
}

EXPORT int64_t blocks_add(float *acc, const int32_t *indices, const float *values, int64_t n, int64_t k,
                          int64_t block) {
    int64_t strays = 0;
    for (int64_t i = 0; i < k; i++) {
        int64_t first = indices[i] * block, m = n - first < block ? n - first : block;
        strays += indices[i] < 0 || first >= n;
        if (indices[i] < 0 || first >= n) continue;
        for (int64_t j = 0; j < m; j++) acc[first + j] += values[i * block + j];
    }
    return strays;
}

EXPORT void blocks_clear(float *x, const int32_t *indices, int64_t n, int64_t k, int64_t block) {
    for (int64_t i = 0; i < k; i++) {
        int64_t first = indices[i] * block, m = n - first < block ? n - first : block;
        if (indices[i] >= 0 && first < n) memset(x + first, 0, (size_t)m * 4);
    }
}

// One random element of each of k cells of nearly equal size.
static inline int64_t place(int64_t j, int64_t n, int64_t k, uint32_t seed) {
    int64_t first = j * n / k, next = (j + 1) * n / k;
    return first + (int64_t)((uint64_t)random_bits(seed, (uint32_t)j) * (uint64_t)(next - first) >> 32);
}

EXPORT void randomk_gather(const float *x, float *values, int64_t n, int64_t k, uint32_t seed) {
    for (int64_t j = 0; j < k; j++) values[j] = x[place(j, n, k, seed)];
}

EXPORT void randomk_add(float *acc, const float *values, int64_t n, int64_t k, uint32_t seed) {
    for (int64_t j = 0; j < k; j++) acc[place(j, n, k, seed)] += values[j];
}

EXPORT void randomk_clear(float *x, int64_t n, int64_t k, uint32_t seed) {
    for (int64_t j = 0; j < k; j++) x[place(j, n, k, seed)] = 0;
}
