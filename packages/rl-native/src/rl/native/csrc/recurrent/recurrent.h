/* The loops over time of one recurrent layer (LSTM, GRU), forward and backward, with resets inside of the sequences.
 *
 * All tensors are dense and time-major, of one type. Callers pass one block of bytes in the layout of rl_recurrent_job:
 * first to rl_recurrent_prepare, then to rl_recurrent_run, once for all rows or once for each of some ranges of rows,
 * which may run in parallel: rows are independent. */
#ifndef RL_RECURRENT_H
#define RL_RECURRENT_H

#include <stdint.h>

enum rl_recurrent_kind { RL_LSTM_FORWARD, RL_LSTM_BACKWARD, RL_GRU_FORWARD, RL_GRU_BACKWARD, RL_RECURRENT_KINDS };

enum rl_recurrent_status { RL_RECURRENT_OK, RL_RECURRENT_NO_JOB, RL_RECURRENT_BAD_RESETS };

typedef struct {
  int64_t kind;
  int64_t bits;                 /* 32 or 64: type of all numbers */
  int64_t steps, rows, hidden;
  int64_t first_row, end_row;   /* the rows that this call computes */
  int64_t isa;                  /* the instruction set that the weights were packed for */
  int64_t scratch;              /* rl_recurrent_room bytes, at a multiple of 64: packed weights, then addresses */
  int64_t gates;                /* [steps, rows, 4 * hidden]; LSTM: i, f, g, o, GRU: n, r, z, m */
  int64_t weight;               /* [4 * hidden, hidden], or GRU: [3 * hidden, hidden] for r, z, m */
  int64_t h0, c0;               /* [rows, hidden] */
  int64_t h, c;                 /* [steps, rows, hidden]: the states after each step */
  int64_t resets;               /* how many; the rows below are in order of step, then row */
  int64_t reset_starts;         /* int64 [steps + 1]: those of step t are starts[t] ... starts[t + 1] - 1; 0 if none */
  int64_t reset_rows;           /* int64 [resets] */
  int64_t reset_h, reset_c;     /* [resets, hidden]: the states before those steps */
  int64_t grad_h, grad_c;       /* [steps, rows, hidden]; grad_c may be 0 */
  int64_t grad_gates;           /* [steps, rows, 4 * hidden] */
  int64_t grad_h0, grad_c0;     /* [rows, hidden] */
  int64_t grad_reset_h, grad_reset_c; /* [resets, hidden], or 0 */
} rl_recurrent_job;

#endif
