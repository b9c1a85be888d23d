// Rows of embedding tables: which are distinct, whose they are, and sums of vectors for each of them.
#include <math.h>
#include <stdlib.h>

#include "kernels.h"

#define AHEAD 8  // rows that are fetched before their turn

static inline uint64_t place_of(int64_t key, int bits) {  // Fibonacci hashing
    return ((uint64_t)key * 0x9E3779B97F4A7C15ull) >> (64 - bits);
}

// Numbers keys in order of their first appearance: index[i] becomes the number of keys[i], and distinct[index[i]] is
// keys[i]. Returns how many distinct ones there are, or -1 for lack of memory. The table of open addressing grows with
// what is distinct, so that frequent keys stay in the cache.
EXPORT int64_t number_keys(const int64_t *keys, int64_t n, int32_t *index, int64_t *distinct) {
    int bits = 12;
    int64_t found = 0;
    int32_t *table = n < INT32_MAX ? calloc((size_t)1 << bits, sizeof *table) : NULL;  // number + 1; 0: free
    if (!table) return -1;
    for (int64_t i = 0; i < n; i++) {
        uint64_t mask = ((uint64_t)1 << bits) - 1, at = place_of(keys[i], bits);
        while (table[at] && distinct[table[at] - 1] != keys[i]) at = (at + 1) & mask;
        if (!table[at]) {
            distinct[found] = keys[i];
            table[at] = (int32_t)++found;
        }
        index[i] = table[at] - 1;
        if (2 * (uint64_t)found <= mask) continue;
        free(table);
        table = calloc((size_t)1 << ++bits, sizeof *table);
        if (!table) return -1;
        mask = ((uint64_t)1 << bits) - 1;
        for (int64_t k = 0; k < found; k++) {
            for (at = place_of(distinct[k], bits); table[at];) at = (at + 1) & mask;
            table[at] = (int32_t)(k + 1);
        }
    }
    free(table);
    return found;
}

// sums[index[i]] += weights[i] vector, in order of i: vector k is that of the next lengths[k] members, or of one where
// there are no lengths. All weights are 1 if there are none; a product and its sum are
// rounded once, as by the fused multiply-add of torch's embedding_bag.
DISPATCHED void add_rows(float *sums, const int32_t *index, const float *vectors, const int64_t *lengths,
                         const float *weights, int64_t num_vectors, int64_t n, int64_t dim) {
    for (int64_t k = 0, i = 0; k < num_vectors; k++) {
        const float *restrict from = vectors + k * dim;
        for (int64_t end = i + (lengths ? lengths[k] : 1); i < end; i++) {
            if (i + AHEAD < n) prefetch(sums + index[i + AHEAD] * dim, dim * 4);
            float *restrict to = sums + index[i] * dim;
            if (weights) {
                for (int64_t j = 0; j < dim; j++) to[j] = fmaf(weights[i], from[j], to[j]);
            } else {
                for (int64_t j = 0; j < dim; j++) to[j] += from[j];
            }
        }
    }
}

static int64_t strays(const int64_t *slots, int64_t n, int64_t num_rows) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) found += slots[i] < 0 || slots[i] >= num_rows;
    return found;
}

// rows[slots[i]] -= changes[i]. Returns how many slots there are not, and then changes nothing.
DISPATCHED int64_t subtract_rows(float *rows, const int64_t *slots, const float *changes, int64_t num_rows, int64_t n,
                                 int64_t dim) {
    if (strays(slots, n, num_rows)) return strays(slots, n, num_rows);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(rows + slots[i + AHEAD] * dim, dim * 4);
        float *restrict w = rows + slots[i] * dim;
        const float *restrict d = changes + i * dim;
        for (int64_t j = 0; j < dim; j++) w[j] -= d[j];
    }
    return 0;
}

// Row slots[i] of squares += g g, and totals[i] becomes what it is then. Returns as subtract_rows.
DISPATCHED int64_t add_squares(float *squares, const int64_t *slots, const float *gradients, float *totals,
                               int64_t num_rows, int64_t n, int64_t dim) {
    if (strays(slots, n, num_rows)) return strays(slots, n, num_rows);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(squares + slots[i + AHEAD] * dim, dim * 4);
        float *restrict s = squares + slots[i] * dim, *restrict to = totals + i * dim;
        const float *restrict g = gradients + i * dim;
        for (int64_t j = 0; j < dim; j++) to[j] = s[j] += g[j] * g[j];
    }
    return 0;
}

// Row slots[i] -= lr g / (roots[i] + eps). Returns as subtract_rows.
DISPATCHED int64_t subtract_ratios(float *rows, const int64_t *slots, const float *gradients, const float *roots,
                                   int64_t num_rows, int64_t n, int64_t dim, float lr, float eps) {
    if (strays(slots, n, num_rows)) return strays(slots, n, num_rows);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(rows + slots[i + AHEAD] * dim, dim * 4);
        float *restrict w = rows + slots[i] * dim;
        const float *restrict g = gradients + i * dim, *restrict root = roots + i * dim;
        for (int64_t j = 0; j < dim; j++) w[j] -= g[j] * lr / (root[j] + eps);
    }
    return 0;
}

// Divides the ids of bags among the owners of their keys, owner * stride + slot, in their order: slots (ids), and weights
// (ids) if there are any. For each bag that needs an owner, in order of owners and bags: which bag it is, and how many
// ids it has there. num_ids and num_bags (ranks) become how many there are for each owner; room is for 3 ranks numbers.
EXPORT void by_owner(const int64_t *keys, const int64_t *lengths, const float *weights, int64_t bags, int64_t stride,
                     int64_t ranks, int64_t *num_ids, int64_t *num_bags, int64_t *room, int32_t *slots,
                     float *owners_weights, int64_t *owners_bags, int32_t *owners_lengths) {
    int64_t *last = room, *id = room + ranks, *bag = room + 2 * ranks;
    for (int64_t r = 0; r < ranks; r++) num_ids[r] = num_bags[r] = 0, last[r] = -1;
    for (int64_t b = 0, i = 0; b < bags; b++) {
        for (int64_t end = i + lengths[b]; i < end; i++) {
            int64_t r = keys[i] / stride;
            num_ids[r]++;
            num_bags[r] += last[r] != b;
            last[r] = b;
        }
    }
    for (int64_t r = 0, ids = 0, all = 0; r < ranks; ids += num_ids[r], all += num_bags[r], r++)
        id[r] = ids, bag[r] = all - 1, last[r] = -1;
    for (int64_t b = 0, i = 0; b < bags; b++) {
        for (int64_t end = i + lengths[b]; i < end; i++) {
            int64_t r = keys[i] / stride;
            if (weights) owners_weights[id[r]] = weights[i];
            slots[id[r]++] = (int32_t)(keys[i] - r * stride);
            if (last[r] != b) {
                owners_bags[++bag[r]] = last[r] = b;
                owners_lengths[bag[r]] = 0;
            }
            owners_lengths[bag[r]]++;
        }
    }
}
