/* Interpreter of the operations in policy.h; the vectors are in policy_kernel.h. */

#include "policy.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "../common/dispatch.h"
#include "../recurrent/recurrent_math.h"

#if RL_X86
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 8")
typedef int32_t four_places __attribute__((vector_size(16)));
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (four_places){i, j, k, l})
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#endif

typedef float quad __attribute__((vector_size(16)));

typedef void (*product)(const float *x, int64_t stride, const float *weight, const float *bias, float *y, int64_t rows,
                        int64_t inputs, int64_t outputs);
typedef void (*each)(const float *from, float *to, int64_t count, float a, float b, float c);

typedef struct {
  product linear, linear_more;
  void (*layer_norm)(const float *x, const float *weight, const float *bias, float *y, int64_t rows, int64_t width,
                     double epsilon);
  void (*lstm_units)(const float *gates, const float *before_c, float *h, float *c, float *out, int64_t units,
                     int64_t rows, int64_t stride);
  void (*gru_units)(const float *gates, const float *inner, const float *before_h, float *h, float *out, int64_t units,
                    int64_t rows, int64_t stride);
  each activations[8], scales[3]; /* in the order of the kinds, and of the modes of a scale */
  each tanh, exp, log, normal, exp_scale, stretch, atanh;
} rl_policy_functions;

#define TARGET
#define LANES 4
#define FN(name) name##_plain
#include "policy_kernel.h"
#undef TARGET
#if RL_X86
#define TARGET RL_AVX2
#define LANES 8
#define FN(name) name##_avx2
#include "policy_kernel.h"
#undef TARGET
#define TARGET RL_AVX512
#define LANES 16
#define FN(name) name##_avx512
#include "policy_kernel.h"
#undef TARGET
#endif

#define MANY 64 /* numbers of a row that are worked on at once */

typedef struct {
  const rl_policy_operation *op;
  const int64_t *slots;
  const rl_policy_functions *fn;
  int64_t rows;
} step;

static void *at(const step *s, int64_t slot) { return slot < 0 ? NULL : (void *)(intptr_t)s->slots[slot]; }
#define IN(i) at(s, s->op->in[i])
#define PAR(i) at(s, s->op->par[i])
#define OUT(i) at(s, s->op->out[i])

/* The state of a layer, zero where an episode begins, in adjacent rows. */
static void fresh(const float *state, const uint8_t *begins, float *to, int64_t rows, int64_t units, int64_t stride) {
  for (int64_t r = 0; r < rows; r++, state += stride, to += units)
    if (begins[r])
      memset(to, 0, (size_t)units * sizeof *to);
    else
      memcpy(to, state, (size_t)units * sizeof *to);
}

static void recur(const step *s, int lstm) {
  const int64_t inputs = s->op->size[0], units = s->op->size[1], stride = s->op->size[2] * units;
  const int64_t layer = s->op->size[3] * units, rows = s->rows;
  float *scratch = OUT(3), *h = scratch, *c = h + rows * units, *gates = c + rows * units, *inner = gates;
  fresh((const float *)IN(1) + layer, IN(3), h, rows, units, stride);
  if (lstm) {
    fresh((const float *)IN(2) + layer, IN(3), c, rows, units, stride);
    s->fn->linear(IN(0), inputs, PAR(0), PAR(2), gates, rows, inputs, 4 * units);
    s->fn->linear_more(h, units, PAR(1), PAR(3), gates, rows, units, 4 * units);
    s->fn->lstm_units(gates, c, (float *)OUT(0) + layer, (float *)OUT(1) + layer, OUT(2), units, rows, stride);
    return;
  }
  inner += 3 * rows * units;
  s->fn->linear(IN(0), inputs, PAR(0), PAR(2), gates, rows, inputs, 3 * units);
  s->fn->linear(h, units, PAR(1), PAR(3), inner, rows, units, 3 * units);
  s->fn->gru_units(gates, inner, h, (float *)OUT(0) + layer, OUT(2), units, rows, stride);
}

/* Write action k of n, as a number or one-hot. */
static void encode(int64_t *to, int64_t k, int64_t n, int64_t one_hot) {
  if (!one_hot) {
    *to = k;
    return;
  }
  memset(to, 0, (size_t)n * sizeof *to);
  to[k] = 1;
}

static int64_t first_of_largest(const float *x, int64_t n) {
  int64_t best = 0;
  for (int64_t k = 1; k < n; k++)
    if (x[k] > x[best] || (x[k] != x[k] && x[best] == x[best])) /* as torch: not a number is the largest */
      best = k;
  return best;
}

static int allows_none(const uint8_t *mask, int64_t n) {
  for (int64_t k = 0; k < n; k++)
    if (mask[k])
      return 0;
  return 1;
}

static int categorical(const step *s, int random) {
  const int64_t n = s->op->size[0], one_hot = s->op->mode;
  const float *logits = IN(0), *u = at(s, s->op->noise);
  const uint8_t *mask = IN(1);
  int64_t *action = OUT(0);
  float *score = OUT(1), *weights = OUT(2); /* scratch of n numbers */
  for (int64_t r = 0; r < s->rows; r++, logits += n, action += one_hot ? n : 1) {
    if (mask && allows_none(mask + r * n, n))
      return RL_POLICY_NO_ACTION;
    for (int64_t k = 0; k < n; k++)
      weights[k] = !mask || mask[r * n + k] ? logits[k] : -INFINITY;
    const int64_t best = first_of_largest(weights, n);
    const float top = weights[best];
    int64_t chosen = best;
    if (random || score) {
      float total = 0;
      for (int64_t k = 0; k < n; k++)
        weights[k] -= top;
      const float of_best = weights[best]; /* 0, or not a number */
      float *powers = weights + n;
      s->fn->exp(weights, powers, n, 0, 0, 0);
      for (int64_t k = 0; k < n; k++)
        total += powers[k];
      if (random && of_best == 0) { /* the first of positive weight at which the sum passes u times the total */
        const float bar = u[r] * total;
        float sum = 0;
        for (int64_t k = 0; k < n; k++)
          if (powers[k] > 0) {
            sum += powers[k];
            chosen = k;
            if (bar < sum)
              break;
          }
      }
      if (score) {
        float log_total;
        s->fn->log(&total, &log_total, 1, 0, 0, 0);
        score[r] = weights[chosen] - log_total;
      }
    }
    encode(action, chosen, n, one_hot);
  }
  return RL_POLICY_OK;
}

/* The sum of log(scale) + z^2 / 2 over a row, in order. */
static float half_squares(const step *s, const float *scale, const float *z, int64_t n) {
  float sum = 0, logs[MANY];
  for (int64_t from = 0; from < n; from += MANY) {
    const int64_t count = n - from < MANY ? n - from : MANY;
    s->fn->log(scale + from, logs, count, 0, 0, 0);
    for (int64_t k = 0; k < count; k++)
      sum += logs[k] + 0.5f * (z[from + k] * z[from + k]);
  }
  return sum;
}

#define LARGEST_TANH (1 - 8 * 0x1p-23f) /* three bits below 1, as TanhNormal of rl-modules */
#define LARGEST_ATANH 7.2780313f

static void normal(const step *s, int random, int squashed) {
  const int64_t n = s->op->size[0];
  const float *loc = IN(0), *scale = IN(1), *u = at(s, s->op->noise);
  const float *half = PAR(0), *middle = PAR(1), *low = PAR(2), *high = PAR(3);
  float *action = OUT(0), *score = OUT(1), *z = OUT(2); /* scratch of 2 n numbers */
  for (int64_t r = 0; r < s->rows; r++, loc += n, scale += n, action += n) {
    if (random) {
      s->fn->normal(u + r * n, z, n, 0, 0, 0);
      for (int64_t k = 0; k < n; k++)
        action[k] = loc[k] + z[k] * scale[k];
    } else {
      memcpy(action, loc, (size_t)n * sizeof *action);
    }
    if (squashed) {
      if (random)
        for (int64_t k = 0; k < n; k++)
          action[k] = action[k] > LARGEST_ATANH ? LARGEST_ATANH : action[k] < -LARGEST_ATANH ? -LARGEST_ATANH : action[k];
      s->fn->tanh(action, action, n, 0, 0, 0);
      if (half)
        for (int64_t k = 0; k < n; k++) {
          const float y = action[k] * half[k] + middle[k];
          action[k] = y < low[k] ? low[k] : y > high[k] ? high[k] : y;
        }
    }
    if (!score)
      continue;
    float jacobian = 0;
    const float *x = action;
    if (squashed) { /* scores the rounded action, as it is stored */
      float *inside = z + n;
      for (int64_t k = 0; k < n; k++) {
        const float y = half ? (action[k] - middle[k]) / half[k] : action[k];
        inside[k] = y > LARGEST_TANH ? LARGEST_TANH : y < -LARGEST_TANH ? -LARGEST_TANH : y;
      }
      s->fn->atanh(inside, inside, n, 0, 0, 0);
      s->fn->stretch(inside, z, n, 0, 0, 0);
      for (int64_t k = 0; k < n; k++)
        jacobian += z[k];
      x = inside;
    }
    for (int64_t k = 0; k < n; k++)
      z[k] = (x[k] - loc[k]) / scale[k];
    score[r] = (float)s->op->value[0] - (half_squares(s, scale, z, n) - jacobian);
  }
}

static int best(const step *s) {
  const int64_t n = s->op->size[0], one_hot = s->op->mode;
  const float *values = IN(0);
  const uint8_t *mask = IN(1);
  int64_t *action = OUT(0);
  float *value = OUT(1), *masked = OUT(2);
  for (int64_t r = 0; r < s->rows; r++, values += n, action += one_hot ? n : 1) {
    const float *of_row = values;
    if (mask) {
      if (allows_none(mask + r * n, n))
        return RL_POLICY_NO_ACTION;
      for (int64_t k = 0; k < n; k++)
        masked[r * n + k] = mask[r * n + k] ? values[k] : -3.40282346638528859812e38f;
      of_row = masked + r * n;
    }
    const int64_t chosen = first_of_largest(of_row, n);
    value[r] = of_row[chosen];
    encode(action, chosen, n, one_hot);
  }
  return RL_POLICY_OK;
}

/* Two uniform numbers a row: whether to explore, and which of the allowed actions to take. */
static int epsilon_greedy(const step *s, int exploring) {
  const int64_t n = s->op->size[0], one_hot = s->op->mode, width = one_hot ? n : 1;
  const float *u = at(s, s->op->noise), *epsilon = PAR(0);
  const int64_t *given = IN(0);
  const uint8_t *mask = IN(1);
  int64_t *action = OUT(0);
  for (int64_t r = 0; r < s->rows; r++, given += width, action += width) {
    if (exploring && mask && allows_none(mask + r * n, n))
      return RL_POLICY_NO_ACTION;
    memcpy(action, given, (size_t)width * sizeof *action);
    if (!exploring || !(u[2 * r] < *epsilon))
      continue;
    int64_t allowed = n, k = 0;
    if (mask) {
      allowed = 0;
      for (k = 0; k < n; k++)
        allowed += mask[r * n + k] != 0;
    }
    int64_t left = (int64_t)(u[2 * r + 1] * (double)allowed); /* below `allowed`, exact in float64 */
    if (!mask)
      k = left;
    else
      for (k = 0; !mask[r * n + k] || left-- > 0; k++)
        ;
    encode(action, k, n, one_hot);
  }
  return RL_POLICY_OK;
}

static void add_noise(const step *s, int exploring) {
  const int64_t n = s->op->size[0];
  const float *given = IN(0), *u = at(s, s->op->noise), *sigma = PAR(0), *low = PAR(1), *high = PAR(2);
  float *action = OUT(0);
  for (int64_t r = 0; r < s->rows; r++, given += n, action += n) {
    if (!exploring) {
      memcpy(action, given, (size_t)n * sizeof *action);
      continue;
    }
    s->fn->normal(u + r * n, action, n, 0, 0, 0);
    for (int64_t k = 0; k < n; k++) {
      const float y = given[k] + action[k] * sigma[s->op->mode ? 0 : k];
      action[k] = low && y < low[k] ? low[k] : high && y > high[k] ? high[k] : y;
    }
  }
}

static void split(const step *s) {
  const int64_t n = s->op->size[0];
  const float *x = IN(0);
  float *loc = OUT(0), *raw = OUT(1);
  for (int64_t r = 0; r < s->rows; r++, x += 2 * n, loc += n, raw += n) {
    memcpy(loc, x, (size_t)n * sizeof *loc);
    memcpy(raw, x + n, (size_t)n * sizeof *raw);
  }
}

static void own_scale(const step *s) {
  const int64_t n = s->op->size[0];
  float *scale = OUT(0);
  s->fn->exp_scale(PAR(0), scale, n, 0, (float)s->op->value[1], (float)s->op->value[2]);
  for (int64_t r = 1; r < s->rows; r++)
    memcpy(scale + r * n, scale, (size_t)n * sizeof *scale);
}

static void bound(const step *s) {
  const int64_t n = s->op->size[0];
  const float *half = PAR(0), *middle = PAR(1);
  float *y = OUT(0);
  s->fn->tanh(IN(0), y, s->rows * n, 0, 0, 0);
  for (int64_t r = 0; r < s->rows; r++, y += n)
    for (int64_t k = 0; k < n; k++)
      y[k] = middle[k] + half[k] * y[k];
}

static int run(const step *s, int random, int exploring) {
  const rl_policy_operation *op = s->op;
  const int64_t all = s->rows * op->size[0];
  const float a = (float)op->value[0], b = (float)op->value[1], c = (float)op->value[2];
  const rl_policy_functions *fn = s->fn;
  switch (op->kind) {
  case RL_POLICY_LINEAR:
    fn->linear(IN(0), op->size[0], PAR(0), PAR(1), OUT(0), s->rows, op->size[0], op->size[1]);
    return RL_POLICY_OK;
  case RL_POLICY_LAYER_NORM:
    fn->layer_norm(IN(0), PAR(0), PAR(1), OUT(0), s->rows, op->size[0], op->value[0]);
    return RL_POLICY_OK;
  case RL_POLICY_LSTM:
  case RL_POLICY_GRU:
    recur(s, op->kind == RL_POLICY_LSTM);
    return RL_POLICY_OK;
  case RL_POLICY_SPLIT:
    split(s);
    return RL_POLICY_OK;
  case RL_POLICY_SCALE:
    if (op->mode < 0 || op->mode > 2)
      return RL_POLICY_UNKNOWN;
    fn->scales[op->mode](IN(0), OUT(0), all, a, b, c);
    return RL_POLICY_OK;
  case RL_POLICY_OWN_SCALE:
    own_scale(s);
    return RL_POLICY_OK;
  case RL_POLICY_BOUND:
    bound(s);
    return RL_POLICY_OK;
  case RL_POLICY_CATEGORICAL:
    return categorical(s, random);
  case RL_POLICY_NORMAL:
  case RL_POLICY_TANH_NORMAL:
    normal(s, random, op->kind == RL_POLICY_TANH_NORMAL);
    return RL_POLICY_OK;
  case RL_POLICY_BEST:
    return best(s);
  case RL_POLICY_EPSILON:
    return epsilon_greedy(s, exploring);
  case RL_POLICY_NOISE:
    add_noise(s, exploring);
    return RL_POLICY_OK;
  default:
    if (op->kind < RL_POLICY_TANH || op->kind > RL_POLICY_GELU_TANH)
      return RL_POLICY_UNKNOWN;
    fn->activations[op->kind - RL_POLICY_TANH](IN(0), OUT(0), all, a, b, c);
    return RL_POLICY_OK;
  }
}

/* Run a job: address and number of the operations, rows, whether heads draw, whether exploration acts, and the slots.
 * Addresses are trusted. */
RL_API int32_t rl_policy_run(const int64_t *job) {
#if RL_X86
  static const rl_policy_functions *const sets[] = {&functions_plain, &functions_avx2, &functions_avx512};
  const rl_policy_functions *fn = sets[rl_isa()];
#else
  const rl_policy_functions *fn = &functions_plain;
#endif
  const rl_policy_operation *op = (const void *)(intptr_t)job[0];
  for (int64_t i = 0; i < job[1]; i++) {
    const step one = {op + i, job + 5, fn, job[2]};
    const int status = run(&one, job[3] != 0, job[4] != 0);
    if (status)
      return status;
  }
  return RL_POLICY_OK;
}
