/* Every loop at sizes around its vectors and tiles, in memory of exactly the size that it needs, so that the sanitizers
 * see a step outside. States are compared with a loop over plain numbers, gradients with differences of such loops. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "recurrent.h"

RL_API int64_t rl_recurrent_room(int64_t bits, int64_t rows, int64_t hidden);
RL_API int32_t rl_recurrent_prepare(const void *bytes);
RL_API int32_t rl_recurrent_run(const void *bytes);

enum { MOST = 32 }; /* buffers of a case */
static void *kept[MOST];
static int count_kept;

static int64_t keep(void *memory) {
  kept[count_kept++] = memory;
  return (int64_t)(intptr_t)memory;
}

static void free_all(void) {
  while (count_kept)
    free(kept[--count_kept]);
}

static double get(int64_t address, int64_t bits, int64_t i) {
  return bits == 32 ? ((const float *)(intptr_t)address)[i] : ((const double *)(intptr_t)address)[i];
}

static void put(int64_t address, int64_t bits, int64_t i, double x) {
  if (bits == 32)
    ((float *)(intptr_t)address)[i] = (float)x;
  else
    ((double *)(intptr_t)address)[i] = x;
}

/* Numbers in [-1, 1), the same for every set; "not a number" where the callee is to write. */
static int64_t numbers(int64_t count, int64_t bits, int seed) {
  const int64_t address = keep(malloc((size_t)(count * bits / 8)));
  for (int64_t i = 0; i < count; i++)
    put(address, bits, i, seed ? (double)((i + seed) * 7919 % 2003) / 1001.5 - 1 : NAN);
  return address;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* The sum of all states after each step, from the job's inputs; `gates` are those before the forward loop. */
static double naive(const rl_recurrent_job *job, int64_t gates, int lstm, double *h, double *c, double *fresh_h,
                    double *fresh_c) {
  const int64_t hidden = job->hidden, rows = job->rows, bits = job->bits;
  const int64_t *starts = (const int64_t *)(intptr_t)job->reset_starts;
  const int64_t *at = (const int64_t *)(intptr_t)job->reset_rows;
  double total = 0;
  for (int64_t i = 0; i < rows * hidden; i++) {
    h[i] = get(job->h0, bits, i);
    c[i] = lstm ? get(job->c0, bits, i) : 0;
  }
  for (int64_t t = 0; t < job->steps; t++) {
    for (int64_t k = starts ? starts[t] : 0; starts && k < starts[t + 1]; k++)
      for (int64_t u = 0; u < hidden; u++) {
        h[at[k] * hidden + u] = get(job->reset_h, bits, k * hidden + u);
        c[at[k] * hidden + u] = lstm ? get(job->reset_c, bits, k * hidden + u) : 0;
      }
    for (int64_t b = 0; b < rows; b++)
      for (int64_t u = 0; u < hidden; u++) {
        double a[4], sum[4] = {0};
        const int slots = lstm ? 4 : 3, from = lstm ? 0 : 1;
        for (int s = 0; s < 4; s++)
          a[s] = get(gates, bits, ((t * rows + b) * 4 + s) * hidden + u);
        for (int s = 0; s < slots; s++)
          for (int64_t k = 0; k < hidden; k++)
            sum[s + from] += h[b * hidden + k] * get(job->weight, bits, (s * hidden + u) * hidden + k);
        for (int s = 0; s < 4; s++)
          a[s] += sum[s];
        double *new_h = fresh_h + b * hidden + u, *new_c = fresh_c + b * hidden + u;
        if (lstm) {
          *new_c = sigmoid(a[1]) * c[b * hidden + u] + sigmoid(a[0]) * tanh(a[2]);
          *new_h = sigmoid(a[3]) * tanh(*new_c);
        } else {
          const double n = tanh(a[0] + sigmoid(a[1]) * a[3]), z = sigmoid(a[2]);
          *new_c = 0;
          *new_h = (1 - z) * n + z * h[b * hidden + u];
        }
        total += *new_h + *new_c;
      }
    memcpy(h, fresh_h, (size_t)(rows * hidden) * sizeof *h);
    memcpy(c, fresh_c, (size_t)(rows * hidden) * sizeof *c);
  }
  return total;
}

/* What one element of an input adds to the sum of all states, by a difference of two loops. */
static double slope(const rl_recurrent_job *job, int64_t gates, int lstm, int64_t address, int64_t i, double *work) {
  const int64_t size = job->rows * job->hidden;
  const double x = get(address, job->bits, i), step = 1.0 / 1024;
  double total[2];
  for (int side = 0; side < 2; side++) {
    put(address, job->bits, i, x + (side ? step : -step));
    total[side] = naive(job, gates, lstm, work, work + size, work + 2 * size, work + 3 * size);
  }
  put(address, job->bits, i, x);
  return (total[1] - total[0]) / (2 * step);
}

static int is(double got, double want, double bound) { return fabs(got - want) <= bound * (1 + fabs(want)); }

/* Prepare, and run in two ranges of rows. */
static int call(rl_recurrent_job *job) {
  if (rl_recurrent_prepare(job))
    return 1;
  const int64_t middle = job->rows / 3;
  job->first_row = 0, job->end_row = middle;
  int failed = rl_recurrent_run(job);
  job->first_row = middle, job->end_row = job->rows;
  failed |= rl_recurrent_run(job);
  job->first_row = 0;
  return failed;
}

static int gradients_are_right(const rl_recurrent_job *job, int64_t gates, int lstm, double *work) {
  const int64_t size = job->rows * job->hidden, slots = 4 * job->steps * size, resets = job->resets * job->hidden;
  const struct {
    int64_t input, grad, count;
  } pairs[] = {{gates, job->grad_gates, slots},
               {job->h0, job->grad_h0, size},
               {job->c0, lstm ? job->grad_c0 : 0, size},
               {job->reset_h, job->grad_reset_h, resets},
               {job->reset_c, lstm ? job->grad_reset_c : 0, resets}};
  for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
    for (int64_t i = 0; pairs[p].grad && i < pairs[p].count; i++) {
      const double got = get(pairs[p].grad, job->bits, i);
      if (!isfinite(got))
        return 0;
      if (i % (pairs[p].count / 4 + 1) == 0 && !is(got, slope(job, gates, lstm, pairs[p].input, i, work), 2e-3))
        return 0;
    }
  return 1;
}

static int run(int lstm, int64_t bits, int64_t steps, int64_t rows, int64_t hidden, int every) {
  const int64_t size = rows * hidden, all = steps * size, slots = lstm ? 4 : 3;
  rl_recurrent_job job = {.bits = bits, .steps = steps, .rows = rows, .hidden = hidden, .end_row = rows};
  job.isa = rl_isa();
  const int64_t room = rl_recurrent_room(bits, rows, hidden);
  job.scratch = keep(aligned_alloc(64, (size_t)(room + 63) / 64 * 64));
  job.gates = numbers(4 * all, bits, 1);
  const int64_t gates = numbers(4 * all, bits, 1);
  job.weight = numbers(slots * hidden * hidden, bits, 2);
  for (int64_t i = 0; i < slots * hidden * hidden; i++)
    put(job.weight, bits, i, get(job.weight, bits, i) / sqrt((double)hidden));
  job.h0 = numbers(size, bits, 3), job.c0 = numbers(size, bits, 4);
  job.h = numbers(all, bits, 0), job.c = numbers(all, bits, 0);
  if (every) {
    int64_t *starts = malloc((size_t)(steps + 1) * sizeof *starts), *at = malloc((size_t)(steps * rows) * sizeof *at);
    job.reset_starts = keep(starts), job.reset_rows = keep(at);
    starts[0] = 0;
    for (int64_t t = 0; t < steps; t++) {
      for (int64_t b = 0; b < rows; b++)
        if ((t * rows + b) % every == 0)
          at[job.resets++] = b;
      starts[t + 1] = job.resets;
    }
    job.reset_h = numbers(job.resets * hidden, bits, 5), job.reset_c = numbers(job.resets * hidden, bits, 6);
    job.grad_reset_h = numbers(job.resets * hidden, bits, 0), job.grad_reset_c = numbers(job.resets * hidden, bits, 0);
  }
  job.grad_h = numbers(all, bits, 7), job.grad_c = numbers(all, bits, 7);
  for (int64_t i = 0; i < all; i++) {
    put(job.grad_h, bits, i, 1);
    put(job.grad_c, bits, i, 1);
  }
  job.grad_gates = numbers(4 * all, bits, 0);
  job.grad_h0 = numbers(size, bits, 0), job.grad_c0 = numbers(size, bits, 0);
  double *work = malloc((size_t)(4 * size) * sizeof *work);
  keep(work);

  job.kind = lstm ? RL_LSTM_FORWARD : RL_GRU_FORWARD;
  int failed = call(&job);
  naive(&job, gates, lstm, work, work + size, work + 2 * size, work + 3 * size);
  for (int64_t i = 0; i < size; i++)
    failed |= !is(get(job.h, bits, all - size + i), work[i], 1e-5) ||
              (lstm && !is(get(job.c, bits, all - size + i), work[size + i], 1e-5));
  job.kind = lstm ? RL_LSTM_BACKWARD : RL_GRU_BACKWARD;
  failed |= call(&job) || !gradients_are_right(&job, gates, lstm, work);
  free_all();
  if (failed)
    fprintf(stderr, "%s, %d bits, %d steps, %d rows, %d units, resets every %d, instruction set %d\n",
            lstm ? "LSTM" : "GRU", (int)bits, (int)steps, (int)rows, (int)hidden, every, rl_isa());
  return failed;
}

static int refusals(void) {
  rl_recurrent_job job = {.kind = RL_GRU_FORWARD, .bits = 16};
  int failed = rl_recurrent_prepare(&job) != RL_RECURRENT_NO_JOB || rl_recurrent_run(&job) != RL_RECURRENT_NO_JOB;
  job.bits = 32, job.isa = rl_isa_best() + 1;
  failed |= rl_recurrent_prepare(&job) != RL_RECURRENT_NO_JOB || rl_recurrent_run(&job) != RL_RECURRENT_NO_JOB;
  const int64_t starts[] = {0, 1, 2}, rows[] = {0, 5};
  job.isa = 0, job.steps = 2, job.rows = job.end_row = 5, job.resets = 2;
  job.reset_starts = (int64_t)(intptr_t)starts, job.reset_rows = (int64_t)(intptr_t)rows;
  failed |= rl_recurrent_prepare(&job) != RL_RECURRENT_BAD_RESETS;
  return failed;
}

int main(void) {
  const int64_t sizes[][3] = {{1, 1, 1},  {2, 3, 2},  {3, 6, 4},   {2, 7, 5},  {2, 1, 8},
                              {2, 4, 15}, {3, 2, 17}, {1, 13, 33}, {2, 2, 65}};
  int failed = refusals();
  for (int isa = RL_ISA_SCALAR; isa <= RL_ISA_AVX512; isa++) {
    rl_isa_use(isa);
    for (int lstm = 0; lstm < 2; lstm++)
      for (int64_t bits = 32; bits <= 64; bits += 32)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
          for (int every = 0; every < 4; every++)
            failed |= run(lstm, bits, sizes[i][0], sizes[i][1], sizes[i][2], every);
  }
  return failed;
}
