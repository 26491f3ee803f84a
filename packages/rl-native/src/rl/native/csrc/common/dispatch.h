/* Instruction set of the library, selected at the first call. */
#ifndef RL_DISPATCH_H
#define RL_DISPATCH_H

#include <stdint.h>

#define RL_API __attribute__((visibility("default")))
#define RL_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define RL_X86 1
#define RL_AVX2 __attribute__((target("avx2,fma,bmi,bmi2,popcnt")))
#define RL_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,bmi,bmi2,popcnt")))
#else
#define RL_X86 0
#endif

enum { RL_ISA_SCALAR = 0, RL_ISA_AVX2 = 1, RL_ISA_AVX512 = 2 };

/* The set in use. */
RL_API int rl_isa(void);

/* The widest set of this processor. */
RL_API int rl_isa_best(void);

/* Use `level`, or the widest available one below it; -1 for the widest. For tests. Returns the set in use. */
RL_API int rl_isa_use(int level);

#endif
