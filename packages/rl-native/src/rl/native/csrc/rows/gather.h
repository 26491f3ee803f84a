/* Row gather. The argument is one block of bytes: an rl_gather_job, followed by `columns` rl_gather_column. */
#ifndef RL_GATHER_H
#define RL_GATHER_H

#include <stdint.h>

typedef struct {
  int64_t columns;
  int64_t count; /* of indices */
  int64_t steps; /* rows to copy from each index on */
  int64_t limit; /* an index is in [0, limit) */
  int64_t index; /* address of `count` int64 */
} rl_gather_job;

typedef struct {
  int64_t bytes;  /* of a row */
  int64_t stride; /* bytes from a row to the next one */
  int64_t from;   /* address of row 0 */
  int64_t to;     /* address of count * steps rows, contiguous, which overlap nothing */
} rl_gather_column;

#endif
