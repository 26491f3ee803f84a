/* Vectorized steps of the tree, one query or block in each of LANES vector lanes: from nodes to children, from blocks
 * to leaves, and sums and extremes of blocks. SET, TARGET, LANES, MASK, VECTOR (of doubles) and WORDS (of int64_t) are
 * defined, and the vector primitives of tree_avx2.h. Adds in the order of tree_scalar.h. */

#define GLUE2(a, b) a##_##b
#define JOIN2(a, b) GLUE2(a, b)
#define GLUE3(a, b, c) a##_##b##_##c
#define JOIN3(a, b, c) GLUE3(a, b, c)
#define ON(name) JOIN2(name, SET)

/* Move the lanes that reached an empty child, by rounding or because r is the end, as pick8_scalar does. */
__attribute__((noinline, cold)) static void ON(repair)(const char *level, int64_t size, int64_t *node, double *r,
                                                       unsigned lost) {
    for (int i = 0; i < LANES; i++) {
        const int64_t parent = node[i] >> RL_FAN_BITS;
        if (lost >> i & 1)
            node[i] = (parent << RL_FAN_BITS) +
                      nearest8((const double *)(level + parent * size), (int)(node[i] & (RL_FAN - 1)), r + i);
    }
}

/* Replace each node by the child that contains r, and each r by the remainder. Nodes have `size` bytes. */
TARGET RL_INLINE void ON(pick_children)(const char *level, int64_t size, int64_t *node, double *r) {
    VECTOR c[8], rest = ON(load)(r);
    ON(columns)(level, size, node, c), ON(columns)(level + 32, size, node, c + 4);
    const VECTOR s01 = ON(add)(c[0], c[1]), left = ON(add)(s01, ON(add)(c[2], c[3]));
    const MASK right = ON(at_least)(rest, left);
    rest = ON(minus)(rest, right, left);
    const VECTOR pair = ON(either)(right, s01, ON(add)(c[4], c[5]));
    const VECTOR a0 = ON(either)(right, c[0], c[4]), a1 = ON(either)(right, c[1], c[5]);
    const VECTOR a2 = ON(either)(right, c[2], c[6]), a3 = ON(either)(right, c[3], c[7]);
    const MASK upper = ON(at_least)(rest, pair);
    rest = ON(minus)(rest, upper, pair);
    const VECTOR b0 = ON(either)(upper, a0, a2), b1 = ON(either)(upper, a1, a3);
    const MASK odd = ON(at_least)(rest, b0);
    ON(store)(r, ON(minus)(rest, odd, b0));
    const WORDS half = ON(place)(ON(places)(node, RL_FAN_BITS), right, 4);
    ON(store_places)(node, ON(place)(ON(place)(half, upper, 2), odd, 1));
    const unsigned lost = ON(none)(odd, b1);
    if (__builtin_expect(lost != 0, 0)) ON(repair)(level, size, node, r, lost);
}

/* The leaf of each block that contains r: q are sums of pairs of leaves, x the first leaf of each pair. */
TARGET RL_INLINE void ON(pick_of_pairs)(const VECTOR *q, const VECTOR *x, VECTOR rest, const int64_t *node,
                                        int64_t *index) {
    const VECTOR s01 = ON(add)(q[0], q[1]), left = ON(add)(s01, ON(add)(q[2], q[3]));
    const MASK right = ON(at_least)(rest, left);
    rest = ON(minus)(rest, right, left);
    const VECTOR pair = ON(either)(right, s01, ON(add)(q[4], q[5]));
    const VECTOR q0 = ON(either)(right, q[0], q[4]), q2 = ON(either)(right, q[2], q[6]);
    const VECTOR a0 = ON(either)(right, x[0], x[4]), a1 = ON(either)(right, x[1], x[5]);
    const VECTOR a2 = ON(either)(right, x[2], x[6]), a3 = ON(either)(right, x[3], x[7]);
    const MASK upper = ON(at_least)(rest, pair);
    rest = ON(minus)(rest, upper, pair);
    const VECTOR b = ON(either)(upper, q0, q2), b0 = ON(either)(upper, a0, a2), b1 = ON(either)(upper, a1, a3);
    const MASK second = ON(at_least)(rest, b);
    rest = ON(minus)(rest, second, b);
    const MASK odd = ON(at_least)(rest, ON(either)(second, b0, b1));
    const WORDS half = ON(place)(ON(places)(node, RL_BLOCK_BITS), right, 8), quarter = ON(place)(half, upper, 4);
    ON(store_places)(index, ON(place)(ON(place)(quarter, second, 2), odd, 1));
}

TARGET RL_INLINE void JOIN3(pick_leaves, SET, f64)(const double *leaves, const int64_t *node, const double *r,
                                                    int64_t *index) {
    VECTOR c[16], q[8], x[8];
    for (int j = 0; j < 16; j += 4) ON(columns)((const char *)(leaves + j), RL_BLOCK * sizeof(double), node, c + j);
    for (int j = 0; j < 8; j++) x[j] = c[2 * j], q[j] = ON(add)(c[2 * j], c[2 * j + 1]);
    ON(pick_of_pairs)(q, x, ON(load)(r), node, index);
}

/* A column holds two floats in each lane. Their bits, moved to where a double has them, are value * 2^-896. */
TARGET RL_INLINE void JOIN3(pick_leaves, SET, f32)(const float *leaves, const int64_t *node, const double *r,
                                                    int64_t *index) {
    VECTOR c[8], q[8], x[8];
    for (int j = 0; j < 8; j += 4) ON(columns)((const char *)(leaves + 2 * j), RL_BLOCK * sizeof(float), node, c + j);
    for (int j = 0; j < 8; j++) x[j] = ON(low_float)(c[j]), q[j] = ON(add)(x[j], ON(high_float)(c[j]));
    ON(pick_of_pairs)(q, x, ON(times)(ON(load)(r), 0x1p-896), node, index);
}

/* Sums of LANES blocks, from the sums of leaves that are 8 apart. */
TARGET RL_INLINE VECTOR ON(sums8)(const VECTOR *a) {
    const VECTOR even = ON(add)(ON(add)(a[0], a[4]), ON(add)(a[2], a[6]));
    return ON(add)(even, ON(add)(ON(add)(a[1], a[5]), ON(add)(a[3], a[7])));
}

/* Sums and extremes of LANES blocks of leaves, and of LANES nodes of the level `from`. */
TARGET RL_INLINE void JOIN3(blocks, SET, f64)(const double *leaves, const int64_t *block, double *sum, double *min,
                                              double *max) {
    VECTOR c[16], a[8];
    for (int j = 0; j < 16; j += 4) ON(columns)((const char *)(leaves + j), RL_BLOCK * sizeof(double), block, c + j);
    for (int j = 0; j < 8; j++) a[j] = ON(add)(c[j], c[j + 8]);
    ON(store)(sum, ON(sums8)(a));
    JOIN3(extremes_of, SET, f64)(c, c, 16, min, max);
}

TARGET RL_INLINE void JOIN3(blocks, SET, f32)(const float *leaves, const int64_t *block, double *sum, float *min,
                                              float *max) {
    VECTOR c[8], a[8];
    for (int j = 0; j < 8; j += 4) ON(columns)((const char *)(leaves + 2 * j), RL_BLOCK * sizeof(float), block, c + j);
    for (int j = 0; j < 4; j++) {
        a[2 * j] = ON(add)(ON(low_float)(c[j]), ON(low_float)(c[j + 4]));
        a[2 * j + 1] = ON(add)(ON(high_float)(c[j]), ON(high_float)(c[j + 4]));
    }
    ON(store)(sum, ON(times)(ON(sums8)(a), 0x1p896));
    JOIN3(extremes_of, SET, f32)(c, c, 8, min, max);
}

TARGET RL_INLINE void JOIN3(nodes, SET, f64)(const rl_node_f64 *from, const int64_t *node, double *sum, double *min,
                                             double *max) {
    VECTOR c[24];
    for (int j = 0; j < 24; j += 4) ON(columns)((const char *)from + 8 * j, sizeof *from, node, c + j);
    ON(store)(sum, ON(sums8)(c));
    JOIN3(extremes_of, SET, f64)(c + 8, c + 16, 8, min, max);
}

TARGET RL_INLINE void JOIN3(nodes, SET, f32)(const rl_node_f32 *from, const int64_t *node, double *sum, float *min,
                                             float *max) {
    VECTOR c[16];
    for (int j = 0; j < 16; j += 4) ON(columns)((const char *)from + 8 * j, sizeof *from, node, c + j);
    ON(store)(sum, ON(sums8)(c));
    JOIN3(extremes_of, SET, f32)(c + 8, c + 12, 4, min, max);
}

#undef ON
#undef JOIN3
#undef GLUE3
#undef JOIN2
#undef GLUE2
