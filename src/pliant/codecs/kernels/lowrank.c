// The passes of PowerSGD over a matrix x, (n, m), whose factors lie as rows: p, (r, n), and q, (r, m); M' = p^T q.
#include "kernels.h"

#define LANES 16
#define TILE 4  // rows of x, and of a factor, that a pass works on at once, so that the sums stay in registers
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// sum[a][b] = <row a of x, row b of q>, for `rows` rows of x and `columns` of q.
INLINE void products(const float *x, const float *q, int64_t m, int rows, int columns, float sum[TILE][TILE]) {
    lanes partial[TILE][TILE] = {0};
    int64_t j = 0;
    for (; j + LANES <= m; j += LANES)
        for (int a = 0; a < rows; a++)
            for (int b = 0; b < columns; b++)
                partial[a][b] += *(const lanes *)(x + a * m + j) * *(const lanes *)(q + b * m + j);
    for (int a = 0; a < rows; a++)
        for (int b = 0; b < columns; b++) {
            sum[a][b] = 0;
            for (int lane = 0; lane < LANES; lane++) sum[a][b] += partial[a][b][lane];
            for (int64_t rest = j; rest < m; rest++) sum[a][b] += x[a * m + rest] * q[b * m + rest];
        }
}

// x += residual; p = q x^T.
DISPATCHED void low_rank_left(float *restrict x, const float *restrict residual, const float *restrict q,
                              float *restrict p, int64_t n, int64_t m, int64_t r) {
    for (int64_t i = 0; i < n; i += TILE) {
        int rows = n - i < TILE ? (int)(n - i) : TILE;
        for (int64_t j = i * m; j < (i + rows) * m; j++) x[j] += residual[j];
        for (int64_t k = 0; k < r; k += TILE) {
            int columns = r - k < TILE ? (int)(r - k) : TILE;
            float sum[TILE][TILE];
            if (rows == TILE && columns == TILE)
                products(x + i * m, q + k * m, m, TILE, TILE, sum);
            else
                products(x + i * m, q + k * m, m, rows, columns, sum);
            for (int a = 0; a < rows; a++)
                for (int b = 0; b < columns; b++) p[(k + b) * n + i + a] = sum[a][b];
        }
    }
}

// q = p x.
DISPATCHED void low_rank_right(const float *restrict x, const float *restrict p, float *restrict q, int64_t n,
                               int64_t m, int64_t r) {
    memset(q, 0, (size_t)(4 * r * m));
    for (int64_t first = 0; first < m; first += 512) {
        int64_t count = m - first < 512 ? m - first : 512;
        int64_t i = 0;
        for (; i + TILE <= n; i += TILE) {
            const float *a = x + i * m + first, *b = a + m, *c = b + m, *d = c + m;
            for (int64_t k = 0; k < r; k++) {
                const float *w = p + k * n + i;
                float *sum = q + k * m + first;
                for (int64_t j = 0; j < count; j++) sum[j] += w[0] * a[j] + w[1] * b[j] + w[2] * c[j] + w[3] * d[j];
            }
        }
        for (; i < n; i++)
            for (int64_t k = 0; k < r; k++)
                for (int64_t j = 0; j < count; j++) q[k * m + first + j] += p[k * n + i] * x[i * m + first + j];
    }
}

// residual = x - p^T q; x = p^T q.
DISPATCHED void low_rank_split(float *restrict x, float *restrict residual, const float *restrict p,
                               const float *restrict q, int64_t n, int64_t m, int64_t r) {
    for (int64_t i = 0; i < n; i++) {
        float *row = x + i * m, *rest = residual + i * m;
        int64_t j = 0;
        for (; j + LANES <= m; j += LANES) {
            lanes t = p[i] * *(const lanes *)(q + j);
            for (int64_t k = 1; k < r; k++) t += p[k * n + i] * *(const lanes *)(q + k * m + j);
            *(lanes *)(rest + j) = *(lanes *)(row + j) - t;
            *(lanes *)(row + j) = t;
        }
        for (; j < m; j++) {
            float t = p[i] * q[j];
            for (int64_t k = 1; k < r; k++) t += p[k * n + i] * q[k * m + j];
            rest[j] = row[j] - t;
            row[j] = t;
        }
    }
}
