// The last pass of PowerSGD: what the factors carry becomes the gradient, and what they do not, the residual.
#include "kernels.h"

// x, residual: (n, m); p: (n, r); qt: (r, m), all row by row. t = p qt; residual = x - t; x = t.
DISPATCHED void low_rank_split(float *restrict x, float *restrict residual, const float *restrict p,
                               const float *restrict qt, int64_t n, int64_t m, int64_t r) {
    float t[512];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t first = 0; first < m; first += 512) {
            int64_t count = m - first < 512 ? m - first : 512;
            for (int64_t j = 0; j < count; j++) t[j] = p[i * r] * qt[first + j];
            for (int64_t k = 1; k < r; k++) {
                float weight = p[i * r + k];
                for (int64_t j = 0; j < count; j++) t[j] += weight * qt[k * m + first + j];
            }
            float *row = x + i * m + first, *rest = residual + i * m + first;
            for (int64_t j = 0; j < count; j++) {
                rest[j] = row[j] - t[j];
                row[j] = t[j];
            }
        }
    }
}
