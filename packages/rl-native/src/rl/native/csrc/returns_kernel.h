/* The kernels of returns.c, written once. Included for each type and instruction set with these macros set:
 *   REAL      float or double
 *   FN(name)  name with a suffix of its own
 *   TARGET    attribute that chooses the instruction set
 * The loops are plain so that the compiler turns them into vectors of whatever width the target has; none fuses
 * a product with a sum, so that all of them give the same numbers. A flag chooses between constants or loaded values,
 * never between computed ones: the compiler would branch there instead. */

/* Addresses of consecutive elements of every input. */
typedef struct {
  const REAL *reward, *value, *next, *ratio, *gamma, *lambda;
  const uint8_t *done, *terminated;
} FN(span);

/* Where elements that are not consecutive are gathered, and where scalar coefficients are spread. */
typedef struct {
  REAL reward[CHUNK], value[CHUNK], next[CHUNK], ratio[CHUNK], gamma[CHUNK], lambda[CHUNK], out[CHUNK];
  uint8_t done[CHUNK], terminated[CHUNK];
  REAL all_gamma[BLOCK], all_lambda[BLOCK];
} FN(scratch);

TARGET static void FN(gae_prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, REAL *restrict d,
                                   REAL *restrict c) {
  const REAL *restrict reward = in->reward, *restrict value = in->value, *restrict next = in->next;
  const REAL *restrict gamma = in->gamma, *restrict lambda = in->lambda;
  const uint8_t *restrict done = in->done, *restrict terminated = in->terminated;
  if (!job->data[RL_GAMMA] && !job->data[RL_LAMBDA]) {
    const REAL g = (REAL)job->gamma, both = (REAL)(job->gamma * job->lambda);
    for (int64_t i = 0; i < n; i++) {
      const REAL v = next[i];
      d[i] = reward[i] + g * (terminated[i] ? (REAL)0 : v) - value[i];
      c[i] = done[i] ? (REAL)0 : both;
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const REAL v = next[i], open = done[i] ? (REAL)0 : (REAL)1;
    d[i] = reward[i] + gamma[i] * (terminated[i] ? (REAL)0 : v) - value[i];
    c[i] = gamma[i] * lambda[i] * open;
  }
}

/* At the last step nothing follows, so that its one-step return stands alone, as at a done. */
TARGET static void FN(td_prelude)(const FN(span) *in, int64_t n, int last, REAL *restrict d, REAL *restrict c) {
  const REAL *restrict reward = in->reward, *restrict next = in->next;
  const REAL *restrict gamma = in->gamma, *restrict lambda = in->lambda;
  const uint8_t *restrict done = in->done, *restrict terminated = in->terminated;
  const REAL open = last ? (REAL)0 : (REAL)1;
  if (!next) {
    for (int64_t i = 0; i < n; i++) {
      d[i] = reward[i];
      c[i] = gamma[i] * (lambda[i] * (done[i] ? (REAL)0 : open));
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const REAL v = next[i], follow = lambda[i] * (done[i] ? (REAL)0 : open);
    d[i] = reward[i] + gamma[i] * (terminated[i] ? (REAL)0 : v) * (1 - follow);
    c[i] = gamma[i] * follow;
  }
}

/* Espeholt et al. 2018, eq. 1; e is what the advantage takes of x_{t+1}. A ratio that is not a number stays one. */
TARGET static void FN(vtrace_prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, REAL *restrict d,
                                      REAL *restrict c, REAL *restrict e) {
  const REAL *restrict reward = in->reward, *restrict value = in->value, *restrict next = in->next;
  const REAL *restrict gamma = in->gamma, *restrict lambda = in->lambda, *restrict ratio = in->ratio;
  const uint8_t *restrict done = in->done, *restrict terminated = in->terminated;
  const REAL rho_bar = (REAL)job->rho_bar, c_bar = (REAL)job->c_bar;
  for (int64_t i = 0; i < n; i++) {
    const REAL v = next[i], w = ratio[i], open = done[i] ? (REAL)0 : (REAL)1;
    const REAL rho = w > rho_bar ? rho_bar : w, trace = w > c_bar ? c_bar : w;
    d[i] = rho * (reward[i] + gamma[i] * (terminated[i] ? (REAL)0 : v) - value[i]);
    c[i] = gamma[i] * (lambda[i] * trace) * open;
    e[i] = gamma[i] * rho * open;
  }
}

TARGET static void FN(prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, int last, REAL *restrict d,
                               REAL *restrict c, REAL *restrict e) {
  switch (job->kind) {
  case RL_GAE:
    FN(gae_prelude)(job, in, n, d, c);
    return;
  case RL_TD_LAMBDA:
    FN(td_prelude)(in, n, last, d, c);
    return;
  case RL_VTRACE:
    FN(vtrace_prelude)(job, in, n, d, c, e);
    return;
  default: /* the weight of the last step may lie outside of the tensor */
    memcpy(d, in->reward, (size_t)n * sizeof(REAL));
    if (last)
      memset(c, 0, (size_t)n * sizeof(REAL));
    else
      memcpy(c, in->gamma, (size_t)n * sizeof(REAL));
  }
}

/* What is written, given x of these steps and of the ones that follow them. */
TARGET static void FN(emit)(const rl_returns_job *job, int64_t n, const REAL *restrict x, const REAL *restrict following,
                            const REAL *restrict d, const REAL *restrict e, const REAL *restrict value,
                            REAL *restrict out, REAL *restrict out2) {
  switch (job->kind) {
  case RL_GAE:
    for (int64_t i = 0; i < n; i++) {
      out[i] = x[i];
      out2[i] = x[i] + value[i];
    }
    return;
  case RL_VTRACE:
    for (int64_t i = 0; i < n; i++) {
      out[i] = d[i] + e[i] * following[i];
      out2[i] = x[i] + value[i];
    }
    return;
  default:
    memcpy(out, x, (size_t)n * sizeof(REAL));
  }
}

TARGET static const REAL *FN(reals)(const rl_returns_job *job, int slot, int64_t offset, int64_t stride, int64_t n,
                                    REAL *gathered) {
  const REAL *data = (const REAL *)(intptr_t)job->data[slot];
  if (!data)
    return 0;
  data += offset;
  if (stride == 1)
    return data;
  for (int64_t i = 0; i < n; i++)
    gathered[i] = data[i * stride];
  return gathered;
}

TARGET static const uint8_t *FN(flags)(const rl_returns_job *job, int slot, int64_t offset, int64_t stride, int64_t n,
                                       uint8_t *gathered) {
  const uint8_t *data = (const uint8_t *)(intptr_t)job->data[slot];
  if (!data)
    return 0;
  data += offset;
  if (stride == 1)
    return data;
  for (int64_t i = 0; i < n; i++)
    gathered[i] = data[i * stride];
  return gathered;
}

/* Inputs of n elements along `axis` (1: time, 2: inner). Of plain weights only `followed` ones are touched: that of the
 * last step may lie outside of its tensor. */
TARGET static FN(span) FN(inputs)(const rl_returns_job *job, int64_t o, int64_t t, int64_t i, int axis, int64_t n,
                                  int64_t followed, FN(scratch) *s) {
#define AT(slot) job, slot, o *job->stride[slot][0] + t *job->stride[slot][1] + i *job->stride[slot][2], job->stride[slot][axis]
  FN(span) in;
  in.reward = FN(reals)(AT(RL_REWARD), n, s->reward);
  in.value = FN(reals)(AT(RL_VALUE), n, s->value);
  in.next = FN(reals)(AT(RL_NEXT_VALUE), n, s->next);
  in.ratio = FN(reals)(AT(RL_RATIO), n, s->ratio);
  in.gamma = FN(reals)(AT(RL_GAMMA), job->kind == RL_PLAIN ? followed : n, s->gamma);
  in.lambda = FN(reals)(AT(RL_LAMBDA), n, s->lambda);
  in.done = FN(flags)(AT(RL_DONE), n, s->done);
  in.terminated = FN(flags)(AT(RL_TERMINATED), n, s->terminated);
#undef AT
  if (!in.gamma)
    in.gamma = s->all_gamma;
  if (!in.lambda)
    in.lambda = s->all_lambda;
  return in;
}

TARGET static void FN(spread)(const rl_returns_job *job, int64_t n, FN(scratch) *s) {
  if (job->kind == RL_PLAIN)
    return;
  for (int64_t i = 0; i < n; i++) {
    s->all_gamma[i] = (REAL)job->gamma;
    s->all_lambda[i] = (REAL)job->lambda;
  }
}

/* Lanes side by side in memory: vectors across lanes, one pass backward through time. */
TARGET static void FN(lanes)(const rl_returns_job *job) {
  FN(scratch) s;
  REAL d[BLOCK], c[BLOCK], e[BLOCK], first[BLOCK], second[BLOCK];
  FN(spread)(job, job->inner < BLOCK ? job->inner : BLOCK, &s);
  for (int64_t o = 0; o < job->outer; o++) {
    for (int64_t i0 = 0; i0 < job->inner; i0 += BLOCK) {
      const int64_t n = job->inner - i0 < BLOCK ? job->inner - i0 : BLOCK;
      REAL *x = first, *following = second;
      memset(following, 0, (size_t)n * sizeof(REAL));
      for (int64_t t = job->steps - 1; t >= 0; t--) {
        const int last = t == job->steps - 1;
        const FN(span) in = FN(inputs)(job, o, t, i0, 2, n, last ? 0 : n, &s);
        FN(prelude)(job, &in, n, last, d, c, e);
        for (int64_t i = 0; i < n; i++)
          x[i] = d[i] + c[i] * following[i];
        REAL *out = (REAL *)(intptr_t)job->data[RL_OUT], *out2 = (REAL *)(intptr_t)job->data[RL_OUT2];
        out += o * job->stride[RL_OUT][0] + t * job->stride[RL_OUT][1] + i0;
        if (out2)
          out2 += o * job->stride[RL_OUT2][0] + t * job->stride[RL_OUT2][1] + i0;
        FN(emit)(job, n, x, following, d, e, in.value, out, out2);
        REAL *swap = x;
        x = following;
        following = swap;
      }
    }
  }
}

TARGET static void FN(scatter)(const REAL *from, REAL *to, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    to[i * stride] = from[i];
}

/* Outputs of n steps of a lane, by way of a gathered copy where they are not consecutive. */
TARGET static void FN(emit_row)(const rl_returns_job *job, int64_t o, int64_t t, int64_t i, int64_t n, const REAL *x,
                                const REAL *d, const REAL *e, FN(scratch) *s) {
#define AT(slot) o *job->stride[slot][0] + t *job->stride[slot][1] + i *job->stride[slot][2]
  const REAL *value = FN(reals)(job, RL_VALUE, AT(RL_VALUE), job->stride[RL_VALUE][1], n, s->value);
  REAL *out = (REAL *)(intptr_t)job->data[RL_OUT] + AT(RL_OUT), *out2 = 0;
  const int64_t stride = job->stride[RL_OUT][1], stride2 = job->stride[RL_OUT2][1];
  if (job->data[RL_OUT2])
    out2 = (REAL *)(intptr_t)job->data[RL_OUT2] + AT(RL_OUT2);
#undef AT
  REAL *direct = stride == 1 ? out : s->out, *direct2 = stride2 == 1 ? out2 : s->reward;
  FN(emit)(job, n, x, x + 1, d, e, value, direct, direct2);
  if (stride != 1)
    FN(scatter)(direct, out, stride, n);
  if (out2 && stride2 != 1)
    FN(scatter)(direct2, out2, stride2, n);
}

/* Steps side by side in memory, or nothing: vectors along time in front and behind, in between the chains of ROWS
 * lanes at once, because one chain alone would wait for each of its products. */
TARGET static void FN(rows)(const rl_returns_job *job) {
  FN(scratch) s;
  REAL d[ROWS * PITCH], c[ROWS * PITCH], e[ROWS * PITCH], x[ROWS * PITCH];
  const int64_t lanes = job->outer * job->inner;
  FN(spread)(job, job->steps < CHUNK ? job->steps : CHUNK, &s);
  if (lanes < ROWS) {
    memset(d, 0, sizeof d);
    memset(c, 0, sizeof c);
  }
  for (int64_t lane = 0; lane < lanes; lane += ROWS) {
    const int64_t n = lanes - lane < ROWS ? lanes - lane : ROWS;
    REAL a[ROWS] = {0};
    for (int64_t t1 = job->steps; t1 > 0; t1 -= CHUNK) {
      const int64_t t0 = t1 > CHUNK ? t1 - CHUNK : 0, m = t1 - t0;
      const int64_t open = t1 == job->steps ? m - 1 : m; /* steps that another one follows */
      for (int64_t q = 0; q < n; q++) {
        const int64_t o = (lane + q) / job->inner, i = (lane + q) % job->inner, at = q * PITCH;
        FN(span) in = FN(inputs)(job, o, t0, i, 1, m, open, &s);
        FN(prelude)(job, &in, open, 0, d + at, c + at, e + at);
        if (open < m) {
          in.reward += open, in.gamma += open, in.lambda += open;
          in.value = in.value ? in.value + open : 0, in.next = in.next ? in.next + open : 0;
          in.ratio = in.ratio ? in.ratio + open : 0;
          in.done = in.done ? in.done + open : 0, in.terminated = in.terminated ? in.terminated + open : 0;
          FN(prelude)(job, &in, 1, 1, d + at + open, c + at + open, e + at + open);
        }
        x[at + m] = a[q];
      }
      if (n == 1) {
        REAL b = a[0];
        for (int64_t t = m - 1; t >= 0; t--)
          x[t] = b = d[t] + c[t] * b;
        a[0] = b;
      } else {
        for (int64_t t = m - 1; t >= 0; t--) {
          UNROLL
          for (int q = 0; q < ROWS; q++)
            x[q * PITCH + t] = a[q] = d[q * PITCH + t] + c[q * PITCH + t] * a[q];
        }
      }
      for (int64_t q = 0; q < n; q++) {
        const int64_t o = (lane + q) / job->inner, i = (lane + q) % job->inner, at = q * PITCH;
        FN(emit_row)(job, o, t0, i, m, x + at, d + at, e + at, &s);
      }
    }
  }
}

TARGET static void FN(run)(const rl_returns_job *job, int across) {
  if (across)
    FN(lanes)(job);
  else
    FN(rows)(job);
}
