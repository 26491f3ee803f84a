/* Returns over time: the reverse linear recurrence x_t = d_t + c_t x_{t+1}, and the returns built on it.
 *
 * Every tensor is read as [outer, steps, inner] with strides in elements, so that [B, T, F], [T, B, F] and transposed
 * views of either need no copy. Callers pass one block of bytes in the layout of rl_returns_job. */
#ifndef RL_RETURNS_H
#define RL_RETURNS_H

#include <stdint.h>

enum rl_returns_kind {
  RL_PLAIN = 0,     /* d in `reward`, c in `gamma`; the last c is never read */
  RL_GAE = 1,       /* out: advantage, out2: value target */
  RL_TD_LAMBDA = 2, /* out: return; next_value may be absent, nothing is bootstrapped then */
  RL_VTRACE = 3     /* out: advantage, out2: value target */
};

enum rl_returns_slot {
  RL_REWARD,
  RL_VALUE,
  RL_NEXT_VALUE,
  RL_RATIO, /* importance ratio of V-trace */
  RL_GAMMA,
  RL_LAMBDA,
  RL_DONE,       /* bytes, 0 or 1 */
  RL_TERMINATED, /* bytes, 0 or 1 */
  RL_OUT,
  RL_OUT2,
  RL_SLOTS
};

typedef struct {
  int64_t kind;
  int64_t bits; /* 32 or 64: type of all numbers */
  int64_t outer, steps, inner;
  int64_t strided;                    /* 0: all tensors are dense, and `stride` does not follow */
  double gamma, lambda, rho_bar, c_bar; /* gamma and lambda are used where their tensor is absent */
  int64_t data[RL_SLOTS];             /* addresses; 0 where absent */
  int64_t stride[RL_SLOTS][3];        /* outer, time, inner */
} rl_returns_job;

#endif
