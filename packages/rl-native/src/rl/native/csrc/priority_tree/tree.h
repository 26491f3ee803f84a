/* Priority tree: priorities by index, sampled in proportion to them.
 *
 * One buffer without pointers:
 *
 *   head | root | ... | lowest nodes | leaves
 *
 * A leaf is a priority. 16 leaves make a block, 8 blocks a lowest node, 8 nodes the node above. A node holds
 * the sums of its 8 children in double, their smallest priorities above zero, and their largest priorities. For float
 * leaves that is 128 bytes. Sums are always recomputed from the children, in one order on every instruction set: they
 * do not drift, and equal leaves give equal bytes. As a smallest priority, 0 in a node means "none", so that memory
 * full of zeros is an empty tree and untouched pages of a large one cost nothing.
 *
 * One writer at a time. Concurrent readers may see half an update, and then sample in other proportions or a
 * priority of zero, but never read outside of the buffer.
 */
#ifndef RL_TREE_H
#define RL_TREE_H

#include <stdint.h>

#include "../common/dispatch.h"

/* Status codes. Functions that return int64_t add 256 times the offending position in the batch; for RL_TREE_SHARED
 * 8 times the written argument plus the other one (0 tree, 1 raw, 2 largest, 3 index, 4 values). Arguments are
 * validated before anything is written. */
enum {
    RL_TREE_OK = 0,
    RL_TREE_INDEX = 1,    /* an index lies outside of the tree */
    RL_TREE_PRIORITY = 2, /* a priority is negative, infinite or NaN */
    RL_TREE_EMPTY = 3,    /* the total is zero */
    RL_TREE_OVERFLOW = 4, /* the total is infinite */
    RL_TREE_UNIFORM = 5,  /* a given u lies outside of [0, 1) */
    RL_TREE_DAMAGED = 6,  /* the buffer holds no tree */
    RL_TREE_SHARED = 7,   /* a written argument shares memory with another argument */
    RL_TREE_NOWHERE = 8   /* a required address is 0 */
};

/* Bytes of a tree of `capacity` leaves of `bits` (32, 64) bits each; -1 if the arguments are invalid. */
RL_API int64_t rl_tree_bytes(int64_t capacity, int64_t bits);

/* Offset of the leaves in the buffer, in bytes. */
RL_API int64_t rl_tree_leaves_at(int64_t capacity, int64_t bits);

/* Initialize an empty tree in a zeroed buffer. */
RL_API int rl_tree_init(void *buffer, int64_t capacity, int64_t bits);

/* Read the capacity and bits of the tree in a buffer; RL_TREE_DAMAGED if the buffer of `bytes` bytes holds no tree. */
RL_API int rl_tree_open(const void *buffer, int64_t bytes, int64_t *capacity, int64_t *bits);

/* Set priorities; the last value of a repeated index wins. `step` 0 sets all to the first value. */
RL_API int64_t rl_tree_set(void *buffer, const int64_t *index, const void *priority, int64_t n, int64_t step);

/* Set priorities to (|error| + eps)^alpha, eps and alpha not negative. `step` 0 uses the first error for all. Indices
 * must be below `rows`. `raw`, if given, receives the errors at the same indices; `largest`, if given, becomes the
 * maximum of itself and the largest |error|. Arguments are a struct of 8-byte words, pointers included: Python packs
 * one faster than it passes ten arguments. */
typedef struct {
    int64_t tree, index, error, n, step;
    double eps, alpha;
    int64_t rows, raw, largest;
} rl_errors;
RL_API int64_t rl_tree_set_errors(const rl_errors *a);

/* Sample n leaves with u in [0, 1), or, if `u` is 0, with 52-bit uniform numbers from *seed. Stratified: sample i is
 * from the i-th of n equal parts of the total. `priority` and `weight` may be 0; the weights are
 * (priority / smallest priority)^-beta. */
typedef struct {
    int64_t tree, n, seed, u, stratified;
    double beta;
    int64_t index, priority, weight;
} rl_draws;
RL_API int64_t rl_tree_sample(const rl_draws *a);

RL_API int64_t rl_tree_get(const void *buffer, const int64_t *index, void *priority, int64_t n);

/* Validate all leaves, then recompute all nodes. */
RL_API int64_t rl_tree_rebuild(void *buffer);

#endif
