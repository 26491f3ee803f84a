/* Operations on a tree for one dtype of the leaves and one instruction set. Included once for each pair, with REAL,
 * T (f32, f64), SET (scalar, avx2) and TARGET defined, and LANES if the set is vectorized. */

#define GLUE2(a, b) a##_##b
#define GLUE3(a, b, c) a##_##b##_##c
#define JOIN2(a, b) GLUE2(a, b)
#define JOIN3(a, b, c) GLUE3(a, b, c)
#define FN(name) JOIN3(name, SET, T)
#define ON(name) JOIN2(name, SET)
#define NODE JOIN2(rl_node, T)
#define LEAF ((REAL *)t->leaf)
#define LEVEL(l) ((NODE *)t->level[l])

/* SOUND: whether a priority is valid; NaN fails both comparisons. */
#define AT(code, place) ((int64_t)(code) | (int64_t)(place) << 8)
#define SOUND(x) ((x) >= 0 && (x) <= REAL_MAX)
#define REAL_MAX (sizeof(REAL) == 4 ? (REAL)FLT_MAX : (REAL)DBL_MAX)

/* Terms of the two series of `power`, and the bits of 1e-290 and 1e290, its smallest and largest argument. */
#define LOG_TERMS (sizeof(REAL) == 4 ? 5 : 10)
#define EXP_TERMS (sizeof(REAL) == 4 ? 8 : 13)
#define LEAST 0x03b8f2b061aea072u
#define MOST 0x7c2485ce9e7a065fu

TARGET static int64_t FN(bad_index)(const int64_t *index, int64_t n, int64_t capacity) {
    uint64_t bad = 0; /* the sign bit of either term is set if an index is outside */
    for (int64_t i = 0; i < n; i++) bad |= (uint64_t)index[i] | ((uint64_t)(capacity - 1) - (uint64_t)index[i]);
    if (!(bad >> 63)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= capacity) return i;
    return -1;
}

TARGET static int64_t FN(bad_priority)(const REAL *x, int64_t n) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= !(x[i] >= 0) | !(x[i] <= REAL_MAX);
    if (!bad) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!SOUND(x[i])) return i;
    return -1;
}

/* y = x^e for n <= CHUNK numbers x >= 0, to within 1e-9 for float and 1e-13 for double. x = 2^k m with m in
 * [sqrt(1/2), sqrt(2)), log2(m) from the series of artanh, and 2^f for |f| <= 1/2 from that of exp. Integers are
 * taken from the bits of doubles, so that the compiler vectorizes the loops for every instruction set. A parabola and
 * Newton steps compute 1 / (m + 1): a division takes as long as two dozen products. Three loops, because the dependency
 * chain of a single loop is too long for the processor to overlap iterations. */
TARGET static void FN(power)(const double *restrict x, REAL *restrict y, int64_t n, double e) {
    const uint64_t root = 0x3fe6a09e667f3bcdu, one = 0x3ff0000000000000u, whole = 0x4330000000000000u;
    const uint64_t magic = 0x4338000000000000u; /* of 1.5 * 2^52 */
    double a[CHUNK], k[CHUNK];
    uint64_t odd = 0; /* the sign bit is set if an argument is outside of the range of the series */
    if (e == 1) {
        for (int64_t i = 0; i < n; i++) y[i] = (REAL)x[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t u, v;
        double m;
        memcpy(&u, x + i, 8);
        odd |= (u - LEAST) | (MOST - u);
        u += one - root;
        v = (u & 0xfffffffffffffu) + root;
        memcpy(&m, &v, 8);
        v = (u >> 52) | whole;
        memcpy(k + i, &v, 8);
        const double q = m + 1;
        double inverse = 1.477755914724449 - q * (0.7224441133556712 - q * 0.11686289071326854);
        inverse *= 2 - q * inverse, inverse *= 2 - q * inverse;
        if (sizeof(REAL) > 4) inverse *= 2 - q * inverse;
        a[i] = (m - 1) * inverse;
    }
    for (int64_t i = 0; i < n; i++) {
        const double log_m = 2.8853900817779268 * a[i] * series(LOG_SERIES, LOG_TERMS, a[i] * a[i]);
        a[i] = e * (k[i] - (0x1p52 + 1023) + log_m);
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t v;
        double scale;
        const double z = a[i] + 0x1.8p52, f = (a[i] - (z - 0x1.8p52)) * 0.69314718055994531;
        memcpy(&v, &z, 8);
        odd |= (v - magic + 1000) | (magic + 1000 - v);
        v = (v + 1023) << 52;
        memcpy(&scale, &v, 8);
        y[i] = (REAL)(series(EXP_SERIES, EXP_TERMS, f) * scale);
    }
    if (odd >> 63)
        for (int64_t i = 0; i < n; i++) y[i] = (REAL)pow(x[i], e);
}

#include "tree_refresh.h"

RL_INLINE int64_t FN(shared)(const rl_tree *t, const int64_t *index, const REAL *value, int64_t n, int64_t step,
                             const REAL *raw, const REAL *largest) {
    const int64_t size = sizeof(REAL);
    const rl_span span[] = {{(uintptr_t)t->head, t->bytes},
                            {(uintptr_t)raw, raw ? t->capacity * size : 0},
                            {(uintptr_t)largest, largest ? size : 0},
                            {(uintptr_t)index, n * 8},
                            {(uintptr_t)value, (step ? n : 1) * size}};
    return shared(span);
}

TARGET static int64_t FN(set)(const rl_tree *t, const int64_t *index, const REAL *value, int64_t n, int64_t step) {
    int64_t bad;
    if (n <= 0) return RL_TREE_OK;
    if ((bad = FN(shared)(t, index, value, n, step, 0, 0)) != RL_TREE_OK) return bad;
    if ((bad = FN(bad_index)(index, n, t->capacity)) >= 0) return AT(RL_TREE_INDEX, bad);
    if ((bad = FN(bad_priority)(value, step ? n : 1)) >= 0) return AT(RL_TREE_PRIORITY, bad);
    const int crowded = FN(crowded)(t, n);
    uint8_t others[OTHERS + 1];
    for (int64_t at = 0; at < n; at += CHUNK)
        FN(write)(t, crowded, index, at, n, value + at * step, step, 0, 0, 0, others);
    FN(refresh_above)(t, crowded);
    return RL_TREE_OK;
}

/* Position of the first error whose priority is invalid, or -1; *most becomes the largest |error|. */
TARGET static int64_t FN(bad_error)(const REAL *error, int64_t n, double eps, double alpha, REAL *most) {
    BITS largest = 0; /* without the sign, bits are ordered as the values are, with NaN above all of them */
    for (int64_t i = 0; i < n; i++) {
        BITS size;
        memcpy(&size, error + i, sizeof size);
        size &= (BITS)(UINT64_MAX >> (65 - 8 * sizeof size));
        largest = size > largest ? size : largest;
    }
    memcpy(most, &largest, sizeof *most);
    /* The power is monotonic: if that of the largest error is finite, all are. */
    if (*most <= REAL_MAX && pow((double)*most + eps, alpha) <= REAL_MAX * 0.999999) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!(pow(fabs((double)error[i]) + eps, alpha) <= REAL_MAX * 0.999999) || !(fabs(error[i]) <= REAL_MAX))
            return i;
    return -1;
}

TARGET static int64_t FN(set_errors)(const rl_tree *t, const int64_t *index, const REAL *error, int64_t n, int64_t step,
                                     double eps, double alpha, int64_t rows, REAL *raw, REAL *largest) {
    double x[CHUNK];
    REAL y[CHUNK], most;
    int64_t bad;
    if (n <= 0) return RL_TREE_OK;
    if ((bad = FN(shared)(t, index, error, n, step, raw, largest)) != RL_TREE_OK) return bad;
    rows = rows < 0 ? 0 : rows < t->capacity ? rows : t->capacity;
    if ((bad = FN(bad_index)(index, n, rows)) >= 0) return AT(RL_TREE_INDEX, bad);
    if ((bad = FN(bad_error)(error, step ? n : 1, eps, alpha, &most)) >= 0) return AT(RL_TREE_PRIORITY, bad);
    const int crowded = FN(crowded)(t, n);
    uint8_t others[OTHERS + 1];
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t g = n - at < CHUNK ? n - at : CHUNK;
        if (step || at == 0) {
            for (int64_t i = 0; i < g; i++) x[i] = fabs((double)error[(at + i) * step]) + eps;
            FN(power)(x, y, g, alpha);
        }
        FN(write)(t, crowded, index, at, n, y, 1, raw, error + at * step, step, others);
    }
    if (largest && most > *largest) *largest = most;
    FN(refresh_above)(t, crowded);
    return RL_TREE_OK;
}

#include "tree_sample.h"

TARGET static int64_t FN(get)(const rl_tree *t, const int64_t *index, REAL *priority, int64_t n) {
    int64_t bad;
    if ((bad = FN(bad_index)(index, n, t->capacity)) >= 0) return AT(RL_TREE_INDEX, bad);
    for (int64_t i = 0; i < n; i++) priority[i] = LEAF[index[i]];
    return RL_TREE_OK;
}

TARGET static int64_t FN(rebuild)(const rl_tree *t) {
    int64_t bad;
    const int64_t padded = ((t->children[0] + RL_FAN - 1) >> RL_FAN_BITS) << (RL_FAN_BITS + RL_BLOCK_BITS);
    if ((bad = FN(bad_priority)(LEAF, t->capacity)) >= 0) return AT(RL_TREE_PRIORITY, bad);
    for (int64_t i = t->capacity; i < padded; i++)
        if (LEAF[i] != 0) return RL_TREE_DAMAGED;
    for (int64_t i = 0; i < padded; i++)
        if (signbit(LEAF[i])) LEAF[i] = 0; /* replace -0 only: a write to an untouched page would allocate it */
    /* Clear entries without a child: a sample that selected one would leave the buffer. */
    for (int level = 0; level < t->levels; level++)
        for (int64_t child = t->children[level]; child & (RL_FAN - 1); child++) {
            NODE *node = LEVEL(level) + (child >> RL_FAN_BITS);
            const int j = child & (RL_FAN - 1);
            node->sum[j] = 0, node->min[j] = node->max[j] = 0;
        }
    FN(refresh_above)(t, 0);
    return RL_TREE_OK;
}

#undef LEAF
#undef LEVEL
#undef SOUND
#undef AT
#undef REAL_MAX
#undef LOG_TERMS
#undef EXP_TERMS
#undef NODE
#undef ON
#undef FN
#undef JOIN3
#undef JOIN2
#undef GLUE3
#undef GLUE2
