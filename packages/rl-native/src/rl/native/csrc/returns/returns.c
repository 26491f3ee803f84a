/* Selection of the kernel of a job; see returns.h for jobs and returns_kernel.h for kernels. */

#include "returns.h"

#include <stddef.h>
#include <string.h>

#include "../common/dispatch.h"
#include "returns_places.h"

/* Bytes of a chunk of a lane: long enough for the hardware prefetcher, short enough that the chunks of a group of lanes
 * stay in an L2 cache of 256 KiB. */
#define CHUNK_BYTES 2048

#define AHEAD_BYTES 1024    /* prefetch distance where the hardware prefetcher does not follow */
#define BLOCK_BYTES 8192    /* of contiguous lanes that are processed together: values stay in the cache */
#define FAR_BYTES (1 << 20) /* of one tensor: larger jobs do not fit into the private caches of a core */

/* Bytes of a block of returns_scan.h, and the largest weight of a step: products within a block are finite. */
#define JOINED_BYTES 64
#define MOST_WEIGHT 128

/* Distance of lanes in scratch memory: a power of two would map all lanes to the same cache sets. */
#define PITCH_OF(type) ((int64_t)((CHUNK_BYTES + 17 * 64) / sizeof(type)))

#define ALIGNED __attribute__((aligned(64)))

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 8")
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL
#endif

/* ROWS: lanes whose chains run together where the steps of a lane are contiguous. */
#include "returns_plain.h"
#define ROWS 8
#define TARGET
#define REAL float
#define LANES 4
#define TILE 1
#define FN(name) name##_f32
#define V(name) name##_f32
#include "returns_all.h"
#define REAL double
#define LANES 2
#define TILE 1
#define FN(name) name##_f64
#define V(name) name##_f64
#include "returns_all.h"
#undef TARGET

#if RL_X86
#include "returns_avx2.h"
#undef ROWS
#define ROWS 16
#define TARGET RL_AVX2
#define REAL float
#define LANES 8
#define TILE 4
#define FN(name) name##_f32_avx2
#define V(name) name##_f32_avx2
#include "returns_all.h"
#define REAL double
#define LANES 4
#define TILE 2
#define FN(name) name##_f64_avx2
#define V(name) name##_f64_avx2
#include "returns_all.h"
#undef TARGET

#endif

static void dense(rl_returns_job *job) {
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    job->stride[slot][0] = job->steps * job->inner;
    job->stride[slot][1] = job->inner;
    job->stride[slot][2] = 1;
  }
}

/* Make `inner` the only dimension besides time that has more than one element, if there is one such. */
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

/* Whether the scan is used, the same on every instruction set: not if a product of weights could be infinite. */
static int scans(const rl_returns_job *job, const rl_places *places) {
  const int ratios = job->kind == RL_VTRACE, by_step = job->data[RL_GAMMA] || job->data[RL_LAMBDA];
  const double weight = job->gamma * job->lambda;
  const double most = ratios && !(job->c_bar <= 1) ? weight * job->c_bar : weight;
  return job->kind != RL_PLAIN && !by_step && places->along_time && job->steps >= JOINED_BYTES * 8 / job->bits &&
         weight >= 0 && most <= MOST_WEIGHT && (!ratios || job->c_bar >= 0);
}

#define RUN(set, way) (job->bits == 64 ? way##_f64##set : way##_f32##set)(job, &places)

static void scan(const rl_returns_job *job, rl_places places) {
#if RL_X86
  if (rl_isa() >= RL_ISA_AVX2)
    RUN(_avx2, scan);
  else
#endif
    RUN(, scan);
}

/* Run a job with the kernel for its memory order and the instruction set in use. */
static void run(const rl_returns_job *job) {
  rl_places places = places_of(job);
  const int64_t in_16_bytes = 128 / job->bits, lanes = places.along_inner ? job->inner : 0;
  if (scans(job, &places)) {
    scan(job, places);
    return;
  }
#if RL_X86
  const int64_t in_32_bytes = 2 * in_16_bytes;
  if (rl_isa() >= RL_ISA_AVX2) {
    if (lanes >= in_32_bytes)
      RUN(_avx2, across);
    else
      RUN(_avx2, rows);
    return;
  }
#endif
  if (lanes >= in_16_bytes)
    RUN(, across);
  else
    RUN(, rows);
}

static double number_at(const rl_returns_job *job, int slot, int64_t address, double absent) {
  if (!job->data[slot])
    return absent;
  return job->bits == 64 ? *(const double *)(intptr_t)address : *(const float *)(intptr_t)address;
}

/* Whether the steps after `at` have weight zero there. In V-trace the advantage also depends on the next value, so that
 * a lambda of zero is not an end. */
static int is_end(const rl_returns_job *job, const rl_slots *at) {
  const double gamma = number_at(job, RL_GAMMA, at->of[RL_GAMMA], job->kind == RL_PLAIN ? 1 : job->gamma);
  if (gamma == 0 || job->kind == RL_PLAIN)
    return gamma == 0;
  if (job->kind != RL_VTRACE && number_at(job, RL_LAMBDA, at->of[RL_LAMBDA], job->lambda) == 0)
    return 1;
  return *(const uint8_t *)(intptr_t)at->of[RL_DONE] != 0;
}

/* Recompute one lane with each episode as a job of its own. */
static void select_in(const rl_returns_job *job, int64_t outer, int64_t inner) {
  const rl_places places = places_of(job);
  rl_slots at = place_of(&places, outer, 0, inner);
  rl_returns_job part = *job;
  part.strided = 1;
  part.outer = part.inner = 1;
  for (int64_t t = 0, start = 0; t < job->steps; t++, at = moved(at, &places.time)) {
    if (t == start)
      memcpy(part.data, at.of, sizeof part.data);
    if (t + 1 < job->steps && !is_end(job, &at))
      continue;
    part.steps = t + 1 - start;
    if (part.steps < job->steps)
      run(&part);
    start = t + 1;
  }
}

/* Stop NaN and infinity at the ends of episodes: the kernels multiply by zero there, which keeps them. A value that is
 * not finite then reaches the first step of its lane, so that only lanes whose first result is not finite are
 * recomputed. */
static void select_ends(const rl_returns_job *job) {
  const int result = job->kind == RL_VTRACE ? RL_OUT2 : RL_OUT; /* holds x, or x and a value */
  const int64_t *const step = job->stride[result], width = job->bits / 8;
  for (int64_t o = 0; o < job->outer; o++)
    for (int64_t i = 0; i < job->inner; i++) {
      const double first = number_at(job, result, job->data[result] + (o * step[0] + i * step[2]) * width, 0);
      if (first - first != 0)
        select_in(job, o, i);
    }
}

/* Run the job at `bytes`. Returns 0, or 1 if its kind or dtype is invalid. Addresses, strides and sizes are trusted. */
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
  run(&job);
  select_ends(&job);
  return 0;
}
