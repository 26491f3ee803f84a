/* Priority tree: priorities by index, drawn in proportion.
 *
 * One buffer without pointers:
 *
 *   head | root | ... | lowest nodes | leaves
 *
 * A leaf is a priority. 16 leaves make a block, 8 blocks a lowest node, 8 nodes the node above. A node holds, side by
 * side, the sums of its 8 children in double, their smallest priorities above zero, and their largest. For float
 * leaves that is 128 bytes. Sums are always recomputed from the children, in one order on every instruction set: they
 * do not drift, and equal leaves make equal bytes. As a smallest priority, 0 in a node means "none", so that memory
 * full of zeros is an empty tree and untouched pages of a large one cost nothing.
 *
 * One writer at a time; readers beside it may see an update half done, and then draw in other proportions or a
 * priority of zero, but never read outside of the buffer.
 */
#ifndef RL_TREE_H
#define RL_TREE_H

#include <stdint.h>

#include "../common/dispatch.h"

/* What went wrong. Functions that return int64_t give the code, plus 256 times the place in the batch that it is about.
 * Of RL_TREE_SHARED the place is 8 times what is written, plus the other one: 0 tree, 1 raw, 2 largest, 3 index,
 * 4 values. Whatever is refused is refused before anything is written. */
enum {
    RL_TREE_OK = 0,
    RL_TREE_INDEX = 1,    /* an index lies outside of the tree */
    RL_TREE_PRIORITY = 2, /* a priority is negative, infinite or not a number */
    RL_TREE_EMPTY = 3,    /* the total is zero */
    RL_TREE_OVERFLOW = 4, /* the total is infinite */
    RL_TREE_UNIFORM = 5,  /* a given u lies outside of [0, 1) */
    RL_TREE_DAMAGED = 6,  /* the buffer holds no tree */
    RL_TREE_SHARED = 7,   /* what is to be written shares memory with something else of the call */
    RL_TREE_NOWHERE = 8   /* an address that is needed is 0 */
};

/* Bytes of a tree of `capacity` leaves of `bits` (32, 64) bits each; -1 if there cannot be one. */
RL_API int64_t rl_tree_bytes(int64_t capacity, int64_t bits);

/* Where in the buffer the leaves begin. */
RL_API int64_t rl_tree_leaves_at(int64_t capacity, int64_t bits);

/* Make an empty tree of a buffer that is full of zeros. */
RL_API int rl_tree_init(void *buffer, int64_t capacity, int64_t bits);

/* Whether a buffer of so many bytes holds a tree; gives its capacity and bits. */
RL_API int rl_tree_open(const void *buffer, int64_t bytes, int64_t *capacity, int64_t *bits);

/* Set priorities; of a repeated index the last one counts. `step` 0 sets all to the first value. */
RL_API int64_t rl_tree_set(void *buffer, const int64_t *index, const void *priority, int64_t n, int64_t step);

/* Set priorities to (|error| + eps)^alpha, eps and alpha not negative. `step` 0 takes the first error for all. An index
 * of `rows` or more is refused too. If `raw` is given, the errors are written there as they are, at the same indices;
 * if `largest` is, it becomes the largest |error| where that is larger. Arguments lie in a struct of 8 byte words,
 * pointers too, because Python packs one faster than ten arguments. */
typedef struct {
    int64_t tree, index, error, n, step;
    double eps, alpha;
    int64_t rows, raw, largest;
} rl_errors;
RL_API int64_t rl_tree_set_errors(const rl_errors *a);

/* Draw n leaves by u in [0, 1), or, if `u` is 0, by 52-bit uniforms made from *seed. Stratified: the i-th lies in
 * the i-th of n equal parts of the total. `priority` and `weight` may be 0; the weights are
 * (priority / smallest priority)^-beta. */
typedef struct {
    int64_t tree, n, seed, u, stratified;
    double beta;
    int64_t index, priority, weight;
} rl_draws;
RL_API int64_t rl_tree_sample(const rl_draws *a);

RL_API int64_t rl_tree_get(const void *buffer, const int64_t *index, void *priority, int64_t n);

/* Check all leaves, then recompute everything above them. */
RL_API int64_t rl_tree_rebuild(void *buffer);

#endif
