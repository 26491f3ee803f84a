/* Importance ratios e^(log_pi - log_mu), where V-trace is given log-probabilities: into scratch memory, a little ahead
 * of the formulas that read them. The method is that of recurrent_math.h, without fused products: see returns_kernel.h.
 */

#define ABREAST 4 /* vectors at once: one alone would wait for each of some twenty operations in a row */
#define EACH                                                                                                           \
  UNROLL                                                                                                               \
  for (int k = 0; k < vectors; k++)

typedef C(whole) FN(integers_here) __attribute__((vector_size(LANES * sizeof(REAL))));

/* 2^n (1 + r + r^2 q(r)); first 2^(n - 1), since the largest n is one more than an exponent holds. The ends of y lie so
 * that they give infinity and zero; what would be denormal is zero, too. */
TARGET RL_INLINE void FN(some_ratios)(int vectors, const REAL *log_pi, const REAL *log_mu, REAL *to) {
  VECTOR half[ABREAST], r[ABREAST], q[ABREAST];
  const FN(integers_here) bias = (FN(integers_here))V(all)((REAL)0.5); /* holds nothing but an exponent */
  EACH {
    const VECTOR less = V(at_most)(V(get)(log_mu + k * LANES) - V(get)(log_pi + k * LANES), C(POWER_LOW));
    const VECTOR y = V(at_most)(-less, C(POWER_HIGH));
    const VECTOR rounder = V(all)(C(ROUNDER)), shifted = y * V(all)(C(LOG2_E)) + rounder, n = shifted - rounder;
    half[k] = (VECTOR)(((FN(integers_here))shifted << C(DIGITS)) + bias);
    r[k] = y - n * V(all)(C(LN2_HIGH)) - n * V(all)(C(LN2_LOW));
    q[k] = V(all)(C(TOP_POWER));
  }
#define NEXT(coefficient) EACH q[k] = q[k] * r[k] + V(all)(coefficient);
  C(POWERS)(NEXT)
#undef NEXT
  EACH V(put)(to + k * LANES, (half[k] + half[k] * (r[k] + r[k] * r[k] * q[k])) * V(all)(2));
}

/* Of n elements, at least LANES, backward through memory, to where the ratios are looked for. */
TARGET static void FN(ratios)(const rl_slots *at, int64_t n, int far) {
  const REAL *const log_pi = (const REAL *)(intptr_t)at->of[RL_LOG_PI];
  const REAL *const log_mu = (const REAL *)(intptr_t)at->of[RL_LOG_MU];
  REAL *const to = (REAL *)(intptr_t)at->of[RL_RATIO];
  int64_t i = n;
  for (; i >= ABREAST * LANES; i -= ABREAST * LANES) {
    const int64_t first = i - ABREAST * LANES;
    for (int k = 0; far && k < ABREAST; k++) {
      __builtin_prefetch((const char *)(log_pi + first + k * LANES) - AHEAD_BYTES);
      __builtin_prefetch((const char *)(log_mu + first + k * LANES) - AHEAD_BYTES);
    }
    FN(some_ratios)(ABREAST, log_pi + first, log_mu + first, to + first);
  }
  for (; i > 0; i -= LANES) { /* the last of these covers some of the one before */
    const int64_t first = i < LANES ? 0 : i - LANES;
    FN(some_ratios)(1, log_pi + first, log_mu + first, to + first);
  }
}

#undef ABREAST
#undef EACH
