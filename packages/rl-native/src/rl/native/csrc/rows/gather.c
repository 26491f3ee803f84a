/* Row gather: copies of the rows of several tensors at the same indices. Random rows miss the cache, so that the next
 * rows are prefetched while one is copied. */

#include "gather.h"

#include <string.h>

#include "../common/dispatch.h"

enum {
  AHEAD = 16,   /* rows that are prefetched */
  LINE = 64,    /* bytes of a cache line */
  NOTICED = 256 /* bytes of a long row that are prefetched; the hardware prefetcher follows */
};

RL_INLINE void prefetch(const char *row, int64_t bytes) {
  const int64_t asked = bytes < NOTICED ? bytes : NOTICED;
  for (int64_t at = 0; at < asked; at += LINE)
    __builtin_prefetch(row + at, 0, 3);
  __builtin_prefetch(row + asked - 1, 0, 3);
}

/* `bytes` may be a compile-time constant: the copy of one number is then one instruction. */
RL_INLINE void copy_rows(const rl_gather_column *column, const int64_t *index, int64_t count, int64_t steps,
                         int64_t bytes) {
  const char *from = (const char *)(intptr_t)column->from;
  char *to = (char *)(intptr_t)column->to;
  const int64_t stride = column->stride, span = (steps - 1) * stride + bytes;
  for (int64_t i = 0; i < count && i < AHEAD; i++)
    prefetch(from + index[i] * stride, span);
  for (int64_t i = 0; i < count; i++) {
    if (i + AHEAD < count)
      prefetch(from + index[i + AHEAD] * stride, span);
    const char *row = from + index[i] * stride;
    for (int64_t step = 0; step < steps; step++, row += stride, to += bytes)
      memcpy(to, row, (size_t)bytes);
  }
}

/* Copy runs of contiguous rows as one long row each. */
static void copy_dense_runs(const rl_gather_column *column, const int64_t *index, int64_t count, int64_t steps) {
  const char *from = (const char *)(intptr_t)column->from;
  char *to = (char *)(intptr_t)column->to;
  const int64_t bytes = steps * column->bytes;
  for (int64_t i = 0; i < count; i++, to += bytes) {
    if (i + 1 < count)
      prefetch(from + index[i + 1] * column->stride, bytes);
    memcpy(to, from + index[i] * column->stride, (size_t)bytes);
  }
}

/* Returns -1, or the position of the first index out of bounds; nothing is copied then. */
RL_API int64_t rl_gather(const void *bytes) {
  const rl_gather_job *job = bytes;
  const rl_gather_column *column = (const rl_gather_column *)(job + 1);
  const int64_t *index = (const int64_t *)(intptr_t)job->index;
  const int64_t count = job->count;
  for (int64_t i = 0; i < count; i++)
    if (index[i] < 0 || index[i] >= job->limit)
      return i;
  for (const rl_gather_column *end = column + job->columns; column < end; column++) {
    const int64_t steps = job->steps;
    if (steps > 1 && column->stride == column->bytes) {
      copy_dense_runs(column, index, count, steps);
      continue;
    }
    switch (column->bytes) {
    case 0:
      break;
    case 1:
      copy_rows(column, index, count, steps, 1);
      break;
    case 4:
      copy_rows(column, index, count, steps, 4);
      break;
    case 8:
      copy_rows(column, index, count, steps, 8);
      break;
    default:
      copy_rows(column, index, count, steps, column->bytes);
    }
  }
  return -1;
}
