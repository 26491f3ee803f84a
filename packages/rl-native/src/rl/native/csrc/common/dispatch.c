#include "dispatch.h"

/* Instruction set in use, -1 before the first call; several threads may write the same value. */
static _Atomic int chosen = -1;

RL_API int rl_isa_best(void) {
#if RL_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
            return RL_ISA_AVX512;
        return RL_ISA_AVX2;
    }
#endif
    return RL_ISA_SCALAR;
}

RL_API int rl_isa(void) {
    int level = chosen;
    if (level < 0) chosen = level = rl_isa_best();
    return level;
}

RL_API int rl_isa_use(int level) {
    int best = rl_isa_best();
    chosen = level < 0 || level > best ? best : level;
    return chosen;
}
