/* The C functions of prio.h; the executor (GPU or host) provides rl_launch, rl_load and the queries of drivers. */
#ifndef RL_ENTRY_H
#define RL_ENTRY_H

#include <string.h>

#include "update.h"

/* cudaErrorInvalidValue */
static constexpr int RL_INVALID = 1;

/* Children of the widest level that one block recomputes beside all above it. */
static constexpr int64_t RL_TOP = 2048;

/* Blocks of a launch whose threads take several turns. */
static constexpr int64_t RL_GRID = 1024;

/* The largest batch of the single block; only tests and benchmarks change it. */
static int64_t rl_single = RL_PRIO_SINGLE;

/* Number of blocks of `each` threads for `threads` threads. */
static inline int64_t rl_blocks(int64_t threads, int64_t each) { return (threads + each - 1) / each; }

static inline int64_t rl_grid(int64_t threads, int64_t each) {
    const int64_t blocks = rl_blocks(threads, each);
    return blocks < RL_GRID ? blocks : RL_GRID;
}

/* Whether capacity and dtype are valid, and the buffer is aligned to 16 bytes. */
static inline bool rl_possible(const void *tree, const void *work, int64_t capacity, int64_t bits) {
    return rl_prio_bytes(capacity, bits) >= 0 && tree && work && !((uintptr_t)tree & 15) && !((uintptr_t)work & 15);
}

/* Whether positions in a batch fit into a stamp. */
static inline bool rl_countable(int64_t n) { return n >= 0 && n < INT32_MAX; }

/* call(float()) or call(double()). */
template <class CALL>
static int rl_by_bits(int64_t bits, CALL call) {
    return bits == 32 ? call(float()) : call(double());
}

/* The levels, after the leaves are written. Wide ones take a launch each, so that all of the device works at them. */
template <class REAL>
static int rl_raise_levels(const rl_update<REAL> &a, void *stream) {
    typename rl_level<REAL>::Args args = {a, 0};
    for (; args.level < a.tree.levels - 1 && a.tree.children[args.level] > RL_TOP; args.level++) {
        const int64_t children = a.tree.children[args.level], each = rl_level<REAL>::THREADS;
        const int64_t touched = rl_whole(a.tree, args.level, a.n) ? children : a.n;
        const int status = rl_launch<rl_level<REAL>>(rl_grid(touched * RL_FAN, each), each, args, stream);
        if (status) return status;
    }
    return rl_launch<rl_top<REAL>>(1, rl_top<REAL>::THREADS, args, stream);
}

/* Threads of the single block: eight for each place, as the levels use them. */
static inline int64_t rl_single_threads(int64_t n) {
    const int64_t threads = (RL_FAN * n + 31) / 32 * 32;
    const int64_t most = rl_update_single<float>::THREADS;
    return threads < 64 ? 64 : threads < most ? threads : most;
}

/* All decisions depend on n and the capacity: a captured graph is right for whatever the tensors hold later. */
template <class REAL>
static int rl_run_update(const rl_update<REAL> &a, void *stream) {
    if (a.n <= rl_single) return rl_launch<rl_update_single<REAL>>(1, rl_single_threads(a.n), a, stream);
    const int64_t each = rl_elect<REAL>::THREADS;
    int status = rl_launch<rl_elect<REAL>>(rl_blocks(a.n, each), each, a, stream);
    if (!status) status = rl_launch<rl_write<REAL>>(rl_blocks(a.n, each), each, a, stream);
    return status ? status : rl_raise_levels(a, stream);
}

template <class REAL>
static rl_update<REAL> rl_update_of(void *tree, void *work, int64_t capacity, const int64_t *index, const void *value,
                                    int64_t n, int64_t step, int64_t rows) {
    rl_update<REAL> a = {};
    a.tree = rl_view<REAL>(tree, capacity);
    a.work = (rl_work *)work, a.stamp = (int32_t *)((char *)work + RL_STAMPS_AT);
    a.index = index, a.value = (const REAL *)value;
    a.n = n, a.step = step, a.rows = rows;
    return a;
}

/* The largest base whose power is finite with room for rounding; what is above is refused. The power of the base grows
 * with it, so that comparing bases is enough. */
template <class REAL>
static double rl_most_base(double alpha) {
    if (alpha == 0) return INFINITY;
    const double most = pow(rl_limits<REAL>::most * 0.999999, 1 / alpha);
    return most < DBL_MAX ? most : DBL_MAX;
}

static inline bool rl_batch(const void *index, const void *value, int64_t n, int64_t step, int64_t capacity,
                            int64_t rows) {
    return rl_countable(n) && (n == 0 || (index && value)) && (step == 0 || step == 1) && rows >= 0 && rows <= capacity;
}

extern "C" {

int rl_prio_version(void) { return 1; }

int64_t rl_prio_bytes(int64_t capacity, int64_t bits) {
    int64_t children[RL_LEVELS], at[RL_LEVELS], leaves, bytes;
    return rl_layout(capacity, bits, children, at, &leaves, &bytes) ? bytes : -1;
}

int64_t rl_prio_leaves_at(int64_t capacity, int64_t bits) {
    int64_t children[RL_LEVELS], at[RL_LEVELS], leaves, bytes;
    return rl_layout(capacity, bits, children, at, &leaves, &bytes) ? leaves : -1;
}

int64_t rl_prio_workspace_bytes(int64_t capacity) {
    if (rl_prio_bytes(capacity, 32) < 0) return -1;
    return (RL_STAMPS_AT + capacity * (int64_t)sizeof(int32_t) + 15) / 16 * 16;
}

int64_t rl_prio_single(int64_t most) {
    const bool usable = most >= 0 && most <= RL_PRIO_SINGLE;
    return rl_single = usable ? most : (int64_t)RL_PRIO_SINGLE;
}

int rl_prio_load(int64_t bits) {
    if (bits != 32 && bits != 64) return RL_INVALID;
    return rl_by_bits(bits, [](auto zero) {
        typedef decltype(zero) REAL;
        return rl_load<rl_init, rl_sample<REAL>, rl_get<REAL>, rl_update_single<REAL>, rl_elect<REAL>, rl_write<REAL>,
                       rl_level<REAL>, rl_top<REAL>, rl_check_leaves<REAL>>();
    });
}

int rl_prio_init(void *tree, int64_t capacity, int64_t bits, void *stream) {
    if (!rl_possible(tree, tree, capacity, bits)) return RL_INVALID;
    const int status = rl_prio_load(bits);
    if (status) return status;
    rl_init::Args args = {(rl_head *)tree, {"rltree1", capacity, bits, 0, INFINITY, 0}};
    return rl_launch<rl_init>(1, rl_init::THREADS, args, stream);
}

int rl_prio_set(void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index, const void *priority,
                int64_t n, int64_t step, int64_t rows, void *stream) {
    if (!rl_possible(tree, work, capacity, bits) || !rl_batch(index, priority, n, step, capacity, rows)) return RL_INVALID;
    if (n == 0) return 0;
    return rl_by_bits(bits, [&](auto zero) {
        return rl_run_update(rl_update_of<decltype(zero)>(tree, work, capacity, index, priority, n, step, rows), stream);
    });
}

int rl_prio_set_errors(void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index, const void *error,
                       int64_t n, int64_t step, double eps, double alpha, void *raw, void *largest, int64_t rows,
                       void *stream) {
    if (!rl_possible(tree, work, capacity, bits) || !rl_batch(index, error, n, step, capacity, rows)) return RL_INVALID;
    if (!(eps >= 0 && eps <= DBL_MAX && alpha >= 0 && alpha <= DBL_MAX)) return RL_INVALID;
    if (n == 0) return 0;
    return rl_by_bits(bits, [&](auto zero) {
        typedef decltype(zero) REAL;
        rl_update<REAL> a = rl_update_of<REAL>(tree, work, capacity, index, error, n, step, rows);
        a.errors = true, a.eps = eps, a.alpha = alpha, a.most = rl_most_base<REAL>(alpha);
        a.raw = (REAL *)raw, a.largest = (REAL *)largest;
        return rl_run_update(a, stream);
    });
}

int rl_prio_sample(const void *tree, void *work, int64_t capacity, int64_t bits, const double *u, int64_t n,
                   int stratified, double beta, int64_t *index, void *priority, void *weight, void *stream) {
    if (!rl_possible(tree, work, capacity, bits) || !rl_countable(n)) return RL_INVALID;
    if (n == 0) return 0;
    if (!u || !index || !(beta >= 0 && beta <= DBL_MAX)) return RL_INVALID;
    return rl_by_bits(bits, [&](auto zero) {
        typedef decltype(zero) REAL;
        typename rl_sample<REAL>::Args args = {};
        args.tree = rl_view<REAL>((void *)tree, capacity);
        args.work = (rl_work *)work, args.u = u, args.n = n, args.beta = beta, args.stratified = stratified != 0;
        args.index = index, args.priority = (REAL *)priority, args.weight = (REAL *)weight;
        const int64_t each = rl_sample<REAL>::THREADS;
        return rl_launch<rl_sample<REAL>>(rl_blocks(n, each), each, args, stream);
    });
}

int rl_prio_get(const void *tree, void *work, int64_t capacity, int64_t bits, const int64_t *index, void *priority,
                int64_t n, void *stream) {
    if (!rl_possible(tree, work, capacity, bits) || !rl_countable(n)) return RL_INVALID;
    if (n == 0) return 0;
    if (!index || !priority) return RL_INVALID;
    return rl_by_bits(bits, [&](auto zero) {
        typedef decltype(zero) REAL;
        typename rl_get<REAL>::Args args = {rl_view<REAL>((void *)tree, capacity).leaf, (rl_work *)work, capacity, index,
                                            (REAL *)priority, n};
        const int64_t each = rl_get<REAL>::THREADS;
        return rl_launch<rl_get<REAL>>(rl_blocks(n, each), each, args, stream);
    });
}

int rl_prio_rebuild(void *tree, void *work, int64_t capacity, int64_t bits, void *stream) {
    if (!rl_possible(tree, work, capacity, bits)) return RL_INVALID;
    return rl_by_bits(bits, [&](auto zero) {
        typedef decltype(zero) REAL;
        /* As if a batch had touched all blocks: no index is read then. */
        rl_update<REAL> a = rl_update_of<REAL>(tree, work, capacity, nullptr, nullptr, 0, 1, capacity);
        a.value = a.tree.leaf, a.n = a.tree.children[0];
        const int64_t each = rl_check_leaves<REAL>::THREADS, leaves = rl_padded(a.n);
        const int status = rl_launch<rl_check_leaves<REAL>>(rl_grid(leaves, each), each, a, stream);
        return status ? status : rl_raise_levels(a, stream);
    });
}

} // extern "C"

#endif
