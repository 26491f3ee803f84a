/* Formulas of the estimators for one vector of elements. returns_all.h includes this for each type and
 * instruction set with these macros set:
 *   REAL      float or double
 *   LANES     elements of a vector
 *   TILE      steps that are transposed at once, see returns_chain.h
 *   FN(name)  name with a suffix of its own
 *   V(name)   name of a vector primitive: vector, get, put, all, unless, at_most; load and store if TILE > 1;
 *             later and fused for returns_scan.h
 *   TARGET    attribute that selects the instruction set
 * The order is the same for all sets, and no product is fused with a sum but by V(fused), so that they give the same
 * numbers; plain C, where rows are scanned, all but the last digits. */

typedef V(vector) FN(vector_here);
#define VECTOR FN(vector_here)

/* Where gamma and lambda are the same for all steps. */
typedef struct {
  REAL gamma, lambda, both, rho_bar, c_bar;
} FN(numbers);

/* x_t = d + c x_{t+1} */
typedef struct {
  VECTOR d, c;
} FN(terms);

/* Terms of the outputs besides x: the advantage of V-trace is d + e x_{t+1}, a target of a value is x + value. */
typedef struct {
  VECTOR e, value;
} FN(extras);

#define READ(slot) V(get)((const REAL *)(intptr_t)at->of[slot] + i)
#define WRITE(slot, x) V(put)((REAL *)(intptr_t)at->of[slot] + i, x)
#define UNLESS(slot, x) V(unless)((const uint8_t *)(intptr_t)at->of[slot] + i, x)

/* `kind` and `by_step` are constants at every call, so that the compiler makes one loop for each formula. */
TARGET RL_INLINE FN(terms) FN(terms_at)(int kind, int by_step, const FN(numbers) * same, const rl_slots *at,
                                        int64_t i) {
  const VECTOR reward = READ(RL_REWARD), gamma = by_step ? READ(RL_GAMMA) : V(all)(same->gamma);
  if (kind == RL_PLAIN)
    return (FN(terms)){reward, gamma};
  if (kind == RL_GAE && !by_step) {
    const VECTOR next = UNLESS(RL_TERMINATED, READ(RL_NEXT_VALUE));
    return (FN(terms)){reward + gamma * next - READ(RL_VALUE), UNLESS(RL_DONE, V(all)(same->both))};
  }
  const VECTOR lambda = by_step ? READ(RL_LAMBDA) : V(all)(same->lambda), follow = UNLESS(RL_DONE, lambda);
  if (kind == RL_SUM)
    return (FN(terms)){reward, gamma * follow};
  const VECTOR next = UNLESS(RL_TERMINATED, READ(RL_NEXT_VALUE));
  if (kind == RL_TD_LAMBDA)
    return (FN(terms)){reward + gamma * next * (V(all)(1) - follow), gamma * follow};
  const VECTOR delta = reward + gamma * next - READ(RL_VALUE);
  if (kind == RL_GAE)
    return (FN(terms)){delta, gamma * follow};
  /* Espeholt et al. 2018, eq. 1. A NaN ratio stays NaN; an infinite ratio, possible without
   * thresholds, would give NaN for a delta of zero. */
  const VECTOR ratio = READ(RL_RATIO), rho = V(at_most)(ratio, same->rho_bar);
  if (kind == RL_EVEN)
    return (FN(terms)){rho * delta, UNLESS(RL_DONE, gamma * rho)};
  const VECTOR trace = gamma * (lambda * V(at_most)(ratio, same->c_bar));
  return (FN(terms)){rho * delta, UNLESS(RL_DONE, trace)};
}

TARGET RL_INLINE FN(extras) FN(extras_at)(int kind, int by_step, const FN(numbers) * same, const rl_slots *at,
                                          int64_t i) {
  FN(extras) found = {V(all)(0), V(all)(0)};
  if (has_value(kind))
    found.value = READ(RL_VALUE);
  if (kind == RL_VTRACE) {
    const VECTOR gamma = by_step ? READ(RL_GAMMA) : V(all)(same->gamma);
    found.e = UNLESS(RL_DONE, gamma * V(at_most)(READ(RL_RATIO), same->rho_bar));
  }
  return found;
}

TARGET RL_INLINE void FN(emit)(int kind, VECTOR x, VECTOR following, VECTOR d, FN(extras) extras, const rl_slots *at,
                               int64_t i) {
  if (kind == RL_VTRACE)
    WRITE(RL_OUT, d + extras.e * following);
  else
    WRITE(RL_OUT, x);
  if (has_value(kind))
    WRITE(RL_OUT2, x + extras.value);
}

/* Over n elements, at least LANES. The last vector covers some of the one before: outputs must not be inputs. */
#define FORWARDS for (int64_t left = n, i; i = left < LANES ? n - LANES : n - left, left > 0; left -= LANES)
#define BACKWARDS for (int64_t left = n, i; i = left < LANES ? 0 : left - LANES, left > 0; left -= LANES)

#define EXPECT(slot, ahead)                                                                                            \
  __builtin_prefetch((const char *)(intptr_t)(at->of[slot] + i * (int64_t)sizeof(REAL) - (ahead)))

/* Prefetch the inputs and outputs of a `far` job: the hardware prefetcher is not far enough ahead. */
TARGET RL_INLINE void FN(expect)(int kind, int by_step, const rl_slots *at, int64_t i) {
  EXPECT(RL_REWARD, AHEAD_BYTES);
  if (by_step)
    EXPECT(RL_GAMMA, AHEAD_BYTES);
  if (has_value(kind))
    EXPECT(RL_VALUE, AHEAD_BYTES);
  if (has_value(kind) || kind == RL_TD_LAMBDA)
    EXPECT(RL_NEXT_VALUE, AHEAD_BYTES);
  if (has_ratio(kind))
    EXPECT(RL_RATIO, AHEAD_BYTES);
  EXPECT(RL_OUT, 0);
  if (has_value(kind))
    EXPECT(RL_OUT2, 0);
}

/* Compute d and c before the chains. `slots` is copied so that no store can change it. */
TARGET RL_INLINE void FN(any_before)(int kind, int by_step, const FN(numbers) * same, const rl_slots *slots, int64_t n,
                                     int far, REAL *d, REAL *c) {
  const rl_slots here = *slots, *at = &here;
  BACKWARDS {
    if (far)
      FN(expect)(kind, by_step, at, i);
    const FN(terms) terms = FN(terms_at)(kind, by_step, same, at, i);
    V(put)(d + i, terms.d);
    V(put)(c + i, terms.c);
  }
}

/* Compute the outputs after the chains. Inputs are read again, from the cache, in place of copies. */
TARGET RL_INLINE void FN(any_after)(int kind, int by_step, const FN(numbers) * same, const rl_slots *slots, int64_t n,
                                    const REAL *d, const REAL *x) {
  const rl_slots here = *slots, *at = &here;
  BACKWARDS {
    const FN(extras) extras = FN(extras_at)(kind, by_step, same, at, i);
    FN(emit)(kind, V(get)(x + i), V(get)(x + i + 1), V(get)(d + i), extras, at, i);
  }
}

/* One step of n contiguous lanes. */
TARGET RL_INLINE void FN(any_across)(int kind, int by_step, const FN(numbers) * same, const rl_slots *slots, int64_t n,
                                     const REAL *following, REAL *x) {
  const rl_slots here = *slots, *at = &here;
  FORWARDS {
    const FN(terms) terms = FN(terms_at)(kind, by_step, same, at, i);
    const FN(extras) extras = FN(extras_at)(kind, by_step, same, at, i);
    const VECTOR then = V(get)(following + i), now = terms.d + terms.c * then;
    V(put)(x + i, now);
    FN(emit)(kind, now, then, terms.d, extras, at, i);
  }
}

#undef READ
#undef WRITE
#undef UNLESS
#undef EXPECT
#undef FORWARDS
#undef BACKWARDS

typedef struct {
  int kind, by_step;
  void (*before)(const FN(numbers) * same, const rl_slots *slots, int64_t n, int far, REAL *d, REAL *c);
  void (*after)(const FN(numbers) * same, const rl_slots *slots, int64_t n, const REAL *d, const REAL *x);
  void (*across)(const FN(numbers) * same, const rl_slots *slots, int64_t n, const REAL *following, REAL *x);
} FN(formula);

#define FORMULA(name, kind, by_step)                                                                                   \
  TARGET static void FN(name##_before)(const FN(numbers) * same, const rl_slots *slots, int64_t n, int far, REAL *d,   \
                                       REAL *c) {                                                                      \
    FN(any_before)(kind, by_step, same, slots, n, far, d, c);                                                          \
  }                                                                                                                    \
  TARGET static void FN(name##_after)(const FN(numbers) * same, const rl_slots *slots, int64_t n, const REAL *d,       \
                                      const REAL *x) {                                                                 \
    FN(any_after)(kind, by_step, same, slots, n, d, x);                                                                \
  }                                                                                                                    \
  TARGET static void FN(name##_across)(const FN(numbers) * same, const rl_slots *slots, int64_t n,                     \
                                       const REAL *following, REAL *x) {                                               \
    FN(any_across)(kind, by_step, same, slots, n, following, x);                                                       \
  }
#define ENTRY(name, kind, by_step) {kind, by_step, FN(name##_before), FN(name##_after), FN(name##_across)},
#define FORMULAS(M)                                                                                                    \
  M(plain, RL_PLAIN, 1)                                                                                                \
  M(gae, RL_GAE, 0)                                                                                                    \
  M(gae_by_step, RL_GAE, 1)                                                                                            \
  M(td, RL_TD_LAMBDA, 0)                                                                                               \
  M(td_by_step, RL_TD_LAMBDA, 1)                                                                                       \
  M(sum, RL_SUM, 0)                                                                                                    \
  M(sum_by_step, RL_SUM, 1)                                                                                            \
  M(even, RL_EVEN, 0)                                                                                                  \
  M(vtrace, RL_VTRACE, 0)                                                                                              \
  M(vtrace_by_step, RL_VTRACE, 1)

FORMULAS(FORMULA)
static const FN(formula) FN(formulas)[] = {FORMULAS(ENTRY)};

#undef FORMULA
#undef ENTRY
#undef FORMULAS

static const FN(formula) * FN(formula_of)(const rl_returns_job *job) {
  const int kind = kind_of(job), by_step = kind == RL_PLAIN || job->data[RL_GAMMA] || job->data[RL_LAMBDA];
  const FN(formula) *found = FN(formulas);
  while (found->kind != kind || found->by_step != by_step)
    found++;
  return found;
}

static FN(numbers) FN(numbers_of)(const rl_returns_job *job) {
  return (FN(numbers)){(REAL)job->gamma, (REAL)job->lambda, (REAL)(job->gamma * job->lambda), (REAL)job->rho_bar,
                       (REAL)job->c_bar};
}

/* Where only one of gamma and lambda has a tensor, the other one gets n equal numbers instead. */
static void FN(spread)(const rl_returns_job *job, int64_t n, REAL *memory, rl_slots *at) {
  if (job->kind == RL_PLAIN || !job->data[RL_GAMMA] == !job->data[RL_LAMBDA])
    return;
  const int slot = job->data[RL_GAMMA] ? RL_LAMBDA : RL_GAMMA;
  for (int64_t i = 0; i < n; i++)
    memory[i] = (REAL)(slot == RL_GAMMA ? job->gamma : job->lambda);
  at->of[slot] = (int64_t)(intptr_t)memory;
}
