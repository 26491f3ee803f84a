/* Slices in rings that are full or not, in memory of exactly the size that it needs, and numbers of every kind that are
 * refused before anything is read by them. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "slices.h"

RL_API int64_t rl_slices(const void *bytes);

enum { LINES = 4, MEMBERS = 3, COUNT = 3, CAPACITY = 50 };

typedef struct {
  int64_t *lines, *members, *index, *begin;
  double *where, *which;
  rl_slices_job job;
} ring;

/* Row 1 of the table belongs to no member. */
static ring make(int64_t base, int64_t length, int64_t steps, int64_t written) {
  ring r = {.lines = calloc(RL_LINE * LINES, 8), .members = malloc(8 * MEMBERS), .begin = malloc(8 * COUNT),
            .index = malloc((size_t)(8 * COUNT * steps)), .where = malloc(8 * COUNT), .which = malloc(8 * COUNT)};
  const int64_t members[MEMBERS] = {3, 0, 2};
  memcpy(r.members, members, sizeof members);
  for (int64_t i = 0; i < MEMBERS; i++) {
    r.lines[RL_LINE * members[i]] = base + i;
    r.lines[RL_LINE * members[i] + 2] = length - i;
    r.where[i] = 0.37 * (double)i;
    r.which[i] = (double)(MEMBERS - 1 - i) + 0.9;
  }
  memset(r.index, 7, (size_t)(8 * COUNT * steps));
  r.job = (rl_slices_job){COUNT, steps, CAPACITY, written, (int64_t)(intptr_t)r.lines, LINES,
                          (int64_t)(intptr_t)r.members, MEMBERS, (int64_t)(intptr_t)r.where,
                          (int64_t)(intptr_t)r.which, (int64_t)(intptr_t)r.index, (int64_t)(intptr_t)r.begin};
  return r;
}

static void drop(ring r) {
  free(r.lines);
  free(r.members);
  free(r.index);
  free(r.begin);
  free(r.where);
  free(r.which);
}

static int are_right(int64_t base, int64_t length, int64_t steps, int64_t written, int given) {
  ring r = make(base, length, steps, written);
  if (given)
    r.job.which = 0;
  int64_t over = 0;
  const int64_t found = rl_slices(&r.job);
  int right = 1;
  for (int64_t i = 0; i < COUNT; i++) {
    const int64_t *line = r.lines + RL_LINE * r.members[given ? i : (int64_t)r.which[i]];
    const int64_t first = (line[0] + (int64_t)(r.where[i] * (double)(line[2] - steps + 1))) % CAPACITY;
    right = right && r.begin[i] == first;
    over += first + steps > CAPACITY;
    for (int64_t step = 0; step < steps; step++)
      right = right && r.index[i * steps + step] == (first + step) % CAPACITY;
  }
  drop(r);
  return right && found == over;
}

/* One number at a time that is wrong for the last slice, the others for the first. */
static int is_refused(int what) {
  ring r = make(10, 20, 5, 30);
  int64_t expected = -1 - (COUNT - 1);
  switch (what) {
  case 0: r.which[COUNT - 1] = -0.5; break;
  case 1: r.which[COUNT - 1] = MEMBERS; break;
  case 2: r.which[COUNT - 1] = NAN; break;
  case 3: r.which[COUNT - 1] = 1e300; break;
  case 4: r.where[COUNT - 1] = 1; break;
  case 5: r.where[COUNT - 1] = -1e-9; break;
  case 6: r.where[COUNT - 1] = NAN; break;
  case 7: r.members[0] = LINES; break; /* the last slice takes member 0 */
  case 8: r.members[0] = -1; break;
  case 9: r.members[0] = INT64_MAX; break;
  case 10: r.members[0] = 1; break; /* the row of no member */
  case 11: r.lines[RL_LINE * 3] = -1; break;
  case 12: r.lines[RL_LINE * 3] = INT64_MAX; break;
  case 13: r.lines[RL_LINE * 3 + 2] = INT64_MIN; break;
  case 14: r.lines[RL_LINE * 3 + 1] = INT64_MIN; break;
  case 15: r.lines[RL_LINE * 3] = 35; break;                   /* over the end of a ring that is not full */
  case 16: r.job.written = 24; break;                          /* more than the other two begin before */
  case 17: r.job.written = 4, expected = -1; break;            /* less than a slice */
  case 18: r.job.which = 0, r.job.of_members = COUNT - 1; break;
  case 19: r.job.capacity = r.job.written = 0, expected = -1; break;
  case 20: r.lines[RL_LINE * 3 + 2] = INT64_MAX; break;
  case 21: r.lines[RL_LINE * 3 + 1] = INT64_MAX; break;
  }
  const int64_t found = rl_slices(&r.job);
  int right = found == expected;
  for (int64_t i = 0; i < COUNT * 5; i++)
    right = right && r.index[i] == 0x0707070707070707;
  drop(r);
  return right;
}

int main(void) {
  for (int64_t base = 0; base < 300; base += 3)
    for (int64_t steps = 1; steps < 30; steps += 4)
      for (int64_t more = 2; more < 20; more += 6)
        for (int given = 0; given < 2; given++)
          if (!are_right(base, steps + more, steps, CAPACITY, given)) {
            fprintf(stderr, "slices of %d steps from %d on\n", (int)steps, (int)base);
            return 1;
          }
  if (!are_right(0, 30, 28, 31, 0) || !are_right(0, CAPACITY, CAPACITY - 2, CAPACITY, 0)) {
    fprintf(stderr, "slices as long as there are steps\n");
    return 1;
  }
  for (int what = 0; what < 22; what++)
    if (!is_refused(what)) {
      fprintf(stderr, "wrong number %d is taken\n", what);
      return 1;
    }
  return 0;
}
