/* The walks over a tree, for one type of leaf and one instruction set. Included once for each pair, with
 * REAL, T (f32, f64), SET (scalar, ...) and TARGET defined, and LANES where so many queries can go down at once. */

#define GLUE2(a, b) a##_##b
#define GLUE3(a, b, c) a##_##b##_##c
#define JOIN2(a, b) GLUE2(a, b)
#define JOIN3(a, b, c) GLUE3(a, b, c)
#define FN(name) JOIN3(name, SET, T)
#define ON(name) JOIN2(name, SET)
#define NODE JOIN2(rl_node, T)
#define LEAF ((REAL *)t->leaf)
#define LEVEL(l) ((NODE *)t->level[l])

/* SOUND: whether a priority is one; written so that what is not a number fails. */
#define AT(code, place) ((int64_t)(code) | (int64_t)(place) << 8)
#define SOUND(x) ((x) >= 0 && (x) <= REAL_MAX)
#define REAL_MAX (sizeof(REAL) == 4 ? (REAL)FLT_MAX : (REAL)DBL_MAX)

/* Of `power`: terms of the two series, and bits of 1e-290 and 1e290, between which it can work. */
#define LOG_TERMS (sizeof(REAL) == 4 ? 5 : 10)
#define EXP_TERMS (sizeof(REAL) == 4 ? 8 : 13)
#define LEAST 0x03b8f2b061aea072u
#define MOST 0x7c2485ce9e7a065fu

TARGET static int64_t FN(bad_index)(const int64_t *index, int64_t n, int64_t capacity) {
    uint64_t bad = 0; /* the sign bit of either is set where an index is outside */
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
 * [sqrt(1/2), sqrt(2)), log2(m) from the series of artanh, and 2^f for |f| <= 1/2 from that of exp. Without -march, and
 * with whole numbers made from the bits of doubles, so that every instruction set can do it in lanes. Three
 * loops, because one is a chain so long that the processor cannot begin the next before its end. */
TARGET static void FN(power)(const double *restrict x, REAL *restrict y, int64_t n, double e) {
    const uint64_t root = 0x3fe6a09e667f3bcdu, one = 0x3ff0000000000000u, whole = 0x4330000000000000u;
    const uint64_t magic = 0x4338000000000000u; /* of 1.5 * 2^52 */
    double a[CHUNK], k[CHUNK];
    uint64_t odd = 0; /* the sign bit is set where something is outside of what the series can do */
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
        a[i] = (m - 1) / (m + 1);
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
    for (int64_t at = 0; at < n; at += CHUNK)
        FN(write)(t, crowded, index + at, value + at * step, step, 0, 0, 0, n - at);
    FN(refresh_above)(t, crowded);
    return RL_TREE_OK;
}

/* The place of the first error that gives no priority, or -1; *most is the largest size of an error. */
TARGET static int64_t FN(bad_error)(const REAL *error, int64_t n, double eps, double alpha, REAL *most) {
    BITS largest = 0; /* without the sign, bits grow with the number, and beyond all numbers where it is none */
    for (int64_t i = 0; i < n; i++) {
        BITS size;
        memcpy(&size, error + i, sizeof size);
        size &= (BITS)(UINT64_MAX >> (65 - 8 * sizeof size));
        largest = size > largest ? size : largest;
    }
    memcpy(most, &largest, sizeof *most);
    /* The power grows with its base: if that of the largest fits, all do. */
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
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t g = n - at < CHUNK ? n - at : CHUNK;
        if (step || at == 0) {
            for (int64_t i = 0; i < g; i++) x[i] = fabs((double)error[(at + i) * step]) + eps;
            FN(power)(x, y, g, alpha);
        }
        FN(write)(t, crowded, index + at, y, 1, raw, error + at * step, step, n - at);
    }
    if (largest && most > *largest) *largest = most;
    FN(refresh_above)(t, crowded);
    return RL_TREE_OK;
}

/* One level down for g queries: node becomes the picked child, r what is left in it. */
TARGET RL_INLINE void FN(descend)(const NODE *level, int64_t *node, double *r, int g) {
    int i = 0;
#ifdef LANES
    for (; i + LANES <= g; i += LANES) ON(pick_children)((const char *)level, sizeof(NODE), node + i, r + i);
#endif
    for (; i < g; i++) node[i] = (node[i] << RL_FAN_BITS) + pick8_scalar(level[node[i]].sum, r + i);
}

/* From the blocks to the leaves. */
TARGET RL_INLINE void FN(arrive)(const REAL *leaves, const int64_t *node, const double *r, int64_t *index,
                                 REAL *priority, int g) {
    int i = 0, lost = 0;
#ifdef LANES
    for (; i + LANES <= g; i += LANES) FN(pick_leaves)(leaves, node + i, r + i, index + i);
#endif
    for (; i < g; i++) {
        const int64_t first = node[i] << RL_BLOCK_BITS;
        index[i] = first + JOIN2(pick16_scalar, T)(leaves + first, r[i]);
    }
    for (i = 0; i < g; i++) priority[i] = leaves[index[i]];
    for (i = 0; i < g; i++) lost |= !(priority[i] > 0);
    if (__builtin_expect(lost, 0))
        for (i = 0; i < g; i++)
            if (!(priority[i] > 0)) {
                const REAL *block = leaves + (node[i] << RL_BLOCK_BITS);
                index[i] = (node[i] << RL_BLOCK_BITS) + JOIN2(nearest16, T)(block, (int)(index[i] & (RL_BLOCK - 1)));
                priority[i] = leaves[index[i]];
            }
}

/* A short way down, if there are so many draws that it pays. */
TARGET static int FN(guide)(const rl_tree *t, rl_guide *guide, int64_t n, double total) {
    int level = 0;
    const int64_t most = n / RL_GUIDE_DRAWS < RL_GUIDE_CHILDREN ? n / RL_GUIDE_DRAWS : RL_GUIDE_CHILDREN;
    while (level < t->levels && t->children[level] > most) level++;
    if (level == t->levels || total < 0x1p-900 || total > 0x1p900) return 0;
    for (int64_t i = 0; i < t->children[level]; i++)
        guide->end[i + 1] = LEVEL(level)[i >> RL_FAN_BITS].sum[i & (RL_FAN - 1)];
    rl_guide_make(guide, level, t->children[level], total);
    return 1;
}

/* Leaves by mass, GROUP queries side by side, level by level: while one waits for memory, the others go on. */
TARGET static void FN(search)(const rl_tree *t, const rl_guide *guide, double *mass, int64_t *index, REAL *priority,
                              int64_t n) {
    enum { GROUP = 64, NEAR = 1 << 14 }; /* so many bytes stay in the first cache */
    int64_t node[GROUP];
    for (int64_t at = 0; at < n; at += GROUP) {
        const int g = n - at < GROUP ? (int)(n - at) : GROUP;
        double *r = mass + at;
        int level = t->levels;
        if (guide) {
            level = guide->level;
            for (int i = 0; i < g; i++) node[i] = rl_guide_find(guide, r + i);
        } else {
            for (int i = 0; i < g; i++) node[i] = 0;
        }
        while (level-- > 0) {
            if (t->children[level] * (int64_t)sizeof(NODE) > NEAR * RL_FAN)
                for (int i = 0; i < g; i++) __builtin_prefetch(LEVEL(level) + node[i]);
            FN(descend)(LEVEL(level), node, r, g);
        }
        for (int i = 0; i < g; i++) {
            __builtin_prefetch(LEAF + (node[i] << RL_BLOCK_BITS));
            if (sizeof(REAL) > 4) __builtin_prefetch(LEAF + (node[i] << RL_BLOCK_BITS) + 8);
        }
        FN(arrive)(LEAF, node, r, index + at, priority + at, g);
    }
}

/* Uniforms in [0, 1): splitmix64 of seed and place (Steele, Lea and Flood, 2014), 52 bits of it. */
TARGET static void FN(uniform)(double *u, int64_t from, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = seed + 0x9e3779b97f4a7c15u * (uint64_t)(from + i + 1);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z = ((z ^ (z >> 31)) >> 12) | 0x3ff0000000000000u;
        memcpy(u + i, &z, 8);
        u[i] -= 1;
    }
}

TARGET static int64_t FN(sample)(const rl_tree *t, int64_t n, const int64_t *seed, const double *u, int stratified,
                             double beta, int64_t *index, REAL *priority, REAL *weight) {
    double mass[CHUNK];
    REAL drawn[CHUNK];
    rl_guide guide;
    const double total = t->head->total, least = t->head->min;
    /* So near to zero a mass is a few steps of what a double can hold, and sums are exact: a whole number is drawn. */
    const double unit = total < 0x1p-1020 ? 0x1p-1074 : 1, all = total / unit, part = all / (double)(n > 0 ? n : 1);
    if (!(total > 0)) return RL_TREE_EMPTY;
    if (!(total <= DBL_MAX)) return RL_TREE_OVERFLOW;
    if (u)
        for (int64_t i = 0; i < n; i++)
            if (!(u[i] >= 0 && u[i] < 1)) return AT(RL_TREE_UNIFORM, i);
    const rl_guide *way = FN(guide)(t, &guide, n, total) ? &guide : 0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t g = n - at < CHUNK ? n - at : CHUNK;
        if (u)
            memcpy(mass, u + at, (size_t)g * sizeof(double));
        else
            FN(uniform)(mass, at, g, (uint64_t)*seed);
        if (stratified)
            for (int64_t i = 0; i < g; i++) mass[i] = (mass[i] + (double)(at + i)) * part;
        else
            for (int64_t i = 0; i < g; i++) mass[i] *= all;
        if (unit != 1)
            for (int64_t i = 0; i < g; i++) mass[i] = floor(mass[i]) * unit;
        FN(search)(t, way, mass, index + at, drawn, g);
        if (priority) memcpy(priority + at, drawn, (size_t)g * sizeof(REAL));
        if (!weight) continue;
        if (sizeof(REAL) > 4)
            for (int64_t i = 0; i < g; i++) mass[i] = (double)drawn[i] / least;
        else /* what a float cannot tell from that */
            for (int64_t i = 0; i < g; i++) mass[i] = (double)drawn[i] * (1 / least);
        FN(power)(mass, weight + at, g, -beta);
    }
    return RL_TREE_OK;
}

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
        if (signbit(LEAF[i])) LEAF[i] = 0; /* -0; only there, because to write takes memory for what was never written */
    /* In places that no child has: a draw that goes there leaves the buffer. */
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
