/* One step of a policy: a list of operations on a few rows of float32, from observations to an action and its score.
 *
 * Results have the same bits with every instruction set: each sum is taken in one order (see `fold` in policy_kernel.h),
 * nothing is fused or reassociated, and exp, log and tanh are polynomials of ours. A row depends on no other row. */
#ifndef RL_POLICY_H
#define RL_POLICY_H

#include <stdint.h>

enum {
  RL_POLICY_LINEAR,        /* in x; par weight, bias or none; out y; size inputs, outputs */
  RL_POLICY_TANH,          /* activations: in x; out y; size numbers of a row; value[0] where one is needed */
  RL_POLICY_RELU,
  RL_POLICY_SIGMOID,
  RL_POLICY_SILU,
  RL_POLICY_ELU,
  RL_POLICY_LEAKY_RELU,
  RL_POLICY_GELU,
  RL_POLICY_GELU_TANH,
  RL_POLICY_LAYER_NORM,    /* in x; par weight, bias, or none; out y; size width; value[0] epsilon */
  RL_POLICY_LSTM,          /* in x, h, c, is_init; par weights and biases of input and state; out h, c; size inputs,
                            * units, layers, layer; out[2] output, out[3] scratch of 8 units a row */
  RL_POLICY_GRU,           /* the same without c; out h, -, output, scratch */
  RL_POLICY_SPLIT,         /* in x of 2 * size; out loc, raw scale; size width */
  RL_POLICY_SCALE,         /* in x; out scale; size width; mode softplus, exp or relu; value a, b, c: see policy_kernel.h */
  RL_POLICY_OWN_SCALE,     /* par log of the scale; out scale; size width; value as exp */
  RL_POLICY_BOUND,         /* in x; par half, middle; out tanh(x) half + middle; size width */
  RL_POLICY_CATEGORICAL,   /* in logits, mask or none; out action, log-probability or none; size n; mode 1: one-hot */
  RL_POLICY_NORMAL,        /* in loc, scale; out action, log-probability or none; size width */
  RL_POLICY_TANH_NORMAL,   /* the same; par half, middle, low, high, or none for -1 to 1; value[0] constant per number */
  RL_POLICY_BEST,          /* in values, mask or none; out action, chosen value, masked values; size n; mode 1: one-hot */
  RL_POLICY_EPSILON,       /* in action, mask or none; par epsilon; out action; size n; mode 1: one-hot */
  RL_POLICY_NOISE,         /* in action; par sigma, low, high; out action; size width; mode 1: one sigma for all */
  RL_POLICY_KINDS
};

/* Slots are places in the table of addresses; -1 is none. */
typedef struct {
  int64_t kind, mode;
  int64_t in[4], par[4], out[4], size[4];
  int64_t noise; /* slot of the uniform numbers of a sampling operation */
  double value[3];
} rl_policy_operation;

enum { RL_POLICY_OK = 0, RL_POLICY_NO_ACTION = 1, RL_POLICY_UNKNOWN = 2 };

#endif
