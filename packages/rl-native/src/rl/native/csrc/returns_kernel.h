/* The kernels of returns.c, written once. Included for each type and instruction set with these macros set:
 *   REAL      float or double
 *   FN(name)  name with a suffix of its own
 *   TARGET    attribute that chooses the instruction set
 *   CHAIN     of returns_chain.h or returns_avx2.h, for that type and set
 *   VECTOR    name of the functions of returns_avx2.h for that type, if the set has them, and its number of elements
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

/* One gamma and one lambda for all. */
TARGET static void FN(plain_gae_prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, REAL *restrict d,
                                         REAL *restrict c, REAL *restrict kept) {
  const REAL gamma = (REAL)job->gamma, both = (REAL)(job->gamma * job->lambda);
#define BODY(K)                                                                                                        \
  const K##_REAL value = K##_GET(in->value);                                                                           \
  const K##_REAL next = K##_GET(in->next), v = K##_UNLESS(in->terminated, next);                                       \
  const K##_REAL w = K##_UNLESS(in->done, K##_ALL(both));                                                              \
  K##_PUT(d, K##_GET(in->reward) + gamma * v - value);                                                                 \
  K##_PUT(c, w);                                                                                                       \
  K##_PUT(kept, value);
  STRIPS
#undef BODY
}

TARGET static void FN(gae_prelude)(const FN(span) *in, int64_t n, REAL *restrict d, REAL *restrict c,
                                   REAL *restrict kept) {
#define BODY(K)                                                                                                        \
  const K##_REAL value = K##_GET(in->value);                                                                           \
  const K##_REAL next = K##_GET(in->next), gamma = K##_GET(in->gamma), lambda = K##_GET(in->lambda);                   \
  const K##_REAL v = K##_UNLESS(in->terminated, next), w = K##_UNLESS(in->done, lambda);                               \
  K##_PUT(d, K##_GET(in->reward) + gamma * v - value);                                                                 \
  K##_PUT(c, gamma * w);                                                                                               \
  K##_PUT(kept, value);
  STRIPS
#undef BODY
}

/* At the last step nothing follows, so that its one-step return stands alone, as at a done. */
TARGET static void FN(td_prelude)(const FN(span) *in, int64_t n, int last, REAL *restrict d, REAL *restrict c) {
  const REAL open = last ? (REAL)0 : (REAL)1;
#define BODY(K)                                                                                                        \
  const K##_REAL next = K##_GET(in->next), gamma = K##_GET(in->gamma), lambda = K##_GET(in->lambda);                   \
  const K##_REAL v = K##_UNLESS(in->terminated, next), w = K##_UNLESS(in->done, lambda), follow = w * open;            \
  K##_PUT(d, K##_GET(in->reward) + gamma * v * (1 - follow));                                                          \
  K##_PUT(c, gamma * follow);
  STRIPS
#undef BODY
}

/* The same where nothing is bootstrapped. */
TARGET static void FN(sum_prelude)(const FN(span) *in, int64_t n, int last, REAL *restrict d, REAL *restrict c) {
  const REAL open = last ? (REAL)0 : (REAL)1;
#define BODY(K)                                                                                                        \
  const K##_REAL lambda = K##_GET(in->lambda), w = K##_UNLESS(in->done, lambda), follow = w * open;                    \
  K##_PUT(d, K##_GET(in->reward));                                                                                     \
  K##_PUT(c, K##_GET(in->gamma) * follow);
  STRIPS
#undef BODY
}

/* Espeholt et al. 2018, eq. 1; e is what the advantage takes of x_{t+1}. A ratio that is not a number stays one. */
TARGET static void FN(vtrace_prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, REAL *restrict d,
                                      REAL *restrict c, REAL *restrict e, REAL *restrict kept) {
  const REAL rho_bar = (REAL)job->rho_bar, c_bar = (REAL)job->c_bar;
#define BODY(K)                                                                                                        \
  const K##_REAL value = K##_GET(in->value);                                                                           \
  const K##_REAL next = K##_GET(in->next), ratio = K##_GET(in->ratio), lambda = K##_GET(in->lambda);                   \
  const K##_REAL gamma = K##_GET(in->gamma), rho = K##_AT_MOST(ratio, rho_bar), trace = K##_AT_MOST(ratio, c_bar);     \
  const K##_REAL v = K##_UNLESS(in->terminated, next);                                                                 \
  const K##_REAL w = K##_UNLESS(in->done, lambda), u = K##_UNLESS(in->done, gamma);                                    \
  K##_PUT(d, rho * (K##_GET(in->reward) + gamma * v - value));                                                         \
  K##_PUT(c, gamma * (w * trace));                                                                                     \
  K##_PUT(e, u * rho);                                                                                                 \
  K##_PUT(kept, value);
  STRIPS
#undef BODY
}

TARGET static void FN(prelude)(const rl_returns_job *job, const FN(span) *in, int64_t n, int last, REAL *restrict d,
                               REAL *restrict c, REAL *restrict e, REAL *restrict kept) {
  switch (job->kind) {
  case RL_GAE:
    if (job->data[RL_GAMMA] || job->data[RL_LAMBDA])
      FN(gae_prelude)(in, n, d, c, kept);
    else
      FN(plain_gae_prelude)(job, in, n, d, c, kept);
    return;
  case RL_TD_LAMBDA:
    if (in->next)
      FN(td_prelude)(in, n, last, d, c);
    else
      FN(sum_prelude)(in, n, last, d, c);
    return;
  case RL_VTRACE:
    FN(vtrace_prelude)(job, in, n, d, c, e, kept);
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

TARGET static int64_t FN(offset)(const rl_returns_job *job, int slot, int64_t o, int64_t t, int64_t i) {
  const int64_t *stride = job->stride[slot];
  return o * stride[0] + t * stride[1] + i * stride[2];
}

TARGET static const REAL *FN(reals)(const rl_returns_job *job, int slot, int64_t o, int64_t t, int64_t i, int axis,
                                    int64_t n, REAL *gathered) {
  const REAL *data = (const REAL *)(intptr_t)job->data[slot];
  const int64_t stride = job->stride[slot][axis];
  if (!data)
    return 0;
  data += FN(offset)(job, slot, o, t, i);
  if (stride == 1)
    return data;
  for (int64_t k = 0; k < n; k++)
    gathered[k] = data[k * stride];
  return gathered;
}

TARGET static const uint8_t *FN(bytes)(const rl_returns_job *job, int slot, int64_t o, int64_t t, int64_t i, int axis,
                                       int64_t n, uint8_t *gathered) {
  const uint8_t *data = (const uint8_t *)(intptr_t)job->data[slot];
  const int64_t stride = job->stride[slot][axis];
  if (!data)
    return 0;
  data += FN(offset)(job, slot, o, t, i);
  if (stride == 1)
    return data;
  for (int64_t k = 0; k < n; k++)
    gathered[k] = data[k * stride];
  return gathered;
}

/* Inputs of n elements along `axis` (1: time, 2: inner). Of plain weights only `followed` ones are touched: that of the
 * last step may lie outside of its tensor. */
TARGET static FN(span) FN(inputs)(const rl_returns_job *job, int64_t o, int64_t t, int64_t i, int axis, int64_t n,
                                  int64_t followed, FN(scratch) *s) {
#define AT(slot) job, slot, o, t, i, axis
  FN(span) in;
  in.reward = FN(reals)(AT(RL_REWARD), n, s->reward);
  in.value = FN(reals)(AT(RL_VALUE), n, s->value);
  in.next = FN(reals)(AT(RL_NEXT_VALUE), n, s->next);
  in.ratio = FN(reals)(AT(RL_RATIO), n, s->ratio);
  in.gamma = FN(reals)(AT(RL_GAMMA), job->kind == RL_PLAIN ? followed : n, s->gamma);
  in.lambda = FN(reals)(AT(RL_LAMBDA), n, s->lambda);
  in.done = FN(bytes)(AT(RL_DONE), n, s->done);
  in.terminated = FN(bytes)(AT(RL_TERMINATED), n, s->terminated);
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
  ALIGNED REAL d[BLOCK], c[BLOCK], e[BLOCK], kept[BLOCK], first[BLOCK], second[BLOCK];
  FN(spread)(job, job->inner < BLOCK ? job->inner : BLOCK, &s);
  for (int64_t o = 0; o < job->outer; o++) {
    for (int64_t i0 = 0; i0 < job->inner; i0 += BLOCK) {
      const int64_t n = job->inner - i0 < BLOCK ? job->inner - i0 : BLOCK;
      REAL *x = first, *following = second;
      memset(following, 0, (size_t)n * sizeof(REAL));
      for (int64_t t = job->steps - 1; t >= 0; t--) {
        const int last = t == job->steps - 1;
        const FN(span) in = FN(inputs)(job, o, t, i0, 2, n, last ? 0 : n, &s);
        FN(prelude)(job, &in, n, last, d, c, e, kept);
        for (int64_t i = 0; i < n; i++)
          x[i] = d[i] + c[i] * following[i];
        REAL *out = (REAL *)(intptr_t)job->data[RL_OUT], *out2 = (REAL *)(intptr_t)job->data[RL_OUT2];
        out += o * job->stride[RL_OUT][0] + t * job->stride[RL_OUT][1] + i0;
        if (out2)
          out2 += o * job->stride[RL_OUT2][0] + t * job->stride[RL_OUT2][1] + i0;
        FN(emit)(job, n, x, following, d, e, kept, out, out2);
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
                                const REAL *d, const REAL *e, const REAL *kept, FN(scratch) *s) {
  REAL *out = (REAL *)(intptr_t)job->data[RL_OUT] + FN(offset)(job, RL_OUT, o, t, i);
  REAL *out2 = (REAL *)(intptr_t)job->data[RL_OUT2];
  const int64_t stride = job->stride[RL_OUT][1], stride2 = job->stride[RL_OUT2][1];
  if (out2)
    out2 += FN(offset)(job, RL_OUT2, o, t, i);
  REAL *direct = stride == 1 ? out : s->out, *direct2 = stride2 == 1 ? out2 : s->reward;
  FN(emit)(job, n, x, x + 1, d, e, kept, direct, direct2);
  if (stride != 1)
    FN(scatter)(direct, out, stride, n);
  if (out2 && stride2 != 1)
    FN(scatter)(direct2, out2, stride2, n);
}

/* Steps side by side in memory, or nothing: vectors along time in front and behind, in between the chains of ROWS
 * lanes at once, because one chain alone would wait for each of its products. */
TARGET static void FN(rows)(const rl_returns_job *job) {
  FN(scratch) s;
  ALIGNED REAL d[ROWS * PITCH], c[ROWS * PITCH], e[ROWS * PITCH], kept[ROWS * PITCH];
  REAL *const x = c; /* what follows takes the place of the weight that it was multiplied with */
  const int64_t lanes = job->outer * job->inner;
  int64_t o = 0, i = 0;
  FN(spread)(job, job->steps < CHUNK ? job->steps : CHUNK, &s);
  if (lanes < ROWS) {
    memset(d, 0, sizeof d);
    memset(c, 0, sizeof c);
  }
  for (int64_t lane = 0; lane < lanes; lane += ROWS) {
    const int64_t n = lanes - lane < ROWS ? lanes - lane : ROWS;
    int64_t outer[ROWS], inner[ROWS]; /* counted on, since a division costs as much as a dozen steps */
    for (int64_t q = 0; q < n; q++) {
      outer[q] = o, inner[q] = i;
      if (++i == job->inner)
        i = 0, o++;
    }
    REAL a[ROWS] = {0};
    for (int64_t t1 = job->steps; t1 > 0; t1 -= CHUNK) {
      const int64_t t0 = t1 > CHUNK ? t1 - CHUNK : 0, m = t1 - t0;
      const int64_t open = t1 == job->steps ? m - 1 : m; /* steps that another one follows */
      for (int64_t q = 0; q < n; q++) {
        const int64_t at = q * PITCH;
        FN(span) in = FN(inputs)(job, outer[q], t0, inner[q], 1, m, open, &s);
        FN(prelude)(job, &in, job->kind == RL_PLAIN ? open : m, 0, d + at, c + at, e + at, kept + at);
        if (open < m && (job->kind == RL_PLAIN || job->kind == RL_TD_LAMBDA)) {
          in.reward += open, in.gamma += open, in.lambda += open, in.next = in.next ? in.next + open : 0;
          in.done = in.done ? in.done + open : 0, in.terminated = in.terminated ? in.terminated + open : 0;
          FN(prelude)(job, &in, 1, 1, d + at + open, c + at + open, e + at + open, kept + at + open);
        }
        x[at + m] = a[q];
      }
      if (n == 1) {
        REAL b = a[0];
        for (int64_t t = m - 1; t >= 0; t--)
          x[t] = b = d[t] + c[t] * b;
        a[0] = b;
      } else {
        CHAIN(d, x, m, a);
      }
      for (int64_t q = 0; q < n; q++) {
        const int64_t at = q * PITCH;
        FN(emit_row)(job, outer[q], t0, inner[q], m, x + at, d + at, e + at, kept + at, &s);
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
