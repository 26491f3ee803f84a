/* Rows of slices of trajectories in a ring buffer. Random table rows miss the cache, so that each pass prefetches what
 * the next one reads. */

#include "slices.h"

#include "../common/dispatch.h"

static const int64_t MOST = INT64_C(1) << 60; /* largest number of rows or steps: sums do not overflow */

RL_INLINE const void *at(int64_t address) { return (const void *)(intptr_t)address; }

/* Write the member of each slice to `chosen`; returns the number of slices before the first invalid one. */
static int64_t choose(const rl_slices_job *job, int64_t *chosen) {
  const int64_t *members = at(job->members);
  const double *which = at(job->which);
  for (int64_t i = 0; i < job->count; i++) {
    if (which && !(which[i] >= 0 && which[i] < (double)job->of_members))
      return i;
    chosen[i] = which ? (int64_t)which[i] : i;
    if (chosen[i] >= job->of_members)
      return i;
    __builtin_prefetch(members + chosen[i]);
  }
  return job->count;
}

/* Replace members by rows of the trajectory table; returns as `choose` does. */
static int64_t find_lines(const rl_slices_job *job, int64_t *chosen) {
  const int64_t *members = at(job->members), *lines = at(job->lines);
  for (int64_t i = 0; i < job->count; i++) {
    chosen[i] = members[chosen[i]];
    if (chosen[i] < 0 || chosen[i] >= job->of_lines)
      return i;
    __builtin_prefetch(lines + RL_LINE * chosen[i]);
  }
  return job->count;
}

/* Replace them by the first row of each slice; `over` becomes the number of slices that wrap around the ring. */
static int64_t place(const rl_slices_job *job, int64_t *chosen, int64_t *over) {
  const int64_t *lines = at(job->lines), steps = job->steps, capacity = job->capacity;
  const double *where = at(job->where);
  for (int64_t i = 0; i < job->count; i++) {
    const int64_t *line = lines + RL_LINE * chosen[i], base = line[0], from = line[1], to = line[2];
    if (base < 0 || base > MOST || from < 0 || to < 0 || to > MOST || to - from < steps || steps > job->written)
      return i;
    const int64_t choices = to - from - (steps - 1);
    if (!(where[i] >= 0 && where[i] < 1))
      return i;
    int64_t row = base + from + (int64_t)(where[i] * (double)choices);
    if (row >= capacity)
      row %= capacity; /* a slow division, needed only after the ring has wrapped */
    const int goes_over = row > capacity - steps;
    if (goes_over ? job->written < capacity : row > job->written - steps)
      return i;
    *over += goes_over;
    chosen[i] = row;
  }
  return job->count;
}

/* Write `begin` and `index`; returns the number of slices that wrap around the ring, or -1 minus the position of the
 * first invalid slice, in which case `index` is unchanged. */
RL_API int64_t rl_slices(const void *bytes) {
  const rl_slices_job *job = bytes;
  int64_t *begin = (int64_t *)(intptr_t)job->begin, *index = (int64_t *)(intptr_t)job->index;
  const int64_t count = job->count, steps = job->steps, capacity = job->capacity;
  int64_t over = 0, right = choose(job, begin);
  if (right == count)
    right = find_lines(job, begin);
  if (right == count)
    right = place(job, begin, &over);
  if (right < count)
    return -1 - right;
  for (int64_t i = 0; i < count; i++, index += steps) {
    const int64_t row = begin[i], before = capacity - row < steps ? capacity - row : steps;
    for (int64_t step = 0; step < before; step++)
      index[step] = row + step;
    for (int64_t step = before; step < steps; step++)
      index[step] = step - before;
  }
  return over;
}
