/* What a node and a block of leaves can be asked, in plain C. The other instruction sets add in the same order. */
#include <math.h>

/* Children up to `k` have no room for `r`, or child `k` is empty: rounding, or r is the very end. The last child above
 * zero among them, else the first one after; r becomes that child's end. */
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

/* The place behind the last bit that is set. */
RL_INLINE int behind_last(unsigned bits) { return 31 - __builtin_clz(bits << 1 | 1); }

RL_INLINE double sum8_scalar(const double *a) {
    const double b0 = a[0] + a[4], b1 = a[1] + a[5], b2 = a[2] + a[6], b3 = a[3] + a[7];
    return (b0 + b2) + (b1 + b3);
}

/* Running sums of 8, in three doubling steps. */
RL_INLINE void scan8_scalar(const double *x, double *p) {
    double a[8], b[8];
    a[0] = x[0];
    for (int i = 1; i < 8; i++) a[i] = x[i] + x[i - 1];
    b[0] = a[0], b[1] = a[1];
    for (int i = 2; i < 8; i++) b[i] = a[i] + a[i - 2];
    for (int i = 0; i < 4; i++) p[i] = b[i];
    for (int i = 4; i < 8; i++) p[i] = b[i] + b[i - 4];
}

/* The child behind the last running sum that is at most r; r becomes what is left in it. */
RL_INLINE int pick8_scalar(const double *sum, double *r) {
    double p[8];
    int k = 0;
    scan8_scalar(sum, p);
    for (int i = 0; i < 8; i++) k = p[i] <= *r ? i + 1 : k;
    if (__builtin_expect(k > 7 || !(sum[k & 7] > 0), 0)) return nearest8(sum, k, r);
    *r -= k ? p[k - 1] : 0;
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
    }                                                                                               \
    RL_INLINE int pick16_scalar_##T(const REAL *leaf, double r) {                                   \
        double x[16], p[16];                                                                        \
        int k = 0;                                                                                  \
        for (int i = 0; i < 16; i++) x[i] = leaf[i];                                                \
        scan8_scalar(x, p);                                                                         \
        scan8_scalar(x + 8, p + 8);                                                                 \
        for (int i = 8; i < 16; i++) p[i] += p[7];                                                  \
        for (int i = 0; i < 16; i++) k = p[i] <= r ? i + 1 : k;                                     \
        if (__builtin_expect(k > 15 || !(leaf[k & 15] > 0), 0)) return nearest16_##T(leaf, k);      \
        return k;                                                                                   \
    }
SCALAR(float, f32)
SCALAR(double, f64)
#undef SCALAR
