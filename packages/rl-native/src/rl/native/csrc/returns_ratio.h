/* Importance ratios e^(log_pi - log_mu), where V-trace is given log-probabilities: into scratch memory, a little ahead of
 * the formulas that read them. The method is that of recurrent_math.h, without fused products; see returns_kernel.h. */

typedef C(whole) FN(integers_here) __attribute__((vector_size(LANES * sizeof(REAL))));

/* 2^n (1 + r + r^2 q(r)), 2^n in two steps: the largest n is one more than an exponent goes. Infinity and zero come from
 * ends that lie a little outside, and what would be denormal is zero as well. */
TARGET RL_INLINE VECTOR FN(ratio)(VECTOR log_pi, VECTOR log_mu) {
  const VECTOR y = V(at_most)(-V(at_most)(log_mu - log_pi, C(POWER_LOW)), C(POWER_HIGH));
  const VECTOR rounder = V(all)(C(ROUNDER)), shifted = y * V(all)(C(LOG2_E)) + rounder, n = shifted - rounder;
  const VECTOR r = y - n * V(all)(C(LN2_HIGH)) - n * V(all)(C(LN2_LOW));
  VECTOR q = V(all)(0);
#define NEXT(coefficient) q = q * r + V(all)(coefficient);
  C(POWERS)(NEXT)
#undef NEXT
  const FN(integers_here) bias = (FN(integers_here))V(all)((REAL)0.5); /* holds nothing but an exponent */
  const VECTOR half = (VECTOR)(((FN(integers_here))shifted << C(DIGITS)) + bias);
  return (half + half * (r + r * r * q)) * V(all)(2);
}

/* Of n elements, at least LANES, backward through memory, into `to`. Gives the slots with these in the place of log_pi. */
TARGET static rl_slots FN(with_ratios)(rl_slots at, int64_t n, int far, REAL *to) {
  const REAL *const log_pi = (const REAL *)(intptr_t)at.of[RL_RATIO];
  const REAL *const log_mu = (const REAL *)(intptr_t)at.of[RL_LOG_MU];
  for (int64_t left = n, i; i = left < LANES ? 0 : left - LANES, left > 0; left -= LANES) {
    if (far) {
      __builtin_prefetch((const char *)(log_pi + i) - CHUNK_BYTES);
      __builtin_prefetch((const char *)(log_mu + i) - CHUNK_BYTES);
    }
    V(put)(to + i, FN(ratio)(V(get)(log_pi + i), V(get)(log_mu + i)));
  }
  at.of[RL_RATIO] = (int64_t)(intptr_t)to;
  return at;
}
