/* Sums, extremes and child selection of nodes and blocks in plain C. AVX2 adds in the same order. */
#include <math.h>

/* Nearest nonempty child where rounding led past the last child or to an empty one: the last nonempty child up to `k`,
 * else the first one after it; r becomes the sum of that child. */
__attribute__((noinline, cold)) static int nearest8(const double *sum, int k, double *r) {
    if (k > 7) k = 7;
    int j = k;
    while (j > 0 && !(sum[j] > 0)) j--;
    if (!(sum[j] > 0))
        for (j = k; j < 7 && !(sum[j] > 0); j++) {}
    if (!(sum[j] > 0)) j = 0;
    *r = sum[j];
    return j;
}

#define NEAREST16(REAL, name)                                                     \
    __attribute__((noinline, cold)) static int name(const REAL *leaf, int k) {    \
        if (k > 15) k = 15;                                                       \
        int j = k;                                                                \
        while (j > 0 && !(leaf[j] > 0)) j--;                                      \
        if (!(leaf[j] > 0))                                                       \
            for (j = k; j < 15 && !(leaf[j] > 0); j++) {}                         \
        return leaf[j] > 0 ? j : 0;                                               \
    }
NEAREST16(float, nearest16_f32)
NEAREST16(double, nearest16_f64)

RL_INLINE double sum8_scalar(const double *a) {
    const double b0 = a[0] + a[4], b1 = a[1] + a[5], b2 = a[2] + a[6], b3 = a[3] + a[7];
    return (b0 + b2) + (b1 + b3);
}

RL_INLINE double sum_scalar(const double *a) { return sum8_scalar(a); }

/* The child that contains r, by bisection: if r is at least the sum of the left half, subtract it and go right. The
 * left half always has a child above zero. r becomes the remainder within the child. */
RL_INLINE int pick8_scalar(const double *sum, double *r) {
    const double left = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    const int right = *r >= left ? 4 : 0;
    double rest = right ? *r - left : *r;
    const double pair = sum[right] + sum[right + 1];
    const int upper = rest >= pair ? right + 2 : right;
    rest = upper > right ? rest - pair : rest;
    const int k = rest >= sum[upper] ? upper + 1 : upper;
    if (__builtin_expect(!(sum[k] > 0), 0)) return nearest8(sum, k, r);
    *r = k > upper ? rest - sum[upper] : rest;
    return k;
}

#define SCALAR(REAL, T)                                                                             \
    RL_INLINE void extremes_scalar_##T(const REAL *low, const REAL *high, int n, REAL *min, REAL *max) { \
        REAL a = (REAL)INFINITY, z = 0;                                                             \
        for (int i = 0; i < n; i++) {                                                               \
            const REAL x = low[i] > 0 ? low[i] : (REAL)INFINITY;                                    \
            a = x < a ? x : a;                                                                      \
            z = high[i] > z ? high[i] : z;                                                          \
        }                                                                                           \
        *min = a, *max = z;                                                                         \
    }                                                                                               \
    RL_INLINE void block_scalar_##T(const REAL *x, double *sum, REAL *min, REAL *max) {             \
        double a[8];                                                                                \
        for (int i = 0; i < 8; i++) a[i] = (double)x[i] + (double)x[i + 8];                         \
        *sum = sum8_scalar(a);                                                                      \
        extremes_scalar_##T(x, x, 16, min, max);                                                    \
    }                                                                                               \
    RL_INLINE void node_scalar_##T(const rl_node_##T *c, double *sum, REAL *min, REAL *max) {       \
        *sum = sum8_scalar(c->sum);                                                                 \
        extremes_scalar_##T(c->min, c->max, 8, min, max);                                           \
    }

/* The leaf of a block that contains r, by bisection; it may be empty. For float leaves the vector code scales by
 * 2^-896, which rounds r below 2^-126; this code rounds the same way. */
#define PICK_16(REAL, T, SCALE)                                                                     \
    RL_INLINE int pick16_scalar_##T(const REAL *x, double r) {                                      \
        double q[8];                                                                                \
        for (int j = 0; j < 8; j++) q[j] = (double)x[2 * j] + (double)x[2 * j + 1];                 \
        const double left = (q[0] + q[1]) + (q[2] + q[3]);                                          \
        double rest = r * (1 / SCALE) * SCALE;                                                      \
        const int right = rest >= left ? 4 : 0;                                                     \
        rest = right ? rest - left : rest;                                                          \
        const double pair = q[right] + q[right + 1];                                                \
        const int upper = rest >= pair ? right + 2 : right;                                         \
        rest = upper > right ? rest - pair : rest;                                                  \
        const int second = rest >= q[upper] ? upper + 1 : upper;                                    \
        rest = second > upper ? rest - q[upper] : rest;                                             \
        return 2 * second + (rest >= (double)x[2 * second]);                                        \
    }
PICK_16(float, f32, 0x1p896)
PICK_16(double, f64, 1.0)
#undef PICK_16

SCALAR(float, f32)
SCALAR(double, f64)
#undef SCALAR
