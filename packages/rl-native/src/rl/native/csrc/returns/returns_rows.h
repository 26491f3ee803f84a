/* Jobs that neither returns_scan.h nor returns_across.h supports: d, c and outputs in vectors along time, between them
 * the chains of ROWS lanes. Steps and lanes run backward, so that memory is read as one stream. */

/* Scratch memory of a group of lanes, of CHUNK steps each. */
typedef struct {
  ALIGNED REAL d[ROWS * PITCH], c[ROWS * PITCH];
  ALIGNED REAL reals[RL_SLOTS][CHUNK]; /* of one lane whose elements are not contiguous or too few for a vector */
  uint8_t flags[2][CHUNK];
  REAL spread[CHUNK];
  REAL a[ROWS];      /* what follows the chunk */
  rl_slots at[ROWS]; /* where the chunk begins */
  int64_t n;         /* lanes */
} FN(group);

/* Constants of a job. */
typedef struct {
  const rl_returns_job *job;
  const rl_places *places;
  const FN(formula) *formula;
  FN(numbers) same;
  int far; /* one long stream of memory, too long for the caches */
} FN(plan);

/* A copy of n elements of a slot, from address `from` on; zeros fill it up to a vector. */
static int64_t FN(copy)(int slot, int64_t from, int64_t step, int64_t n, FN(group) * g) {
  if (is_flag(slot)) {
    uint8_t *to = g->flags[slot - RL_DONE];
    memset(to, 0, LANES);
    for (int64_t k = 0; k < n; k++)
      to[k] = *(const uint8_t *)(intptr_t)(from + k * step);
    return (int64_t)(intptr_t)to;
  }
  REAL *to = g->reals[slot];
  memset(to, 0, LANES * sizeof(REAL));
  for (int64_t k = 0; k < n; k++)
    to[k] = *(const REAL *)(intptr_t)(from + k * step);
  return (int64_t)(intptr_t)to;
}

/* Contiguous inputs of m steps: all, or those that the outputs need (`again`). */
static rl_slots FN(gathered)(const FN(plan) * plan, rl_slots at, int64_t m, int last, int again, FN(group) * g) {
  const int kind = plan->formula->kind;
  for (int slot = 0; slot < RL_OUT; slot++) {
    if (!plan->job->data[slot] || (again && !read_again(kind, slot)))
      continue;
    const int beyond = last && slot == RL_GAMMA && kind == RL_PLAIN; /* may lie outside of memory */
    at.of[slot] = FN(copy)(slot, at.of[slot], plan->places->time.of[slot], beyond ? m - 1 : m, g);
  }
  return at;
}

/* Nothing follows the last step, as if it were done. */
static rl_slots FN(last_along)(int kind, rl_slots at, int64_t m, FN(group) * g) {
  if (kind == RL_PLAIN) {
    memmove(g->reals[RL_GAMMA], (const void *)(intptr_t)at.of[RL_GAMMA], (size_t)(m - 1) * sizeof(REAL));
    g->reals[RL_GAMMA][m - 1] = 0;
    at.of[RL_GAMMA] = (int64_t)(intptr_t)g->reals[RL_GAMMA];
  } else {
    memmove(g->flags[0], (const void *)(intptr_t)at.of[RL_DONE], (size_t)m);
    g->flags[0][m - 1] = 1;
    at.of[RL_DONE] = (int64_t)(intptr_t)g->flags[0];
  }
  return at;
}

/* d and c of m steps of a group. */
TARGET static void FN(terms_of)(const FN(plan) * plan, int64_t m, int last, FN(group) * g) {
  const int direct = plan->places->along_time && m >= LANES, ends = last && ends_itself(plan->formula->kind);
  for (int64_t q = 0; q < g->n; q++) {
    REAL *const d = g->d + q * PITCH, *const c = g->c + q * PITCH;
    if (direct && !ends) {
      plan->formula->before(&plan->same, &g->at[q], m, plan->far, d, c);
    } else {
      rl_slots at = direct ? g->at[q] : FN(gathered)(plan, g->at[q], m, last, 0, g);
      if (ends)
        at = FN(last_along)(plan->formula->kind, at, m, g);
      plan->formula->before(&plan->same, &at, m < LANES ? LANES : m, direct && plan->far, d, c);
    }
    c[m] = g->a[q]; /* the value that follows the last x */
  }
}

/* Outputs of m steps of a group. */
TARGET static void FN(results_of)(const FN(plan) * plan, int64_t m, int last, FN(group) * g) {
  const int direct = plan->places->along_time && m >= LANES;
  for (int64_t q = 0; q < g->n; q++) {
    const REAL *const d = g->d + q * PITCH, *const x = g->c + q * PITCH;
    if (direct) {
      plan->formula->after(&plan->same, &g->at[q], m, d, x);
      continue;
    }
    rl_slots at = FN(gathered)(plan, g->at[q], m, last, 1, g);
    at.of[RL_OUT] = (int64_t)(intptr_t)g->reals[RL_OUT];
    at.of[RL_OUT2] = (int64_t)(intptr_t)g->reals[RL_OUT2];
    plan->formula->after(&plan->same, &at, m < LANES ? LANES : m, d, x);
    for (int slot = RL_OUT; slot < RL_SLOTS; slot++)
      for (int64_t t = 0; plan->job->data[slot] && t < m; t++)
        *(REAL *)(intptr_t)(g->at[q].of[slot] + t * plan->places->time.of[slot]) = g->reals[slot][t];
  }
}

/* All steps of a group of lanes; `at` is where the last chunk begins. */
TARGET static void FN(group_back)(const FN(plan) * plan, FN(group) * g) {
  const int64_t chains = FN(chains_of)(g->n), most = plan->job->steps < CHUNK ? plan->job->steps : CHUNK;
  memset(g->a, 0, sizeof g->a);
  for (int64_t q = g->n; q < chains; q++) { /* chains of no lane stay zero */
    memset(g->d + q * PITCH, 0, (size_t)most * sizeof(REAL));
    memset(g->c + q * PITCH, 0, (size_t)most * sizeof(REAL));
  }
  for (int64_t end = plan->job->steps; end > 0; end -= CHUNK) {
    const int64_t start = end > CHUNK ? end - CHUNK : 0, m = end - start;
    const int last = end == plan->job->steps;
    FN(terms_of)(plan, m, last, g);
    FN(chains)(chains, g->d, g->c, m, g->a);
    FN(results_of)(plan, m, last, g);
    const rl_slots back = times(&plan->places->time, start > CHUNK ? -CHUNK : -start);
    for (int64_t q = 0; q < g->n; q++)
      g->at[q] = moved(g->at[q], &back);
  }
}

TARGET static void FN(rows)(const rl_returns_job *job, rl_places *places) {
  FN(group) g;
  FN(plan) plan = {job, places, FN(formula_of)(job), FN(numbers_of)(job), 0};
  const int64_t lanes = job->outer * job->inner, start = job->steps > CHUNK ? job->steps - CHUNK : 0;
  plan.far = !job->strided && lanes * job->steps * (int64_t)sizeof(REAL) > FAR_BYTES;
  FN(spread)(job, CHUNK, g.spread, &places->start);
  const rl_slots back = times(&places->inner, -1);
  int64_t o = job->outer - 1, i = job->inner - 1; /* counted on, since a division costs as much as a dozen steps */
  rl_slots lane = place_of(places, o, start, i);
  for (int64_t left = lanes; left > 0; left -= g.n) {
    g.n = left < ROWS ? left : ROWS;
    for (int64_t q = 0; q < g.n; q++) {
      if (i < 0)
        i = job->inner - 1, lane = place_of(places, --o, start, i);
      g.at[q] = lane;
      lane = moved(lane, &back);
      i--;
    }
    FN(group_back)(&plan, &g);
  }
}

#undef CHUNK
#undef PITCH
