/* Every kernel at sizes around its blocks, in memory of exactly the size that it needs, so that the sanitizers see a
 * step outside; the plain recurrence is compared with a loop, and every instruction set with plain C. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "returns.h"

RL_API int32_t rl_returns(const void *bytes);

static double number(const void *data, int64_t bits, int64_t i) {
  return bits == 32 ? ((const float *)data)[i] : ((const double *)data)[i];
}

static void *filled(int64_t count, int64_t width, int64_t bits) {
  void *data = calloc((size_t)count, (size_t)width);
  for (int64_t i = 0; data && width > 1 && i < count; i++) {
    const double x = (double)(i * 7919 % 1000) / 1000;
    if (bits == 32)
      ((float *)data)[i] = (float)x;
    else
      ((double *)data)[i] = x;
  }
  return data;
}

/* Lanes of `steps` neighbours, so that lane and time are easy to count. */
static int plain_is_right(const rl_returns_job *job, int forward) {
  const void *d = (const void *)(intptr_t)job->data[RL_REWARD], *out = (const void *)(intptr_t)job->data[RL_OUT];
  const void *c = (const void *)(intptr_t)job->data[RL_GAMMA];
  const int64_t lanes = job->outer * job->inner, steps = job->steps;
  rl_returns_job run = *job;
  run.strided = 1;
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    if (slot != RL_REWARD && slot != RL_GAMMA && slot != RL_OUT)
      run.data[slot] = 0;
    run.stride[slot][0] = steps * job->inner;
    run.stride[slot][1] = forward ? -1 : 1;
    run.stride[slot][2] = steps;
  }
  if (forward) {
    const int64_t width = job->bits / 8;
    run.data[RL_REWARD] += (steps - 1) * width;
    run.data[RL_OUT] += (steps - 1) * width;
    run.data[RL_GAMMA] += (steps > 1 ? steps - 2 : 0) * width;
  }
  if (rl_returns(&run))
    return 0;
  for (int64_t lane = 0; lane < lanes; lane++) {
    double x = 0;
    for (int64_t s = 0; s < steps; s++) {
      const int64_t t = lane * steps + (forward ? s : steps - 1 - s), before = forward ? t - 1 : t;
      x = number(d, job->bits, t) + (s ? number(c, job->bits, before) * x : 0);
      if (fabs(number(out, job->bits, t) - x) > 1e-4 * (1 + fabs(x)))
        return 0;
    }
  }
  return 1;
}

static int run(int64_t kind, int64_t bits, int64_t outer, int64_t steps, int64_t inner) {
  rl_returns_job job = {.kind = kind, .bits = bits, .outer = outer, .steps = steps, .inner = inner, .gamma = 0.9,
                        .lambda = 0.8, .rho_bar = 1, .c_bar = 1};
  int failed = 0;
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    const int64_t width = slot == RL_DONE || slot == RL_TERMINATED ? 1 : bits / 8;
    job.data[slot] = (int64_t)(intptr_t)filled(outer * steps * inner, width, bits);
  }
  rl_returns_job all = job;
  failed |= rl_returns(&job);
  if (kind == RL_PLAIN) {
    failed |= !plain_is_right(&job, 0) || !plain_is_right(&job, 1);
  } else {
    job.data[RL_GAMMA] = job.data[RL_LAMBDA] = 0;
    failed |= rl_returns(&job);
  }
  job.strided = 1;
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    job.stride[slot][0] = 1;
    job.stride[slot][1] = outer;
    job.stride[slot][2] = outer * steps;
  }
  failed |= rl_returns(&job);
  for (int slot = 0; slot < RL_SLOTS; slot++)
    free((void *)(intptr_t)all.data[slot]);
  if (failed)
    fprintf(stderr, "kind %d, %d bits, [%d, %d, %d], instruction set %d\n", (int)kind, (int)bits, (int)outer,
            (int)steps, (int)inner, rl_isa());
  return failed;
}

/* Whether rows are scanned: wider sets round a product and a sum once there, plain C twice. */
static int scanned(const rl_returns_job *job) {
  return job->kind != RL_PLAIN && !job->data[RL_GAMMA] && !job->data[RL_LAMBDA] && job->inner == 1 &&
         job->steps >= 512 / job->bits;
}

/* Whether numbers are the same but for their last digits. */
static int nearly(const void *some, const void *others, size_t n, int64_t bits) {
  for (size_t i = 0; i < n; i++) {
    const double x = bits == 32 ? ((const float *)some)[i] : ((const double *)some)[i];
    const double y = bits == 32 ? ((const float *)others)[i] : ((const double *)others)[i];
    if (!(fabs(x - y) <= (bits == 32 ? 1e-5 : 1e-13) * (1 + fabs(x))))
      return 0;
  }
  return 1;
}

/* Whether the set writes the same bytes as the next narrower one, or as plain C nearly so where rows are scanned. */
static int writes_the_same(rl_returns_job *job, int isa) {
  const size_t n = (size_t)(job->outer * job->steps * job->inner), bytes = n * (size_t)job->bits / 8;
  const int narrower = isa - 1, exactly = narrower != RL_ISA_SCALAR || !scanned(job);
  void *first = malloc(bytes), *second = malloc(bytes);
  void *out = (void *)(intptr_t)job->data[RL_OUT], *out2 = (void *)(intptr_t)job->data[RL_OUT2];
  rl_isa_use(narrower);
  int same = first && second && !rl_returns(job);
  if (same)
    memcpy(first, out, bytes), memcpy(second, out2, bytes);
  rl_isa_use(isa);
  memset(out, 0, bytes);
  same = same && !rl_returns(job);
  for (int k = 0; k < 1 + job->kind % 2; k++) {
    const void *const before = k ? second : first, *const now = k ? out2 : out;
    same = same && (exactly ? !memcmp(before, now, bytes) : nearly(before, now, n, job->bits));
  }
  free(first);
  free(second);
  return same;
}

/* With coefficients by step, with one of them, and with none. */
static int sets_agree(int64_t kind, int64_t bits, int64_t outer, int64_t steps, int64_t inner, int isa) {
  int failed = 0;
  rl_returns_job job = {.kind = kind, .bits = bits, .outer = outer, .steps = steps, .inner = inner, .gamma = 0.9,
                        .lambda = 0.8, .rho_bar = 0.7, .c_bar = 0.6};
  for (int slot = 0; slot < RL_SLOTS; slot++) {
    const int64_t width = slot == RL_DONE || slot == RL_TERMINATED ? 1 : bits / 8;
    job.data[slot] = (int64_t)(intptr_t)filled(outer * steps * inner, width, bits);
    for (int64_t i = 0; width == 1 && i < outer * steps * inner; i++)
      ((uint8_t *)(intptr_t)job.data[slot])[i] = i % (slot + 5) == 0;
  }
  const rl_returns_job all = job;
  for (int absent = 0; absent < (kind == RL_PLAIN ? 1 : 4); absent++) {
    job.data[RL_GAMMA] = absent & 1 ? 0 : all.data[RL_GAMMA];
    job.data[RL_LAMBDA] = absent & 2 ? 0 : all.data[RL_LAMBDA];
    failed |= !writes_the_same(&job, isa);
  }
  job.lambda = 1;
  job.c_bar = job.rho_bar;
  failed |= kind != RL_PLAIN && !writes_the_same(&job, isa);
  if (kind == RL_TD_LAMBDA) {
    job.data[RL_NEXT_VALUE] = 0;
    failed |= !writes_the_same(&job, isa);
  }
  for (int slot = 0; slot < RL_SLOTS; slot++)
    free((void *)(intptr_t)all.data[slot]);
  if (failed)
    fprintf(stderr, "kind %d, %d bits, [%d, %d, %d]: set %d writes other numbers\n", (int)kind, (int)bits, (int)outer,
            (int)steps, (int)inner, isa);
  return failed;
}

int main(void) {
  const int64_t sizes[][3] = {{1, 1, 1},   {1, 2, 1},    {7, 3, 1},     {8, 127, 1},   {9, 128, 1},  {17, 129, 1},
                              {3, 300, 2}, {2, 5, 4},    {1, 3, 511},   {1, 3, 512},   {2, 3, 513},  {600, 2, 1},
                              {600, 1, 1}, {1, 1, 9},    {1, 2, 2063},  {33, 257, 1},  {16, 16, 1},  {31, 520, 1},
                              {4, 40, 1},  {2, 1025, 1}, {17, 1030, 1}, {3, 513, 2},   {1, 2080, 1}};
  int failed = 0;
  for (int isa = RL_ISA_SCALAR; isa <= RL_ISA_AVX512; isa++) {
    rl_isa_use(isa);
    for (int64_t kind = RL_PLAIN; kind <= RL_VTRACE; kind++)
      for (int64_t bits = 32; bits <= 64; bits += 32)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
          failed |= run(kind, bits, sizes[i][0], sizes[i][1], sizes[i][2]);
  }
  for (int isa = RL_ISA_AVX2; isa <= rl_isa_best(); isa++)
    for (int64_t kind = RL_PLAIN; kind <= RL_VTRACE; kind++)
      for (int64_t bits = 32; bits <= 64; bits += 32) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
          failed |= sets_agree(kind, bits, sizes[i][0], sizes[i][1], sizes[i][2], isa);
        failed |= sets_agree(kind, bits, 270, 1000, 1, isa); /* more than is expected in a cache */
      }
  rl_returns_job wrong = {.kind = 9, .bits = 32};
  failed |= rl_returns(&wrong) != 1;
  return failed;
}
