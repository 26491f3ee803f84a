/* Threads, atomics and memory operations of the kernels on the CPU, for tests; on_device.h has the same interface.
 *
 * A phase runs for all threads of a block, one after another, in an order that the tests choose: whatever depends on the
 * order of threads shows. Or several real threads share the GPU's, so that a race detector sees what is not ordered by
 * a barrier, by the end of a launch, or by an atomic. */
#ifndef RL_ON_HOST_H
#define RL_ON_HOST_H

#include <math.h>
#include <stdint.h>

#include <type_traits>

#define RL_DEVICE inline
#define RL_EVERYWHERE inline
#define RL_UNROLL

struct rl_at {
    int thread, threads;
    int64_t block, blocks;
};

/* Calls step(0), ..., step(n - 1) in the chosen order, or at the same time; see host.cpp. */
template <class STEP>
void rl_in_some_order(int64_t n, bool at_once, STEP step);

struct rl_block {
    int threads;
    int64_t block, blocks;
    bool at_once;

    template <class WORK>
    void phase(WORK work) const {
        rl_in_some_order(threads, at_once, [&](int64_t i) { work(rl_at{(int)i, threads, block, blocks}); });
    }

    template <class WORK>
    void last(WORK work) const {
        phase(work);
    }
};

template <class T>
inline T rl_peek(const T *p) {
    T x;
    __atomic_load(p, &x, __ATOMIC_RELAXED);
    return x;
}

template <class T>
inline void rl_put(T *p, T x) {
    __atomic_store(p, &x, __ATOMIC_RELAXED);
}

template <class T>
inline void rl_put_same(T *p, T x) {
    rl_put(p, x);
}

template <class T>
inline T rl_swap_if(T *p, std::common_type_t<T> was, std::common_type_t<T> now) {
    __atomic_compare_exchange(p, &was, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return was;
}

template <class T>
inline void rl_raise(T *p, std::common_type_t<T> x) {
    T was = rl_peek(p);
    while (x > was && !__atomic_compare_exchange(p, &was, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

template <class REAL>
inline void rl_read8(const REAL *p, double *x) {
    for (int i = 0; i < 8; i++) x[i] = p[i];
}

template <class REAL>
inline bool rl_most_of_warp(REAL *) {
    return true;
}

/* Threads run one after another here: the first of eight does what the eight lanes do, in the same association. */
template <class T>
struct rl_eight {
    T all[8];

    template <class LOAD>
    void load(int, LOAD from) {
        for (int i = 0; i < 8; i++) all[i] = from(i);
    }

    T joined() const {
        T x[8];
        for (int i = 0; i < 8; i++) x[i] = all[i];
        for (int apart = 4; apart; apart >>= 1)
            for (int i = 0; i < apart; i++) x[i] = rl_join(x[i], x[i + apart]);
        return x[0];
    }

    static bool takes_part(int lane) { return lane == 0; }
};

inline float rl_log_roughly(float x) { return logf(x); }

#endif
