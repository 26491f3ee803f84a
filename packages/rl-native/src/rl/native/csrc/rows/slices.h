/* Rows of slices of trajectories in a ring.
 *
 * Callers pass one rl_slices_job. */
#ifndef RL_SLICES_H
#define RL_SLICES_H

#include <stdint.h>

enum { RL_LINE = 5 }; /* numbers of a line: base, from, to, and two that say nothing here */

typedef struct {
  int64_t count;    /* of slices */
  int64_t steps;    /* of each, 1 at least */
  int64_t capacity; /* rows of the ring */
  int64_t written;  /* of them, `capacity` at most */
  int64_t lines;    /* address of `of_lines` lines of int64: step u, from <= u < to, is row (base + u) % capacity */
  int64_t of_lines;
  int64_t members; /* address of `of_members` int64, places of lines */
  int64_t of_members;
  int64_t where; /* address of `count` double in [0, 1): where in its trajectory each slice begins */
  int64_t which; /* address of `count` double in [0, of_members): its member; 0: slice i takes member i */
  int64_t index; /* address of count * steps int64, which are written */
  int64_t begin; /* address of `count` int64, likewise: the first row of each slice */
} rl_slices_job;

#endif
