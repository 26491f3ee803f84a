/* Functions of vectors of float32. Included for each instruction set with FN, TARGET and LANES; see policy.c.
 * Products and sums are rounded one by one, so that every set returns the same bits. NaN stays NaN. */

TARGET RL_INLINE FN(vector) FN(all)(float x) { return x - (FN(vector)){0}; }

TARGET RL_INLINE FN(vector) FN(choose)(FN(integers) mask, FN(vector) yes, FN(vector) no) {
  return (FN(vector))((mask & (FN(integers))yes) | (~mask & (FN(integers))no));
}

TARGET RL_INLINE FN(vector) FN(between)(FN(vector) x, float low, float high) {
  const FN(vector) least = FN(all)(low), most = FN(all)(high);
  x = FN(choose)(x < least, least, x);
  return FN(choose)(x > most, most, x);
}

TARGET RL_INLINE FN(vector) FN(size)(FN(vector) x) {
  return (FN(vector))((FN(integers))x & 0x7fffffff);
}

/* 2^n and e^r - 1 with x = n ln 2 + r, as in recurrent_kernel.h; |x| below 87. */
TARGET RL_INLINE FN(vector) FN(powers)(FN(vector) x, FN(vector) *s) {
  const FN(vector) rounder = FN(all)(ROUNDER_f32), shifted = x * LOG2_E_f32 + rounder, n = shifted - rounder;
  const FN(vector) r = (x - n * LN2_HIGH_f32) - n * LN2_LOW_f32;
  FN(vector) q = FN(all)(TOP_POWER_f32);
#define NEXT(coefficient) q = q * r + coefficient;
  POWERS_f32(NEXT)
#undef NEXT
  *s = (FN(vector))(((FN(integers))shifted << DIGITS_f32) + (BIAS_f32 << DIGITS_f32));
  return r * r * q + r;
}

TARGET RL_INLINE FN(vector) FN(exp)(FN(vector) x) {
  FN(vector) s;
  const FN(vector) p = FN(powers)(FN(between)(x, -SIGMOID_END_f32, SIGMOID_END_f32), &s), y = s * p + s;
  return FN(choose)(x < FN(all)(-SIGMOID_END_f32), FN(all)(0), y);
}

TARGET RL_INLINE FN(vector) FN(expm1)(FN(vector) x) {
  FN(vector) s;
  const FN(vector) p = FN(powers)(FN(between)(x, -SIGMOID_END_f32, SIGMOID_END_f32), &s);
  return s * p + (s - 1);
}

TARGET RL_INLINE FN(vector) FN(tanh)(FN(vector) x) {
  FN(vector) s;
  const FN(vector) bounded = FN(between)(x, -TANH_END_f32, TANH_END_f32);
  const FN(vector) p = FN(powers)(bounded + bounded, &s), e = s * p + (s - 1);
  return e / (e + 2);
}

TARGET RL_INLINE FN(vector) FN(sigmoid)(FN(vector) x) {
  FN(vector) s;
  const FN(vector) p = FN(powers)(FN(between)(-x, -SIGMOID_END_f32, SIGMOID_END_f32), &s);
  return 1 / (1 + (s * p + s));
}

/* Of positive normal numbers: x = 2^n m with m from sqrt(1/2) to sqrt(2), and the polynomial of log(1 + t) of the
 * Cephes library (Moshier, 1989). */
TARGET RL_INLINE FN(vector) FN(log)(FN(vector) x) {
  const FN(integers) bits = (FN(integers))x, half = bits - 0x3f3504f3; /* sqrt(1/2) */
  const FN(integers) n = half >> 23;
  const FN(vector) t = (FN(vector))(bits - (n << 23)) - 1, e = __builtin_convertvector(n, FN(vector)), z = t * t;
  FN(vector) y = FN(all)(7.0376836292e-2f);
  y = y * t + -1.1514610310e-1f;
  y = y * t + 1.1676998740e-1f;
  y = y * t + -1.2420140846e-1f;
  y = y * t + 1.4249322787e-1f;
  y = y * t + -1.6668057665e-1f;
  y = y * t + 2.0000714765e-1f;
  y = y * t + -2.4999993993e-1f;
  y = y * t + 3.3333331174e-1f;
  y = y * t * z + e * LN2_LOW_f32;
  y = y - 0.5f * z;
  y = (t + y) + e * LN2_HIGH_f32;
  y = FN(choose)(x > FN(all)(3.4028235e38f), x, y);
  y = FN(choose)(x == FN(all)(0), FN(all)(-INFINITY), y);
  return FN(choose)((x < FN(all)(0)) | (x != x), FN(all)(NAN), y);
}

/* log(1 + e^x). */
TARGET RL_INLINE FN(vector) FN(softplus)(FN(vector) x) {
  const FN(vector) zero = FN(all)(0), above = FN(choose)(x > zero, x, zero);
  return above + FN(log)(1 + FN(exp)(-FN(size)(x)));
}

/* Abramowitz and Stegun, 1964, formula 7.1.26: within 1.5e-7. */
TARGET RL_INLINE FN(vector) FN(erf)(FN(vector) x) {
  const FN(vector) a = FN(size)(x), t = 1 / (1 + 0.3275911f * a);
  FN(vector) y = FN(all)(1.061405429f);
  y = y * t + -1.453152027f;
  y = y * t + 1.421413741f;
  y = y * t + -0.284496736f;
  y = y * t + 0.254829592f;
  y = 1 - y * t * FN(exp)(-(a * a));
  return FN(choose)(x < FN(all)(0), -y, y);
}

/* Inverse of the normal distribution function at (k + 1/2) / 2^24 of the uniform number k / 2^24: Wichura, 1988,
 * algorithm AS 241, PPND7, whose error is 1e-7 of the result. */
TARGET RL_INLINE FN(vector) FN(normal)(FN(vector) u) {
  const FN(vector) q = (u - 0.5f) + 0x1p-25f; /* exact */
  const FN(vector) r = 0.180625f - q * q;
  FN(vector) a = FN(all)(5.9109374720e1f), b = FN(all)(6.7187563600e1f);
  a = ((a * r + 1.5929113202e2f) * r + 5.0434271938e1f) * r + 3.3871327179f;
  b = ((b * r + 7.8757757664e1f) * r + 1.7895169469e1f) * r + 1;
  const FN(vector) middle = q * a / b;
  const FN(vector) tail = 0.5f - FN(size)(q), l = -FN(log)(tail);
  FN(vector) s;
  { /* sqrt is rounded exactly everywhere */
    float each[LANES];
    memcpy(each, &l, sizeof each);
    for (int i = 0; i < LANES; i++)
      each[i] = sqrtf(each[i]);
    memcpy(&s, each, sizeof each);
  }
  /* No tail is below 2^-25, so that the formula for s above 5 is not needed. */
  const FN(vector) t = s - 1.6f;
  FN(vector) c = FN(all)(1.7023821103e-1f), d = FN(all)(1.2021132975e-1f);
  c = ((c * t + 1.3067284816f) * t + 2.7568153900f) * t + 1.4234372777f;
  d = (d * t + 7.3700164250e-1f) * t + 1;
  const FN(vector) outer = FN(choose)(q < FN(all)(0), -(c / d), c / d);
  return FN(choose)(FN(size)(q) > FN(all)(0.425f), outer, middle);
}
