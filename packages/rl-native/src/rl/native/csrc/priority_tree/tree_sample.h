/* Sampling. Part of tree_operations.h: once for each dtype of the leaves and instruction set. */

/* Uniform numbers in [0, 1): 52 bits of splitmix64 of seed and position (Steele, Lea and Flood, 2014). */
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

/* The points of n samples in [0, total). */
TARGET static void FN(points)(const rl_points *p, double *mass, int64_t at, int64_t n) {
    if (p->u)
        memcpy(mass, p->u + at, (size_t)n * sizeof(double));
    else
        FN(uniform)(mass, at, n, p->seed);
    if (p->stratified)
        for (int64_t i = 0; i < n; i++) mass[i] = (mass[i] + (double)(at + i)) * p->part;
    else
        for (int64_t i = 0; i < n; i++) mass[i] *= p->all;
    if (p->unit != 1)
        for (int64_t i = 0; i < n; i++) mass[i] = floor(mass[i]) * p->unit;
}

/* Prefetch the cache line of the sums of a node, or of the leaves of a block if `level` is -1. */
RL_INLINE void FN(prefetch)(const rl_tree *t, int level, int64_t node) {
    if (level >= 0) {
        __builtin_prefetch(LEVEL(level) + node);
    } else {
        __builtin_prefetch(LEAF + (node << RL_BLOCK_BITS));
        if (sizeof(REAL) > 4) __builtin_prefetch(LEAF + (node << RL_BLOCK_BITS) + 8);
    }
}

/* Descend one level for g samples: node becomes the selected child, r the remainder within it. */
TARGET RL_INLINE void FN(descend)(const NODE *level, int64_t *node, double *r, int64_t g) {
    int64_t i = 0;
#ifdef LANES
    for (; i + LANES <= g; i += LANES) ON(pick_children)((const char *)level, sizeof(NODE), node + i, r + i);
#endif
    for (; i < g; i++) node[i] = (node[i] << RL_FAN_BITS) + pick8_scalar(level[node[i]].sum, r + i);
}

/* Select the leaves of g samples in their blocks; some of the leaves may be empty. */
TARGET RL_INLINE void FN(arrive)(const REAL *leaves, const int64_t *node, const double *r, int64_t *index,
                                 REAL *priority, int64_t g) {
    int64_t i = 0;
#ifdef LANES
    for (; i + LANES <= g; i += LANES) FN(pick_leaves)(leaves, node + i, r + i, index + i);
#endif
    for (; i < g; i++) {
        const int64_t first = node[i] << RL_BLOCK_BITS;
        index[i] = first + JOIN2(pick16_scalar, T)(leaves + first, r[i]);
    }
    for (i = 0; i < g; i++) priority[i] = leaves[index[i]];
}

/* The points of g samples, and their descent from the root to the children of level `far`. */
TARGET static void FN(enter)(const rl_tree *t, const rl_points *points, int far, int64_t at, int64_t *node, double *r,
                             int64_t g) {
    FN(points)(points, r, at, g);
    for (int64_t i = 0; i < g; i++) node[i] = 0;
    for (int level = t->levels - 1; level >= far; level--) FN(descend)(LEVEL(level), node, r, g);
}

/* One step of one level, or to the leaves if `level` is -1. Prefetches are spread between computations: a burst of
 * more than the line-fill buffers of the core stalls it. */
TARGET RL_INLINE void FN(step)(const rl_tree *t, int level, rl_flow *flow, int64_t at, int64_t n, int64_t *index,
                               REAL *drawn) {
    const int64_t end = n - at < STEP ? n : at + STEP;
    if (at == 0)
        for (int64_t i = 0; i < n && i < AHEAD; i++) FN(prefetch)(t, level, flow->node[i]);
    for (int64_t i = at; i < end; i += UNIT) {
        const int64_t g = end - i < UNIT ? end - i : UNIT, more = n - i - AHEAD;
        const int64_t *later = flow->node + ((i + AHEAD) & flow->mask);
        int64_t *node = flow->node + (i & flow->mask);
        double *r = flow->rest + (i & flow->mask);
        if (more >= UNIT)
            for (int j = 0; j < UNIT; j++) FN(prefetch)(t, level, later[j]);
        else
            for (int j = 0; j < more; j++) FN(prefetch)(t, level, later[j]);
        if (level >= 0)
            FN(descend)(LEVEL(level), node, r, g);
        else
            FN(arrive)(LEAF, node, r, index + i, drawn + i % GROUP, g);
    }
}

/* Replace an empty leaf, which rounding can select, by the nearest nonempty one of its block. */
TARGET RL_INLINE void FN(mend)(const REAL *leaves, const int64_t *node, int64_t *index, REAL *priority, int64_t g) {
    int lost = 0;
    for (int64_t i = 0; i < g; i++) lost |= !(priority[i] > 0);
    if (__builtin_expect(!lost, 1)) return;
    for (int64_t i = 0; i < g; i++)
        if (!(priority[i] > 0)) {
            const REAL *block = leaves + (node[i] << RL_BLOCK_BITS);
            index[i] = (node[i] << RL_BLOCK_BITS) + JOIN2(nearest16, T)(block, (int)(index[i] & (RL_BLOCK - 1)));
            priority[i] = leaves[index[i]];
        }
}

/* Write priorities or weights of g samples that have reached their leaves. */
TARGET static void FN(leave)(const rl_tree *t, const int64_t *node, REAL *drawn, int64_t g, double beta,
                             int64_t *index, REAL *priority, REAL *weight) {
    const double least = t->head->min;
    double x[GROUP];
    FN(mend)(LEAF, node, index, drawn, g);
    if (priority) memcpy(priority, drawn, (size_t)g * sizeof(REAL));
    if (!weight) return;
    if (sizeof(REAL) > 4)
        for (int64_t i = 0; i < g; i++) x[i] = (double)drawn[i] / least;
    else /* equal to the division in float precision */
        for (int64_t i = 0; i < g; i++) x[i] = (double)drawn[i] * (1 / least);
    FN(power)(x, weight, g, -beta);
}

/* All samples, pipelined down the levels. Levels that fit into the L1 cache are passed at once; each level below runs
 * LAG samples after the one above, and a step prefetches the cache lines of the next step. */
TARGET static void FN(flow)(const rl_tree *t, const rl_points *points, int64_t n, double beta, int64_t *index,
                            REAL *priority, REAL *weight) {
    rl_flow flow;
    REAL drawn[GROUP];
    int far = 0;
    while (far < t->levels && t->children[far] * (int64_t)sizeof(NODE) > NEAR * RL_FAN) far++;
    const int64_t lag = n > STEP ? LAG : 0, all = (far + 1) * lag;
    for (flow.mask = 4 * GROUP - 1; flow.mask < all + 2 * GROUP; flow.mask += flow.mask + 1) {}
    for (int64_t from = 0; from < n + all; from += STEP) {
        int64_t at = from, g = n - from < GROUP ? n - from : GROUP;
        const int64_t place = from & flow.mask;
        if (from % GROUP == 0 && from < n)
            FN(enter)(t, points, far, from, flow.node + place, flow.rest + place, g);
        for (int level = far - 1; level >= 0; level--)
            if ((at -= lag) >= 0 && at < n) FN(step)(t, level, &flow, at, n, 0, 0);
        if ((at -= lag) < 0) continue;
        FN(step)(t, -1, &flow, at, n, index, drawn);
        if ((at + STEP) % GROUP && at + STEP < n) continue;
        at -= at % GROUP, g = n - at < GROUP ? n - at : GROUP;
        FN(leave)(t, flow.node + (at & flow.mask), drawn, g, beta, index + at, priority ? priority + at : 0,
                  weight ? weight + at : 0);
    }
}

TARGET static int64_t FN(sample)(const rl_tree *t, int64_t n, const int64_t *seed, const double *u, int stratified,
                                 double beta, int64_t *index, REAL *priority, REAL *weight) {
    const double total = t->head->total;
    /* Totals that are close to the smallest double are exact multiples of it: sample an integer multiple. */
    const double unit = total < 0x1p-1020 ? 0x1p-1074 : 1, all = total / unit, part = all / (double)(n > 0 ? n : 1);
    if (!(total > 0)) return RL_TREE_EMPTY;
    if (!(total <= DBL_MAX)) return RL_TREE_OVERFLOW;
    if (u)
        for (int64_t i = 0; i < n; i++)
            if (!(u[i] >= 0 && u[i] < 1)) return AT(RL_TREE_UNIFORM, i);
    if (n <= 0) return RL_TREE_OK;
    const rl_points points = {u, u ? 0 : (uint64_t)*seed, stratified, all, part, unit};
    FN(flow)(t, &points, n, beta, index, priority, weight);
    return RL_TREE_OK;
}
