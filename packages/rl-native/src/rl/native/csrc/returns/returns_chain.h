/* The chains x_t = d_t + c_t x_{t+1} of lanes with contiguous steps in scratch memory, [ROWS][PITCH]. Several chains
 * run at once, to hide the latency of the products. Each x overwrites its c. `a` holds what
 * follows the last step of each lane, and afterwards its first step. */

#define CHUNK ((int64_t)(CHUNK_BYTES / sizeof(REAL))) /* steps of a lane at once */
#define PITCH PITCH_OF(REAL)

#define CHAIN_STEPS(rows, first, end)                                                                                  \
  for (int64_t t = (end) - 1; t >= (first); t--) {                                                                     \
    UNROLL                                                                                                             \
    for (int q = 0; q < (rows); q++)                                                                                   \
      x[q * PITCH + t] = a[q] = d[q * PITCH + t] + x[q * PITCH + t] * a[q];                                            \
  }

#if TILE == 1

/* How many chains run for `lanes` lanes: one, or 8 at a time. */
static int64_t FN(chains_of)(int64_t lanes) { return lanes == 1 ? 1 : (lanes + 7) / 8 * 8; }

/* The following values are copied, so that the compiler keeps them in registers. */
static void FN(eight)(const REAL *d, REAL *x, int64_t m, REAL *ends) {
  REAL a[8];
  memcpy(a, ends, sizeof a);
  CHAIN_STEPS(8, 0, m)
  memcpy(ends, a, sizeof a);
}

TARGET static void FN(chains)(int64_t chains, const REAL *d, REAL *x, int64_t m, REAL *a) {
  if (chains == 1)
    CHAIN_STEPS(1, 0, m)
  for (int64_t q = 0; q + 8 <= chains; q += 8)
    FN(eight)(d + q * PITCH, x + q * PITCH, m, a + q);
}

#else

/* A vector holds the same step of LANES lanes: TILE steps of each are loaded, transposed in registers, computed,
 * transposed back and stored. Several groups of LANES hide each other's latency. */
TARGET RL_INLINE void FN(groups)(int groups, const REAL *d, REAL *x, int64_t m, REAL *a) {
  const int64_t whole = m & ~(int64_t)(TILE - 1);
  CHAIN_STEPS(groups * LANES, whole, m)
  VECTOR following[ROWS / LANES];
  UNROLL
  for (int g = 0; g < groups; g++)
    following[g] = V(get)(a + LANES * g);
  for (int64_t t = whole - TILE; t >= 0; t -= TILE) {
    UNROLL
    for (int g = 0; g < groups; g++) {
      VECTOR v[TILE], w[TILE];
      V(load)(d + g * LANES * PITCH + t, v);
      V(load)(x + g * LANES * PITCH + t, w);
      for (int i = TILE - 1; i >= 0; i--)
        v[i] = following[g] = v[i] + w[i] * following[g];
      V(store)(x + g * LANES * PITCH + t, v);
    }
  }
  UNROLL
  for (int g = 0; g < groups; g++)
    V(put)(a + LANES * g, following[g]);
}

/* How many chains run for `lanes` lanes: one, or some groups. */
static int64_t FN(chains_of)(int64_t lanes) {
  return lanes == 1 ? 1 : lanes <= LANES ? LANES : lanes <= 2 * LANES ? 2 * LANES : ROWS;
}

TARGET static void FN(chains)(int64_t chains, const REAL *d, REAL *x, int64_t m, REAL *a) {
  if (chains == 1)
    CHAIN_STEPS(1, 0, m)
  else if (chains == LANES)
    FN(groups)(1, d, x, m, a);
  else if (chains == 2 * LANES && chains < ROWS)
    FN(groups)(2, d, x, m, a);
  else
    FN(groups)(ROWS / LANES, d, x, m, a);
}

#endif

#undef CHAIN_STEPS
