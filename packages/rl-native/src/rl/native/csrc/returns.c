/* Which kernel runs a job; see returns.h for what a job is and returns_kernel.h for the kernels. */

#include "returns.h"

#include <stddef.h>
#include <string.h>

#include "dispatch.h"

#define ROWS 8
#define CHUNK_OF(type) ((int64_t)(1024 / sizeof(type))) /* steps of a row at once: the scratch stays in the first cache */
#define PITCH_OF(type) (CHUNK_OF(type) + 8) /* a power of two would map all rows to one set of that cache */
#define CHUNK CHUNK_OF(REAL)
#define PITCH PITCH_OF(REAL)
#define BLOCK 512          /* lanes that are worked on at once */

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 8")
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL
#endif

#include "returns_chain.h"

/* A prelude is written once, as BODY(S) for one element and BODY(V) for a vector of them. The last vector begins early
 * and computes some elements again, so outputs must not be inputs. */
#define ONE_BY_ONE                                                                                                     \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    BODY(S)                                                                                                            \
  }
#define IN_VECTORS(count)                                                                                              \
  if (n < (count)) {                                                                                                   \
    ONE_BY_ONE                                                                                                         \
    return;                                                                                                            \
  }                                                                                                                    \
  for (int64_t from = 0; from < n; from += (count)) {                                                                  \
    const int64_t i = from + (count) <= n ? from : n - (count);                                                        \
    BODY(V)                                                                                                            \
  }
#define S_REAL REAL
#define S_GET(p) (p)[i]
#define S_PUT(p, x) (p)[i] = (x)
#define S_ALL(x) (x)
#define S_UNLESS(flag, x) ((flag)[i] ? (REAL)0 : (x))
#define S_AT_MOST(x, bar) ((x) > (bar) ? (bar) : (x))
#define V_REAL VECTOR(vector)
#define V_GET(p) VECTOR(get)((p) + i)
#define V_PUT(p, x) VECTOR(put)((p) + i, x)
#define V_ALL(x) VECTOR(all)(x)
#define V_UNLESS(flag, x) VECTOR(unless)((flag) + i, x)
#define V_AT_MOST(x, bar) VECTOR(at_most)(x, bar)

#define ALIGNED __attribute__((aligned(64)))

#define TARGET
#define REAL float
#define FN(name) name##_f32
#define CHAIN chain_f32
#define STRIPS ONE_BY_ONE
#include "returns_kernel.h"
#undef REAL
#undef FN
#undef CHAIN
#undef STRIPS
#define REAL double
#define FN(name) name##_f64
#define CHAIN chain_f64
#define STRIPS ONE_BY_ONE
#include "returns_kernel.h"
#undef REAL
#undef FN
#undef CHAIN
#undef STRIPS
#undef TARGET

#if RL_X86
#include "returns_avx2.h"
#define TARGET RL_AVX2
#define REAL float
#define FN(name) name##_f32_avx2
#define CHAIN chain_f32_avx2
#define VECTOR(name) name##_f32
#define STRIPS IN_VECTORS(8)
#include "returns_kernel.h"
#undef REAL
#undef FN
#undef CHAIN
#undef VECTOR
#undef STRIPS
#define REAL double
#define FN(name) name##_f64_avx2
#define CHAIN chain_f64_avx2
#define VECTOR(name) name##_f64
#define STRIPS IN_VECTORS(4)
#include "returns_kernel.h"
#undef REAL
#undef FN
#undef CHAIN
#undef VECTOR
#undef STRIPS
#undef TARGET
#endif

static void dense(rl_returns_job *job) {
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    job->stride[slot][0] = job->steps * job->inner;
    job->stride[slot][1] = job->inner;
    job->stride[slot][2] = 1;
  }
}

/* Let `inner` be the dimension besides time that has more than one element, if only one has. */
static void put_lanes_inside(rl_returns_job *job) {
  if (job->inner != 1)
    return;
  job->inner = job->outer;
  job->outer = 1;
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    const int64_t outer = job->stride[slot][0];
    job->stride[slot][0] = job->stride[slot][2];
    job->stride[slot][2] = outer;
  }
}

static int lanes_are_side_by_side(const rl_returns_job *job) {
  if (job->inner < 4)
    return 0;
  for (int slot = 0; slot < RL_SLOTS; slot++)
    if (job->data[slot] && job->stride[slot][2] != 1)
      return 0;
  return 1;
}

/* Run the job at `bytes`. Returns 0, or 1 if it cannot be one. Nothing is checked that the caller can know better:
 * addresses, strides and sizes are to describe memory that exists. */
RL_API int32_t rl_returns(const void *bytes) {
  rl_returns_job job;
  memcpy(&job, bytes, offsetof(rl_returns_job, stride));
  if (job.kind < RL_PLAIN || job.kind > RL_VTRACE || (job.bits != 32 && job.bits != 64))
    return 1;
  if (job.outer <= 0 || job.steps <= 0 || job.inner <= 0)
    return 0;
  if (job.strided)
    memcpy(job.stride, (const char *)bytes + offsetof(rl_returns_job, stride), sizeof job.stride);
  else
    dense(&job);
  put_lanes_inside(&job);
  const int across = lanes_are_side_by_side(&job);
  const int wide = job.bits == 64;
#if RL_X86
  switch (rl_isa()) {
  case RL_ISA_AVX512: /* wider vectors gain nothing here: memory is the limit before they are */
  case RL_ISA_AVX2:
    (wide ? run_f64_avx2 : run_f32_avx2)(&job, across);
    return 0;
  default:
    break;
  }
#endif
  (wide ? run_f64 : run_f32)(&job, across);
  return 0;
}
