/* Rows that are contiguous along time, with one gamma and one lambda: one row at a time, in registers. A prefix scan
 * (Hillis and Steele, 1986) combines the steps of a block, then one fused multiply-add brings in the value after the
 * block. A block is 64 bytes on every instruction set, so that the order of additions is the same. */

#define WIDTH ((int64_t)(JOINED_BYTES / sizeof(REAL))) /* steps of a block */
#define PARTS (JOINED_BYTES / sizeof(REAL) / LANES)    /* vectors of a block */
#define EACH                                                                                                           \
  UNROLL                                                                                                               \
  for (int k = 0; k < (int)PARTS; k++)

/* x_t = d_t + c_t x_{t+s} for all t of a block, from s = 1 to the width of the block; beyond it x is zero. */
TARGET RL_INLINE void FN(join)(VECTOR *d, VECTOR *c) {
  const VECTOR none = V(all)(0), one = V(all)(1);
  UNROLL
  for (int s = 1; s < (int)WIDTH; s *= 2) {
    EACH {
      const int whole = s / LANES, next = k + (whole ? whole : 1);
      const VECTOR then = next < (int)PARTS ? d[next] : none, weight = next < (int)PARTS ? c[next] : one;
      d[k] = V(fused)(c[k], whole ? then : V(later)(d[k], then, s), d[k]);
      c[k] = c[k] * (whole ? weight : V(later)(c[k], weight, s));
    }
  }
}

/* One row of n steps, at least a block. The last block overlaps the one before: outputs must not be inputs. */
TARGET RL_INLINE void FN(any_scan)(int kind, const FN(numbers) * same, const rl_slots *slots, int64_t n, int far) {
  ALIGNED REAL kept[WIDTH];
  uint8_t flags[JOINED_BYTES / sizeof(REAL)];
  rl_slots here = *slots;
  VECTOR after = V(all)(0);
  int64_t i = n - WIDTH;
  if (ends_itself(kind)) { /* the last step is read as done */
    memcpy(flags, (const void *)(intptr_t)(here.of[RL_DONE] + i), sizeof flags);
    flags[WIDTH - 1] = 1;
    here.of[RL_DONE] = (int64_t)(intptr_t)flags - i;
  }
  for (;;) {
    const rl_slots *at = &here;
    VECTOR d[PARTS], c[PARTS], x[PARTS], alone[PARTS];
    EACH {
      if (far)
        FN(expect)(kind, 0, at, i + k * LANES);
      const FN(terms) terms = FN(terms_at)(kind, 0, same, at, i + k * LANES);
      d[k] = alone[k] = terms.d;
      c[k] = terms.c;
    }
    FN(join)(d, c);
    EACH x[k] = V(fused)(c[k], after, d[k]);
    EACH {
      const VECTOR then = k + 1 < (int)PARTS ? x[k + 1] : after;
      FN(emit)(kind, x[k], V(later)(x[k], then, 1), alone[k], FN(extras_at)(kind, 0, same, at, i + k * LANES), at,
               i + k * LANES);
    }
    here.of[RL_DONE] = slots->of[RL_DONE];
    if (i >= WIDTH || i == 0) {
      after = V(all)(x[0][0]);
      if (i == 0)
        break;
      i -= WIDTH;
    } else {
      EACH V(put)(kept + k * LANES, x[k]);
      after = V(all)(kept[WIDTH - i]);
      i = 0;
    }
  }
}

#define SCAN(name, kind)                                                                                               \
  TARGET static void FN(name##_scan)(const FN(numbers) * same, const rl_slots *slots, int64_t n, int far) {            \
    FN(any_scan)(kind, same, slots, n, far);                                                                           \
  }
SCAN(gae, RL_GAE)
SCAN(td, RL_TD_LAMBDA)
SCAN(sum, RL_SUM)
SCAN(even, RL_EVEN)
SCAN(vtrace, RL_VTRACE)
#undef SCAN

typedef void FN(row_scan)(const FN(numbers) * same, const rl_slots *slots, int64_t n, int far);

static FN(row_scan) * FN(scan_of)(int kind) {
  return kind == RL_GAE         ? FN(gae_scan)
         : kind == RL_TD_LAMBDA ? FN(td_scan)
         : kind == RL_SUM       ? FN(sum_scan)
         : kind == RL_EVEN      ? FN(even_scan)
                                : FN(vtrace_scan);
}

/* Rows one by one, backward. */
TARGET static void FN(scan)(const rl_returns_job *job, rl_places *places) {
  const FN(numbers) same = FN(numbers_of)(job);
  const int far = !job->strided && job->outer * job->inner * job->steps * (int64_t)sizeof(REAL) > FAR_BYTES;
  const rl_slots back = times(&places->inner, -1);
  FN(row_scan) *const scan_row = FN(scan_of)(kind_of(job));
  for (int64_t o = job->outer - 1; o >= 0; o--) {
    rl_slots row = place_of(places, o, 0, job->inner - 1);
    for (int64_t i = 0; i < job->inner; i++, row = moved(row, &back))
      scan_row(&same, &row, job->steps, far);
  }
}

#undef WIDTH
#undef PARTS
#undef EACH
