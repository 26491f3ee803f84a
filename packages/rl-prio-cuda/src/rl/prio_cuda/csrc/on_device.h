/* Threads, atomics and memory operations of the kernels on a GPU; on_host.h has the same interface. */
#ifndef RL_ON_DEVICE_H
#define RL_ON_DEVICE_H

#include <cuda_runtime.h>
#include <stdint.h>

#define RL_DEVICE __device__ __forceinline__

/* What launches ask, too. nvcc lets host code call an RL_DEVICE function from a template, and makes that call an exit(). */
#define RL_EVERYWHERE __host__ __device__ __forceinline__
#define RL_UNROLL _Pragma("unroll")

/* Where a thread stands. */
struct rl_at {
    int thread, threads;
    int64_t block, blocks;
};

/* A block of threads. What stands between phases is the same for all of them, so that all reach each barrier. */
struct rl_block {
    static RL_DEVICE rl_at here() {
        return {(int)threadIdx.x, (int)blockDim.x, (int64_t)blockIdx.x, (int64_t)gridDim.x};
    }

    /* All threads do it; what they wrote, to shared and to global memory, all threads of the block see afterwards. */
    template <class WORK>
    RL_DEVICE void phase(WORK work) const {
        work(here());
        __syncthreads();
    }

    /* The same without the barrier: nothing of the kernel comes after it. */
    template <class WORK>
    RL_DEVICE void last(WORK work) const {
        work(here());
    }
};

/* Atomics; all give what was there before. The wide types that C names and those that CUDA overloads differ. */
RL_DEVICE uint32_t rl_swap_if(uint32_t *p, uint32_t was, uint32_t now) { return atomicCAS(p, was, now); }
RL_DEVICE int64_t rl_swap_if(int64_t *p, int64_t was, int64_t now) {
    return (int64_t)atomicCAS((unsigned long long *)p, (unsigned long long)was, (unsigned long long)now);
}
RL_DEVICE void rl_raise(int32_t *p, int32_t x) { atomicMax(p, x); }
RL_DEVICE void rl_raise(uint32_t *p, uint32_t x) { atomicMax(p, x); }
RL_DEVICE void rl_raise(uint64_t *p, uint64_t x) { atomicMax((unsigned long long *)p, (unsigned long long)x); }

/* Bits of numbers that are not negative grow with them. */
RL_DEVICE void rl_raise(float *p, float x) { atomicMax((int *)p, __float_as_int(x)); }
RL_DEVICE void rl_raise(double *p, double x) { atomicMax((long long *)p, __double_as_longlong(x)); }

/* A word that another thread may write meanwhile: one of the two values is seen, never a mixture. */
template <class T>
RL_DEVICE T rl_peek(const T *p) {
    return *(const volatile T *)p;
}

/* A store that an `rl_peek` may meet. */
template <class T>
RL_DEVICE void rl_put(T *p, T x) {
    *(volatile T *)p = x;
}

/* A store that only others of the same value may meet: 4 or 8 bytes in their place arrive whole. */
template <class T>
RL_DEVICE void rl_put_same(T *p, T x) {
    *p = x;
}

/* Read 64 or 128 bytes of a tree that is not written while the kernel runs, 16 bytes per load. */
RL_DEVICE void rl_read8(const double *p, double *x) {
    RL_UNROLL for (int i = 0; i < 4; i++) {
        const double2 v = __ldg((const double2 *)p + i);
        x[2 * i] = v.x, x[2 * i + 1] = v.y;
    }
}
RL_DEVICE void rl_read8(const float *p, double *x) {
    RL_UNROLL for (int i = 0; i < 2; i++) {
        const float4 v = __ldg((const float4 *)p + i);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
}

RL_DEVICE float rl_from_lane(float x, unsigned mask, int apart) { return __shfl_xor_sync(mask, x, apart, 32); }
RL_DEVICE double rl_from_lane(double x, unsigned mask, int apart) { return __shfl_xor_sync(mask, x, apart, 32); }

/* The largest of a warp, and whether this thread is to tell it on. All threads of the block call it. */
template <class REAL>
RL_DEVICE bool rl_most_of_warp(REAL *x) {
    RL_UNROLL for (int apart = 16; apart; apart >>= 1) {
        const REAL other = rl_from_lane(*x, 0xffffffffu, apart);
        *x = other > *x ? other : *x;
    }
    return (threadIdx.x & 31) == 0;
}

/* Eight lanes hold one value each. Lane i is first joined with lane i + 4, then with i + 2, then with i + 1. */
template <class T>
struct rl_eight {
    T mine;

    template <class LOAD>
    RL_DEVICE void load(int lane, LOAD from) {
        mine = from(lane);
    }

    /* In lane 0, all of them joined. The eight lanes are neighbours in a warp and call it together. */
    RL_DEVICE T joined() const {
        const unsigned mask = 0xffu << (threadIdx.x & 24);
        T x = mine;
        RL_UNROLL for (int apart = 4; apart; apart >>= 1) x = rl_join(x, x.from_lane(mask, apart));
        return x;
    }

    /* Whether a lane has anything to do. */
    static RL_DEVICE bool takes_part(int) { return true; }
};

RL_DEVICE float rl_log_roughly(float x) { return __logf(x); }

#endif
