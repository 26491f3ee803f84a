/* The chains x_t = d_t + c_t x_{t+1} of ROWS lanes whose steps lie side by side in scratch memory, [ROWS][PITCH]. One
 * chain alone would wait for each of its products, so that many run at once. Each x takes the place of its c. `a` holds
 * what follows the last step of each lane, and afterwards its first step. */

#define CHAIN_STEPS(pitch, first, end)                                                                                 \
  for (int64_t t = (end) - 1; t >= (first); t--) {                                                                     \
    UNROLL                                                                                                             \
    for (int q = 0; q < ROWS; q++)                                                                                     \
      x[q * (pitch) + t] = a[q] = d[q * (pitch) + t] + x[q * (pitch) + t] * a[q];                                      \
  }

static void chain_f32(const float *d, float *x, int64_t m, float *a) { CHAIN_STEPS(PITCH_OF(float), 0, m) }

static void chain_f64(const double *d, double *x, int64_t m, double *a) { CHAIN_STEPS(PITCH_OF(double), 0, m) }
