/* At least LANES contiguous lanes: vectors across lanes, one pass backward through time. */

#define BLOCK ((int64_t)(BLOCK_BYTES / sizeof(REAL))) /* lanes processed together */

typedef struct {
  ALIGNED REAL first[BLOCK + LANES], second[BLOCK + LANES], spread[BLOCK + LANES];
  uint8_t ones[BLOCK + LANES];
} FN(block);

/* Nothing follows the last step, as if it were done; of a plain recurrence its weight may lie outside of memory. */
static rl_slots FN(last_across)(int kind, rl_slots at, const FN(block) * b) {
  if (kind == RL_PLAIN)
    at.of[RL_GAMMA] = (int64_t)(intptr_t)b->first; /* zeros, until the step before is computed */
  else if (ends_itself(kind))
    at.of[RL_DONE] = (int64_t)(intptr_t)b->ones;
  return at;
}

TARGET static void FN(across)(const rl_returns_job *job, rl_places *places) {
  FN(block) b;
  const FN(numbers) same = FN(numbers_of)(job);
  const FN(formula) *formula = FN(formula_of)(job);
  const rl_slots back = times(&places->time, -1);
  const int64_t most = job->inner < BLOCK + LANES ? job->inner : BLOCK + LANES;
  FN(spread)(job, most, b.spread, &places->start);
  memset(b.ones, 1, (size_t)most);
  for (int64_t o = 0; o < job->outer; o++) {
    for (int64_t i = 0, n; i < job->inner; i += n) {
      n = job->inner - i < BLOCK + LANES ? job->inner - i : BLOCK; /* the last block is one of at least LANES too */
      REAL *x = b.second, *following = b.first;
      memset(following, 0, (size_t)n * sizeof(REAL));
      rl_slots at = place_of(places, o, job->steps - 1, i);
      const rl_slots last = FN(last_across)(formula->kind, at, &b);
      formula->across(&same, &last, n, following, x);
      for (int64_t t = job->steps - 2; t >= 0; t--) {
        REAL *swap = x;
        x = following;
        following = swap;
        at = moved(at, &back);
        formula->across(&same, &at, n, following, x);
      }
    }
  }
}

#undef BLOCK
