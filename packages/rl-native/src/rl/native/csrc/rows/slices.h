/* Rows of slices of trajectories in a ring buffer; the argument is one rl_slices_job. */
#ifndef RL_SLICES_H
#define RL_SLICES_H

#include <stdint.h>

enum { RL_LINE = 5 }; /* columns of the trajectory table: base, from, to, and two that are not used here */

typedef struct {
  int64_t count;    /* of slices */
  int64_t steps;    /* of each, 1 at least */
  int64_t capacity; /* rows of the ring */
  int64_t written;  /* of them, `capacity` at most */
  int64_t lines;    /* trajectory table, `of_lines` rows: step u, from <= u < to, is row (base + u) % capacity */
  int64_t of_lines;
  int64_t members; /* address of `of_members` int64, rows of that table */
  int64_t of_members;
  int64_t where; /* address of `count` double in [0, 1): start of each slice within its trajectory */
  int64_t which; /* address of `count` double in [0, of_members): its member; 0: slice i takes member i */
  int64_t index; /* address of count * steps int64, which are written */
  int64_t begin; /* address of `count` int64, which are written: the first row of each slice */
} rl_slices_job;

#endif
