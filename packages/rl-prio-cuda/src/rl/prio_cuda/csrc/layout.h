/* Memory layout of a tree and its workspace.
 *
 *   head | root | ... | lowest nodes | leaves
 *
 * 16 leaves make a block, 8 blocks a lowest node, 8 nodes the node above. A node holds, side by side, the sums of its 8
 * children in double, their smallest priorities above zero (0 and infinity mean "none"), and their largest. */
#ifndef RL_LAYOUT_H
#define RL_LAYOUT_H

#include <stdint.h>

enum { RL_BLOCK_BITS = 4, RL_BLOCK = 16, RL_FAN_BITS = 3, RL_FAN = 8, RL_LEVELS = 16, RL_HEAD = 128 };

struct rl_head {
    char magic[8];
    int64_t capacity, bits;
    double total, min, max;
};

template <class REAL>
struct rl_node {
    double sum[RL_FAN];
    REAL min[RL_FAN], max[RL_FAN];
};

template <class REAL>
struct rl_tree {
    rl_head *head;
    REAL *leaf;
    rl_node<REAL> *level[RL_LEVELS]; /* level 0 is above the blocks, the last one is the root */
    int64_t children[RL_LEVELS];     /* blocks or nodes below each level */
    int64_t capacity, bytes;         /* leaves, all of the buffer */
    int levels;
};

struct rl_work {
    int64_t code, place; /* the first error that was not read yet */
    double value;
    uint64_t refused; /* by the update that is under way, see `rl_refusal`; zero between updates */
    int64_t spare[4];
};

/* In the workspace behind rl_work: for each leaf 1 + the last place of the batch that names it; zero between updates. */
enum { RL_STAMPS_AT = sizeof(rl_work) };

/* Leaves with those that fill up the last lowest node. */
RL_EVERYWHERE int64_t rl_padded(int64_t blocks) {
    return ((blocks + RL_FAN - 1) >> RL_FAN_BITS) << (RL_FAN_BITS + RL_BLOCK_BITS);
}

/* Children of each level in `children`, offset of each level in `at`, that of the leaves in *leaves, all bytes in
 * *bytes; returns the number of levels, or 0 if the arguments are invalid. */
static inline int rl_layout(int64_t capacity, int64_t bits, int64_t *children, int64_t *at, int64_t *leaves,
                            int64_t *bytes) {
    if (capacity < 1 || capacity > ((int64_t)1 << 46) || (bits != 32 && bits != 64)) return 0;
    const int64_t size = bits == 32 ? (int64_t)sizeof(rl_node<float>) : (int64_t)sizeof(rl_node<double>);
    int64_t below = (capacity + RL_BLOCK - 1) >> RL_BLOCK_BITS;
    int levels = 0;
    do {
        children[levels++] = below;
        below = (below + RL_FAN - 1) >> RL_FAN_BITS;
    } while (below > 1);
    int64_t offset = RL_HEAD;
    for (int l = levels - 1; l >= 0; l--) {
        at[l] = offset;
        offset += ((children[l] + RL_FAN - 1) >> RL_FAN_BITS) * size;
    }
    *leaves = offset;
    *bytes = offset + rl_padded(children[0]) * (bits / 8);
    return levels;
}

/* The view of a buffer of `capacity` leaves, which must be possible. */
template <class REAL>
static inline rl_tree<REAL> rl_view(void *buffer, int64_t capacity) {
    rl_tree<REAL> tree = {};
    int64_t at[RL_LEVELS], leaves = 0, bytes = 0;
    tree.levels = rl_layout(capacity, 8 * sizeof(REAL), tree.children, at, &leaves, &bytes);
    for (int l = 0; l < tree.levels; l++) tree.level[l] = (rl_node<REAL> *)((char *)buffer + at[l]);
    tree.head = (rl_head *)buffer;
    tree.leaf = (REAL *)((char *)buffer + leaves);
    tree.capacity = capacity, tree.bytes = bytes;
    return tree;
}

#endif
