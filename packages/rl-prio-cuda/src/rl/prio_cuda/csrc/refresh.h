/* Recomputation of the nodes: eight lanes for each child, one level after another. */
#ifndef RL_REFRESH_H
#define RL_REFRESH_H

#include "arithmetic.h"

/* Children that eight lanes read before they write any: reads of several wait for memory together. */
enum { RL_AHEAD = 4 };

/* All of a level is recomputed where most of it was touched. The rule is that of rl-native to the letter, which counts
 * half as many as enough in a tree that a processor's cache holds: which empty children are written (their smallest
 * becomes infinity) and which never were (it stays zero) is the same then. */
enum { RL_NEAR = 1 << 20 }; /* bytes */

template <class REAL>
RL_EVERYWHERE bool rl_whole(const rl_tree<REAL> &tree, int level, int64_t n) {
    return (tree.bytes <= RL_NEAR ? 2 * n : n) >= tree.children[level];
}

template <class REAL>
RL_DEVICE rl_figures<REAL> rl_child(const rl_tree<REAL> &tree, int level, int64_t child, int lane) {
    if (level == 0) {
        const REAL *leaf = tree.leaf + (child << RL_BLOCK_BITS) + lane;
        return rl_join(rl_one((double)leaf[0], leaf[0], leaf[0]), rl_one((double)leaf[8], leaf[8], leaf[8]));
    }
    const rl_node<REAL> *node = tree.level[level - 1] + child;
    return rl_one(node->sum[lane], node->min[lane], node->max[lane]);
}

/* Several groups may hold the same child: all of them write the same. */
template <class REAL>
RL_DEVICE void rl_keep(const rl_tree<REAL> &tree, int level, int64_t child, const rl_figures<REAL> &f) {
    rl_node<REAL> *node = tree.level[level] + (child >> RL_FAN_BITS);
    const int j = (int)(child & (RL_FAN - 1));
    rl_put_same(&node->sum[j], f.sum), rl_put_same(&node->min[j], f.min), rl_put_same(&node->max[j], f.max);
}

/* The children of a level that the batch touched, or all. Reads the level below and writes this one, so that no thread
 * reads what another one writes. The threads of the whole launch take part; each eight of them agree in every branch. */
template <class REAL>
RL_DEVICE void rl_refresh(const rl_tree<REAL> &tree, int level, const int64_t *index, int64_t n, rl_at at) {
    const int lane = at.thread & (RL_FAN - 1), shift = RL_BLOCK_BITS + RL_FAN_BITS * level;
    const int64_t groups = at.blocks * at.threads >> RL_FAN_BITS;
    const int64_t group = (at.block * at.threads + at.thread) >> RL_FAN_BITS;
    const bool whole = rl_whole(tree, level, n);
    const int64_t m = whole ? tree.children[level] : n;
    if (!rl_eight<rl_figures<REAL>>::takes_part(lane)) return;
    for (int64_t j = group; j < m; j += RL_AHEAD * groups) {
        rl_eight<rl_figures<REAL>> f[RL_AHEAD];
        int64_t child[RL_AHEAD];
        RL_UNROLL for (int k = 0; k < RL_AHEAD; k++) {
            const int64_t i = j + k * groups;
            child[k] = i >= m ? -1 : whole ? i : index[i] >> shift;
        }
        RL_UNROLL for (int k = 0; k < RL_AHEAD; k++)
            if (child[k] >= 0) f[k].load(lane, [&](int which) { return rl_child(tree, level, child[k], which); });
        RL_UNROLL for (int k = 0; k < RL_AHEAD; k++) {
            if (child[k] < 0) continue;
            const rl_figures<REAL> sum = f[k].joined();
            if (lane == 0) rl_keep(tree, level, child[k], sum);
        }
    }
}

/* The head, from the root: the first eight threads of a block. */
template <class REAL>
RL_DEVICE void rl_refresh_head(const rl_tree<REAL> &tree, rl_at at) {
    if (at.thread >= RL_FAN || !rl_eight<rl_figures<REAL>>::takes_part(at.thread)) return;
    rl_eight<rl_figures<REAL>> f;
    f.load(at.thread, [&](int which) { return rl_child(tree, tree.levels, 0, which); });
    const rl_figures<REAL> all = f.joined();
    if (at.thread == 0) tree.head->total = all.sum, tree.head->min = all.min, tree.head->max = all.max;
}

#endif
