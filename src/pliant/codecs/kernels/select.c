// Choosing elements: exact top-k by radix over the bits of |x|, and stratified random-k.
#include "kernels.h"

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

// Writes k indices in ascending order and their values. Ties go to the lower index. NaN counts as largest.
// With stride > 1 the threshold comes from a sample; slots that stay empty get index -1 and value 0.
EXPORT void topk_encode(const float *x, int32_t *indices, float *values, int64_t n, int64_t k, int64_t stride) {
    int64_t ties, taken = 0, sample = (n + stride - 1) / stride;
    int64_t k_sample = k / stride > 0 ? k / stride : 1;
    int64_t k_of_sample = stride == 1 ? k : (k_sample < sample ? k_sample : sample);
    uint32_t least = kth_magnitude(x, n, stride, k_of_sample, &ties);
    if (stride > 1) ties = k;
    for (int64_t i = 0; i < n && taken < k; i++) {
        uint32_t a = magnitude(x[i]);
        if (a > least || (a == least && ties > 0)) {
            if (a == least) ties--;
            indices[taken] = (int32_t)i;
            values[taken++] = x[i];
        }
    }
    for (; taken < k; taken++) {
        indices[taken] = -1;
        values[taken] = 0;
    }
}

EXPORT void add_at(float *acc, const int32_t *indices, const float *values, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        if (indices[i] >= 0) acc[indices[i]] += values[i];
}

EXPORT void clear_at(float *x, const int32_t *indices, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        if (indices[i] >= 0) x[indices[i]] = 0;
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
