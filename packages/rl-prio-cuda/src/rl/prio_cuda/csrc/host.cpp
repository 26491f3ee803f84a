/* Execution of the kernels on the CPU: a library with the same C functions, for tests. */
#include "on_host.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

enum { RL_FORWARD, RL_BACKWARD, RL_SHUFFLED, RL_AT_ONCE, RL_WORKERS = 4 };

static int order = RL_FORWARD;
static uint64_t state = 1;

static uint64_t rl_random() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

typedef void (*rl_step)(void *what, int64_t i);

/* Threads in another order than theirs, or a part of them on each worker. */
static void rl_out_of_order(int64_t n, bool at_once, rl_step step, void *what) {
    std::vector<int64_t> turns((size_t)n);
    std::iota(turns.begin(), turns.end(), 0);
    if (order == RL_BACKWARD) std::reverse(turns.begin(), turns.end());
    for (size_t i = turns.size(); order == RL_SHUFFLED && i-- > 1;) std::swap(turns[i], turns[rl_random() % (i + 1)]);
    if (!at_once) {
        for (int64_t i : turns) step(what, i);
        return;
    }
    std::vector<std::thread> workers;
    for (size_t w = 0; w < RL_WORKERS; w++)
        workers.emplace_back([&, w] {
            for (size_t i = w; i < turns.size(); i += RL_WORKERS) step(what, turns[i]);
        });
    for (std::thread &worker : workers) worker.join();
}

/* A template, and short: there is one for each phase of each kernel. */
template <class STEP>
void rl_in_some_order(int64_t n, bool at_once, STEP step) {
    if (order == RL_FORWARD) {
        for (int64_t i = 0; i < n; i++) step(i);
        return;
    }
    rl_out_of_order(n, at_once, [](void *what, int64_t i) { (*(STEP *)what)(i); }, &step);
}

/* A launch of one block shares out its threads to the workers; one of several, its blocks. */
template <class BODY>
static int rl_launch(int64_t blocks, int64_t threads, const typename BODY::Args &args, void *) {
    const bool at_once = order == RL_AT_ONCE;
    rl_in_some_order(blocks, at_once && blocks > 1, [&](int64_t i) {
        const std::unique_ptr<typename BODY::Shared> shared(new typename BODY::Shared);
        memset((void *)shared.get(), 0xcd, sizeof *shared); /* shared memory begins with anything */
        BODY::run(rl_block{(int)threads, i, blocks, at_once && blocks == 1}, args, *shared);
    });
    return 0;
}

template <class... BODY>
static int rl_load() {
    return 0;
}

#include "entry.h"

extern "C" {

/* The order of threads and blocks from now on, and the seed of the shuffled one. */
RL_API void rl_prio_host_order(int which, int64_t seed) {
    order = which;
    state = (uint64_t)seed * 2 + 1;
}

const char *rl_prio_message(int status) {
    return status == 0 ? "no error" : status == RL_INVALID ? "invalid argument" : "no CUDA-capable device is detected";
}

int rl_prio_driver(int *driver, int *runtime) {
    *driver = *runtime = 0;
    return 0;
}

int rl_prio_device(int, int *, int *, char *, int64_t) { return 100; }

} // extern "C"
