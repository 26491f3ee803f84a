/* Writes of leaves, and recomputation of the nodes above. Part of tree_operations.h: once for each dtype of the leaves and
 * instruction set. */

/* Rows of a batch that are propagated together. Blocks of doubles are not vectorized: it takes as long. */
#ifdef LANES
#define ROWS ((int64_t)(sizeof(REAL) == 4 ? LANES : 4))
#else
#define ROWS ((int64_t)4)
#endif

/* Recompute a child of a level; returns whether its extremes changed. */
TARGET RL_INLINE int FN(refresh_child)(const rl_tree *t, int level, int64_t child) {
    NODE *node = LEVEL(level) + (child >> RL_FAN_BITS);
    const int j = child & (RL_FAN - 1);
    REAL min, max;
    if (level == 0)
        FN(block)(LEAF + (child << RL_BLOCK_BITS), node->sum + j, &min, &max);
    else
        FN(node)(LEVEL(level - 1) + child, node->sum + j, &min, &max);
    const int other = (min != node->min[j]) | (max != node->max[j]);
    node->min[j] = min, node->max[j] = max;
    return other;
}

TARGET RL_INLINE void FN(refresh_sum)(const rl_tree *t, int level, int64_t child) {
    LEVEL(level)[child >> RL_FAN_BITS].sum[child & (RL_FAN - 1)] = ON(sum)(LEVEL(level - 1)[child].sum);
}

/* Recompute all children of a level. */
TARGET static void FN(refresh_level)(const rl_tree *t, int level) {
    int64_t child = 0;
#ifdef LANES
    int64_t row[LANES];
    for (; child + RL_FAN <= t->children[level]; child += LANES) {
        NODE *node = LEVEL(level) + (child >> RL_FAN_BITS);
        const int j = child & (RL_FAN - 1);
        for (int i = 0; i < LANES; i++) row[i] = child + i;
        if (level == 0)
            FN(blocks)(LEAF, row, node->sum + j, node->min + j, node->max + j);
        else
            FN(nodes)(LEVEL(level - 1), row, node->sum + j, node->min + j, node->max + j);
    }
#endif
    for (; child < t->children[level]; child++) FN(refresh_child)(t, level, child);
}

TARGET static void FN(refresh_above)(const rl_tree *t, int level) {
    REAL min, max;
    double total;
    for (; level < t->levels; level++) FN(refresh_level)(t, level);
    FN(node)(LEVEL(t->levels - 1), &total, &min, &max);
    t->head->total = total, t->head->min = min, t->head->max = max;
}

/* First level at which recomputing all children is faster than those of a batch of n: if 2 n (n, if the L2 cache does
 * not hold the tree) is at least their number. rl-prio-cuda uses the same rule, so that bytes are equal. */
RL_INLINE int FN(crowded)(const rl_tree *t, int64_t n) {
    const int64_t most = t->bytes <= RL_NEAR ? 2 * n : n;
    int level = 0;
    while (level < t->levels && most < t->children[level]) level++;
    return level;
}

/* Prefetch the cache lines of the leaves to be written, and of the nodes above them. */
RL_INLINE void FN(prefetch_rows)(const rl_tree *t, const int64_t *index, int64_t from, int64_t to, const REAL *raw) {
    for (int64_t i = from; i < to; i++) {
        const int64_t block = index[i] >> RL_BLOCK_BITS;
        const char *leaves = (const char *)(LEAF + (block << RL_BLOCK_BITS));
        const char *node = (const char *)(LEVEL(0) + (block >> RL_FAN_BITS));
        if (raw) __builtin_prefetch(raw + index[i], 1);
        for (size_t at = 0; at < RL_BLOCK * sizeof(REAL); at += 64) __builtin_prefetch(leaves + at, 1);
        for (size_t at = 0; at < sizeof(NODE); at += 64) __builtin_prefetch(node + at, 1);
    }
}

/* Recompute the blocks of a group of rows in vector lanes; returns 0 without doing so if neighbours share a block. */
TARGET RL_INLINE int FN(raise_lanes)(const rl_tree *t, const int64_t *index, uint8_t *other) {
#ifdef LANES
    int64_t block[LANES];
    double sum[LANES];
    REAL min[LANES], max[LANES];
    int same = 0;
    for (int i = 0; i < LANES; i++) block[i] = index[i] >> RL_BLOCK_BITS;
    for (int i = 1; i < LANES; i++) same |= block[i] == block[i - 1];
    if (same) return 0;
    FN(blocks)(LEAF, block, sum, min, max);
    for (int i = 0; i < LANES; i++) {
        NODE *node = LEVEL(0) + (block[i] >> RL_FAN_BITS);
        const int j = block[i] & (RL_FAN - 1);
        other[i] = (min[i] != node->min[j]) | (max[i] != node->max[j]);
        node->sum[j] = sum[i], node->min[j] = min[i], node->max[j] = max[i];
    }
    return 1;
#else
    (void)t, (void)index, (void)other;
    return 0;
#endif
}

/* Recompute the blocks of the rows from `row` to `end` of a batch of n; `others` become whether extremes changed. */
TARGET RL_INLINE void FN(raise_blocks)(const rl_tree *t, const int64_t *index, uint8_t *others, int64_t row,
                                       int64_t end, int64_t n) {
    if (sizeof(REAL) == 4 && end - row == ROWS && FN(raise_lanes)(t, index + row, others + (row & OTHERS))) return;
    for (; row < end; row++) {
        const int64_t block = index[row] >> RL_BLOCK_BITS;
        if (row + 1 < n && index[row + 1] >> RL_BLOCK_BITS == block) /* recomputed with the next row */
            others[row & OTHERS] = 1;
        else
            others[row & OTHERS] = (uint8_t)FN(refresh_child)(t, 0, block);
    }
}

/* Recompute the children of a level above the blocks; extremes only if an extreme below changed. */
TARGET RL_INLINE void FN(raise)(const rl_tree *t, int level, const int64_t *index, uint8_t *others, int64_t row,
                                int64_t end, int64_t n) {
    const int shift = RL_BLOCK_BITS + level * RL_FAN_BITS;
    for (; row < end; row++) {
        const int64_t child = index[row] >> shift;
        uint8_t *other = others + (row & OTHERS);
        if (row + 1 < n && index[row + 1] >> shift == child)
            others[(row + 1) & OTHERS] |= *other;
        else if (*other)
            *other = (uint8_t)FN(refresh_child)(t, level, child);
        else
            FN(refresh_sum)(t, level, child);
    }
}

/* Write the leaves of the rows of a batch from `at` on, and recompute the levels below `crowded`. Each level runs one
 * group of rows after the level below it, across chunks too. Cache lines are prefetched AHEAD rows before, half a group
 * at a time, and no value is read right after it was written. */
TARGET static void FN(climb)(const rl_tree *t, int crowded, const int64_t *index, int64_t at, int64_t n,
                             const REAL *value, int64_t step, REAL *raw, const REAL *error, int64_t error_step,
                             uint8_t *others) {
    enum { AHEAD = 16, HALF = ROWS / 2 };
    const int64_t end = n - at <= CHUNK ? n + crowded * ROWS : at + CHUNK;
    if (at == 0) FN(prefetch_rows)(t, index, 0, at_most(n, AHEAD), raw);
    for (int64_t i = at; i < end; i += ROWS) {
        const int64_t later = i + AHEAD;
        int64_t row = i - ROWS;
        for (int64_t j = i; j < at_most(n, i + ROWS); j++) {
            LEAF[index[j]] = value[(j - at) * step] + 0; /* turns -0 into 0 */
            if (raw) raw[index[j]] = error[(j - at) * error_step];
        }
        FN(prefetch_rows)(t, index, later, at_most(n, later + HALF), raw);
        if (row >= 0) FN(raise_blocks)(t, index, others, row, at_most(n, row + ROWS), n);
        FN(prefetch_rows)(t, index, later + HALF, at_most(n, later + ROWS), raw);
        for (int level = 1; level < crowded && (row -= ROWS) >= 0; level++)
            FN(raise)(t, level, index, others, row, at_most(n, row + ROWS), n);
    }
}

/* Write many leaves; the caller recomputes all nodes afterwards. */
TARGET static void FN(fill)(const rl_tree *t, const int64_t *index, const REAL *value, int64_t step, REAL *raw,
                            const REAL *error, int64_t error_step, int64_t n) {
    enum { AHEAD = 16 };
    for (int64_t i = 0; i < n && i < AHEAD; i++) __builtin_prefetch(LEAF + index[i], 1);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(LEAF + index[i + AHEAD], 1);
        if (raw && i + AHEAD < n) __builtin_prefetch(raw + index[i + AHEAD], 1);
        LEAF[index[i]] = value[i * step] + 0;
        if (raw) raw[index[i]] = error[i * error_step];
    }
}

/* Write a chunk of at most CHUNK rows from `at` on of a batch of n: leaves, levels below `crowded`, and the errors into
 * `raw` if given. `others` is kept between chunks. */
TARGET static void FN(write)(const rl_tree *t, int crowded, const int64_t *index, int64_t at, int64_t n,
                             const REAL *value, int64_t step, REAL *raw, const REAL *error, int64_t error_step,
                             uint8_t *others) {
    if (crowded)
        FN(climb)(t, crowded, index, at, n, value, step, raw, error, error_step, others);
    else
        FN(fill)(t, index + at, value, step, raw, error, error_step, n - at < CHUNK ? n - at : CHUNK);
}

#undef ROWS
