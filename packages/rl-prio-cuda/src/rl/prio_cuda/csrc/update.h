/* Writes of priorities, and recomputation of the nodes above.
 *
 * Of a repeated index the last place in the batch wins, whatever the order in which threads run: each place offers
 * itself for its leaf, the highest is kept (elect), and only the winner writes. A batch of up to 1024 does all of it in
 * one block, elections in a table in shared memory. A larger one takes several launches, elections in the stamps of the
 * workspace: rl_elect, rl_write, rl_level for each wide level, rl_top for the narrow ones. Launches of a stream run in
 * order, and each sees all that the ones before wrote. */
#ifndef RL_UPDATE_H
#define RL_UPDATE_H

#include "prio.h"
#include "refresh.h"
#include "search.h"

template <class REAL>
struct rl_update {
    rl_tree<REAL> tree;
    rl_work *work;
    int32_t *stamp;
    const int64_t *index;
    const REAL *value; /* priorities, or errors */
    int64_t n, step, rows;
    bool errors;
    double eps, alpha, most; /* `most`: the largest |error| + eps whose power is finite */
    REAL *raw, *largest;
};

/* What is refused, packed so that the largest word is the one to tell: of the first code, the first place. 0: nothing. */
RL_DEVICE uint64_t rl_refusal(int64_t code, int64_t place) { return ~((uint64_t)code << 56 | (uint64_t)place); }

template <class REAL>
RL_DEVICE double rl_base(const rl_update<REAL> &a, REAL error) {
    return (double)rl_size(error) + a.eps;
}

/* The code of a place, 0 if it is sound. */
template <class REAL>
RL_DEVICE int64_t rl_verdict(const rl_update<REAL> &a, int64_t index, REAL value) {
    if ((uint64_t)index >= (uint64_t)a.rows) return RL_PRIO_INDEX;
    const bool sound = a.errors ? rl_size(value) <= rl_limits<REAL>::most && rl_base(a, value) <= a.most : rl_sound(value);
    return sound ? 0 : RL_PRIO_PRIORITY;
}

/* By the winner for a leaf, of a batch that is sound. */
template <class REAL>
RL_DEVICE void rl_set_leaf(const rl_update<REAL> &a, int64_t index, REAL value) {
    a.tree.leaf[index] = a.errors ? rl_power(rl_base(a, value), a.alpha, REAL()) : value;
    if (a.raw) a.raw[index] = value;
}

/* By one thread at the end of an update. */
template <class REAL>
RL_DEVICE void rl_tell(const rl_update<REAL> &a, uint64_t refused) {
    const int64_t code = (int64_t)(~refused >> 56), place = (int64_t)(~refused & 0xffffffffffffffu);
    const double value = code == RL_PRIO_INDEX ? (double)a.index[place] : (double)a.value[place * a.step];
    rl_report(a.work, code, place, value);
}

/* All of an update in one block. */
template <class REAL>
struct rl_update_single {
    static constexpr int THREADS = RL_PRIO_SINGLE, SLOT_BITS = 11, SLOTS = 1 << SLOT_BITS;
    typedef rl_update<REAL> Args;

    struct Shared {
        int64_t index[RL_PRIO_SINGLE];
        REAL value[RL_PRIO_SINGLE];
        uint32_t table[SLOTS];         /* 1 + a place of the batch; 0 is free */
        uint32_t slot[RL_PRIO_SINGLE]; /* where the leaf of a place stands in the table */
        uint64_t refused;
        REAL largest;
    };

    static RL_DEVICE void read(const Args &a, Shared &s, rl_at at) {
        for (int i = at.thread; i < SLOTS; i += at.threads) s.table[i] = 0;
        if (at.thread == 0) s.refused = 0, s.largest = 0;
        if (at.thread >= a.n) return;
        s.index[at.thread] = a.index[at.thread];
        s.value[at.thread] = a.value[at.thread * a.step];
    }

    /* A slot, once taken, keeps its leaf: only places with the same index replace each other there, upwards. At most
     * half of the slots are ever taken, so that the walk ends. `s.index` is not written any more. */
    static RL_DEVICE void elect(Shared &s, int i) {
        const int64_t index = s.index[i];
        uint32_t slot = (uint32_t)((uint64_t)index * 0x9e3779b97f4a7c15u >> (64 - SLOT_BITS));
        for (;;) {
            const uint32_t held = rl_swap_if(&s.table[slot], 0u, (uint32_t)i + 1);
            if (held == 0) break;
            if (s.index[held - 1] == index) {
                rl_raise(&s.table[slot], (uint32_t)i + 1);
                break;
            }
            slot = (slot + 1) & (SLOTS - 1);
        }
        s.slot[i] = slot;
    }

    static RL_DEVICE void check(const Args &a, Shared &s, rl_at at) {
        REAL size = 0;
        if (at.thread < a.n) {
            const int64_t code = rl_verdict(a, s.index[at.thread], s.value[at.thread]);
            size = rl_size(s.value[at.thread]);
            if (code) rl_raise(&s.refused, rl_refusal(code, at.thread));
            elect(s, at.thread); /* a rejected batch has no winners */
        }
        if (a.largest && rl_most_of_warp(&size)) rl_raise(&s.largest, size);
    }

    static RL_DEVICE void write(const Args &a, const Shared &s, rl_at at) {
        if (at.thread == 0 && a.largest) rl_raise(a.largest, s.largest);
        if (at.thread >= a.n) return;
        if (s.table[s.slot[at.thread]] == (uint32_t)at.thread + 1)
            rl_set_leaf(a, s.index[at.thread], s.value[at.thread]);
    }

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &s) {
        block.phase([&](rl_at at) { read(a, s, at); });
        block.phase([&](rl_at at) { check(a, s, at); });
        /* Written before the barrier, and never after it: all threads go the same way. */
        if (s.refused) {
            block.last([&](rl_at at) {
                if (at.thread == 0) rl_tell(a, s.refused);
            });
            return;
        }
        block.phase([&](rl_at at) { write(a, s, at); });
        for (int l = 0; l < a.tree.levels; l++) block.phase([&](rl_at at) { rl_refresh(a.tree, l, s.index, a.n, at); });
        block.last([&](rl_at at) { rl_refresh_head(a.tree, at); });
    }
};

/* Check each place, and let it offer itself for its leaf. Nothing of the tree is written. */
template <class REAL>
struct rl_elect {
    static constexpr int THREADS = 256;
    typedef rl_update<REAL> Args;
    typedef rl_nothing Shared;

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        block.last([&](rl_at at) {
            const int64_t i = at.block * at.threads + at.thread;
            if (i >= a.n) return;
            const int64_t index = a.index[i], code = rl_verdict(a, index, a.value[i * a.step]);
            if (code) rl_raise(&a.work->refused, rl_refusal(code, i));
            if (code != RL_PRIO_INDEX) rl_raise(&a.stamp[index], (int32_t)(i + 1));
        });
    }
};

/* The winners write, unless the batch was refused, and take their stamps away in any case: the next update finds zeros.
 * A loser beside its winner sees the winner's place or zero, and neither is its own. */
template <class REAL>
struct rl_write {
    static constexpr int THREADS = 256;
    typedef rl_update<REAL> Args;

    struct Shared {
        REAL largest;
    };

    static RL_DEVICE void write(const Args &a, int64_t i, bool refused) {
        const int64_t index = a.index[i];
        if ((uint64_t)index >= (uint64_t)a.rows) return;
        if (rl_peek(&a.stamp[index]) != (int32_t)(i + 1)) return;
        rl_put(&a.stamp[index], 0);
        if (!refused) rl_set_leaf(a, index, a.value[i * a.step]);
    }

    /* `refused` is constant during this launch: all threads of all blocks take the same branch. */
    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &s) {
        const bool refused = a.work->refused != 0, sizes = a.largest && !refused;
        if (sizes)
            block.phase([&](rl_at at) {
                if (at.thread == 0) s.largest = 0;
            });
        block.phase([&](rl_at at) {
            const int64_t i = at.block * at.threads + at.thread;
            REAL size = 0;
            if (i < a.n) {
                write(a, i, refused);
                if (sizes) size = rl_size(a.value[i * a.step]);
            }
            if (sizes && rl_most_of_warp(&size)) rl_raise(&s.largest, size);
        });
        if (sizes)
            block.last([&](rl_at at) {
                if (at.thread == 0) rl_raise(a.largest, s.largest);
            });
    }
};

/* One wide level. */
template <class REAL>
struct rl_level {
    static constexpr int THREADS = 256;
    typedef rl_nothing Shared;

    struct Args {
        rl_update<REAL> update;
        int level;
    };

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        if (a.update.work->refused) return;
        block.last([&](rl_at at) { rl_refresh(a.update.tree, a.level, a.update.index, a.update.n, at); });
    }
};

/* The levels from `level` to the head in one block, and the end of the update: a refusal is told and forgotten. */
template <class REAL>
struct rl_top {
    static constexpr int THREADS = 1024;
    typedef typename rl_level<REAL>::Args Args;

    struct Shared {
        uint64_t refused;
    };

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &s) {
        const rl_update<REAL> &u = a.update;
        /* By a copy: the word itself becomes zero below, and a late thread would not see why the others left. */
        block.phase([&](rl_at at) {
            if (at.thread == 0) s.refused = u.work->refused;
        });
        if (s.refused) {
            block.last([&](rl_at at) {
                if (at.thread == 0) rl_tell(u, s.refused), u.work->refused = 0;
            });
            return;
        }
        for (int l = a.level; l < u.tree.levels; l++)
            block.phase([&](rl_at at) { rl_refresh(u.tree, l, u.index, u.n, at); });
        block.last([&](rl_at at) { rl_refresh_head(u.tree, at); });
    }
};

/* Before all leaves are believed: each is a priority, and zero beyond the capacity. */
template <class REAL>
struct rl_check_leaves {
    static constexpr int THREADS = 256;
    typedef rl_update<REAL> Args;
    typedef rl_nothing Shared;

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        block.last([&](rl_at at) {
            const int64_t padded = rl_padded(a.tree.children[0]), stride = at.blocks * at.threads;
            for (int64_t i = at.block * at.threads + at.thread; i < padded; i += stride) {
                const REAL x = a.tree.leaf[i];
                const int64_t code = i >= a.tree.capacity ? (x == 0 ? 0 : RL_PRIO_DAMAGED)
                                     : rl_sound(x)        ? 0
                                                          : RL_PRIO_PRIORITY;
                if (code) rl_raise(&a.work->refused, rl_refusal(code, i));
            }
        });
    }
};

/* An empty tree, of zeros. */
struct rl_init {
    static constexpr int THREADS = 32;
    typedef rl_nothing Shared;

    struct Args {
        rl_head *to;
        rl_head head;
    };

    static RL_DEVICE void run(const rl_block &block, const Args &a, Shared &) {
        block.last([&](rl_at at) {
            if (at.thread == 0) *a.to = a.head;
        });
    }
};

#endif
