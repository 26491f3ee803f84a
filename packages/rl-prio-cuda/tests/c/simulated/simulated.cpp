/* The threads of a block as fibers. */
#include <stdio.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Shuffles by all of a warp are counted apart from those by eight lanes: groups of eight shuffle unequally often. A lane
 * is at most one shuffle ahead of those that it shares a mask with, so that two places for values are enough. */
struct Fiber {
    enum { STACK = 1 << 16 };
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    bool done, at_barrier;
    unsigned mask; /* of the shuffle that it waits in, else 0 */
    int64_t shuffles[2];
    double value[2][2];
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static const std::function<void()> *work;
static int order;
static uint64_t state = 1;

static void fail(const char *what) {
    fprintf(stderr, "%s (block %u of %u, thread %u of %u)\n", what, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
    exit(1);
}

static void wait_for_others() {
    const unsigned me = threadIdx.x;
    swapcontext(&fibers[me].context, &scheduler);
    threadIdx.x = me;
}

void __syncthreads() {
    fibers[threadIdx.x].at_barrier = true;
    wait_for_others();
}

/* Whether all lanes of the mask have come as far in shuffles of this kind. */
static bool joined(unsigned me, unsigned mask, int kind) {
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && fibers[(me & ~31u) + lane].shuffles[kind] < fibers[me].shuffles[kind]) return false;
    return true;
}

double simulated_shuffle(unsigned mask, double x, int apart) {
    const unsigned me = threadIdx.x, lane = me & 31, other = lane ^ (unsigned)apart;
    Fiber &f = fibers[me];
    const int kind = mask == 0xffffffffu;
    if (!(mask >> lane & 1) || !(mask >> other & 1)) fail("a shuffle with a lane outside of its mask");
    if ((me & ~31u) + 32 > blockDim.x) fail("a shuffle in a warp that is not full");
    f.shuffles[kind]++;
    const int64_t turn = f.shuffles[kind] & 1;
    f.value[kind][turn] = x, f.mask = mask;
    while (!joined(me, mask, kind)) wait_for_others();
    f.mask = 0;
    return fibers[(me & ~31u) + other].value[kind][turn];
}

static void enter() {
    (*work)();
    fibers[threadIdx.x].done = true;
    wait_for_others();
}

static void arrange(std::vector<unsigned> &turns) {
    std::iota(turns.begin(), turns.end(), 0);
    if (order == 1) std::reverse(turns.begin(), turns.end());
    for (size_t i = turns.size(); order == 2 && i-- > 1;) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(turns[i], turns[state % (i + 1)]);
    }
}

/* Every fiber that is not at the barrier goes on, until all are there, or all are done. */
static void run_block(unsigned threads) {
    std::vector<unsigned> turns(threads);
    for (;;) {
        unsigned done = 0, waiting = 0;
        int64_t before = 0, after = 0;
        arrange(turns);
        for (unsigned i : turns) before += fibers[i].shuffles[0] + fibers[i].shuffles[1];
        bool moved = false;
        for (unsigned i : turns) {
            Fiber &f = fibers[i];
            if (f.done || f.at_barrier) continue;
            const bool stuck = f.mask != 0;
            threadIdx.x = i;
            swapcontext(&scheduler, &f.context);
            moved |= !stuck || f.done || f.at_barrier || f.mask == 0;
        }
        for (unsigned i : turns) {
            after += fibers[i].shuffles[0] + fibers[i].shuffles[1];
            done += fibers[i].done, waiting += fibers[i].at_barrier;
        }
        if (done == threads) return;
        if (waiting == threads) {
            for (Fiber &f : fibers) f.at_barrier = false;
            continue;
        }
        if (done && waiting) fail("some threads wait at a barrier, others have left");
        if (!moved && before == after) fail("threads wait in shuffles for lanes that do not come");
    }
}

void simulated_launch(unsigned blocks, unsigned threads, const std::function<void()> &kernel) {
    if (blocks < 1 || threads < 1 || threads > 1024) fail("an impossible launch");
    if (fibers.size() < threads) fibers = std::vector<Fiber>(1024);
    work = &kernel, gridDim.x = blocks, blockDim.x = threads;
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx.x = order == 1 ? blocks - 1 - block : block;
        for (unsigned i = 0; i < 1024; i++) {
            Fiber &f = fibers[i];
            f.done = f.at_barrier = false, f.mask = 0, f.shuffles[0] = f.shuffles[1] = 0;
            if (i >= threads) continue;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.get(), f.context.uc_stack.ss_size = Fiber::STACK;
            makecontext(&f.context, enter, 0);
        }
        run_block(threads);
    }
}

extern "C" void rl_prio_host_order(int which, int64_t seed) {
    order = which;
    state = (uint64_t)seed * 2 + 1;
}
