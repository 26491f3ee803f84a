/* Writing leaves, and making what lies above them. Part of tree_walk.h: once for each type of leaf and instruction
 * set. */

/* Make a child of a level; whether its extremes are others now. */
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

/* Make all children of a level. */
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

/* From which level on a batch of n changes so many children that all are made, side by side, in less time. What lies
 * above no written leaf has other bytes before it is first made: rl-prio-cuda counts the same way. */
RL_INLINE int FN(crowded)(const rl_tree *t, int64_t n) {
    int level = n < t->children[0];
    while (level > 0 && level < t->levels && 2 * n < t->children[level]) level++;
    return level;
}

/* Ask for the lines that a leaf is written into, and the sums above it. */
RL_INLINE void FN(ask)(const rl_tree *t, int64_t index, const REAL *raw) {
    const int64_t block = index >> RL_BLOCK_BITS;
    const char *leaves = (const char *)(LEAF + (block << RL_BLOCK_BITS));
    const char *node = (const char *)(LEVEL(0) + (block >> RL_FAN_BITS));
    if (raw) __builtin_prefetch(raw + index, 1);
    for (size_t at = 0; at < RL_BLOCK * sizeof(REAL); at += 64) __builtin_prefetch(leaves + at, 1);
    for (size_t at = 0; at < sizeof(NODE); at += 64) __builtin_prefetch(node + at, 1);
}

/* Write a few leaves, and make what lies above them below the level `crowded`. Each level is LAG rows behind the one
 * under it, and lines are asked for AHEAD rows before: while some are on their way, others are added up, and nothing
 * is read that was written just now. Extremes are made only where one below has become another. */
TARGET static void FN(climb)(const rl_tree *t, int crowded, const int64_t *index, const REAL *value, int64_t step,
                             REAL *raw, const REAL *error, int64_t error_step, int64_t n, int64_t rest) {
    enum { AHEAD = 16, LAG = 4 };
    uint8_t other[CHUNK]; /* whether the child that was made last for a row has other extremes than before */
    for (int64_t i = 0; i < AHEAD && i < n; i++) FN(ask)(t, index[i], raw);
    for (int64_t i = 0; i < n + crowded * LAG; i++) {
        if (i < n) {
            if (i + AHEAD < rest) FN(ask)(t, index[i + AHEAD], raw);
            LEAF[index[i]] = value[i * step] + 0; /* of -0 that makes 0 */
            if (raw) raw[index[i]] = error[i * error_step];
            other[i] = 1;
        }
        int64_t row = i - LAG;
        int shift = RL_BLOCK_BITS;
        for (int level = 0; level < crowded && row >= 0; level++, row -= LAG, shift += RL_FAN_BITS) {
            if (row >= n) continue;
            const int64_t child = index[row] >> shift;
            if (row + 1 < n && index[row + 1] >> shift == child) /* made in one with the next row */
                other[row + 1] |= other[row];
            else if (other[row])
                other[row] = (uint8_t)FN(refresh_child)(t, level, child);
            else
                FN(refresh_sum)(t, level, child);
        }
    }
}

/* Write many leaves; everything above is made afterwards. */
TARGET static void FN(fill)(const rl_tree *t, const int64_t *index, const REAL *value, int64_t step, REAL *raw,
                            const REAL *error, int64_t error_step, int64_t n) {
    enum { AHEAD = 24 };
    for (int64_t i = 0; i < n && i < AHEAD; i++) __builtin_prefetch(LEAF + index[i], 1);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(LEAF + index[i + AHEAD], 1);
        if (raw && i + AHEAD < n) __builtin_prefetch(raw + index[i + AHEAD], 1);
        LEAF[index[i]] = value[i * step] + 0;
        if (raw) raw[index[i]] = error[i * error_step];
    }
}

/* A part of a batch, of at most CHUNK rows: leaves, what lies above them below the level `crowded`, and if `raw` is
 * given the errors at the same places there. Of the batch `rest` rows come, these included. */
TARGET static void FN(write)(const rl_tree *t, int crowded, const int64_t *index, const REAL *value, int64_t step,
                             REAL *raw, const REAL *error, int64_t error_step, int64_t rest) {
    const int64_t n = rest < CHUNK ? rest : CHUNK;
    if (crowded)
        FN(climb)(t, crowded, index, value, step, raw, error, error_step, n, rest);
    else
        FN(fill)(t, index, value, step, raw, error, error_step, n);
}
