/* Sampling: one thread per sample follows the search path from the root to a leaf. */
#ifndef RL_SEARCH_H
#define RL_SEARCH_H

#include "arithmetic.h"
#include "prio.h"

/* Record an error unless an earlier one is still unread: only the thread that replaces code 0 writes the rest. */
RL_DEVICE void rl_report(rl_work *work, int64_t code, int64_t place, double value) {
    if (rl_swap_if(&work->code, 0, code) == 0) work->place = place, work->value = value;
}

/* Children up to `k` have no room for the mass, or child `k` is empty: rounding, or the very end. The last child above
 * zero among them, else the first one after. */
template <class T>
RL_DEVICE int rl_nearest(const T *x, int n, int k) {
    int j = k < n ? k : n - 1;
    const int from = j;
    while (j > 0 && !(x[j] > 0)) j--;
    if (!(x[j] > 0))
        for (j = from; j < n - 1 && !(x[j] > 0); j++) {}
    return x[j] > 0 ? j : 0;
}

/* Running sums of 8 in place, in three doubling steps. */
RL_DEVICE void rl_scan8(double *x) {
    RL_UNROLL for (int i = 7; i >= 1; i--) x[i] += x[i - 1];
    RL_UNROLL for (int i = 7; i >= 2; i--) x[i] += x[i - 2];
    RL_UNROLL for (int i = 7; i >= 4; i--) x[i] += x[i - 4];
}

/* Select the child after the last running sum that is at most `r`; `r` becomes the mass that is left in it. `before` is
 * updated by selection: an index that is known only at run time would move `p` from registers to memory. */
RL_DEVICE int rl_pick8(const double *sum, double *r) {
    double p[8], before = 0;
    int k = 0;
    rl_read8(sum, p);
    rl_scan8(p);
    RL_UNROLL for (int i = 0; i < 8; i++) {
        const double sums = p[i];
        const bool under = sums <= *r;
        k = under ? i + 1 : k;
        before = under ? sums : before;
    }
    if (k > 7 || !(sum[k] > 0)) {
        k = rl_nearest(sum, 8, k);
        *r = sum[k];
        return k;
    }
    *r -= before;
    return k;
}

/* Select a leaf of a block in the same way: its 16 running sums in two halves of 8, the second on top of the first. */
template <class REAL>
RL_DEVICE int rl_pick16(const REAL *leaf, double r) {
    double p[8];
    int k = 0;
    rl_read8(leaf, p);
    rl_scan8(p);
    RL_UNROLL for (int i = 0; i < 8; i++) k = p[i] <= r ? i + 1 : k;
    const double half = p[7];
    rl_read8(leaf + 8, p);
    rl_scan8(p);
    RL_UNROLL for (int i = 0; i < 8; i++) k = p[i] + half <= r ? i + 9 : k;
    return k > 15 || !(leaf[k] > 0) ? rl_nearest(leaf, 16, k) : k;
}

/* Follow the search path: at each level the child whose part of the node contains the mass, which becomes the mass within
 * that child; a child of level 0 is a block of leaves. */
template <class REAL>
RL_DEVICE int64_t rl_find(const rl_tree<REAL> &tree, double mass) {
    int64_t node = 0;
    for (int l = tree.levels - 1; l >= 0; l--)
        node = (node << RL_FAN_BITS) + rl_pick8(tree.level[l][node].sum, &mass);
    return (node << RL_BLOCK_BITS) + rl_pick16(tree.leaf + (node << RL_BLOCK_BITS), mass);
}

struct rl_nothing {};

template <class REAL>
struct rl_sample {
    static constexpr int THREADS = 128;
    typedef rl_nothing Shared;

    struct Args {
        rl_tree<REAL> tree;
        rl_work *work;
        const double *u;
        int64_t n;
        int64_t *index;
        REAL *priority, *weight;
        double beta;
        int stratified;
    };

    static RL_DEVICE void give(const Args &a, int64_t i, int64_t index, REAL priority, REAL weight) {
        a.index[i] = index;
        if (a.priority) a.priority[i] = priority;
        if (a.weight) a.weight[i] = weight;
    }

    /* Sample i, or report why there is none. */
    static RL_DEVICE void query(const Args &a, int64_t i) {
        const double total = a.tree.head->total, u = a.u[i];
        int64_t code = 0;
        if (!(total > 0))
            code = RL_PRIO_EMPTY;
        else if (!(total <= DBL_MAX))
            code = RL_PRIO_OVERFLOW;
        else if (!(u >= 0 && u < 1))
            code = RL_PRIO_UNIFORM;
        if (code) {
            if (code == RL_PRIO_UNIFORM) rl_report(a.work, code, i, u);
            else if (i == 0) rl_report(a.work, code, 0, total);
            give(a, i, 0, 0, 0);
            return;
        }
        /* Stratified: a number in the i-th of n equal parts of the total. */
        const double mass = a.stratified ? (u + (double)i) * (total / (double)a.n) : u * total;
        const int64_t found = rl_find(a.tree, mass);
        const REAL priority = a.tree.leaf[found];
        REAL weight = 0;
        if (a.weight) weight = rl_power((double)priority / a.tree.head->min, -a.beta, REAL());
        /* (priority / min)^-beta is 1 for the smallest priority; rounding must not exceed it. */
        give(a, i, found, priority, weight < 1 ? weight : 1);
    }

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        block.last([&](rl_at at) {
            const int64_t i = at.block * at.threads + at.thread;
            if (i < a.n) query(a, i);
        });
    }
};

template <class REAL>
struct rl_get {
    static constexpr int THREADS = 256;
    typedef rl_nothing Shared;

    struct Args {
        const REAL *leaf;
        rl_work *work;
        int64_t capacity;
        const int64_t *index;
        REAL *priority;
        int64_t n;
    };

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        block.last([&](rl_at at) {
            const int64_t i = at.block * at.threads + at.thread;
            if (i >= a.n) return;
            const int64_t index = a.index[i];
            const bool inside = (uint64_t)index < (uint64_t)a.capacity;
            if (!inside) rl_report(a.work, RL_PRIO_INDEX, i, (double)index);
            a.priority[i] = inside ? a.leaf[index] : 0;
        });
    }
};

#endif
