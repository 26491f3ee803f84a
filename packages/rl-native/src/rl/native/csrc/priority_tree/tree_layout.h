/* Layout of a tree in its buffer; see tree.h. */
#ifndef RL_TREE_LAYOUT_H
#define RL_TREE_LAYOUT_H

#include <stdint.h>

enum { RL_BLOCK_BITS = 4, RL_BLOCK = 16, RL_FAN_BITS = 3, RL_FAN = 8, RL_LEVELS = 16, RL_HEAD = 128 };

enum { RL_NEAR = 1 << 20 }; /* bytes of a tree that the L2 cache holds */

typedef struct {
    char magic[8];
    int64_t capacity, bits;
    double total, min, max;
} rl_head;

typedef struct {
    double sum[RL_FAN];
    float min[RL_FAN], max[RL_FAN];
} rl_node_f32;

typedef struct {
    double sum[RL_FAN];
    double min[RL_FAN], max[RL_FAN];
} rl_node_f64;

typedef struct {
    rl_head *head;
    void *leaf;
    void *level[RL_LEVELS];     /* level 0 is above the blocks, the last one is the root */
    int64_t children[RL_LEVELS]; /* blocks or nodes below each level */
    int64_t capacity, bytes; /* number of leaves, size of the buffer */
    int levels;
} rl_tree;

/* Compute the children and offset of each level, the offset of the leaves and the size in bytes; returns the number of
 * levels, or 0 if the arguments are invalid. */
static inline int rl_layout(int64_t capacity, int64_t bits, int64_t *children, int64_t *at, int64_t *leaves,
                            int64_t *bytes) {
    if (capacity < 1 || capacity > ((int64_t)1 << 46) || (bits != 32 && bits != 64)) return 0;
    const int64_t size = bits == 32 ? (int64_t)sizeof(rl_node_f32) : (int64_t)sizeof(rl_node_f64);
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
    *bytes = offset + (((children[0] + RL_FAN - 1) >> RL_FAN_BITS) << (RL_FAN_BITS + RL_BLOCK_BITS)) * (bits / 8);
    return levels;
}

#endif
